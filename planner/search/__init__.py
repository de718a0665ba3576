"""Layouts tried and kept: what `auto` becomes, and what would make an infeasible spec feasible."""
