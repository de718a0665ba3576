"""The spec: what a user writes. Every field's type, range, default and meaning; nothing else.

Reject, never coerce: unknown keys are errors (a misspelt `overlpa` must not silently plan without overlap), text is
never taken for a number, and sections that no pass reads yet are unknown too.

What one field can say about itself is said here and reaches editors through `tidemill schema`; what takes two fields
to know is in `layout_rules.py`. Field names are the contract's.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import (
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    WithJsonSchema,
)
from pydantic_core import PydanticKnownError

from planner.facts.catalog import GPUS
from planner.facts.engines import ENGINES, OURS
from planner.facts.quantities import quantity
from planner.facts.terms import (
    PHASES,
    Coverage,
    Device,
    EngineName,
    KvPrecision,
    Overlap,
    Phase,
    Precision,
    SplitRule,
)
from planner.families import MODELS
from planner.spec.cost import CostSpec
from planner.spec.kubernetes import KubernetesSpec
from planner.spec.operating_point import OperatingPointSpec, SloSpec
from planner.spec.section import Section
from planner.spec.traffic import TrafficSpec
from planner.spec.undecided import AUTO, OR_AUTO

__all__ = [
    "AUTO",
    "MAX_ATTENTION_TP",
    "MAX_EP_SIZE",
    "MAX_REDUNDANT",
    "MAX_UNITS",
    "UNION_TAGS",
    "ClusterSpec",
    "EngineSpec",
    "ExpertLoadSpec",
    "GatewaySpec",
    "GpuSpec",
    "ModelSpec",
    "NodeSpec",
    "PhaseSpec",
    "ScheduleSpec",
    "Spec",
    "WindowSpec",
]

MAX_NODES = 20_000
MAX_TFLOPS = 1_000_000
MAX_EP_SIZE = 4096
MAX_REDUNDANT = 16_384
MAX_ATTENTION_TP = 64
MAX_BATCH_TOKENS = 10_000_000
MAX_UNITS = 1000  # of a phase
DIGEST_PATTERN = r"^sha256:[0-9a-f]{64}$"

_A_MODEL = next(iter(MODELS))
_A_DIGEST = f"sha256:{'0' * 64}"
_A_GPU = next(name for name in GPUS if name != "cpu")


def _one_of(names: Iterable[str], *, or_text: bool = False) -> WithJsonSchema:
    """What editors complete; the catalog's names themselves are checked where their figures are read."""
    listed = {"enum": list(names), "type": "string"}
    return WithJsonSchema({"anyOf": [listed, {"type": "string", "minLength": 1}]} if or_text else listed)


class ModelSpec(Section):
    """A model by its checkpoint's config.json, or one of the catalog whose weights are only where it runs."""

    config: str | None = Field(
        default=None,
        description="The checkpoint's config.json, relative to this spec, with the shapes that the planner reads.",
        examples=["models/deepseek/config.json"],
    )
    catalog: Annotated[str, _one_of(MODELS)] | None = Field(
        default=None,
        description="Instead of a file, a model of the catalog: its shapes are known without the checkpoint.",
        examples=[_A_MODEL],
    )
    checkpoint: str | None = Field(
        default=None,
        min_length=1,
        description="Where the runtime finds the weights: bundled:NAME or an absolute path in the pod. "
        "Without it the spec can be planned but not run.",
        examples=["bundled:demo"],
    )
    config_digest: str | None = Field(
        default=None,
        pattern=DIGEST_PATTERN,
        description="With catalog: the sha256 of the checkpoint's config.json. Ranks refuse a checkpoint with another; "
        "without it, they only compare theirs with each other.",
        examples=[_A_DIGEST],
    )
    weights_digest: str | None = Field(
        default=None,
        pattern=DIGEST_PATTERN,
        description="With catalog: the sha256 of the manifest that tidemill checkpoint digest writes. Ranks hold what "
        "they read against that manifest.",
        examples=[_A_DIGEST],
    )
    name: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Model name that /v1/models lists, by default the spec's name.",
        examples=[_A_MODEL],
    )


