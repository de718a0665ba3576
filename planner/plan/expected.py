"""The sections of a plan that are only expected of it, or were weighed for it: nothing that runs follows from them.

What is said of keys and attributes in `sections.py` holds here too.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, AliasPath, Field

from planner.estimate.throughput.calibration import Correction
from planner.expert_map.types import FrontPoint, Policy
from planner.facts.part import Maybe, Part, Rounded
from planner.facts.terms import Phase
from planner.plan.sections import Digest, Ratios
from planner.search.ranked import PhaseSearch

__all__ = [
    "Balance",
    "Demand",
    "OneMoreSlot",
    "Performance",
    "Search",
    "Weighed",
]


Rounded6Places = Annotated[float, AfterValidator(lambda value: round(value, 6))]


class OneMoreSlot(Part):
    """What a map would have that has a slot more on each GPU."""

    slots_per_gpu: int
    bytes_per_gpu: int | None  # none where nobody knows
    mean_max_over_mean: Rounded6Places
    mean_bound: Rounded6Places


class Moves(Part):
    """What differs from the previous plan's map."""

    moved_slots: int
    bytes: int | None


class Weighed(Part):
    """What a map minds, why, and what the others that were weighed would give."""

    policy: Policy
    policy_reason: str
    front: tuple[FrontPoint, ...]
    dispatch: FrontPoint | None


class Balance(Weighed):
    """What a phase makes of its map, which another phase may have too."""

    expert_map: Digest
    max_over_mean_sampled: Ratios
    one_more_slot: OneMoreSlot | None
    moves: Moves | None


class Range(Part):
    """A figure with the range that its evidence gives it."""

    low: Rounded
    mid: Rounded
    high: Rounded


class Point(Part):
    """What a phase is predicted for: what steps and requests are like."""

    derived: bool  # from limits, where the spec has none
    requests: Maybe[float] = None
    kv_tokens: Maybe[float] = None
    step_tokens: Maybe[float] = None
    prompt_tokens: Maybe[float] = None
    output_tokens: Maybe[float] = None
    cache_hit_rate: Maybe[float] = None
    cache_read_gbps: Maybe[float] = None
    utilisation: Maybe[float] = None


class Drafts(Part):
    """What an MTP module takes of a step and, where it drafts, what it brings."""

    draft_tokens: int
    ms: Rounded
    acceptance_rate: Maybe[float] = None
    tokens_per_step_and_request: Maybe[Rounded] = None


class CacheReads(Part):
    """Reads of prompts' KV."""

    bytes_per_s_per_node: Rounded
    ms_per_prompt: Rounded


class Grounds(Part):
    """What a prediction rests on, in words."""

    family: str
    why: str
    scaled: tuple[str, ...]  # constants of the GPU that are scaled from another's
    chance: str  # of a speed within the range


class Promise(Part):
    """A promise of the spec, and at which speeds it is kept."""

    promised: float
    predicted: Rounded
    met: bool
    met_at_slowest: bool
    met_at_fastest: bool


class Performance(Part):
    """What a phase does at its operating point, or why nobody knows."""

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
    queued_steps: Maybe[Rounded] = None  # that a prompt waits on average; none at utilisation 1
    kv_transfer_ms: Maybe[Rounded] = None
    step_ms: Maybe[Rounded] = None
    kv_tokens_in_use: Maybe[int] = None
    imbalance: Maybe[Rounded] = None
    binding: Maybe[str] = None
    with_10_percent_more: Maybe[Rounded] = None
    stages_us: Maybe[dict[str, Rounded]] = None
    exposed_us: Maybe[Rounded] = None
    evidence: Maybe[Grounds] = None
    cache_reads: Maybe[CacheReads] = None
    drafts: Maybe[Drafts] = None
    calibration: Maybe[Correction] = None
    slo: Maybe[dict[Literal["ttft_ms", "tpot_ms"], Promise]] = None


class Demand(Part):
    """What the traffic asks of a phase in its fullest hour, and how full it is then and in its emptiest."""

    at: str
    asked_tokens_per_s: Rounded = Field(validation_alias="asked_per_s")
    served_tokens_per_s: Rounded = Field(validation_alias="served_per_s")
    most_tokens_per_s: Rounded = Field(validation_alias="most_per_s")
    highest_load: Rounded | None = Field(validation_alias="known_load")  # none while no unit is on
    lowest_load: Rounded = Field(validation_alias="lowest")
    hours_beyond: Rounded  # in which more is asked for than units make at most
    times_beyond: Maybe[str] = None  # when that is


class Search(Part):
    """The layouts that were chosen where speed decided, and what they serve."""

    units: dict[Phase, int] = Field(validation_alias=AliasPath("fleet", "units"))
    nodes: int = Field(validation_alias=AliasPath("fleet", "nodes"))
    usable_nodes: int = Field(validation_alias="room")
    output_tokens_per_s: float = Field(validation_alias=AliasPath("fleet", "served_per_s"))
    tokens_per_output_token: dict[Phase, float] = Field(validation_alias="tokens")
    phases: dict[Phase, PhaseSearch]
