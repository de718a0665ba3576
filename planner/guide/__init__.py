"""The commands `explain`, which describes a rule or a field, and `init`, which writes a first spec."""
