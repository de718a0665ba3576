"""Epochs: an expert map that changes while its unit serves."""
