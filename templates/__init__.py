"""YAML with holes: see README.md. No Python lives here; this file makes the folder a package that is installed."""
