"""Metrics, log and traces for operators."""
