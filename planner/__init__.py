"""The planner: a spec in, a plan out, the same bytes every time. Start at `compiler.py`."""
