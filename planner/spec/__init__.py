"""What a user writes: fields, YAML, units, names."""
