"""A trace of requests, played one by one over a plan's ranks."""
