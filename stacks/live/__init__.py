"""What a plan's units do in a cluster right now."""
