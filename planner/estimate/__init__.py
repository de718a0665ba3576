"""Estimates of speed, link traffic, failures and coverage."""
