"""Compare values of specs and manifests by type too.

Python takes `True` for 1 and 8 for `8.0`. On a command line or in a manifest they are different texts.
"""

from typing import Any

from planner.spec.section import Section


def are_same(old: Any, new: Any) -> bool:
    """Return whether two values and all values in them are equal and of the same types, in any order of keys."""
    if type(old) is not type(new):
        return False
    if isinstance(old, Section):
        return are_same(old.__dict__, new.__dict__)
    if isinstance(old, dict):
        return old.keys() == new.keys() and all(are_same(value, new[key]) for key, value in old.items())
    if isinstance(old, list):
        return len(old) == len(new) and all(map(are_same, old, new))
    return bool(old == new)
