"""What a day costs and earns."""
