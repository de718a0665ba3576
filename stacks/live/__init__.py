"""What units do right now, and what their ranks have recorded."""
