"""Ranges of nodes, such as `gpu-[00-03]` of Slurm or `gpu-{00..03}` of a shell, as the nodes that they stand for.

A spec lists nodes one by one, so a range is a mistake, and this makes its fix.
"""

import re
from typing import Any

from planner.problems.fix import Fix

__all__ = ["instead_of_ranges", "node_range"]

RANGE = re.compile(
    r"(?P<before>[^\[\]{}]*)(?:\[(?P<slurm>[0-9,-]+)\]|\{(?P<shell>[0-9]+\.\.[0-9]+)\})(?P<after>[^\[\]{}]*)"
)
PART = re.compile(r"(?P<first>[0-9]{1,6})(?:-(?P<last>[0-9]{1,6}))?")
MAX_NODES = 4096  # of one range; more are a mistake


def node_range(written: Any) -> list[str]:
    """Return the names that a range stands for; none where `written` is no range."""
    match = RANGE.fullmatch(written) if isinstance(written, str) else None
    if match is None:
        return []
    parts = [PART.fullmatch(each) for each in (match["slurm"] or match["shell"].replace("..", "-")).split(",")]
    spans = [(each["first"], each["last"] or each["first"]) for each in parts if each]
    count = sum(int(last) - int(first) + 1 for first, last in spans)
    if len(spans) < len(parts) or not 0 < count <= MAX_NODES or any(int(last) < int(first) for first, last in spans):
        return []
    numbers = [str(each).zfill(len(first)) for first, last in spans for each in range(int(first), int(last) + 1)]
    return [f"{match['before']}{number}{match['after']}" for number in numbers]


def instead_of_ranges(nodes: Any, expanded: list[str]) -> Fix:
    """Return the fix of a range that stands for the names `expanded`, with all ranges of `nodes` taken apart."""
    listed = [each for node in (nodes if isinstance(nodes, list) else [nodes]) for each in _nodes_of(node)]
    names = ", ".join(expanded) if len(expanded) <= 4 else f"{expanded[0]} to {expanded[-1]}"
    words = f"write {len(expanded)} nodes with the names {names}"
    return Fix(words, ({"cluster.nodes": listed},))


def _nodes_of(node: Any) -> list[Any]:
    """Return the nodes that one item of the list stands for."""
    if isinstance(node, str):
        return [{"name": name} for name in node_range(node) or [node]]
    names = node_range(node.get("name")) if isinstance(node, dict) else []
    return [{**node, "name": name} for name in names] or [node]
