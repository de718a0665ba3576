"""The frozen result: as JSON with a digest, as launch files."""
