"""Search for values of `auto`, and for changes that make infeasible specs feasible."""
