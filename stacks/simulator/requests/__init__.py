"""A trace of requests, simulated one by one on a plan's ranks."""
