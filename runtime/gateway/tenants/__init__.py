"""Callers: who may ask, how much, whose turn it is."""
