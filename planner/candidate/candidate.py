"""A candidate: one spec and everything planned from it, such as memory, placement and speed, computed on first use.

    document -> resolved -> layouts -> memory -> placement -> schedule, maps -> speed -> cost

A candidate is frozen: `with_change` returns a new candidate, so no result is computed twice or goes stale.
`compiler.py` reads a whole plan from one candidate; `search/` tries many. A candidate does not refuse anything: if
memory is short, a rule reports that.

Reading a result raises `Unknown` if the spec breaks rules, or if the result needs a placement and nodes are too few.
Results beyond the candidate's `level` raise `Unknown` too: `validate` must not wait for a placement, nor a search for
expert maps.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any, Protocol

from planner.estimate.coverage import FailureDomains, failure_domains
from planner.facts.catalog import Gpu
from planner.facts.loads import Loads
from planner.facts.terms import Phase
from planner.layout.dispatch import gate_of, groups_on_nodes, split_of
from planner.layout.layout import PhaseLayout, lay_out
from planner.layout.memory import MemoryPlan, loaded_bytes, memory_of, split_memory
from planner.layout.nodes import short_gpu
from planner.layout.unit import Unit
from planner.problems.errors import SpecError
from planner.problems.finding import Finding, Unknown
from planner.problems.fix import Change
from planner.rules.check import change_document, change_spec, resolve
from planner.rules.rule import Level, is_within
from planner.rules.table import findings_at, refusals_of, warnings_of
from planner.schedule.starts import StartTimes, start_times
from planner.spec.resolved import ResolvedSpec
from planner.spec.schema import Spec
from planner.spec.yaml import Document

if TYPE_CHECKING:
    from planner.cost.cost import Cost
    from planner.cost.demand import PhaseLoad
    from planner.estimate.failures import Loss
    from planner.estimate.performance import PhaseOutlook
    from planner.estimate.throughput.calibration import Calibration
    from planner.estimate.throughput.engines import EngineModel
    from planner.estimate.throughput.predict import Prediction
    from planner.expert_map import Domains, ExpertMap
    from planner.placement.place import Placement
    from planner.schedule.schedule import Timetable

# A previous map stays if it is at most this much less balanced than a new map, since a new map restarts units. Assumed:
# a start takes some ten minutes, 0.7 % of a day, and loads drift from day to day.
WORTH_A_RESTART = 0.01
ANY_BALANCE = 1e6  # no map is so uneven, with at most as many GPUs as a unit may have


class Previous(Protocol):
    """A previous plan: units keep the nodes they had in it, and expert maps stay close to its maps."""

    @property
    def nodes_by_unit(self) -> Mapping[str, Sequence[str]]:
        """Unit name -> names of the nodes that the unit had."""

    def rows_for(self, layout: PhaseLayout, num_layers: int) -> Sequence[Sequence[int]] | None:
        """Return the previous expert map of the layout's phase, or None if its sizes differ from `layout`."""


