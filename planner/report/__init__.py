"""The report of a plan: its figures as rows, text and an HTML page."""
