"""The `experts` command: an expert map from measured loads, without a spec."""
