"""What ranks measure, and the expert maps that follow."""
