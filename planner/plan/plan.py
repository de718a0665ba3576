"""The plan: all decisions, frozen, as one JSON document with a digest.

It is what a review reads, and what a later plan is compared with; `render` and `up` carry out its `Deployable`. The
document is complete: it holds the spec, the launch documents and the digest of every file that was read, so it can be
carried out without planning again. Nothing in it depends on the machine, the hour or the folder in which it was made.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from planner.cost.cost import DayCost
from planner.cost.demand import PhaseLoad, loads_of_day
from planner.estimate.coverage import FailureDomains, uncovered_experts
from planner.estimate.failures import FailureReport
from planner.estimate.fuller import full_rates
from planner.estimate.kv_cache import CONVERSATION, KvCache, kv_cache
from planner.estimate.links import PhaseTraffic
from planner.estimate.performance import PhaseOutlook
from planner.estimate.uptime import Uptime
from planner.estimate.utilisation import share_of_highest
from planner.expert_map import ExpertMap
from planner.facts.catalog import ASSUMED, Gpu
from planner.facts.day import DAY_MINUTES
from planner.facts.digest import digest_of
from planner.facts.model import Model
from planner.facts.terms import Phase
from planner.layout.layout import PhaseLayout
from planner.placement.place import Placement
from planner.plan.cost_json import cost_json
from planner.plan.decided import DecidedPlan
from planner.plan.deployable import document_digest
from planner.plan.kv_cache_json import kv_cache_json
from planner.plan.map_json import one_more_slot_json, policy_json
from planner.plan.performance_json import demand_json, performance_json
from planner.plan.search_json import search_json
from planner.plan.warned import warning_json
from planner.search.decision import Decision
from planner.search.layouts import LayoutSearch
from planner.spec.schema import Spec

__all__ = ["PLAN_VERSION", "Plan"]

PLAN_VERSION = 2


@dataclass(frozen=True)
class Plan(DecidedPlan):
    """What `compile_plan` decided for a spec, why, and what is expected of it."""

    written: Mapping[str, Any]  # the spec as its user would write it, with defaults and with numbers for `auto`
    inputs: Mapping[str, str]  # sha256 of every file that the spec names, by the name that it has there
    model: Model
    gpu: Gpu
    phase_gpus: Mapping[Phase, Gpu]  # of phases that run on another
    decisions: tuple[Decision, ...]  # what the spec leaves open
    search: LayoutSearch | None  # none where no speed decided
    cost: DayCost | None  # none where the spec says none
    one_more_slot: Mapping[Phase, ExpertMap]  # a GPU, of phases whose slots bind
    sampled: Mapping[Phase, tuple[float, ...]]  # max over mean in a step of the limits' size
    places: Mapping[Phase, FailureDomains]  # in which the ranks of a phase's units stand
    traffic: tuple[PhaseTraffic, ...]  # none where links are not known
    outlooks: tuple[PhaseOutlook, ...]  # what phases do at their operating points
    failures: tuple[FailureReport, ...]
    uptime: Uptime | None  # none where the spec does not ask

    @cached_property
    def _document(self) -> dict[str, Any]:
        document = self._content | {"digest": self.digest}
        return document | {"document_digest": document_digest(document)}

    def as_json(self) -> dict[str, Any]:
        """Return the contract's plan JSON."""
        return dict(self._document)

    @property
    def sources(self) -> dict[str, str]:
        """Return the source of each number that no spec gives."""
        figures = {f"cluster.gpu.{figure}": source for figure, source in self.gpu.sources.items()}
        for phase, gpu in self.phase_gpus.items():
            figures |= {f"{phase}.gpu.{figure}": source for figure, source in gpu.sources.items()}
        parts = {f"{each.phase}.{part}": source for each in self.memory for part, source in each.sources.items()}
        return {"model": self.model.source} | figures | parts

    @property
    def assumed(self) -> dict[str, str]:
        """Those that nobody read anywhere."""
        return {name: source for name, source in self.sources.items() if source.startswith(ASSUMED)}

    def slot_bytes(self, phase: Phase) -> int | None:
        """Return the bytes of one more slot a GPU over all MoE layers, or None where memory is not planned."""
        return next((each.weights.slot for each in self.memory if each.phase == phase), None)

    def moved_bytes(self, phase: Phase) -> int | None:
        """Return the bytes of the experts whose slots differ from the previous plan's map; None where unknown."""
        each, slot_bytes = self.expert_maps[phase], self.slot_bytes(phase)
        if each.moved_slots is None or slot_bytes is None:
            return None
        return each.moved_slots * (slot_bytes // len(each.bound))

    @cached_property
    def _content(self) -> dict[str, Any]:
        sections = self.sections
        return {
            "version": PLAN_VERSION,
            "name": self.name,
            "spec": self.written,
            "spec_digest": digest_of(Spec.model_validate(self.written).model_dump(mode="json")),  # not of a forecast
            "inputs": self.inputs,
            "runnable": sections["runnable"],
            "why_not": [finding.message for finding in self.refusals],
            "warnings": [warning_json(finding) for finding in self.warnings],
            "gpu": _gpu_json(self.gpu),
            "sources": self.sources,
            "assumed": self.assumed,
            "decisions": [asdict(decision) for decision in self.decisions],
            "phases": sections["phases"],
            "memory": sections["memory"],
            "failures": {each.phase: _failures_json(each) for each in self.failures},
            "placement": _placement_json(self.placement),
            "units": sections["units"],
            "launch_documents": sections["launch_documents"],
            "expert_maps": {
                sha256: each | {"coverage": self._coverage_json(sha256)}
                for sha256, each in sections["expert_maps"].items()
            },
            "balance": {layout.phase: self._balance_json(layout) for layout in self.layouts},
        } | self._optional()

    def _optional(self) -> dict[str, Any]:
        """Sections of plans that have something to say there."""
        sections: dict[str, Any] = {}
        if self.schedule:
            sections["schedule"] = self.sections["schedule"]
        if self.search:
            sections["search"] = search_json(self.search)
        if self.cost:
            sections["cost"] = cost_json(self.cost)
        if self.phase_gpus:
            sections["phase_gpus"] = {phase: _gpu_json(gpu) for phase, gpu in self.phase_gpus.items()}
        if self.outlooks:
            sections["performance"] = {each.phase: performance_json(each, self.spec.slo) for each in self.outlooks}
        if self.demand:
            sections["demand"] = {each.phase: demand_json(each) for each in self.demand}
        if self.kv_cache:
            sections["kv_cache"] = kv_cache_json(self.kv_cache)
        if self.uptime:
            sections["uptime"] = _uptime_json(self.uptime)
        if self.traffic:
            sections["traffic"] = {each.phase: _traffic_json(each) for each in self.traffic}
        return sections

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

    def _coverage_json(self, sha256: str) -> dict[str, Any]:
        """Return the worst coverage among the phases that have this map."""
        counts = [
            uncovered_experts(each, self.places[phase])
            for phase, each in self.expert_maps.items()
            if each.sha256 == sha256
        ]
        kinds = [kind for kind in counts[0] if all(kind in each for each in counts)]
        return {
            "rule": self.spec.coverage,
            "uncovered_experts": {kind: max(each[kind] for each in counts) for kind in kinds},
        }

    def _balance_json(self, layout: PhaseLayout) -> dict[str, Any]:
        """What a phase makes of its map, which another phase may have too."""
        phase = layout.phase
        return {
            "expert_map": self.expert_maps[phase].sha256,
            "max_over_mean_sampled": list(self.sampled[phase]),
            "one_more_slot": one_more_slot_json(
                self.one_more_slot.get(phase), layout.slots_per_gpu, self.slot_bytes(phase)
            ),
            "moves": self._moves_json(phase),
        } | policy_json(self.expert_maps[phase])

    def _moves_json(self, phase: Phase) -> dict[str, Any] | None:
        """Return the moves from the previous plan's map of the phase, if that has the same sizes."""
        moved_slots = self.expert_maps[phase].moved_slots
        return None if moved_slots is None else {"moved_slots": moved_slots, "bytes": self.moved_bytes(phase)}


def _gpu_json(gpu: Gpu) -> dict[str, Any]:
    """The figures that are known of it, as the catalog or the spec has them."""
    return {figure: getattr(gpu, figure) for figure in gpu.sources}


def _placement_json(placement: Placement) -> dict[str, Any]:
    return {
        "method": placement.method,
        "why": placement.why,
        "objectives": [asdict(each) | {"proven": each.is_proven} for each in placement.objectives],
        "unusable_nodes": dict(placement.unusable),
        "spares": list(placement.spares),
    }


def _uptime_json(uptime: Uptime) -> dict[str, Any]:
    phases = {
        each.phase: {key: value for key, value in asdict(each).items() if key != "phase"} for each in uptime.phases
    }
    return asdict(uptime) | {"phases": phases, "failures_per_day": uptime.failures_per_day}


def _failures_json(report: FailureReport) -> dict[str, Any]:
    return {
        loss.domain: {
            "units": loss.units,
            "of_units": report.num_units,
            "dark_experts": loss.dark_experts,
            "at": loss.place,
        }
        for loss in report.losses
    }


def _traffic_json(traffic: PhaseTraffic) -> dict[str, Any]:
    return {
        "moe_layer": traffic.layer,
        "tokens_per_rank": traffic.tokens_per_rank,
        "links": [asdict(link) for link in traffic.links],
        "busiest": asdict(traffic.busiest),
    }
