"""What runs in a cluster right now."""
