"""The prefix cache in host memory and on a disk."""
