"""A plan as a Pulumi component."""

__all__ = ["TOKEN"]

TOKEN = "tidemill:index:Deployment"  # noqa: S105  a Pulumi type, no secret
