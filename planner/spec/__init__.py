"""What is written, and what is wrong with it."""
