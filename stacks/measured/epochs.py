"""The epoch that a unit is in, and the document of the next one (`runtime/expert_parallel/epochs/document.py`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.facts.digest import digest_of

__all__ = ["Ending", "InService", "Rows", "next_document"]

Rows = Sequence[Sequence[int]]  # a map: [num_moe_layers][num_physical_experts]


@dataclass(frozen=True)
class InService:
    """The number of a unit's epoch, its map, and the unit's digest. In epoch 0 the map is the plan's."""

    epoch: int
    rows: Rows
    unit_digest: str


@dataclass(frozen=True)
class Ending:
    """The outcome of a switch: the number of the epoch that a unit is in now, and why that is not the next one."""

    number: int
    reason: str | None = None


def next_document(standing: Mapping[str, Any], physical_to_logical: Rows) -> dict[str, Any]:
    """Return the document that puts a unit on the map `physical_to_logical`.

    `standing` is what the unit's first rank says of its present epoch.
    """
    document = {
        "version": 1,
        "unit": standing["unit"],
        "unit_digest": standing["unit_digest"],
        "number": standing["number"] + 1,
        "predecessor": standing["digest"],
        "places": standing["places"],
        "physical_to_logical": physical_to_logical,
    }
    return {"digest": digest_of(document)} | document
