"""Compare two plans: effects on pods, experts, nodes, speed and cost."""
