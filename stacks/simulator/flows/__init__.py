"""A plan's day simulated as flows, minute by minute: requests that come and wait, units that serve, and the cost."""
