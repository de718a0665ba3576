"""The operations of a model, chosen once when it is built."""
