"""A plan as Pulumi components."""
