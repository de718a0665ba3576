"""The cost and income of a day, and each phase's load."""
