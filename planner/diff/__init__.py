"""Compare two plans: what changing from one to the other does to pods, experts, nodes, speed and cost."""
