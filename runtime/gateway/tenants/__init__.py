"""Callers: who may ask, how much, and in which order."""
