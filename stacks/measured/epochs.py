"""The epoch that a unit is in, and the document of the next one (`runtime/expert_parallel/epochs/document.py`).

Only a unit's ranks know what it is in: files hold what it should follow next, or at its next start.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from planner.facts.digest import digest_of

__all__ = ["Ending", "InService", "Rows", "fetch_epoch", "next_document", "read_in_service"]

MAX_EXPERTS = 2**12  # assumed: as in `recorded.py`
MAX_PAGE_BYTES = 2**26  # as for the document of an epoch
Rows = Sequence[Sequence[int]]  # a map: [num_moe_layers][num_physical_experts]


@dataclass(frozen=True)
class InService:
    """The number of a unit's epoch, its map, the unit's digest and the epoch's. In epoch 0 the map is the plan's."""

    epoch: int
    rows: Rows
    unit_digest: str
    digest: str


@dataclass(frozen=True)
class Ending:
    """The outcome of a switch: the epoch that a unit is in now, by number and digest, and why it is not the next."""

    number: int
    digest: str
    reason: str | None = None


class _Standing(BaseModel, strict=True):
    """What a rank says of the epoch that its unit is in."""

    number: Annotated[int, Field(ge=0, lt=2**53)]
    unit_digest: str
    digest: str
    physical_to_logical: list[list[Annotated[int, Field(ge=0, lt=MAX_EXPERTS)]]]


def fetch_epoch(metrics: str, unit: str, timeout_s: float) -> dict[str, Any]:
    """Return what a unit's rank with metrics at the URL `metrics` says of the unit's epoch: its page `/epoch`.

    Raises OSError or ValueError if it does not answer, or answers for another unit.
    """
    import urllib3  # which takes longer to load than all else here, as `samples` does

    from stacks.measured.samples import fetch

    url = f"{metrics.removesuffix('/metrics')}/epoch"
    try:
        page = json.loads(fetch(url, timeout_s=timeout_s, max_bytes=MAX_PAGE_BYTES))
    except urllib3.exceptions.HTTPError as error:
        raise ValueError(f"{url} does not answer: {type(error).__name__}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{url} cannot be read: {error}") from None
    if not isinstance(page, dict) or page.get("unit") != unit:
        raise ValueError(f"{url} shows no epoch of {unit}")
    return page


def read_in_service(said: object) -> InService:
    """Return the map in service from what a rank says of its unit's epoch.

    Raises ValueError if that is no epoch: a page may come from anybody who has a pod's address.
    """
    try:
        standing = _Standing.model_validate(said)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    return InService(standing.number, standing.physical_to_logical, standing.unit_digest, standing.digest)


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
