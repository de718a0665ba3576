"""Every rule and warning: one file a section of the spec."""