@dataclass(frozen=True)
class Candidate:
    """A spec and everything planned from it, computed on first use."""

    document: Document
    previous: Previous | None = None
    calibration: "Calibration | None" = None  # a user's own measurements, which correct `speed`
    keeps_maps: bool = False  # whether the previous plan's maps stay, however uneven, as they do until units restart
    level: Level = "predicted"  # results beyond it raise Unknown
    known: ResolvedSpec | None = field(default=None, repr=False)  # the resolved document, if the caller has it

    @classmethod
    def of(
        cls, spec: ResolvedSpec, previous: Previous | None = None, calibration: "Calibration | None" = None
    ) -> "Candidate":
        """Return a candidate for a resolved spec."""
        return cls(spec.document, previous, calibration, known=spec)

    def at(self, level: Level) -> "Candidate":
        """Return a candidate that computes results up to `level` only. Results of later levels raise Unknown."""
        return replace(self, level=level)

    def with_change(self, change: Change) -> "Candidate":
        """Return a candidate for the document with `change` (dotted path -> value) written into it."""
        return replace(self, document=change_document(self.document, change), known=None)

    @cached_property
    def resolved(self) -> ResolvedSpec:
        """The spec with its references to files and catalogs resolved. Raises Unknown if the spec breaks rules."""
        try:
            return self.known or resolve(self.document)
        except SpecError as error:
            raise Unknown from error

    @property
    def spec(self) -> Spec:
        """The fields of the spec as validated, without the content of files that it refers to."""
        return self.resolved.written

    @cached_property
    def layouts(self) -> tuple[PhaseLayout, ...]:
        """The layout of each phase: its sizes and its numbers of GPUs, nodes and units."""
        return tuple(lay_out(self.resolved, phase) for phase in self.resolved.phases)

    @cached_property
    def memory(self) -> tuple[MemoryPlan, ...]:
        """The memory plan for one GPU of each phase, even if not everything fits; empty on `cpu`."""
        spec = self.resolved
        return tuple(each for phase in spec.phases if (each := memory_of(spec, phase)) is not None)

    @property
    def searched(self) -> Collection[Phase]:
        """The phases whose layouts a search chose by predicted speed."""
        return ()

    @property
    def phase_gpus(self) -> dict[Phase, Gpu]:
        """The GPU type of each phase that does not run on the cluster's default type (`cluster.gpu`)."""
        spec = self.resolved
        return {each.phase: spec.gpu_of(each.phase) for each in self.layouts if each.gpu != spec.cluster.gpu_name}

    @cached_property
    def refusals(self) -> tuple[Finding, ...]:
        """Findings on what the engine cannot run of this spec. These findings do not prevent a plan."""
        return findings_at(self, "rendered")

    @cached_property
    def warnings(self) -> tuple[Finding, ...]:
        """Warnings about the candidate's layouts and pods."""
        return warnings_of(self, is_runnable=not self.refusals)

    def misfits(self, level: Level) -> tuple[Finding, ...]:
        """Return the findings of the first rule, up to `level`, that makes the candidate infeasible."""
        return refusals_of(self, level)

    @property
    def missed_promises(self) -> tuple[Finding, ...]:
        """Warnings about promises and traffic that predicted speeds do not meet, and about overlap that costs time."""
        return findings_at(self, "predicted")

    @cached_property
    def start_times(self) -> StartTimes:
        """How long units take to start."""
        return start_times(self.spec, self.layouts, self.loaded_bytes)

    @cached_property
    def loaded_bytes(self) -> dict[Phase, tuple[int, int]]:
        """The bytes of weights that one rank of each phase reads, and those of its expert slots among these."""
        return {each.phase: loaded_bytes(self.resolved, each) for each in self.layouts}

    @cached_property
    def placement(self) -> "Placement":
        """The nodes on which each unit is placed. Raises Unknown if there are too few nodes."""
        from planner.placement.place import place_units  # slow to import, like maps; `validate` needs neither

        self._require_level("placed")
        if short_gpu(self.resolved, self.layouts):
            raise Unknown
        return place_units(self.resolved, self.layouts, self.previous.nodes_by_unit if self.previous else {})

    @property
    def units(self) -> tuple[Unit, ...]:
        """All placed units, phase by phase."""
        return self.placement.units

    @cached_property
    def places(self) -> dict[Phase, FailureDomains]:
        """The failure domain (GPU, node, rack) of each rank of a phase's units."""
        return failure_domains(self.resolved, self.layouts, self.placement.units)

    @cached_property
    def schedule(self) -> "Timetable | None":
        """The schedule that turns units on and off over the day; None if all units are always on."""
        from planner.schedule.schedule import plan_schedule

        return plan_schedule(self.resolved.written, self.placement.units, self.start_times)

    @property
    def running_schedule(self) -> "Timetable | None":
        """The schedule as it runs: None if all units stay on, as they do without a controller."""
        return self.schedule if self.spec.kubernetes.controller else None

    @cached_property
    def loads(self) -> Loads:
        """The load of each expert (how often tokens choose it), `[num_moe_layers][num_routed_experts]`."""
        return self.resolved.expert_loads

    @cached_property
    def maps(self) -> "dict[Phase, ExpertMap]":
        """The expert map of each phase: the previous plan's, or a new map if its better balance is worth a restart."""
        self._require_level("mapped")
        return {
            each.phase: self._map_for(
                each, self._previous_map(each), keep_within=ANY_BALANCE if self.keeps_maps else WORTH_A_RESTART
            )
            for each in self.layouts
        }

    @cached_property
    def speed(self) -> "tuple[PhaseOutlook, ...]":
        """The predicted speed of each phase, or the reason why it is unknown."""
        from planner.estimate.performance import predict_phases

        return predict_phases(self.resolved, self.layouts, self.memory, self.maps, self.loads, self.calibration)

    @cached_property
    def failures(self) -> "dict[Phase, dict[str, Loss]]":
        """The most units that losing one failure domain stops, by phase and kind of domain, such as rack."""
        from planner.estimate.failures import report_failures

        return report_failures(self.resolved, self.units)

    @cached_property
    def full_rates(self) -> dict[Phase, float]:
        """The maximum tokens/s of one GPU, for each phase with a known speed."""
        from planner.estimate.overload import full_rates

        return full_rates(self.spec, self.memory, self.speed)

    @property
    def most_per_node(self) -> dict[Phase, float]:
        """The maximum tokens/s of one node, for each phase with a known speed."""
        return {each.phase: self.full_rates[each.phase] * each.case.gpus_per_node for each in self.speed if each.case}

    @cached_property
    def cost(self) -> "Cost | None":
        """The cost and income of a day; None if the spec has no `cost`."""
        return self.cost_with(self.spec, self.most_per_node)

    def cost_with(self, spec: Spec, most_per_node: Mapping[Phase, float]) -> "Cost | None":
        """Return a day's cost and income of the same units under another `spec` or other rates.

        Return None if `spec` has no `cost`.
        """
        from planner.cost.cost import estimate_cost

        return estimate_cost(spec, self.running_schedule, self.units, most_per_node)

    def demand_on(self, day: str | None) -> "tuple[PhaseLoad, ...]":
        """Return each phase's load under the traffic of `day`: a date, a weekday, or None for an ordinary day.

        Phases of unknown speed are left out.
        """
        from planner.cost.demand import predict_loads

        return predict_loads(self.spec, self.running_schedule, self.layouts, self.speed, self.full_rates, day)

    @cached_property
    def busy_hours(self) -> "tuple[tuple[PhaseLoad, Prediction | None], ...]":
        """The stretches of all kinds of day with a load above 100 %, and the prediction of the phase then.

        Prefill's load is 100 % where it just meets the TTFT SLO. The prediction is None if units cannot serve the load.
        """
        from planner.cost.demand import busy_stretches

        found = busy_stretches(self.spec, self.running_schedule, self.layouts, self.speed, self.full_rates)
        of_loads = {(each.phase, each.load): each for each in found}
        predicted = {key: self._predict_at(each) for key, each in of_loads.items()}
        return tuple((each, predicted[each.phase, each.load]) for each in found)

    def at_peak(self, phase: Phase) -> "Prediction | None":
        """Predict a phase in the fullest hour of an ordinary day.

        Return None if that asks for no more than the operating point, or for more than units can keep up with.
        """
        from planner.estimate.overload import most_requests, predict_at_peak

        outlook = next(each for each in self.speed if each.phase == phase)
        load = next((each for each in self.demand_on(None) if each.phase == phase and each.is_over), None)
        if load is None or not load.served_per_s:
            return None
        return predict_at_peak(outlook, most_requests(self.spec, self.memory, outlook), load.load)

    def _predict_at(self, load: "PhaseLoad") -> "Prediction | None":
        from planner.estimate.overload import most_requests, predict_at_load
        from planner.estimate.utilisation import relative_utilisation

        outlook = next(each for each in self.speed if each.phase == load.phase)
        if outlook.prediction is None or not load.served_per_s:
            return None
        times = load.load / relative_utilisation(outlook.prediction, self.spec.slo.ttft_ms)
        return predict_at_load(outlook, most_requests(self.spec, self.memory, outlook), times)

    def predict_with(self, phase: Phase, change: Change) -> "Prediction | None":
        """Predict a phase under a `change` of the spec, with its present expert map; None if its speed is unknown."""
        from planner.estimate.performance import predict_phases

        tried, layouts = change_spec(self.resolved, change), [each for each in self.layouts if each.phase == phase]
        memory = [split_memory(tried, each) for each in layouts] if self.memory else []
        return predict_phases(tried, layouts, memory, self.maps, self.loads, self.calibration)[0].prediction

    def predict_on(self, engine: "EngineModel", phase: Phase, change: Change) -> "PhaseOutlook":
        """Return the speed of `phase` if `engine` ran it, at the operating point that `change` sets."""
        from planner.estimate.performance import predict_phases

        tried, layouts = change_spec(self.resolved, change), [each for each in self.layouts if each.phase == phase]
        return predict_phases(tried, layouts, self.memory, self.maps, self.loads, None, engine)[0]

    def mean_balance(self, layout: PhaseLayout, slots_per_gpu: int, domains: "Domains") -> float | None:
        """Return max/mean GPU load for `layout` with these slots and failure domains; None below level "mapped"."""
        if not is_within("mapped", self.level):
            return None
        more_slots = (slots_per_gpu - layout.slots_per_gpu) * layout.ep_size
        return fmean(self._map_for(layout, more_slots=more_slots, domains=domains).max_over_mean)

    def _require_level(self, level: Level) -> None:
        """Raise Unknown if a result of `level` is beyond the level up to which the candidate computes results."""
        if not is_within(level, self.level):
            raise Unknown

    def _previous_map(self, layout: PhaseLayout) -> Sequence[Sequence[int]] | None:
        return self.previous.rows_for(layout, len(self.loads)) if self.previous else None

    def _map_for(
        self,
        layout: PhaseLayout,
        previous: Sequence[Sequence[int]] | None = None,
        keep_within: float = 0.0,
        *,
        more_slots: int = 0,
        domains: "Domains | None" = None,
    ) -> "ExpertMap":
        """Return a balanced expert map for a phase, close to the `previous` map if given.

        The previous map is kept if its max/mean load is at most `1 + keep_within` times a new map's. Replicas are
        spread over `domains`, by default the failure domains of the spec's `coverage`.
        """
        from planner.expert_map import balance

        return balance(
            self.loads,
            layout.num_physical_experts + more_slots,
            layout.ep_size,
            previous=previous,
            keep_within=keep_within,
            as_a_whole=True,  # any change of a map restarts the phase's units, which read all weights again
            **self.map_rules(layout, domains),
        )

    def map_rules(self, layout: PhaseLayout, domains: "Domains | None" = None) -> dict[str, Any]:
        """Return the arguments of `balance` that follow from where a phase's ranks are and how they exchange tokens."""
        spec = self.resolved
        num_groups = groups_on_nodes(spec.model, spec.gpu_of(layout.phase), spec.cluster.gpus_per_node, layout)
        split = split_of(spec.written, layout)
        return {
            "num_nodes": layout.nodes_per_unit,
            "num_groups": num_groups if split == "equal" else 1,  # else balance is not weighed against bytes
            "gate": gate_of(spec.model, layout.precision),
            "domains": self.places[layout.phase].for_coverage(spec.written.coverage) if domains is None else domains,
            "split": split,
        }
