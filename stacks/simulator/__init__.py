"""A plan's day, simulated before anything is deployed: minute by minute as flows, or request by request."""
