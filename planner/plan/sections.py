"""The sections of a plan, as PLAN.json has them; docs/plan-json.md says what each key means.

Each is read from what a pass found, attribute by attribute, or from JSON. So the names here are the file's keys, and a
value has one form whether the plan was compiled or loaded. Where a pass's own dataclass has the right names, it stands
here itself. Keys that are `Maybe` are left out of the file where there is nothing to say.
"""

import operator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AliasPath,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from planner.expert_map.types import BoundKind
from planner.facts.part import Digest, Maybe, Part
from planner.facts.terms import Coverage, Overlap, Phase, SplitRule
from planner.layout.unit import Unit
from planner.problems.finding import Finding
from planner.problems.fix import Fix
from planner.schedule.transitions import Number, Transition

__all__ = [
    "Digest",
    "Figures",
    "LaunchDocuments",
    "Map",
    "Maybe",
    "Memory",
    "ModelShape",
    "Part",
    "PhaseShape",
    "PlacementQuality",
    "PlannedUnit",
    "Ratios",
    "Schedule",
    "Slots",
    "Warned",
]


Count = Annotated[int, Field(ge=1)]
Nonzero = Annotated[int, Field(exclude_if=operator.not_)]
Ratios = tuple[float, ...]  # by MoE layer


class _Remark(Part):
    """A warning without its place: a plan depends on what a spec says, and not on where it says it."""

    path: str
    value: Any
    rule: Annotated[str, Field(pattern=r"^[A-Z][0-9]{3} ")]
    reason: str
    fix: str
    message: str
    changes: Maybe[list[dict[str, Any]]] = None


