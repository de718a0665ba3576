"""The prefix cache's tiers."""