class GpuSpec(Section):
    """A GPU that the catalog does not have."""

    name: str = Field(min_length=1, max_length=63, description="Name of the GPU in plans.", examples=["a-gpu-96"])
    memory: Annotated[int, *quantity("bytes")] = Field(
        description="Memory that a process can allocate, as its driver reports it. Makers often mean GiB by GB, as "
        "where 79.1GiB are sold as 80 GB.",
        examples=["94GiB"],
    )
    nvlink: Annotated[float, *quantity("link")] | None = Field(
        default=None,
        description="Bandwidth one way to all other GPUs of its NVLink domain, or of what replaces NVLink.",
        examples=["450GB/s"],
    )
    peer: Annotated[float, *quantity("link")] | None = Field(
        default=None,
        description="Bandwidth one way to one other GPU, where the GPUs of a domain form a mesh without switches.",
        examples=["64GB/s"],
    )
    nvlink_domain: int | None = Field(
        default=None, ge=1, le=4096, description="GPUs that reach each other so, a node's unless given.", examples=[8]
    )
    nic: Annotated[float, *quantity("link")] | None = Field(
        default=None, description="Bandwidth one way of each NIC.", examples=["400Gbps"]
    )
    gpus_per_nic: int = Field(default=1, ge=1, le=64, description="GPUs that share a NIC.", examples=[1])
    fp8_tflops: float | None = Field(
        default=None,
        ge=1,
        le=MAX_TFLOPS,
        description="Rate of dense FP8 matmuls, in TFLOPS; without rates no speed is predicted.",
        examples=[1979],
    )
    bf16_tflops: float | None = Field(
        default=None, ge=1, le=MAX_TFLOPS, description="Rate of dense BF16 matmuls, in TFLOPS.", examples=[989]
    )
    memory_bandwidth: Annotated[float, *quantity("link")] | None = Field(
        default=None, description="Bandwidth of its memory.", examples=["3350GB/s"]
    )
    kubernetes_resource: str = Field(
        default="nvidia.com/gpu",
        min_length=1,
        description="Resource that a container requests.",
        examples=["amd.com/gpu"],
    )


class EngineSpec(Section):
    """An engine in a version of its own."""

    name: EngineName = Field(description="Name of the engine that runs the model.", examples=["sglang"])
    version: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        description="Its version, which the image has too, the newest known unless given.",
        examples=[ENGINES["sglang"].newest],
    )


UNION_TAGS = (
    "<name>",
    "<own>",
    "<number>",
    "<list>",
)  # Pydantic puts these into the path of an error; no key looks like them


def _form(value: Any) -> str:
    """Named in the catalog, or brought along."""
    return "<own>" if isinstance(value, dict | Section) else "<name>"


def _number_or_list(value: Any) -> str:
    return "<list>" if isinstance(value, list) else "<number>"


class NodeSpec(Section):
    """One node of a cluster that is given node by node."""

    name: str = Field(min_length=1, max_length=253, description="Name of the node in Kubernetes.", examples=["gpu-a01"])
    rack: str | None = Field(default=None, min_length=1, description="Its rack.", examples=["a"])
    leaf: str | None = Field(
        default=None, min_length=1, description="Leaf switch that its NICs are connected to.", examples=["leaf-1"]
    )
    power: str | None = Field(
        default=None,
        min_length=1,
        description="Power domain: nodes with the same name lose power together.",
        examples=["pdu-1"],
    )
    gpu: Annotated[str, _one_of(GPUS, or_text=True)] | None = Field(
        default=None,
        min_length=1,
        description="Its GPU model, by default the cluster's. Nodes with a GPU that no phase uses stay free.",
        examples=[_A_GPU],
    )
    gpus: int | None = Field(
        default=None, ge=0, le=64, description="Number of its GPUs, by default gpus_per_node.", examples=[8]
    )
    taints: list[str] = Field(
        default=[],
        description="Its taints, of which NoSchedule and NoExecute keep units away.",
        examples=[["team=research:NoSchedule"]],
    )
    cordoned: bool = Field(
        default=False, description="Whether the node is cordoned, so that it takes no new pods.", examples=[False]
    )


