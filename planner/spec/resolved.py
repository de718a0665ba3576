"""A spec without mistakes, together with what the files and catalog entries that it names say."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from planner.facts.catalog import GPUS, Gpu
from planner.facts.loads import Loads
from planner.facts.model import Model
from planner.facts.terms import Phase
from planner.problems.finding import Finding
from planner.spec.cluster import ClusterSpec
from planner.spec.phase import PhaseSpec
from planner.spec.schema import Spec
from planner.spec.yaml import Document

if TYPE_CHECKING:
    from planner.facts.forecast import Forecast

__all__ = ["ResolvedSpec", "following"]


@dataclass(frozen=True)
class ResolvedSpec:
    """A spec without mistakes, together with what the files and catalog entries that it names say."""

    written: Spec
    model: Model
    config_digest: str | None  # of the checkpoint's config.json; None where neither a file nor the spec says it
    weights_digest: str | None  # of the manifest beside it, likewise
    other_quantization: str | None  # what the config.json's quantization_config says that no precision does
    gpu: Gpu
    measured_loads: Loads | None  # of expert_load.file
    forecast: "Forecast | None"  # of traffic.history, whose quantile is the profile
    inputs: Mapping[str, str]  # sha256 of every file that the spec names, by the name that it has there
    document: Document

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Return the phases that the spec has: prefill and decode, or mixed."""
        return self.written.phases

    def gpu_of(self, phase: Phase) -> Gpu:
        """Return what `phase` runs on."""
        name = self.written.gpu_name(phase)
        return self.gpu if name == self.cluster.gpu_name else GPUS[name]

    def named_gpus(self) -> Iterator[tuple[str, str, Gpu]]:
        """Yield where the spec names what its phases run on, the name there, and its figures."""
        if any(self.phase(phase).gpu is None for phase in self.phases):
            yield "cluster.gpu", self.cluster.gpu_name, self.gpu
        for phase in self.phases:
            if (name := self.phase(phase).gpu) is not None:
                yield f"{phase}.gpu", name, self.gpu_of(phase)

    @property
    def cluster(self) -> ClusterSpec:
        """Return the nodes as written."""
        return self.written.cluster

    @property
    def loaded_model(self) -> Model:
        """Return the model as its phases load it: where tokens are drafted, with an MTP module."""
        return self.model.with_drafts() if self.written.draft_tokens else self.model

    @property
    def has_windows_of_traffic(self) -> bool:
        """Whether the traffic counts the units of each window, now or once the planner has decided."""
        return bool({"schedule", "schedule.windows"} & self.document.autos)

    def phase(self, phase: Phase) -> PhaseSpec:
        """Return what is written about `phase`."""
        return self.written.phase(phase)

    def trying(self, phase: Phase, numbers: Mapping[str, int]) -> "ResolvedSpec":
        """Return it with other numbers in `phase`, unchecked: for a look at its memory."""
        section = self.phase(phase).model_copy(update=dict(numbers))
        return replace(self, written=self.written.model_copy(update={phase: section}))

    def locate(self, finding: Finding) -> Finding:
        """`finding` with its line, for passes that find the spec infeasible."""
        return self.document.locate(finding)


def following(spec: Spec, forecast: "Forecast | None") -> Spec:
    """Return `spec` with the forecast quantile for its profile, where past days are given in place of one.

    Its tokens and requests are then those of that day: those of the spec are the median day's.
    """
    if forecast is None or spec.traffic is None:
        return spec
    traffic, more = spec.traffic, forecast.times_the_median
    tokens = {"input_tokens": more * traffic.input_tokens, "output_tokens": more * traffic.output_tokens}
    requests = None if traffic.requests is None else more * traffic.requests
    following = traffic.model_copy(update={"profile": list(forecast.quantile), **tokens, "requests": requests})
    return spec.model_copy(update={"traffic": following})
