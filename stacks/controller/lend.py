"""Nodes of units that are off: which of them are free for other work, and which are to be left soon. Pure.

free        its unit is off, its pods are gone, and nobody wants it for longer than the notice
reclaimed   its unit starts within the notice, or if demand goes on, or is starting
neither     its unit serves, or its pods still answer, or nobody has made it
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from stacks.controller.decide import units_soon
from stacks.controller.situation import LiveUnit, Situation

__all__ = ["FREE", "RECLAIMED", "Mark", "Marks", "lent", "marks_at"]

Mark = Literal["free", "reclaimed"]
FREE: Mark = "free"
RECLAIMED: Mark = "reclaimed"


@dataclass(frozen=True)
class Marks:
    """Nodes by their mark, each in the order of units."""

    free: tuple[str, ...] = ()
    reclaimed: tuple[str, ...] = ()

    def of(self, node: str) -> Mark | None:
        """Return the mark of a node."""
        return FREE if node in self.free else RECLAIMED if node in self.reclaimed else None


def marks_at(situation: Situation, now: float) -> Marks:
    """Return how nodes have to be marked at `now`, in seconds since 1970-01-01 00:00 UTC."""
    soon = units_soon(situation, now) if situation.lends_nodes else set()
    marked = [(unit, _mark(unit, is_soon=unit.name in soon)) for unit in situation.units]
    return Marks(*(tuple(_nodes(marked, mark)) for mark in (FREE, RECLAIMED)))


def lent(situation: Situation, before: Marks, after: Marks) -> Iterator[tuple[str, str]]:
    """Yield the reason and the words of what a change of marks means, unit by unit."""
    words = {
        (FREE, None): ("Freed", "are free"),
        (FREE, RECLAIMED): ("Freed", "are free"),
        (RECLAIMED, FREE): ("Reclaimed", "are to be left"),
    }
    for unit in situation.units:
        changed = [(after.of(node), before.of(node)) for node in unit.nodes]
        if changed and changed[0] in words:
            reason, what = words[changed[0]]
            yield reason, f"the {len(unit.nodes)} nodes of {unit.name} {what}"


def _mark(unit: LiveUnit, *, is_soon: bool) -> Mark | None:
    if unit.replicas is None or (unit.has_pods and not unit.is_on):
        return None
    if unit.is_on:
        return None if unit.is_ready else RECLAIMED
    return RECLAIMED if is_soon else FREE


def _nodes(marked: Sequence[tuple[LiveUnit, Mark | None]], mark: Mark) -> Iterator[str]:
    for unit, found in marked:
        if found == mark:
            yield from unit.nodes
