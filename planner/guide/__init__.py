"""The commands `explain` (a rule or a field) and `init` (a first spec)."""
