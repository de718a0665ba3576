"""What is expected of a plan: its speed, cost, traffic and failures.

No estimate changes what is carried out, and none refuses it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from planner.candidate.candidate import Candidate
from planner.cost.cost import Cost
from planner.cost.demand import PhaseLoad, loads_of_day
from planner.estimate.coverage import uncovered_experts
from planner.estimate.failures import Loss, report_failures
from planner.estimate.fuller import as_full_as_asked, full_rates, most_requests
from planner.estimate.kv_cache import CONVERSATION, KvCache, kv_cache
from planner.estimate.links import Traffic, expected_traffic
from planner.estimate.performance import PhaseOutlook, predict_phases
from planner.estimate.sampled import max_over_mean_sampled
from planner.estimate.throughput.predict import Prediction
from planner.estimate.uptime import Uptime, estimate_uptime
from planner.estimate.utilisation import share_of_highest
from planner.expert_map import ExpertMap, Sizes
from planner.facts.day import DAY_MINUTES
from planner.facts.loads import Loads
from planner.facts.terms import Phase
from planner.layout.layout import PhaseLayout
from planner.layout.memory import MemoryPlan, split_memory
from planner.layout.working_memory import largest_step_tokens
from planner.plan import figures
from planner.plan.compiled import Compiled, by_phase
from planner.plan.expected import Weighed
from planner.plan.plan import Plan, sealed
from planner.plan.row import Row
from planner.plan.sections import Map
from planner.problems.fix import Change
from planner.rules.check import with_values
from planner.rules.table import found_in
from planner.spec.resolved import ResolvedSpec

__all__ = ["Estimated", "with_estimates"]


@dataclass(frozen=True)
class Estimated(Compiled):
    """What was decided, and what is expected of it. Whoever asks further, as `tidemill simulate` does, asks this."""

    cost: Cost | None  # none where the spec says none
    one_more_slot: Mapping[Phase, ExpertMap]  # a GPU, of phases whose slots bind
    sampled: Mapping[Phase, tuple[float, ...]]  # max over mean in a step of the limits' size
    traffic: Mapping[Phase, Traffic]  # none where links are not known
    outlooks: tuple[PhaseOutlook, ...]  # what phases do at their operating points
    failures: Mapping[Phase, Mapping[str, Loss]]  # by domain
    uptime: Uptime | None  # none where the spec does not ask
    make_rows: Callable[[Plan], tuple[Row, ...]]  # of the plan's report

    @cached_property
    def plan(self) -> Plan:
        """Return the plan with its report."""
        return sealed(self.sections, self.make_rows)

    @property
    def sections(self) -> dict[str, Any]:
        """Return the plan's sections, but its digests."""
        outlooks = {each.phase: figures.performance(each, self.spec.slo) for each in self.outlooks}
        return super().sections | {
            "balance": {layout.phase: self._balance(layout) for layout in self.layouts},
            "failures": self.failures,
            "traffic": self.traffic or None,
            "performance": outlooks or None,
            "demand": by_phase(self.demand) or None,
            "kv_cache": self.kv_cache,
            "uptime": self.uptime,
            "cost": self.cost,
        }

    def slot_bytes(self, phase: Phase) -> int | None:
        """Return the bytes of one more slot a GPU over all MoE layers, or None where memory is not planned."""
        return next((each.weights.slot for each in self.memory if each.phase == phase), None)

    def moved_bytes(self, phase: Phase) -> int | None:
        """Return the bytes of the experts whose slots differ from the previous plan's map; None where unknown."""
        each, slot_bytes = self.expert_maps[phase], self.slot_bytes(phase)
        if each.moved_slots is None or slot_bytes is None:
            return None
        return each.moved_slots * (slot_bytes // len(each.bound))

    @property
    def demand(self) -> tuple[PhaseLoad, ...]:
        """Return how full the spec's traffic makes each phase whose speed is known, on a day like most."""
        return self.demand_on(None)

    @property
    def fullest(self) -> tuple[PhaseLoad, ...]:
        """Return how full it makes each of them on the kind of day on which the phase is fullest.

        Prefill is as full as its prompts may wait, where `slo` promises a TTFT.
        """
        traffic, schedule = self.spec.traffic, self.schedule
        entries = (*(traffic.other_days if traffic else ()), *(schedule.other_days if schedule else ()))
        days = [None, *dict.fromkeys(name for each in entries for name in each.days)]
        most = {
            each.phase: 1 / share_of_highest(each.prediction, self.spec.slo.ttft_ms)
            for each in self.outlooks
            if each.prediction is not None
        }
        by_phase = zip(*(self._demand(day, most) for day in days), strict=True)
        return tuple(max(loads, key=lambda each: each.load) for loads in by_phase)

    def demand_on(self, day: str | None) -> tuple[PhaseLoad, ...]:
        """Return how full the spec's traffic makes each phase whose speed is known, on a date or a weekday."""
        return self._demand(day, {})

    def _demand(self, day: str | None, times: Mapping[Phase, float]) -> tuple[PhaseLoad, ...]:
        """Return how full a day makes phases that make so many `times` the tokens of their operating point."""
        known = [each for each in self.outlooks if each.prediction is not None]
        if self.spec.traffic is None or not known:
            return ()
        layouts = {each.phase: each for each in self.layouts}
        rates = {
            each.phase: each.prediction.tokens_per_s_per_gpu.mid
            * layouts[each.phase].ep_size
            * times.get(each.phase, 1.0)
            for each in known
            if each.prediction is not None
        }
        most = {phase: rate * layouts[phase].ep_size for phase, rate in self._full_rates.items()}
        units = {phase: each.num_units for phase, each in layouts.items()}
        return loads_of_day(self.spec.traffic, self.schedule, units, rates, most, day)

    @cached_property
    def _full_rates(self) -> Mapping[Phase, float]:
        return full_rates(self.spec, self.memory, self.outlooks)

    @cached_property
    def kv_cache(self) -> KvCache | None:
        """Return the cache of prompts' KV; None where no prompt hits one, or the KV of a token is not known."""
        phase = self.layouts[0].phase
        memory = next((each for each in self.memory if each.phase == phase), None)
        if memory is None or self.spec.traffic is None or not self.spec.traffic.cache_hit_rate:
            return None
        layout = self.layouts[0]
        on = [(layout.num_units, DAY_MINUTES)]
        if self.schedule is not None:
            on = [(step.num_units[phase], step.minutes) for step in self.schedule.steps]
        mean_units = sum(units * minutes for units, minutes in on) / DAY_MINUTES
        most = layout.nodes_per_unit * max(units for units, _ in on)
        mean = layout.nodes_per_unit * mean_units
        return kv_cache(self.spec.traffic, memory.kv_bytes_per_token, mean, most, CONVERSATION)

    def _map(self, expert_map: ExpertMap) -> Map:
        """Add the worst coverage among the phases that have this map."""
        counts = [
            uncovered_experts(each, self.grounds.places[phase])
            for phase, each in self.expert_maps.items()
            if each.sha256 == expert_map.sha256
        ]
        kinds = [kind for kind in counts[0] if all(kind in each for each in counts)]
        uncovered = {kind: max(each[kind] for each in counts) for kind in kinds}
        coverage = {"rule": self.spec.coverage, "uncovered_experts": uncovered}
        return Map.model_validate(vars(super()._map(expert_map)) | {"coverage": coverage})

    def _balance(self, layout: PhaseLayout) -> dict[str, Any]:
        """What a phase makes of its map, which another phase may have too."""
        phase = layout.phase
        own, more = self.expert_maps[phase], self.one_more_slot.get(phase)
        moves = {"moved_slots": own.moved_slots, "bytes": self.moved_bytes(phase)}
        return vars(Weighed.model_validate(own)) | {
            "expert_map": own.sha256,
            "max_over_mean_sampled": self.sampled[phase],
            "one_more_slot": figures.one_more_slot(more, layout.slots_per_gpu, self.slot_bytes(phase)),
            "moves": None if own.moved_slots is None else moves,
        }


def with_estimates(decided: Compiled, candidate: Candidate, make_rows: Callable[[Plan], tuple[Row, ...]]) -> Estimated:
    """Return what was `decided`, and what is expected of the `candidate` that it was decided for.

    `make_rows` makes the rows of its report.
    """
    spec, layouts, maps, loads = decided.resolved, decided.layouts, decided.expert_maps, candidate.loads
    found = Estimated(
        **{each.name: getattr(decided, each.name) for each in fields(decided)},
        cost=candidate.cost,
        one_more_slot=candidate.maps_with_one_more_slot,
        sampled=_sampled(spec, decided, loads),
        traffic=expected_traffic(spec, layouts, decided.units, maps, loads),
        outlooks=candidate.speed,
        failures=report_failures(spec, layouts, decided.units, maps),
        uptime=estimate_uptime(spec, layouts),
        make_rows=make_rows,
    )
    return replace(found, warnings=(*found.warnings, *found_in(_Predicted(found, candidate), "predicted")))


@dataclass(frozen=True)
class _Predicted:
    """A plan as rules of predictions ask for it."""

    plan: Estimated
    candidate: Candidate

    @property
    def resolved(self) -> ResolvedSpec:
        return self.candidate.resolved

    @property
    def memory(self) -> Sequence[MemoryPlan]:
        return self.plan.memory

    @property
    def speed(self) -> Sequence[PhaseOutlook]:
        return self.plan.outlooks

    @property
    def searched(self) -> Collection[Phase]:
        return [each.phase for each in self.plan.search.phases] if self.plan.search else []

    @property
    def fullest(self) -> Sequence[PhaseLoad]:
        return self.plan.fullest

    def having(self, change: Change) -> Candidate:
        return self.candidate.having(change)

    def predicted_with(self, phase: Phase, change: Change) -> Prediction | None:
        plan, of_phase = self.plan, [each for each in self.plan.layouts if each.phase == phase]
        tried = with_values(self.resolved, change)
        memory = [split_memory(tried, each) for each in of_phase] if plan.memory else []
        loads, calibration = self.candidate.loads, self.candidate.calibration
        return predict_phases(tried, of_phase, memory, plan.expert_maps, loads, calibration)[0].prediction

    def fuller(self, load: PhaseLoad) -> Prediction | None:
        plan, outlook = self.plan, next(each for each in self.speed if each.phase == load.phase)
        if outlook.case is None or outlook.prediction is None or not load.served_per_s:
            return None
        times = load.load / share_of_highest(outlook.prediction, plan.spec.slo.ttft_ms)
        return as_full_as_asked(outlook, most_requests(plan.spec, plan.memory, outlook), times)


def _sampled(spec: ResolvedSpec, decided: Compiled, loads: Loads) -> dict[Phase, tuple[float, ...]]:
    """Max over mean of the largest step that the limits allow, of all groups of a unit that share attention."""
    sampled = {}
    for each in decided.layouts:
        section = spec.phase(each.phase)
        tokens = largest_step_tokens(each.phase, section) * each.dp_size
        sizes = Sizes(each.num_physical_experts, each.ep_size, each.nodes_per_unit)
        pairs = tokens * spec.model.num_experts_per_token
        sampled[each.phase] = max_over_mean_sampled(decided.expert_maps[each.phase], loads, sizes, pairs)
    return sampled
