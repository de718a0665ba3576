"""Marks the nodes of units that are off: free for other work, or reclaimed soon. Pure.

free        its unit is off, its pods are gone, and it is not needed for longer than the notice
reclaimed   its unit starts within the notice, or if demand goes on, or is starting
neither     its unit serves, or its pods still answer, or it does not exist

A node that several units name is free if it is for each of them.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from stacks.controller.decide import units_required_soon
from stacks.controller.situation import LiveUnit, Situation

__all__ = ["FREE", "RECLAIMED", "Mark", "Marks", "decide_marks", "lending_events"]

Mark = Literal["free", "reclaimed"]
FREE: Mark = "free"
RECLAIMED: Mark = "reclaimed"


@dataclass(frozen=True)
class Marks:
    """The free and the reclaimed nodes, both in the order of their units."""

    free: tuple[str, ...] = ()
    reclaimed: tuple[str, ...] = ()

    def lookup(self, node: str) -> Mark | None:
        """Return the mark of a node; None if it has none."""
        return FREE if node in self.free else RECLAIMED if node in self.reclaimed else None

    def keep_previous(self, nodes: Collection[str], before: "Marks") -> "Marks":
        """Return these marks, with the marks of `nodes` replaced by those in `before`."""
        return Marks(
            *(
                (*(node for node in now if node not in nodes), *(node for node in then if node in nodes))
                for now, then in ((self.free, before.free), (self.reclaimed, before.reclaimed))
            )
        )


def decide_marks(situation: Situation, now: float) -> Marks:
    """Return the marks that nodes should have at `now`, in seconds since 1970-01-01 00:00 UTC."""
    if not situation.lends_nodes:
        return Marks()
    soon = units_required_soon(situation, now)
    marks: dict[str, set[Mark | None]] = {}
    for unit in situation.units:
        for node in unit.nodes:
            marks.setdefault(node, set()).add(_mark(unit, is_soon=unit.name in soon))
    free = tuple(node for node, found in marks.items() if found == {FREE})
    return Marks(free, tuple(node for node, found in marks.items() if RECLAIMED in found and None not in found))


def lending_events(situation: Situation, before: Marks, after: Marks) -> Iterator[tuple[str, str]]:
    """Yield (reason, message) for each unit whose nodes all made the same change from the marks `before` to `after`.

    The change is that to free, or from free to reclaimed.
    """
    words = {
        (FREE, None): ("Freed", "are free"),
        (FREE, RECLAIMED): ("Freed", "are free"),
        (RECLAIMED, FREE): ("Reclaimed", "are to be left"),
    }
    for unit in situation.units:
        changed = {(after.lookup(node), before.lookup(node)) for node in unit.nodes}
        if len(changed) == 1 and (change := changed.pop()) in words:
            reason, what = words[change]
            yield reason, f"the {len(unit.nodes)} nodes of {unit.name} {what}"


def _mark(unit: LiveUnit, *, is_soon: bool) -> Mark | None:
    if unit.replicas is None or (unit.has_pods and not unit.is_on):
        return None
    if unit.is_on:
        return None if unit.is_ready else RECLAIMED
    return RECLAIMED if is_soon else FREE
