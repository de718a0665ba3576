"""Pulumi's protocol over `stacks.kube`: our provider."""
