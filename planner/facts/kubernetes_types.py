"""The fields of Kubernetes' objects and their types, from the schemas of one version and of LeaderWorkerSet.

A type is one of this table, or a plain one (`text`, `bool`, `int32`, `int64`, `int or text`, `quantity`). `[T]` is a
list of T and `{T}` a mapping of any keys to T. Empty is the type of what may be anything.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources

__all__ = ["VERSION", "kubernetes_types"]

FIELDS = "kubernetes_fields.json"  # written by `python -m tests.docs`
VERSION = "1.37"


@cache
def kubernetes_types() -> Mapping[str, Mapping[str, str]]:
    """Return type -> field -> its type."""
    types: dict[str, dict[str, str]] = json.loads(resources.files("planner.facts").joinpath(FIELDS).read_bytes())
    return types
