"""A day of a plan, played through before it is lived: minute by minute as flows, or request by request."""
