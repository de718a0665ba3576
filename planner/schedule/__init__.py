"""The day: which units are on when, from traffic or as written.

A step is a part of the day, a state the units on in it.
"""
