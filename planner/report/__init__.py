"""The report of a plan: its figures as one table of rows, as text, and as a page."""
