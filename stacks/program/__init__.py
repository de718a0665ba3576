"""A plan as Pulumi resources."""
