"""Estimates of speed, failures and coverage."""
