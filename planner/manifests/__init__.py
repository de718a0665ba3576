"""A plan as Kubernetes YAML, in a folder."""
