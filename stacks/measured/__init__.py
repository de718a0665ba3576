"""What ranks measure, and resulting maps."""
