"""The sections of a plan as PLAN.json has them. docs/plan-json.md documents each key.

Each Pydantic model is built from the result of a planner's pass, attribute by attribute, or from JSON. So attribute
names are the file's keys, and a value has one form in compiled and loaded plans. A pass's own dataclass is used
directly if its names are the file's. The file omits `Maybe` keys without a value.
"""

import operator
from collections.abc import Mapping
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
from planner.facts.gate import Gate
from planner.facts.part import Digest, Maybe, Part
from planner.facts.terms import Coverage, Device, Overlap, Phase, SplitRule
from planner.layout.unit import Unit
from planner.problems.finding import Finding
from planner.problems.fix import Fix
from planner.schedule.transitions import Number, Transition

Count = Annotated[int, Field(ge=1)]
Nonzero = Annotated[int, Field(exclude_if=operator.not_)]
Ratios = tuple[float, ...]  # one per MoE layer


class _StoredFinding(Part):
    """A finding without its file and line. The plan depends on the spec's content, not on its location."""

    path: str
    value: Any
    rule: Annotated[str, Field(pattern=r"^[A-Z][0-9]{3} ")]
    reason: str
    fix: str
    message: str
    changes: Maybe[list[dict[str, Any]]] = None


class _FindingAsJson:
    """Serialise a finding without its location. A finding read back is located in the plan's file."""

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_wrap_validator_function(
            _finding_from_json,
            handler.generate_schema(_StoredFinding),
            serialization=core_schema.plain_serializer_function_ser_schema(_finding_to_json),
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(schema["schema"])


MAX_FINDINGS = 10_000  # more than all rules find in the largest spec
JsonFinding = Annotated[Finding, _FindingAsJson()]
JsonFindings = Annotated[tuple[JsonFinding, ...], Field(max_length=MAX_FINDINGS)]


def _finding_from_json(value: Any, validated: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Finding:
    if isinstance(value, Finding):
        return value
    stored: _StoredFinding = validated(value)
    fix = Fix(stored.fix, tuple(stored.changes or ()))
    return Finding(stored.path, stored.value, stored.rule, stored.reason, fix).at((info.context or {}).get("file", ""))


def _finding_to_json(problem: Finding) -> dict[str, Any]:
    return {key: value for key, value in problem.as_json().items() if key in _StoredFinding.model_fields}


class _MapReference(Part):
    """The digest of a unit's expert map. The plan's `expert_maps` hold its rows once."""

    model_config = ConfigDict(extra="ignore")

    sha256: str
    first_layer: Annotated[int, Field(ge=0)] = 0  # only for other engines


class _KvCacheFields(Part):
    model_config = ConfigDict(extra="ignore")

    bytes_per_token: Count


class _Checkpoint(Part):
    uri: str
    config_digest: Digest | None
    weights_digest: Digest | None


class _UnitDocument(Part):
    """The fields of a unit's launch document that are checked when a plan is loaded."""

    model_config = ConfigDict(extra="ignore")

    kind: Literal["unit", "sglang", "vllm"]
    expert_map: _MapReference | None = None  # None if the engine reads no map
    model_type: str | None = None  # only for other engines
    quant_method: str | None = None  # only for other engines, if unusual for the precision
    kv_cache: _KvCacheFields
    unit_digest: Digest
    launch_digest: Digest


class _GatewayDocument(Part):
    """The fields of the gateway's launch document that are checked when a plan is loaded."""

    model_config = ConfigDict(extra="ignore")

    kind: Literal["gateway"]
    checkpoint: _Checkpoint | None
    launch_digest: Digest


class _CheckedLaunchDocument:
    """Validate a launch document's required keys but keep the document unchanged.

    Loading a plan compares the whole document later (`load.py`).
    """

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        either = handler.generate_schema(Annotated[_UnitDocument | _GatewayDocument, Field(discriminator="kind")])
        return core_schema.no_info_wrap_validator_function(
            _check_document, either, serialization=core_schema.plain_serializer_function_ser_schema(dict)
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(schema["schema"])


def _check_document(document: Any, check: ValidatorFunctionWrapHandler) -> Any:
    check(document)
    return document


LaunchDocuments = dict[str, Annotated[dict[str, Any], _CheckedLaunchDocument()]]


class ModelShape(Part):
    """The model facts that readers of a plan need. The planner takes shapes from the spec."""

    model_type: str  # transformers' name of the family
    num_layers: Count
    num_dense_layers: Annotated[int, Field(ge=0)]  # also the index of the first MoE layer
    num_routed_experts: Count
    num_experts_per_token: Count


class LiveMap(Part):
    """What `balance` has to keep when a phase's units change their map while they serve, and what a move costs."""

    expert_bytes: Count  # of one slot in one layer
    num_nodes: Count
    num_groups: Count
    gate: Gate
    domains: tuple[tuple[int, ...], ...]
    split: SplitRule
    device: Device  # which says how fast experts move


class Figures(Part):
    """The GPU figures that the plan uses. A GPU defined in the spec may lack any of them."""

    nominal_gb: Maybe[float] = None
    usable_bytes: Maybe[int] = None
    nvlink_gb_per_s: Maybe[float] = None
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
    """The weight bytes of one GPU by part."""

    attention: int
    dense: int
    shared: int
    gates: int
    embedding: int
    routed: int
    towers: Nonzero = 0
    absorbed: Nonzero = 0


class Memory(Part):
    """The memory of one GPU in bytes."""

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

    @property
    def read_bytes(self) -> int:
        """Return the bytes of weights that a rank reads, without matrices that the engine makes after reading."""
        return self.weights_bytes - self.weights.absorbed


class Reads(Part):
    """The bytes of weights that a rank reads, and those of its expert slots among these."""

    all_bytes: Count
    slot_bytes: Annotated[int, Field(ge=0)]


def weights_read(memory: Mapping[Phase, Memory], reads: Mapping[Phase, Reads] | None) -> dict[Phase, tuple[int, int]]:
    """Return phase -> (bytes of the weights that one rank reads, bytes of its expert slots among these).

    `reads` has the phases that `memory` lacks.
    """
    known = {phase: (each.read_bytes, each.weights.routed) for phase, each in memory.items()}
    return known | {phase: (each.all_bytes, each.slot_bytes) for phase, each in (reads or {}).items()}


class Goal(Part):
    """A placement objective: its value and its bound."""

    name: str
    value: int
    bound: int
    meaning: str
    proven: bool = Field(validation_alias="is_proven")


class PlacementQuality(Part):
    """The quality of the placement, and the nodes on which it puts no units."""

    method: Literal["greedy", "previous"]
    why: str
    objectives: tuple[Goal, ...]
    unusable_nodes: dict[str, str] = Field(validation_alias="unusable")
    spares: tuple[str, ...]


@dataclass(frozen=True)
class PlannedUnit(Unit):
    """A placed unit, with the digests of its launch document and expert map."""

    unit_digest: str
    expert_map: str


class Uncovered(Part):
    """The number of experts with all replicas in one failure domain."""

    rule: Coverage
    uncovered_experts: dict[str, int]


class Slots(Part):
    """An expert map with the balance of each layer and what limits it."""

    physical_to_logical: tuple[tuple[int, ...], ...]
    max_over_mean: Ratios
    bound: Ratios
    binding: tuple[BoundKind, ...]
    split: SplitRule


class Map(Slots):
    """An expert map of the plan with its coverage."""

    coverage: Maybe[Uncovered] = None


def _unit_count_field(phase: Phase) -> Any:
    """Return the field for the number of `phase` units that are on in a step.

    The number is None if the spec lacks the phase.
    """
    return Field(default=None, validation_alias=AliasPath("num_units", phase))


class Step(Part):
    """A step of the schedule: the units that are on from the time `at` for `minutes`, and the number of their nodes."""

    at: str
    minutes: int
    nodes: int = Field(validation_alias="num_nodes")
    units: tuple[str, ...]
    prefill_units: Maybe[int] = _unit_count_field("prefill")
    decode_units: Maybe[int] = _unit_count_field("decode")
    mixed_units: Maybe[int] = _unit_count_field("mixed")
    free_racks: Maybe[int] = None


class _Day(Part):
    steps: tuple[Step, ...]
    transitions: tuple[Transition, ...]
    mean_nodes: Number
    mean_nodes_taken: Number


class OtherDays(_Day):
    """The schedule of days that differ from ordinary ones: the weekdays and dates in `days`."""

    days: tuple[str, ...]


class Schedule(_Day):
    """The schedule of ordinary days, and of days that differ from them."""

    timezone: str
    peak_nodes: int
    released_node_hours_per_day: Number = Field(validation_alias="released_node_hours")
    released_gpu_hours_per_day: Number = Field(validation_alias="released_gpu_hours")
    other_days: Annotated[tuple[OtherDays, ...], Field(exclude_if=operator.not_)] = ()
