"""Units in a cluster that follow the plan's day by themselves."""
