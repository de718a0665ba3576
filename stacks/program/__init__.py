"""A plan as a Pulumi component."""
