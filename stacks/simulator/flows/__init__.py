"""A day of a plan as flows, minute by minute: who comes, what serves, what waits, and what it costs."""
