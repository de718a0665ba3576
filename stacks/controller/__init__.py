"""The controller, which starts and stops units in a cluster as the plan's day has it."""
