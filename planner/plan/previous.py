"""A plan of before, as far as a new one looks at it: what it deploys, and its expert maps.

A map of other sizes than the new plan's is no start for its maps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from planner.facts.terms import Phase
from planner.layout.layout import PhaseLayout

if TYPE_CHECKING:
    from planner.plan.deployable import Deployable
    from planner.plan.shapes import Rows

__all__ = ["PreviousPlan", "read_previous"]


@dataclass(frozen=True)
class PreviousPlan:
    """What it deploys, and the phases' maps."""

    deployable: "Deployable"
    maps: "Mapping[Phase, Rows]"

    @property
    def nodes(self) -> Mapping[str, Sequence[str]]:
        """The nodes of its units, by name."""
        return {unit.name: unit.nodes for unit in self.deployable.units}

    def map_for(self, layout: PhaseLayout, num_layers: int) -> "Rows | None":
        """The phase's map, where it has as many layers and slots and holds the same experts; else None."""
        rows = self.maps.get(layout.phase, [])
        experts = set(range(layout.num_logical_experts))
        fits = len(rows) == num_layers and all(
            len(row) == layout.num_physical_experts and set(row) == experts for row in rows
        )
        return rows if fits else None


def read_previous(path: Path) -> PreviousPlan:
    """The plan in the file at `path`. Raises CallError when it is none."""
    from planner.plan.loaded import read_plan  # imported late: a fresh plan needs none of it

    plan = read_plan(path)
    return PreviousPlan(plan.deployable, plan.maps)
