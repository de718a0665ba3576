"""What was played, as text, as JSON and as a picture."""
