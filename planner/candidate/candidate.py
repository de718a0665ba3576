"""A candidate: one spec, and what follows from it, each part computed when somebody asks for it.

    document -> resolved -> layouts -> memory -> placement -> schedule, maps -> speed -> cost

It is frozen. Whoever wants to know what a change would do asks the candidate `having` it, which is another one, so that
nothing is computed twice and nothing goes stale. `compiler.py` asks one candidate for all that a plan says, `search/`
tries many. A candidate judges nothing: memory may be short, and rules say so.

What rests on a spec that breaks rules, or on a placement where nodes are too few, raises `Unknown`. So does a question
beyond the candidate's `level`: `validate` waits for no placement, and a search for no maps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Protocol

from planner.estimate.coverage import FailureDomains, failure_domains
from planner.estimate.expert_loads import expert_loads
from planner.facts.loads import Loads
from planner.facts.terms import Phase
from planner.layout.dispatch import gate_of, groups_on_nodes, split_of
from planner.layout.layout import PhaseLayout, lay_out
from planner.layout.memory import MemoryPlan, memory_of
from planner.placement.enough import missing_nodes
from planner.problems.errors import SpecError
from planner.problems.finding import Unknown
from planner.problems.fix import Change
from planner.rules.check import document_with, resolve
from planner.rules.rule import Level, is_within
from planner.schedule.starts import StartTimes, start_times
from planner.spec.resolved import ResolvedSpec
from planner.spec.yaml import Document

if TYPE_CHECKING:
    from planner.cost.cost import Cost
    from planner.estimate.performance import PhaseOutlook
    from planner.estimate.throughput.calibration import Calibration
    from planner.expert_map import Domains, ExpertMap
    from planner.placement.place import Placement
    from planner.schedule.schedule import DaySchedule

__all__ = ["Candidate", "Previous"]


class Previous(Protocol):
    """A plan of before, near which units and maps stay."""

    @property
    def nodes_by_unit(self) -> Mapping[str, Sequence[str]]:
        """The nodes of its units, by name."""

    def rows_for(self, layout: PhaseLayout, num_layers: int) -> Sequence[Sequence[int]] | None:
        """The phase's map, where it has the sizes of `layout`."""


