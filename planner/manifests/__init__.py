"""Render a plan as Kubernetes manifests, and write them into a folder."""
