"""The `experts` command: a load matrix and sizes to a map, without a spec."""
