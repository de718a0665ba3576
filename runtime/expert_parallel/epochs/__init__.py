"""Epochs: expert maps that change in service."""
