"""The epoch that a unit is in, and the document of the next one (`runtime/expert_parallel/epochs/document.py`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from planner.facts.digest import digest_of

__all__ = ["Ending", "InService", "Rows", "next_document", "read_in_service"]

MAX_EXPERTS = 2**12  # assumed: as in `recorded.py`
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


class _Standing(BaseModel, strict=True):
    """What ranks and their files say of the epoch that a unit is in."""

    number: Annotated[int, Field(ge=0, lt=2**53)]
    unit_digest: str
    physical_to_logical: list[list[Annotated[int, Field(ge=0, lt=MAX_EXPERTS)]]]


def read_in_service(said: object) -> InService:
    """Return the map in service from what a rank, or a file beside its launch file, says of its epoch.

    Raises ValueError if that is no epoch: a page may come from anybody who has a pod's address, and a file be torn.
    """
    try:
        standing = _Standing.model_validate(said)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    return InService(standing.number, standing.physical_to_logical, standing.unit_digest)


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
