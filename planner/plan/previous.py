"""A plan of before, as far as a new one looks at it: where its units are, and its expert maps.

Only these keys of the file, and its version, are read. A map of other sizes than the new plan's is no start for its
maps; a plan of another version is refused, for its keys may mean something else.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from planner.layout.layout import PhaseLayout
from planner.plan.plan import PLAN_VERSION
from planner.problems.errors import CallError, Violation

__all__ = ["PreviousPlan", "read_previous"]

NO_PLAN = "S906 must be JSON of tidemill plan"
WANTED = {"list_type": "a list", "string_type": "text", "int_type": "a whole number"}

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


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)


class _Unit(_Part):
    name: str
    nodes: list[str]
    phase: str = ""
    expert_map: str = ""


class _Map(_Part):
    physical_to_logical: Rows


class _Plan(_Part):
    units: list[_Unit]
    expert_maps: dict[str, _Map] = {}


def read_previous(path: Path) -> PreviousPlan:
    """The plan in the file at `path`. Raises CallError when it is none."""
    data = _document(path)
    if type(data["version"]) is not int or data["version"] != PLAN_VERSION:
        rule, fix = f"S907 must be a plan of version {PLAN_VERSION}", "plan the previous spec again with this tidemill"
        raise _no_plan(path, rule, f"it has version {json.dumps(data['version'])[:20]}", fix)
    try:
        plan = _Plan.model_validate(data)
    except ValidationError as error:
        raise _no_plan(path, NO_PLAN, _reason(error.errors(include_url=False)[0])) from None
    maps = {
        unit.phase: plan.expert_maps[unit.expert_map].physical_to_logical
        for unit in plan.units
        if unit.expert_map in plan.expert_maps
    }
    return PreviousPlan({unit.name: unit.nodes for unit in plan.units}, maps)


def _document(path: Path) -> dict[str, Any]:
    """The JSON object in the file, which has a version."""
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise _no_plan(path, "S905 must be a readable plan", error.strerror or str(error)) from None
    except (ValueError, RecursionError):
        raise _no_plan(path, NO_PLAN, "it cannot be parsed as JSON") from None
    if not isinstance(data, dict) or "version" not in data:
        raise _no_plan(path, NO_PLAN, "it has no version" if isinstance(data, dict) else "it is no JSON object")
    return data


def _reason(detail: ErrorDetails) -> str:
    """The first thing that is not as in a plan."""
    *parents, last = map(str, detail["loc"])
    if detail["type"] == "missing":
        return f"{'.'.join(parents) or 'it'} has no {last}"
    return f"{'.'.join([*parents, last])} is not {WANTED.get(detail['type'], 'an object')}"


def _no_plan(path: Path, rule: str, reason: str, fix: str = "write one with tidemill plan -o") -> CallError:
    return CallError([Violation("", None, rule, reason, fix).at(str(path))])