class ClusterSpec(Section):
    """The nodes that the units are placed on."""

    gpu: Annotated[
        Annotated[str, _one_of(GPUS), Tag("<name>")] | Annotated[GpuSpec, Tag("<own>")], Discriminator(_form)
    ] = Field(
        description="A GPU of the catalog, where `cpu` runs each rank as a CPU process, or one of your own.",
        examples=[_A_GPU, {"name": "a-gpu-96", "memory": "94GiB"}],
    )
    nodes: Annotated[
        Annotated[int, Field(ge=1, le=MAX_NODES), Tag("<number>")]
        | Annotated[list[NodeSpec], Field(min_length=1, max_length=MAX_NODES), Tag("<list>")],
        Discriminator(_number_or_list),
        *OR_AUTO,
    ] = Field(
        description="Number of nodes (named node-0 and so on), or a list of nodes. With auto, as many as the units take"
        " or, where units are auto too, the fewest that serve the traffic's peak hour.",
        examples=[22, [{"name": "gpu-a01"}], AUTO],
    )
    gpus_per_node: int = Field(ge=1, le=64, description="GPUs on each node, one rank on each.", examples=[8])
    spares: list[Annotated[str, Field(min_length=1, max_length=253)]] = Field(
        default=[],
        max_length=MAX_NODES,
        description="Names of nodes that no unit is planned on, and that any unit may move to when it loses one of its"
        " own.",
        examples=[["node-21"]],
    )
    rack_size: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="Number of nodes per rack, in order. A unit is placed in one rack if one has room.",
        examples=[4],
    )
    leaf_size: int | None = Field(
        default=None, ge=1, le=20_000, description="Number of nodes per leaf switch, in order.", examples=[32]
    )
    power_domain_size: int | None = Field(
        default=None, ge=1, le=20_000, description="Number of nodes that lose power together, in order.", examples=[16]
    )

    @property
    def gpu_name(self) -> str:
        """Return the GPU's name in plans."""
        return self.gpu if isinstance(self.gpu, str) else self.gpu.name


