"""The cluster as it is against a plan: every obstacle at once, each with what to do."""
