"""A plan's day on real dates.

clock.py   the units that are on at an instant, and when that changes
runs.py    the runs of units, and the acts that carry them out
"""
