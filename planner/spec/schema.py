"""The schema of the spec: every field's type, range, default and meaning.

Each large section has a file of its own beside this one.

Reject, never coerce: unknown keys are errors (a misspelt `overlpa` must not silently plan without overlap), and text is
never read as a number.

Rules about one field are declared here and reach editors through `tidemill schema`. Rules between fields are in
`planner/rules`.
"""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, PlainValidator, Tag, WithJsonSchema
from pydantic_core import PydanticKnownError

from planner.facts.catalog import GPUS
from planner.facts.engines import ENGINES, OURS
from planner.facts.quantities import quantity
from planner.facts.terms import PHASES, Coverage, Device, EngineName, Phase, SplitRule
from planner.families import MODELS
from planner.spec.cluster import A_GPU, ClusterSpec
from planner.spec.cost import CostSpec
from planner.spec.kubernetes import KubernetesSpec
from planner.spec.kv_cache import KvCacheSpec
from planner.spec.model import A_MODEL, ModelSpec
from planner.spec.operating_point import OperatingPointSpec, SloSpec
from planner.spec.phase import PhaseSpec
from planner.spec.schedule import ALL_DAY, ScheduleSpec
from planner.spec.section import Options, Section, find_tag, one_of
from planner.spec.traffic import TrafficSpec
from planner.spec.undecided import SAYS_AUTO, is_undecided

LEAST_DRAIN_S = 30.0  # Kubernetes' default terminationGracePeriodSeconds


class EngineSpec(Section):
    """An engine with its version and further options."""

    name: EngineName = Field(description="Name of the engine that runs the model.", examples=["sglang"])
    version: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        description="Version of the engine, by default the newest known. The image must have the same version.",
        examples=[ENGINES["sglang"].newest],
    )
    args: Options = Field(
        default={},
        description="Further options of the engine's servers, by their own names without the leading hyphens; true for"
        " an option without a value. Options that the plan sets are refused.",
        examples=[{"reasoning-parser": "deepseek_r1", "enable-eplb": True}],
    )


class LiveMapsSpec(Section):
    """When units get better expert maps by themselves while they serve, from the loads that they measure.

    Every limit is the user's to state, because nobody reviews these maps.
    """

    every: Annotated[float, *quantity("time", least="1s", most="168h")] = Field(
        description="Time for which a unit's loads are measured before its map may change, counted from its start or"
        " its last change.",
        examples=["10min"],
    )
    min_gain: float = Field(
        ge=0.001,
        le=100,
        description="Least gain: max/mean load of a unit's ranks with the map in service, over that with the better"
        " map, less 1, as a mean over layers.",
        examples=[0.05],
    )
    max_bytes: Annotated[int, *quantity("bytes")] = Field(
        description="The most weights that the ranks of a unit receive in one change.", examples=["20GB"]
    )


class ExpertLoadSpec(Section):
    """The load that the expert maps balance: drawn from a power law, or measured."""

    alpha: float = Field(
        default=1.01,
        ge=0,
        le=4,
        description="Popularity of experts has density x^-alpha on [1, 256]; 1.01 was measured in service.",
        examples=[1.01],
    )
    seed: int = Field(
        default=0, ge=0, le=2**53, description="Seed of the draw: another seed gives other hot experts.", examples=[0]
    )
    file: str | None = Field(
        default=None,
        min_length=1,
        description="File of measured loads, used instead of drawn ones: token counts [MoE layers][experts], .npy or"
        " .json, relative to this spec.",
        examples=["loads.npy"],
    )
    live: LiveMapsSpec | None = Field(
        default=None,
        description="Limits within which running units change their maps by themselves. Without it, they keep the"
        " plan's.",
        examples=[{"every": "10min", "min_gain": 0.05, "max_bytes": "20GB"}],
    )


