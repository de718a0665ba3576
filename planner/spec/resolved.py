"""A valid spec together with the contents of the files and catalog entries that it names."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from planner.facts.catalog import GPUS, Gpu
from planner.facts.drawn import draw_loads
from planner.facts.loads import Loads
from planner.facts.model import Model
from planner.facts.reuse import ReuseCurve
from planner.facts.terms import Phase
from planner.problems.finding import Finding
from planner.spec.cluster import ClusterSpec
from planner.spec.phase import PhaseSpec
from planner.spec.schema import Spec
from planner.spec.yaml import Document


@dataclass(frozen=True)
class ResolvedSpec:
    """A valid spec together with the contents of the files and catalog entries that it names."""

    written: Spec
    model: Model
    config_digest: str | None  # of the checkpoint's config.json, if known
    weights_digest: str | None  # of the manifest beside it, if known
    other_quantization: str | None  # name of the checkpoint's quantisation, if no precision describes it
    gpu: Gpu
    measured_loads: Loads | None  # of expert_load.file
    reuse: ReuseCurve  # of traffic.trace, or of Mooncake's conversations
    inputs: Mapping[str, str]  # name of each file, as the spec writes it -> its sha256
    document: Document

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases that the spec has: prefill and decode, or mixed."""
        return self.written.phases

    @property
    def expert_loads(self) -> Loads:
        """The loads `[layers][experts]` of `expert_load.file`, or else loads drawn with the spec's alpha and seed."""
        if self.measured_loads is not None:
            return self.measured_loads
        drawn, model = self.written.expert_load, self.model
        sizes = model.num_moe_layers, model.num_routed_experts, model.num_expert_groups
        return draw_loads(drawn.alpha, drawn.seed, *sizes)

    def gpu_of(self, phase: Phase) -> Gpu:
        """Return the figures of the GPU model that `phase` uses."""
        name = self.written.gpu_name(phase)
        return self.gpu if name == self.cluster.gpu_name else GPUS[name]

    def named_gpus(self) -> Iterator[tuple[str, str, Gpu]]:
        """Yield (path of the field that names it, name, figures) of each GPU model that some phase uses."""
        if any(self.phase(phase).gpu is None for phase in self.phases):
            yield "cluster.gpu", self.cluster.gpu_name, self.gpu
        for phase in self.phases:
            if (name := self.phase(phase).gpu) is not None:
                yield f"{phase}.gpu", name, self.gpu_of(phase)

    @property
    def cluster(self) -> ClusterSpec:
        """The spec's `cluster` section."""
        return self.written.cluster

    @property
    def loaded_model(self) -> Model:
        """The model as phases load it: with an MTP module if tokens are drafted."""
        return self.model.with_drafts() if self.written.draft_tokens else self.model

    @property
    def has_windows_of_traffic(self) -> bool:
        """Whether `schedule.windows` was written as `auto`, so that the units in each window follow from traffic."""
        return bool({"schedule", "schedule.windows"} & self.document.autos)

    def phase(self, phase: Phase) -> PhaseSpec:
        """Return the spec's section `phase`."""
        return self.written.phase(phase)

    def with_numbers(self, phase: Phase, numbers: Mapping[str, int]) -> "ResolvedSpec":
        """Return the spec with other numbers (field -> number) in the section `phase`. The numbers are not checked."""
        section = self.phase(phase).model_copy(update=dict(numbers))
        return replace(self, written=self.written.model_copy(update={phase: section}))

    def locate(self, finding: Finding) -> Finding:
        """Return `finding` with the file, line and column of the field that it is about."""
        return self.document.locate(finding)
