"""Compares a cluster with a plan: it reports every obstacle at once, each with a fix."""
