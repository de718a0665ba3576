"""The report of a plan: its figures as rows, text, an HTML page and pictures."""
