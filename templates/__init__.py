"""YAML with holes: one file a kind of object, filled by `planner/manifests`.

No Python lives here. This file makes the folder a package that is installed; README.md says what fills the holes.
"""
