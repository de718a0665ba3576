"""A request from HTTP to tokens and back."""