@dataclass(frozen=True)
class Candidate:
    """A spec as far as it has been thought through."""

    document: Document
    previous: Previous | None = None
    calibration: "Calibration | None" = None  # a user's own measurements, by which `speed` is corrected
    level: Level = "predicted"  # how far it may be thought through
    known: ResolvedSpec | None = field(default=None, repr=False)  # the document, where it has been resolved before

    @classmethod
    def of(
        cls, spec: ResolvedSpec, previous: Previous | None = None, calibration: "Calibration | None" = None
    ) -> "Candidate":
        """Return the candidate of a spec without mistakes."""
        return cls(spec.document, previous, calibration, known=spec)

    def at(self, level: Level) -> "Candidate":
        """Return the same spec, to be thought through up to `level`."""
        return replace(self, level=level)

    def having(self, change: Change) -> "Candidate":
        """Return the candidate whose user had also written `change` (dotted path -> value)."""
        return replace(self, document=document_with(self.document, change), known=None)

    @cached_property
    def resolved(self) -> ResolvedSpec:
        """The spec with what its files and names stand for. Raises Unknown where it breaks rules."""
        try:
            return self.known or resolve(self.document)
        except SpecError as error:
            raise Unknown from error

    @cached_property
    def layouts(self) -> tuple[PhaseLayout, ...]:
        """The shape of each phase."""
        return tuple(lay_out(self.resolved, phase) for phase in self.resolved.phases)

    @cached_property
    def memory(self) -> tuple[MemoryPlan, ...]:
        """A GPU of each phase, whether or not all fits; none on `cpu`."""
        spec = self.resolved
        return tuple(each for phase in spec.phases if (each := memory_of(spec, phase)) is not None)

    @cached_property
    def start_times(self) -> StartTimes | None:
        """How long units take to start, where that is known."""
        return start_times(self.resolved, self.layouts, self.memory)

    @cached_property
    def placement(self) -> "Placement":
        """Units on nodes. Raises Unknown where there are too few."""
        from planner.placement.place import place_units  # imported late, like maps: `validate` waits for neither

        self._require("placed")
        if missing_nodes(self.resolved, self.layouts):
            raise Unknown
        return place_units(self.resolved, self.layouts, self.previous.nodes_by_unit if self.previous else {})

    @cached_property
    def places(self) -> dict[Phase, FailureDomains]:
        """The failure domains in which the ranks of each phase's units stand."""
        return failure_domains(self.resolved, self.layouts, self.placement.units)

    @cached_property
    def schedule(self) -> "DaySchedule | None":
        """The day of the units; None where all are always on."""
        from planner.schedule.schedule import plan_schedule

        return plan_schedule(self.resolved.written, self.placement.units, self.start_times)

    @cached_property
    def loads(self) -> Loads:
        """How often each expert is chosen, layer by layer."""
        return expert_loads(self.resolved)

    @cached_property
    def maps(self) -> "dict[Phase, ExpertMap]":
        """The expert map of each phase, near the previous one where there is one."""
        self._require("mapped")
        return {each.phase: self._map_for(each, self._previous_map(each)) for each in self.layouts}

    @cached_property
    def maps_with_one_more_slot(self) -> "dict[Phase, ExpertMap]":
        """What maps would be with one more slot on each GPU, of the phases whose slots bind."""
        from planner.expert_map import slots_bind

        return {
            each.phase: self._map_for(each, more_slots=each.ep_size)
            for each in self.layouts
            if slots_bind(self.maps[each.phase]) and each.slots_per_gpu < each.num_logical_experts
        }

    @cached_property
    def speed(self) -> "tuple[PhaseOutlook, ...]":
        """What each phase is expected to do."""
        from planner.estimate.performance import predict_phases

        return predict_phases(self.resolved, self.layouts, self.memory, self.maps, self.loads, self.calibration)

    @cached_property
    def cost(self) -> "Cost | None":
        """What a day costs and earns; None where the spec gives no prices."""
        from planner.cost.cost import plan_cost
        from planner.estimate.fuller import full_rates

        written = self.resolved.written
        rates = full_rates(written, self.memory, self.speed)
        most = {each.phase: rates[each.phase] * each.gpus_per_node for each in self.speed if each.phase in rates}
        return plan_cost(written, self.schedule, self.placement.units, most)

    def mean_balance(self, layout: PhaseLayout, slots_per_gpu: int, domains: "Domains") -> float | None:
        """Return max/mean of a map of `layout` with other slots and failure domains; None below the level of maps."""
        if not is_within("mapped", self.level):
            return None
        more_slots = (slots_per_gpu - layout.slots_per_gpu) * layout.ep_size
        return fmean(self._map_for(layout, more_slots=more_slots, domains=domains).max_over_mean)

    def _require(self, level: Level) -> None:
        """Raise Unknown where the candidate may not be thought through to `level`."""
        if not is_within(level, self.level):
            raise Unknown

    def _previous_map(self, layout: PhaseLayout) -> Sequence[Sequence[int]] | None:
        return self.previous.rows_for(layout, len(self.loads)) if self.previous else None

    def _map_for(
        self,
        layout: PhaseLayout,
        previous: Sequence[Sequence[int]] | None = None,
        *,
        more_slots: int = 0,
        domains: "Domains | None" = None,
    ) -> "ExpertMap":
        """Balance the experts of a phase, near the `previous` map where there is one, and in no other `domains`."""
        from planner.expert_map import balance

        spec = self.resolved
        num_groups = groups_on_nodes(spec.model, spec.gpu_of(layout.phase), spec.cluster.gpus_per_node, layout)
        split = split_of(spec.written, layout)
        return balance(
            self.loads,
            layout.num_physical_experts + more_slots,
            layout.ep_size,
            num_nodes=layout.nodes_per_unit,
            num_groups=num_groups if split == "equal" else 1,  # only equal shares are weighed against bytes
            gate=gate_of(spec.model, layout.precision),
            previous=previous,
            domains=self.places[layout.phase].of(spec.written.coverage) if domains is None else domains,
            split=split,
        )
