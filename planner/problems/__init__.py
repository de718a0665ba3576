"""What went wrong, and how to mend it."""
