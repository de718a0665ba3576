"""A plan's day simulated as flows, minute by minute: requests, units and cost."""
