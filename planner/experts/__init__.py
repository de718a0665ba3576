"""The `experts` command: an expert map from measured loads and sizes, without a spec."""
