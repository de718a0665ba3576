"""What a rule or a field is, and a first spec: `explain` and `init`."""
