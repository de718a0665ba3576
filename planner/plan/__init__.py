"""The finished plan: its JSON with a digest, and its launch files."""
