"""The report of a plan: its figures as rows, and these rows as text and as an HTML page."""