class PhaseSpec(Section):
    """One phase's units, all alike. Numbers that may be `auto` are decided by memory and shapes, or by speed."""

    units: Annotated[int, Field(ge=1, le=MAX_UNITS), *OR_AUTO] = Field(
        default=1,
        description="Number of units that run the phase. With auto, they fill the nodes that there are.",
        examples=[1, AUTO],
    )
    gpu: Annotated[str, _one_of(GPUS)] | None = Field(
        default=None,
        description="The GPU of the catalog that the phase runs on, unless given cluster.gpu; others need a list of "
        "nodes that says which have it.",
        examples=[_A_GPU],
    )
    ep_size: Annotated[int, Field(ge=1, le=MAX_EP_SIZE), *OR_AUTO] = Field(
        description="GPUs in a unit, where routed experts are spread over all of them.",
        examples=[32, AUTO],
    )
    attention_tp: Annotated[int, Field(ge=1, le=MAX_ATTENTION_TP), *OR_AUTO] = Field(
        default=1,
        description="GPUs that share each request's attention by heads, of a node or of several, where 1 leaves each "
        "GPU its own requests (dp_size is ep_size / attention_tp).",
        examples=[4, AUTO],
    )
    redundant_experts: Annotated[int, Field(ge=0, le=MAX_REDUNDANT), *OR_AUTO] = Field(
        default=0,
        description="Slots for further replicas of hot experts, beyond one slot for each expert.",
        examples=[32, AUTO],
    )
    overlap: Overlap = Field(
        default="none",
        description="How communication is hidden behind compute: two micro-batches (prefill) or five stages (decode).",
        examples=["dual_batch"],
    )
    precision: Precision = Field(
        default="bf16",
        description="Precision of weights, matmuls and dispatch, that of the checkpoint unless given (its config's "
        "quantization_config, or what the catalog's model was published in), where fp4 is NVFP4, mxfp4 and w4a16 have "
        "routed experts in MXFP4 or INT4 and the rest in BF16, fp8_mxfp4 and w4a8 the rest in FP8; these dispatch in "
        "BF16.",
        examples=["fp8"],
    )
    kv_precision: KvPrecision | None = Field(
        default=None,
        description="Precision of KV in memory and on its way to decode, unless given bf16, or fp32 under precision "
        "fp32.",
        examples=["fp8"],
    )
    max_requests: Annotated[int, Field(ge=1, le=65_536), *OR_AUTO] = Field(
        default=32,
        description="Number of requests that one rank, or one group that shares attention, works on at once.",
        examples=[32, AUTO],
    )
    max_request_tokens: int = Field(
        default=2048,
        ge=2,
        le=10_000_000,
        description="Most tokens of one request, prompt and output together.",
        examples=[2048],
    )
    max_batch_tokens: Annotated[int, Field(ge=1, le=MAX_BATCH_TOKENS), *OR_AUTO] = Field(
        default=4096,
        description="Prompt tokens that one rank computes in one step, where a longer prompt takes several steps; of no"
        " effect in decode.",
        examples=[4096, AUTO],
    )
    max_kv_tokens: int | None = Field(
        default=None,
        ge=2,
        le=2**40,
        description="Tokens of KV that one rank keeps at most, in whole pages of 64 (without it: what memory holds,"
        " or on `cpu` what max_requests of full length need).",
        examples=[16_384],
    )


class WindowSpec(Section):
    """How many units are on from a time of day until the next window's."""

    at: str = Field(
        pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$",
        description="Time of day from which it applies, as HH:MM.",
        examples=["08:30"],
    )
    prefill_units: int | None = Field(
        default=None, ge=0, le=1000, description="Number of prefill units that are on.", examples=[29]
    )
    decode_units: int | None = Field(
        default=None, ge=0, le=1000, description="Number of decode units that are on.", examples=[9]
    )
    mixed_units: int | None = Field(
        default=None, ge=0, le=1000, description="Number of mixed units that are on.", examples=[2]
    )

    def num_units(self, phase: Phase) -> int:
        """Return the units of `phase`, or 0 where the deployment has no such phase."""
        return {"prefill": self.prefill_units, "decode": self.decode_units, "mixed": self.mixed_units}[phase] or 0


class ScheduleSpec(Section):
    """The day: which units are on when. The nodes of the others are free for other work."""

    timezone: str = Field(
        default="UTC", description="Time zone of the times, by its IANA name.", examples=["Asia/Shanghai"]
    )
    windows: list[WindowSpec] = Field(
        min_length=1,
        max_length=1440,
        description="Windows of the day. Each lasts until the next one starts, the last until the next day's first.",
        examples=[[{"at": "08:30", "prefill_units": 29, "decode_units": 9}]],
    )


class ExpertLoadSpec(Section):
    """The load that the expert maps balance: drawn from a power law, or measured."""

    alpha: float = Field(
        default=1.01,
        ge=0,
        le=4,
        description="Popularity of experts has density x^-alpha on [1, 256], where 1.01 was measured in service.",
        examples=[1.01],
    )
    seed: int = Field(
        default=0, ge=0, le=2**53, description="Seed of the draw: another seed gives other hot experts.", examples=[0]
    )
    file: str | None = Field(
        default=None,
        min_length=1,
        description="Measured, not drawn: token counts [MoE layers][experts], .npy or .json, relative to this spec.",
        examples=["loads.npy"],
    )