class _WithoutPlace:
    """Writes a problem as a remark. One that is read back stands in the plan's file."""

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_wrap_validator_function(
            _problem,
            handler.generate_schema(_Remark),
            serialization=core_schema.plain_serializer_function_ser_schema(_remark),
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(schema["schema"])


Warned = Annotated[Finding, _WithoutPlace()]


def _problem(value: Any, validated: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Finding:
    if isinstance(value, Finding):
        return value
    told: _Remark = validated(value)
    fix = Fix(told.fix, tuple(told.changes or ()))
    return Finding(told.path, told.value, told.rule, told.reason, fix).at((info.context or {}).get("file", ""))


def _remark(problem: Finding) -> dict[str, Any]:
    return {key: value for key, value in problem.as_json().items() if key in _Remark.model_fields}


class _NamedMap(Part):
    """The map of a unit's launch document; its rows stand once, in the plan's `expert_maps`."""

    model_config = ConfigDict(extra="ignore")

    sha256: str
    first_layer: Annotated[int, Field(ge=0)] = 0  # of other engines


class _TokenKv(Part):
    model_config = ConfigDict(extra="ignore")

    bytes_per_token: Count


class _Checkpoint(Part):
    uri: str
    config_digest: Digest | None
    weights_digest: Digest | None


class _UnitDocument(Part):
    """What the ranks of a unit read when they start, as far as a plan is checked by it."""

    model_config = ConfigDict(extra="ignore")

    kind: Literal["unit", "sglang", "vllm"]
    expert_map: _NamedMap | None = None  # of an engine that reads none
    model_type: str | None = None  # of other engines
    quant_method: str | None = None  # likewise, where it is not the usual one of the precision
    kv_cache: _TokenKv
    unit_digest: Digest
    launch_digest: Digest


class _GatewayDocument(Part):
    """What the gateway reads when it starts, likewise."""

    model_config = ConfigDict(extra="ignore")

    kind: Literal["gateway"]
    checkpoint: _Checkpoint | None
    launch_digest: Digest


class _LookedAt:
    """Lets a launch document pass as it is, if it has the keys that are looked at: `told.py` compares all of it."""

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        either = handler.generate_schema(Annotated[_UnitDocument | _GatewayDocument, Field(discriminator="kind")])
        return core_schema.no_info_wrap_validator_function(
            _as_it_is, either, serialization=core_schema.plain_serializer_function_ser_schema(dict)
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(schema["schema"])


def _as_it_is(document: Any, check: ValidatorFunctionWrapHandler) -> Any:
    check(document)
    return document


LaunchDocuments = dict[str, Annotated[dict[str, Any], _LookedAt()]]


class ModelShape(Part):
    """What a reader has to know of the model; the planner has its shapes from the spec."""

    model_type: str  # as transformers calls the family
    num_layers: Count
    num_dense_layers: Annotated[int, Field(ge=0)]  # the number of the first MoE layer
    num_routed_experts: Count
    num_experts_per_token: Count


class Figures(Part):
    """What the plan counts with of a GPU. A GPU that the spec brings along may lack any of them."""

    nominal_gb: Maybe[float] = None
    usable_bytes: Maybe[int] = None
    nvlink_gb_per_s: Maybe[float] = None
    peer_gb_per_s: Maybe[float] = None
    nvlink_domain: Maybe[int] = None
    node_gpus: Maybe[int] = None
    nic_gbps: Maybe[float] = None
    gpus_per_nic: Maybe[int] = None
    fp8_tflops: Maybe[float] = None
    bf16_tflops: Maybe[float] = None
    fp4_tflops: Maybe[float] = None
    memory_gb_per_s: Maybe[float] = None
    kubernetes_resource: Maybe[str] = None


class PhaseShape(Part):
    """The layout that all units of a phase share."""

    gpu: str
    ep_size: Count
    attention_tp: Count
    dp_size: Count
    nodes_per_unit: Count
    num_logical_experts: Count
    num_physical_experts: Count
    slots_per_gpu: Count
    routed_per_gpu: Count
    shared_per_gpu: Annotated[int, Field(ge=0)]
    overlap: Overlap


class WeightBytes(Part):
    """One GPU's weights by part."""

    attention: int
    dense: int
    shared: int
    gates: int
    embedding: int
    routed: int
    towers: Nonzero = 0


class Memory(Part):
    """One GPU's bytes."""

    weights_bytes: Count = Field(validation_alias="weight_bytes")
    weights: WeightBytes = Field(validation_alias="parts")
    kv_bytes_per_token: Count
    kv_bytes_per_request: Nonzero = 0
    activation_bytes: int = Field(validation_alias="activations")
    buffer_bytes: int = Field(validation_alias="buffers")
    reserve_bytes: int = Field(validation_alias="reserve")
    cuda_graph_bytes: int = Field(validation_alias="cuda_graphs")
    headroom_bytes: Nonzero = Field(default=0, validation_alias="headroom")
    kv_tokens: Count
    full_requests: int
    gpu_bytes: Count


class Goal(Part):
    """A count of the placement beside its bound."""

    name: str
    value: int
    bound: int
    meaning: str
    proven: bool = Field(validation_alias="is_proven")


class PlacementQuality(Part):
    """How good the placement is, and which nodes it leaves out."""

    method: Literal["exact", "greedy", "previous"]
    why: str
    objectives: tuple[Goal, ...]
    unusable_nodes: dict[str, str] = Field(validation_alias="unusable")
    spares: tuple[str, ...]


@dataclass(frozen=True)
class PlannedUnit(Unit):
    """A unit on its nodes, with the digests of what its ranks are told."""

    unit_digest: str
    expert_map: str


class Uncovered(Part):
    """Count the experts that have all their replicas in one failure domain."""

    rule: Coverage
    uncovered_experts: dict[str, int]


class Slots(Part):
    """An expert map, and layer by layer how good it is and what keeps it there."""

    physical_to_logical: tuple[tuple[int, ...], ...]
    max_over_mean: Ratios
    bound: Ratios
    binding: tuple[BoundKind, ...]
    split: SplitRule


class Map(Slots):
    """The map of a plan, with the experts that would go dark."""

    coverage: Maybe[Uncovered] = None


def _units_of(phase: Phase) -> Any:
    """Return the field of a state's units of `phase`; a spec without the phase has none."""
    return Field(default=None, validation_alias=AliasPath("num_units", phase))


class Step(Part):
    """A state of the deployment, from `at` on."""

    at: str
    minutes: int
    nodes: int = Field(validation_alias="num_nodes")
    units: tuple[str, ...]
    prefill_units: Maybe[int] = _units_of("prefill")
    decode_units: Maybe[int] = _units_of("decode")
    mixed_units: Maybe[int] = _units_of("mixed")
    free_racks: Maybe[int] = None


class _Day(Part):
    steps: tuple[Step, ...]
    transitions: tuple[Transition, ...]
    mean_nodes: Number
    mean_nodes_taken: Number


class OtherDays(_Day):
    """Days that are not like most."""

    days: tuple[str, ...]


class Schedule(_Day):
    """The day, and the days that are not like it."""

    timezone: str
    peak_nodes: int
    released_node_hours_per_day: Number = Field(validation_alias="released_node_hours")
    released_gpu_hours_per_day: Number = Field(validation_alias="released_gpu_hours")
    other_days: Annotated[tuple[OtherDays, ...], Field(exclude_if=operator.not_)] = ()
