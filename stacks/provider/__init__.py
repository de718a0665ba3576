"""Tidemill's Pulumi provider: any Kubernetes object, by server-side apply."""
