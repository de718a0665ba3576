"""The plan sections for estimates and for alternatives that were considered. Nothing that runs depends on them.

Keys and attributes follow the conventions of `sections.py`.
"""

import operator
from typing import Annotated, Literal

from pydantic import AliasPath, Field

from planner.estimate.gpu_loads import GpuLoads
from planner.estimate.throughput.calibration import Correction
from planner.expert_map.types import FrontPoint, Policy
from planner.facts.calendar import entry_of
from planner.facts.day import DAY_MINUTES
from planner.facts.part import ClockTime, Digest, Maybe, Part, Rounded
from planner.facts.terms import Phase
from planner.search.ranked import PhaseSearch

ORDINARY = "ordinary"  # the kind of day that no entry of the spec names


class Moves(Part):
    """The slots that differ from the previous plan's map: their number and their bytes."""

    moved_slots: int
    bytes: int | None


class PolicyChoice(Part):
    """The placement policy of a map, the reason for it, and the alternatives that were considered."""

    policy: Policy
    policy_reason: str
    front: tuple[FrontPoint, ...]
    dispatch: FrontPoint | None


class Balance(PolicyChoice):
    """How evenly a phase uses its expert map. Phases may share one map."""

    expert_map: Digest
    moves: Moves | None
    staging_bytes: Maybe[int] = None  # of a rank, while its unit changes its map in service
    gpu_loads: Maybe[GpuLoads] = None


class Range(Part):
    """A predicted figure with the low and high ends of its range."""

    low: Rounded
    mid: Rounded
    high: Rounded


class Point(Part):
    """The operating point of a prediction: the size of steps and requests."""

    derived: bool  # computed from limits, because the spec gives no point
    requests: Maybe[float] = None
    kv_tokens: Maybe[float] = None
    step_tokens: Maybe[float] = None
    prompt_tokens: Maybe[float] = None
    output_tokens: Maybe[float] = None
    cache_hit_rate: Maybe[float] = None
    cache_read_gbps: Maybe[float] = None
    utilisation: Maybe[float] = None


class Drafts(Part):
    """The time that the MTP module takes in a step and, except in prefill, the acceptance rate of its drafts."""

    draft_tokens: int
    ms: Rounded
    acceptance_rate: Maybe[float] = None
    tokens_per_step_and_request: Maybe[Rounded] = None


class CacheReads(Part):
    """Reads of cached prompt KV: their rate on a node, and the time that they add to a prompt."""

    bytes_per_s_per_node: Rounded
    ms_per_prompt: Rounded


class EvidenceSummary(Part):
    """The evidence behind a prediction, in words."""

    family: str
    why: str
    scaled: tuple[str, ...]  # GPU constants scaled from another GPU's
    chance: str  # how likely the real speed is within the range


class Miss(Part):
    """A stretch of a day in which traffic asks for so much that a promise is missed."""

    at: ClockTime
    minutes: int
    predicted: Rounded | None  # ms; None if units cannot serve all of the traffic, so that requests wait or are refused


class Promise(Part):
    """An SLO of the spec, the predicted latency, and whether it is met at expected, slowest and fastest speed.

    These are for the operating point. `misses` has the hours in which a day's traffic asks for more, for each kind of
    day: a weekday, a date or `ordinary`.
    """

    promised: float
    predicted: Rounded
    met: bool
    met_at_slowest: bool
    met_at_fastest: bool
    misses: Maybe[dict[str, tuple[Miss, ...]]] = None

    def misses_on(self, day: str) -> tuple[Miss, ...]:
        """Return the misses on a weekday or date: its own, for a date else its weekday's, else an ordinary day's."""
        misses = self.misses or {}
        entry = None if day == ORDINARY else entry_of(day, [(name,) for name in misses])
        return misses.get(ORDINARY, ()) if entry is None else list(misses.values())[entry]


class Performance(Part):
    """A phase's speed at its operating point, or the reason why it is unknown."""

    not_predicted: Maybe[str] = None
    engine: Maybe[str] = None
    operating_point: Maybe[Point] = None
    tokens_per_s_per_gpu: Maybe[Range] = None
    tokens_per_s_per_node: Maybe[Range] = None
    tokens_per_s_per_unit: Maybe[Range] = None
    tokens_per_s_per_user: Maybe[Range] = None
    tokens_per_s_per_node_with_hits: Maybe[Range] = None
    latency_ms: Maybe[Range] = None
    tpot_ms: Maybe[Range] = None
    tpot_p99_ms: Maybe[Range] = None
    ttft_ms: Maybe[Range] = None
    ttft_p99_ms: Maybe[Range] = None
    peak_ttft_ms: Maybe[Rounded] = None  # mean in an ordinary day's fullest hour, if above the point's load
    peak_tpot_ms: Maybe[Rounded] = None
    queued_steps: Maybe[Rounded] = None  # mean wait of a prompt; None at utilisation 1
    kv_transfer_ms: Maybe[Rounded] = None
    step_ms: Maybe[Rounded] = None
    kv_tokens_in_use: Maybe[int] = None
    imbalance: Maybe[Rounded] = None
    binding: Maybe[str] = None
    with_10_percent_more: Maybe[Rounded] = None
    stages_us: Maybe[dict[str, Rounded]] = None
    exposed_us: Maybe[Rounded] = None
    evidence: Maybe[EvidenceSummary] = None
    cache_reads: Maybe[CacheReads] = None
    drafts: Maybe[Drafts] = None
    calibration: Maybe[Correction] = None
    slo: Maybe[dict[Literal["ttft_ms", "tpot_ms"], Promise]] = None


class StretchDemand(Part):
    """A phase's load in a stretch of the day during which neither demand nor units change."""

    at: ClockTime
    minutes: int
    asked_tokens_per_s: Rounded = Field(validation_alias="asked_per_s")
    served_tokens_per_s: Rounded = Field(validation_alias="served_per_s")
    most_tokens_per_s: Rounded = Field(validation_alias="most_per_s")


class Demand(Part):
    """The load that traffic puts on a phase in its busiest hour, and its lowest load."""

    at: ClockTime
    asked_tokens_per_s: Rounded = Field(validation_alias="asked_per_s")
    served_tokens_per_s: Rounded = Field(validation_alias="served_per_s")
    most_tokens_per_s: Rounded = Field(validation_alias="most_per_s")
    highest_load: Rounded | None = Field(validation_alias="known_load")  # None while no unit is on
    lowest_load: Rounded = Field(validation_alias="lowest")
    hours_beyond: Rounded  # hours in which demand exceeds the units' maximum
    times_beyond: Maybe[str] = None  # the times of those hours
    stretches: Annotated[  # from midnight
        tuple[StretchDemand, ...], Field(max_length=DAY_MINUTES, exclude_if=operator.not_)
    ] = ()


class Search(Part):
    """The layouts that a search by speed chose, and the throughput they serve."""

    units: dict[Phase, int] = Field(validation_alias=AliasPath("fleet", "units"))
    nodes: int = Field(validation_alias=AliasPath("fleet", "nodes"))
    usable_nodes: int = Field(validation_alias="room")
    output_tokens_per_s: float = Field(validation_alias=AliasPath("fleet", "served_per_s"))
    tokens_per_output_token: dict[Phase, float] = Field(validation_alias="tokens")
    phases: dict[Phase, PhaseSearch]