class GatewaySpec(Section):
    """The processes that take requests over HTTP."""

    port: int = Field(
        default=8000,
        ge=1024,
        le=65_535,
        description="HTTP port, at least 1024 because no process runs as root.",
        examples=[8000],
    )
    replicas: int = Field(
        default=1,
        ge=1,
        le=100,
        description="Number of gateways. Each is connected to every rank, and the limits of an API key are divided"
        " among the gateways. `tidemill up` gives each gateway its own address.",
        examples=[2],
    )
    max_queued_requests: int = Field(
        default=64,
        ge=0,
        le=65_536,
        description="Requests that may wait for a decode or mixed rank that is full, by count or by KV; more are"
        " answered with 429.",
        examples=[64],
    )
    resume_timeout: Annotated[float, *quantity("time", least="1s", most="1h")] = Field(
        default="5min",
        validate_default=True,
        description="Time for which a request waits for another rank after its rank is lost, for example until the unit"
        " has restarted; then it fails with 503.",
        examples=["5min"],
    )
    keys: str | None = Field(
        default=None,
        description="Secret of the namespace whose keys.json has the API keys and their limits; without it no key is"
        " needed. `tidemill key` makes an entry.",
        examples=["chat-keys"],
    )


def _this_version(written: Any) -> int:
    """Return the version if it is the integer 1, else raise an error. A Literal would also accept `true` and `1.0`."""
    if type(written) is not int or written != 1:
        raise PydanticKnownError("literal_error", {"expected": "1"})
    return written


