"""Findings in four parts, their fixes, and errors that carry findings."""
