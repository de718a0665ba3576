"""A plan of before, as far as a new one looks at it: where its units are, and its expert maps.

Only these keys of the file are read; a map of other sizes than the new plan's is no start for its maps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from planner.errors import CallError, Violation
from planner.parallelism import PhaseLayout

__all__ = ["PreviousPlan", "read_previous"]

Rows = list[list[int]]  # [layers][slots]: the expert there


@dataclass(frozen=True)
class PreviousPlan:
    """Where units were, by name, and the maps by phase."""

    nodes: Mapping[str, Sequence[str]]
    maps: Mapping[str, Rows]

    def map_for(self, layout: PhaseLayout, num_layers: int) -> Rows | None:
        """The phase's map, where it has as many layers and slots and holds the same experts; else None."""
        rows = self.maps.get(layout.phase, [])
        experts = set(range(layout.num_logical_experts))
        fits = len(rows) == num_layers and all(
            len(row) == layout.num_physical_experts and set(row) == experts for row in rows
        )
        return rows if fits else None


class _Unit(BaseModel):
    name: str
    nodes: list[str]
    phase: str = ""
    expert_map: str = ""


class _Map(BaseModel):
    physical_to_logical: Rows


class _Plan(BaseModel):
    units: list[_Unit]
    expert_maps: dict[str, _Map] = {}


def read_previous(path: Path) -> PreviousPlan:
    """The plan in the file at `path`. Raises CallError when it is none."""
    try:
        plan = _Plan.model_validate_json(path.read_bytes())
    except OSError as error:
        raise _no_plan(path, "S905 must be a readable plan", error.strerror or str(error)) from None
    except ValidationError:
        raise _no_plan(path, "S906 must be JSON of tidemill plan", "it has no units with nodes") from None
    maps = {
        unit.phase: plan.expert_maps[unit.expert_map].physical_to_logical
        for unit in plan.units
        if unit.expert_map in plan.expert_maps
    }
    return PreviousPlan({unit.name: unit.nodes for unit in plan.units}, maps)


def _no_plan(path: Path, rule: str, reason: str) -> CallError:
    return CallError([Violation("", None, rule, reason, "write one with tidemill plan -o").at(str(path))])
