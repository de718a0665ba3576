"""The shapes of a plan's JSON that are looked at when it is read back, and what is said of one that is another.

Keys that nobody here reads have no shape: they are covered by the plan's digests.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import ErrorDetails

from planner.facts.terms import Phase
from planner.layout.unit import Unit

__all__ = [
    "GatewayDocumentShape",
    "OtherDaysShape",
    "PlanShape",
    "Rows",
    "ScheduleShape",
    "StepShape",
    "UnitDocumentShape",
    "UnitShape",
    "misshapen",
]

WANTED = {
    "list_type": "a list",
    "string_type": "text",
    "string_pattern_mismatch": "a digest, or a rule with its id",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "literal_error": "a word that belongs there",
    "union_tag_invalid": "of a kind that is known",
    "greater_than_equal": "that large",
    "less_than_equal": "that small",
    "too_short": "that long",
}

Rows = list[list[int]]  # [layers][slots]: the expert there
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class _Part(BaseModel):
    """A part of the JSON. Keys that nobody here reads are not looked at."""

    model_config = ConfigDict(strict=True)


class UnitShape(_Part):
    """A unit, as it is placed."""

    name: str
    nodes: Annotated[list[str], Field(min_length=1)]
    phase: Phase
    expert_map: str
    ranks: Annotated[int, Field(ge=1)]
    unit_digest: str
    why: str


class _MapShape(_Part):
    physical_to_logical: Rows


class _NamedMapShape(_Part):
    sha256: str
    first_layer: Annotated[int, Field(ge=0)] = 0  # of other engines


class _KvCacheShape(_Part):
    bytes_per_token: Annotated[int, Field(ge=1)]


class _CheckpointShape(_Part):
    model_config = ConfigDict(extra="forbid")

    uri: str
    config_digest: Digest | None
    weights_digest: Digest | None


class UnitDocumentShape(_Part):
    """What the ranks of a unit read when they start."""

    kind: Literal["unit", "sglang", "vllm"]
    expert_map: _NamedMapShape | None = None  # of an engine that reads none
    model_type: str | None = None  # of other engines
    quant_method: str | None = None  # likewise, where it is not the usual one of the precision
    kv_cache: _KvCacheShape
    unit_digest: Digest
    launch_digest: Digest


class GatewayDocumentShape(_Part):
    """What the gateway reads when it starts."""

    kind: Literal["gateway"]
    checkpoint: _CheckpointShape | None
    launch_digest: Digest


class _PhaseShape(_Part):
    num_logical_experts: Annotated[int, Field(ge=1)]
    num_physical_experts: Annotated[int, Field(ge=1)]


class _MemoryShape(_Part):
    kv_tokens: Annotated[int, Field(ge=1)]
    kv_bytes_per_token: Annotated[int, Field(ge=1)]
    kv_bytes_per_request: Annotated[int, Field(ge=0)] = 0
    weights_bytes: Annotated[int, Field(ge=1)]
    gpu_bytes: Annotated[int, Field(ge=1)]


class _WarningShape(_Part):
    path: str
    value: Any
    rule: Annotated[str, Field(pattern=r"^W[0-9]{3} ")]
    reason: str
    fix: str
    changes: list[dict[str, Any]] = []


class StepShape(_Part):
    """A time of a day, and the units that are on from then."""

    at: str
    units: list[str]


class OtherDaysShape(_Part):
    """Days that go otherwise than most."""

    days: list[str]
    steps: list[StepShape]


class ScheduleShape(_Part):
    """The states of each day."""

    steps: list[StepShape]
    other_days: list[OtherDaysShape] = []


class PlanShape(_Part):
    """The keys in the order in which their mistakes are told."""

    units: list[UnitShape]
    expert_maps: dict[str, _MapShape]
    launch_documents: dict[str, Annotated[UnitDocumentShape | GatewayDocumentShape, Field(discriminator="kind")]]
    name: str
    spec: dict[str, Any]
    digest: Digest
    document_digest: Digest
    spec_digest: Digest
    inputs: dict[str, Digest]
    phases: dict[Phase, _PhaseShape]
    memory: dict[Phase, _MemoryShape]
    runnable: bool
    why_not: list[str]
    warnings: list[_WarningShape]
    schedule: ScheduleShape | None = None

    @property
    def placed_units(self) -> tuple[Unit, ...]:
        """Return the units as placed, numbered in their phases."""
        return tuple(_placed(self.units))


def misshapen(detail: ErrorDetails) -> str:
    """Say which part of a plan has another shape than `detail` expected."""
    *parents, last = map(str, detail["loc"])
    if detail["type"] in ("missing", "union_tag_not_found"):
        missing = last if detail["type"] == "missing" else "kind"
        inside = parents if detail["type"] == "missing" else [*parents, last]
        return f"{'.'.join(inside) or 'it'} has no {missing}"
    if detail["type"] == "extra_forbidden":
        return f"{'.'.join([*parents, last])} is a key that this version of tidemill does not have"
    return f"{'.'.join([*parents, last])} is not {WANTED.get(detail['type'], 'an object')}"


def _placed(units: Iterable[UnitShape]) -> Iterator[Unit]:
    counts: dict[Phase, int] = {}
    for unit in units:
        index = counts.get(unit.phase, 0)
        counts[unit.phase] = index + 1
        yield Unit(unit.name, unit.phase, index, tuple(unit.nodes), unit.ranks // len(unit.nodes), unit.why)