class GatewaySpec(Section):
    """The process that takes requests over HTTP."""

    port: int = Field(
        default=8000,
        ge=1024,
        le=65_535,
        description="HTTP port, at least 1024 because no process runs as root.",
        examples=[8000],
    )
    max_queued_requests: int = Field(
        default=64,
        ge=0,
        le=65_536,
        description="Requests that may wait for one decode or mixed rank beyond its max_requests, where more are"
        " answered with 429.",
        examples=[64],
    )


def _this_version(written: Any) -> int:
    """A literal would take `true` and `1.0`, which are equal to 1."""
    if type(written) is not int or written != 1:
        raise PydanticKnownError("literal_error", {"expected": "1"})
    return written


class Spec(Section):
    """A deployment of one mixture-of-experts model: prefill and decode apart, or mixed in one kind of unit."""

    version: Annotated[Literal[1], PlainValidator(_this_version), WithJsonSchema({"const": 1, "type": "integer"})] = (
        Field(description="Version of the spec's format.", examples=[1])
    )
    name: str = Field(
        description="Name of the plan, after which units and Kubernetes objects are named.", examples=["chat"]
    )
    model: Annotated[
        Annotated[str, _one_of(MODELS), Tag("<name>")] | Annotated[ModelSpec, Tag("<own>")], Discriminator(_form)
    ] = Field(
        description="A model of the catalog, or a mapping that says where its checkpoint is.",
        examples=[
            _A_MODEL,
            {"catalog": _A_MODEL, "checkpoint": "/models/weights"},
            {"config": "models/deepseek/config.json"},
        ],
    )
    engine: Annotated[
        Annotated[EngineName, Tag("<name>")] | Annotated[EngineSpec, Tag("<own>")], Discriminator(_form)
    ] = Field(
        default=OURS,
        description="Engine that runs the model: the bundled runtime, or another engine that follows the plan.",
        examples=["sglang", {"name": "sglang", "version": ENGINES["sglang"].newest}],
    )
    cluster: ClusterSpec = Field(
        description="Nodes of the cluster.", examples=[{"gpu": _A_GPU, "nodes": 22, "gpus_per_node": 8}]
    )
    prefill: PhaseSpec | None = Field(
        default=None,
        description="Units that compute prompts.",
        examples=[{"ep_size": 32, "redundant_experts": 32, "overlap": "dual_batch", "precision": "fp8"}],
    )
    decode: PhaseSpec | None = Field(
        default=None,
        description="Units that produce tokens.",
        examples=[{"ep_size": 144, "redundant_experts": 32, "overlap": "five_stage", "precision": "fp8"}],
    )
    mixed: PhaseSpec | None = Field(
        default=None,
        description="Units that do both, in place of prefill and decode, for small deployments.",
        examples=[{"ep_size": 8, "precision": "fp8"}],
    )
    schedule: ScheduleSpec | None = Field(
        default=None,
        description="Which units are on at which time of day. Without it, all are always on.",
        examples=[{"timezone": "Asia/Shanghai", "windows": [{"at": "08:30", "prefill_units": 29, "decode_units": 9}]}],
    )
    traffic: TrafficSpec | None = Field(
        default=None,
        description="Tokens of a day, used for estimates.",
        examples=[{"input_tokens": 608e9, "output_tokens": 168e9, "cache_hit_rate": 0.563}],
    )
    cost: CostSpec | None = Field(
        default=None,
        description="What GPUs cost and what tokens sell for, used for estimates.",
        examples=[{"usd_per_gpu_hour": 2.0, "prices": {"input_hit": 0.14, "input_miss": 0.55, "output": 2.19}}],
    )
    expert_load: ExpertLoadSpec = Field(
        default=ExpertLoadSpec(), description="Load that the expert maps balance.", examples=[{"file": "loads.npy"}]
    )
    operating_point: OperatingPointSpec = Field(
        default=OperatingPointSpec(),
        description="The load at which phases are predicted.",
        examples=[{"decode": {"requests": 88, "kv_tokens": 4989}}],
    )
    slo: SloSpec = Field(
        default=SloSpec(), description="The latencies that are promised.", examples=[{"ttft_ms": 2000, "tpot_ms": 50}]
    )
    coverage: Coverage = Field(
        default="none",
        description="Every expert has replicas on two nodes, or in two racks, of its unit, so that none goes dark when "
        "one dies, for runtimes that mask dead ranks.",
        examples=["node"],
    )
    split: Literal["equal", "local_first"] = Field(
        default="equal",
        description="Which replica of an expert a token goes to, where local_first prefers its own GPU, then its node.",
        examples=["local_first"],
    )
    deterministic: bool = Field(
        default=False,
        description="Whether greedy tokens depend on their request alone, not on batch or restart. Costs speed.",
        examples=[True],
    )
    gateway: GatewaySpec = Field(
        default=GatewaySpec(), description="HTTP gateway that clients call.", examples=[{"port": 8000}]
    )
    kubernetes: KubernetesSpec = Field(
        default=KubernetesSpec(),
        description="Settings that only the Kubernetes manifests need.",
        examples=[{"namespace": "tidemill"}],
    )

    @property
    def engine_name(self) -> EngineName:
        """Return what computes the model."""
        return self.engine.name if isinstance(self.engine, EngineSpec) else self.engine

    @property
    def engine_version(self) -> str | None:
        """Return the engine's version; None for the bundled runtime, whose image has it."""
        written = self.engine.version if isinstance(self.engine, EngineSpec) else None
        return written or ENGINES[self.engine_name].newest

    @property
    def named_model(self) -> tuple[str, str | None]:
        """Return where the model is named (`model`, `model.catalog` or `model.config`), and how."""
        if isinstance(self.model, str):
            return "model", self.model
        return ("model.catalog", self.model.catalog) if self.model.catalog else ("model.config", self.model.config)

    @property
    def served_model_name(self) -> str:
        """Return what /v1/models lists."""
        return (self.model if isinstance(self.model, str) else self.model.name) or self.name

    @property
    def split_rule(self) -> SplitRule:
        """Return which replica a token goes to: as the engine does it, or as the spec says where that may choose."""
        return ENGINES[self.engine_name].split or self.split

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Those that the deployment has, in the order in which a request passes through them."""
        return tuple(phase for phase in PHASES if getattr(self, phase) is not None)

    @property
    def checkpoint(self) -> str | None:
        """Return the place of the weights when it runs, or None where the spec does not say."""
        return None if isinstance(self.model, str) else self.model.checkpoint

    @property
    def catalog_model(self) -> str | None:
        """The model's name in the catalog; None where a config.json has its shapes."""
        return self.model if isinstance(self.model, str) else self.model.catalog

    def device(self, phase: Phase) -> Device:
        """What the ranks of `phase` compute on, as PyTorch calls it; a GPU of the user's own is a CUDA device."""
        name = self.gpu_name(phase)
        return GPUS[name].device if name in GPUS else "cuda"

    def gpu_name(self, phase: Phase) -> str:
        """What `phase` runs on, as plans call it."""
        return self.phase(phase).gpu or self.cluster.gpu_name

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """What the phases run on, each once."""
        return tuple(dict.fromkeys(map(self.gpu_name, self.phases)))

    def num_units(self, phase: Phase) -> int:
        """The most that are ever on."""
        if self.schedule is None:
            return self.phase(phase).units
        return max(window.num_units(phase) for window in self.schedule.windows)

    def phase(self, phase: Phase) -> PhaseSpec:
        """The section of `phase`, which the deployment has."""
        section = {"prefill": self.prefill, "decode": self.decode, "mixed": self.mixed}[phase]
        assert section is not None
        return section
