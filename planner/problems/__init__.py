"""What went wrong, in four parts, and how to mend it."""
