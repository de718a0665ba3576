"""The `experts` command: measured loads and sizes to an expert map, without a spec."""
