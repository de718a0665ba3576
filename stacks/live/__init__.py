"""The present state of units, and the loads that their ranks have recorded."""
