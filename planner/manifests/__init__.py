"""Render a plan as Kubernetes manifests in a folder."""
