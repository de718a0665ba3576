"""Callers of the gateway: their API keys and limits, and the order in which their requests are served."""
