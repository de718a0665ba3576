"""The report of a plan: its figures as one table of rows, and as text."""
