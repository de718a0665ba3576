"""The frozen result: as JSON with a digest, as text, as launch files."""