class Spec(Section):
    """A deployment of one mixture-of-experts model: prefill and decode in separate units, or both in mixed units."""

    version: Annotated[Literal[1], PlainValidator(_this_version), WithJsonSchema({"const": 1, "type": "integer"})] = (
        Field(description="Version of the spec's format.", examples=[1])
    )
    name: str = Field(
        description="Name of the plan. Names of units and Kubernetes objects begin with it.", examples=["chat"]
    )
    model: Annotated[
        Annotated[str, one_of(MODELS), Tag("<name>")] | Annotated[ModelSpec, Tag("<own>")], Discriminator(find_tag)
    ] = Field(
        description="A model of the catalog, or a mapping with the path of its checkpoint.",
        examples=[
            A_MODEL,
            {"catalog": A_MODEL, "checkpoint": "/models/weights"},
            {"config": "models/deepseek/config.json"},
        ],
    )
    engine: Annotated[
        Annotated[EngineName, Tag("<name>")] | Annotated[EngineSpec, Tag("<own>")], Discriminator(find_tag)
    ] = Field(
        default=OURS,
        description="Engine that runs the model: the bundled runtime, or another engine that follows the plan.",
        examples=["sglang", {"name": "sglang", "version": ENGINES["sglang"].newest}],
    )
    cluster: ClusterSpec = Field(
        description="Nodes of the cluster.", examples=[{"gpu": A_GPU, "nodes": 22, "gpus_per_node": 8}]
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
    schedule: Annotated[ScheduleSpec | None, SAYS_AUTO] = Field(
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
        description="Prices of GPUs and of tokens, used for estimates.",
        examples=[{"usd_per_gpu_hour": 2.0, "prices": {"input_hit": 0.14, "input_miss": 0.55, "output": 2.19}}],
    )
    expert_load: ExpertLoadSpec = Field(
        default=ExpertLoadSpec(), description="Load that the expert maps balance.", examples=[{"file": "loads.npy"}]
    )
    operating_point: OperatingPointSpec = Field(
        default=OperatingPointSpec(),
        description="The load at which the speed of phases is predicted.",
        examples=[{"decode": {"requests": 88, "kv_tokens": 4989}}],
    )
    slo: SloSpec = Field(
        default=SloSpec(), description="Promised latencies.", examples=[{"ttft_ms": 2000, "tpot_ms": 50}]
    )
    coverage: Coverage = Field(
        default="none",
        description="Failure domain whose loss every expert must survive: a unit then has replicas of each expert on"
        " two nodes, or in two racks. For runtimes that go on without dead ranks.",
        examples=["node"],
    )
    split: Literal["equal", "local_first"] = Field(
        default="equal",
        description="Rule by which tokens choose replicas of an expert; local_first prefers the token's own GPU,"
        " then its node.",
        examples=["local_first"],
    )
    deterministic: bool = Field(
        default=False,
        description="Whether a request's greedy tokens depend on the request alone, not on its batch or on restarts."
        " Costs speed.",
        examples=[True],
    )
    kv_cache: KvCacheSpec = Field(
        default=KvCacheSpec(),
        description="Where the KV of prompts is kept, so that later prompts with the same beginning reuse it.",
        examples=[{"memory": "48GiB", "disk": {"path": "/mnt/nvme/kv", "size": "4TB", "bandwidth": "6GB/s"}}],
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
        """The engine's name, such as `sglang`."""
        return self.engine.name if isinstance(self.engine, EngineSpec) else self.engine

    def engine_args(self, phase: Phase) -> dict[str, Any]:
        """Return option -> value that the spec adds for the engine in `phase`: `engine_args` override `engine.args`."""
        of_all = self.engine.args if isinstance(self.engine, EngineSpec) else {}
        return of_all | self.phase(phase).engine_args

    @property
    def engine_version(self) -> str | None:
        """The engine's version; None for the bundled runtime, whose version its image decides."""
        written = self.engine.version if isinstance(self.engine, EngineSpec) else None
        return written or ENGINES[self.engine_name].newest

    @property
    def named_model(self) -> tuple[str, str | None]:
        """(field, its value) for the field that names the model: `model`, `model.catalog` or `model.config`."""
        if isinstance(self.model, str):
            return "model", self.model
        return ("model.catalog", self.model.catalog) if self.model.catalog else ("model.config", self.model.config)

    @property
    def served_model_name(self) -> str:
        """The model's name in /v1/models."""
        return (self.model if isinstance(self.model, str) else self.model.name) or self.name

    @property
    def split_rule(self) -> SplitRule:
        """The rule by which tokens choose replicas: the engine's own or, if the engine has a choice, the spec's."""
        return ENGINES[self.engine_name].split or self.split

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of the deployment, in the order in which a request passes through them."""
        return tuple(phase for phase in PHASES if getattr(self, phase) is not None)

    @property
    def checkpoint(self) -> str | None:
        """The path of the weights at run time; None if the spec gives none."""
        return None if isinstance(self.model, str) else self.model.checkpoint

    def device(self, phase: Phase) -> Device:
        """Return PyTorch's device type (`cuda` or `cpu`) for ranks of `phase`.

        A GPU that the spec describes is `cuda`.
        """
        name = self.gpu_name(phase)
        return GPUS[name].device if name in GPUS else "cuda"

    @property
    def is_on_gpus(self) -> bool:
        """Whether some phase runs on GPUs."""
        return any(self.device(phase) == "cuda" for phase in self.phases)

    def gpu_name(self, phase: Phase) -> str:
        """Return the name of the GPU model of `phase`, as plans write it."""
        return self.phase(phase).gpu or self.cluster.gpu_name

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """The names of the GPU models that phases use, each once."""
        return tuple(dict.fromkeys(map(self.gpu_name, self.phases)))

    @property
    def draft_tokens(self) -> int:
        """The number of tokens that are drafted for each request in a step of decode or mixed."""
        return self.phase(self.phases[-1]).draft_tokens

    @property
    def drain_s(self) -> float:
        """The seconds that a terminating process has to finish its answers."""
        if self.kubernetes.drain is not None:
            return self.kubernetes.drain
        return max(LEAST_DRAIN_S, self.paid_drain_s or 0.0)

    @property
    def paid_drain_s(self) -> float | None:
        """The seconds for which a unit that the controller drains keeps its nodes; None without controller or schedule.

        The seconds are fewer in a rehearsal, where `controller.pace` makes the day run faster than requests do.
        """
        controller = self.kubernetes.controller
        return None if controller is None else (self.schedule or ALL_DAY).drain / controller.pace

    def num_units(self, phase: Phase) -> int:
        """Return the largest number of units of `phase` that are on at the same time."""
        if self.schedule is None or is_undecided(self.schedule.windows):
            return self.phase(phase).units
        return max(window.num_units(phase) for window in self.schedule.all_windows)

    def phase(self, phase: Phase) -> PhaseSpec:
        """Return the spec's section `phase`, which must exist."""
        section = {"prefill": self.prefill, "decode": self.decode, "mixed": self.mixed}[phase]
        assert section is not None
        return section
