"""A plan's figures as one table of rows, and that table as text."""
