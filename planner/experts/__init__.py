"""The `experts` command: make an expert map from measured loads and sizes, without a spec."""
