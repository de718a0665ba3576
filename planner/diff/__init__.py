"""What the change from one plan to another does."""
