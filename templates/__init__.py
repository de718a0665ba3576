"""Texts with holes: YAML, one file a kind of object, filled by `planner/manifests`; the HTML page of a plan.

No Python lives here. This file makes the folder a package that is installed; README.md says what fills the holes.
"""
