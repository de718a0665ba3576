"""The prefix cache on a disk."""
