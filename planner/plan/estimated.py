"""What is expected of a decided plan: its speed, cost, traffic and failures.

No estimate changes what is carried out, and none refuses it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from planner.cost.cost import plan_cost
from planner.cost.demand import PhaseLoad
from planner.cost.overload import overloads
from planner.estimate.failures import report_failures
from planner.estimate.fuller import as_full_as_asked, full_rates, most_requests
from planner.estimate.idle_overlap import idle_overlaps
from planner.estimate.links import expected_traffic
from planner.estimate.performance import predict_phases
from planner.estimate.promises import missed_promises
from planner.estimate.sampled import max_over_mean_sampled
from planner.estimate.throughput.calibration import Calibration
from planner.estimate.throughput.predict import Prediction
from planner.estimate.uptime import estimate_uptime
from planner.estimate.utilisation import share_of_highest
from planner.expert_map import ExpertMap, Sizes
from planner.facts.loads import Loads
from planner.facts.terms import Phase
from planner.layout.memory import split_memory
from planner.layout.working_memory import largest_step_tokens
from planner.plan.decided import DecidedPlan, Grounds
from planner.plan.plan import Plan
from planner.problems.fix import Change, applied
from planner.search.auto import Decided
from planner.search.decision import DEFAULT, Decision
from planner.spec.check import ResolvedSpec, with_values
from planner.spec.effect_rules import without_spent

__all__ = ["with_estimates"]


def with_estimates(
    decided: DecidedPlan,
    choice: Decided,
    grounds: Grounds,
    one_more_slot: Mapping[Phase, ExpertMap],
    calibration: Calibration | None,
) -> Plan:
    """Return the whole plan: what was `decided` for the `choice` of numbers, and what is expected of it.

    Predictions are corrected by `calibration`, a user's own measurements.
    """
    spec, layouts, maps = choice.spec, decided.layouts, decided.expert_maps
    traffic = expected_traffic(spec, layouts, decided.units, maps, grounds.loads)
    outlooks = predict_phases(spec, layouts, decided.memory, maps, grounds.loads, calibration)
    rates = full_rates(spec.written, decided.memory, outlooks)
    most_per_node = {each.phase: rates[each.phase] * each.gpus_per_node for each in outlooks if each.phase in rates}

    def predicted(phase: Phase, change: Change) -> Prediction | None:
        of_phase = [each for each in layouts if each.phase == phase]
        tried = with_values(spec, change)
        memory = [split_memory(tried, each) for each in of_phase] if decided.memory else []
        return predict_phases(tried, of_phase, memory, maps, grounds.loads, calibration)[0].prediction

    searched = [each.phase for each in choice.search.phases] if choice.search else []
    missed = missed_promises(spec, outlooks, searched, predicted)
    decided = replace(decided, warnings=(*decided.warnings, *missed, *idle_overlaps(spec, outlooks)))
    plan = Plan(
        **{each.name: getattr(decided, each.name) for each in fields(decided)},
        written=_with_defaults(spec, choice.decisions),
        inputs=spec.inputs,
        model=spec.model,
        gpu=spec.gpu,
        phase_gpus={each.phase: spec.gpu_of(each.phase) for each in layouts if each.gpu != spec.cluster.gpu_name},
        decisions=choice.decisions,
        search=choice.search,
        cost=plan_cost(spec.written, decided.schedule, decided.units, most_per_node),
        one_more_slot=one_more_slot,
        sampled=_sampled(spec, decided, grounds.loads),
        places=grounds.places,
        traffic=traffic,
        outlooks=outlooks,
        failures=report_failures(spec, layouts, decided.units, maps),
        uptime=estimate_uptime(spec, layouts),
    )
    return replace(plan, warnings=(*plan.warnings, *overloads(spec, plan.fullest, partial(_fuller, plan))))


def _fuller(plan: Plan, load: PhaseLoad) -> Prediction | None:
    """Return what units do that serve all of one of the plan's fullest loads; None where they cannot."""
    outlook = next(each for each in plan.outlooks if each.phase == load.phase)
    if outlook.case is None or outlook.prediction is None or not load.served_per_s:
        return None
    times = load.load / share_of_highest(outlook.prediction, plan.spec.slo.ttft_ms)
    return as_full_as_asked(outlook, most_requests(plan.spec, plan.memory, outlook), times)


def _with_defaults(spec: ResolvedSpec, decisions: Sequence[Decision]) -> dict[str, Any]:
    """The spec's data with the defaults that were taken, as one would write it who decides all by himself."""
    defaults = {each.path: each.value for each in decisions if each.why == DEFAULT}
    return without_spent(applied(spec.document.data, defaults), spec.document.autos)


def _sampled(spec: ResolvedSpec, decided: DecidedPlan, loads: Loads) -> dict[Phase, tuple[float, ...]]:
    """Max over mean of the largest step that the limits allow, of all groups of a unit that share attention."""
    sampled = {}
    for each in decided.layouts:
        section = spec.phase(each.phase)
        tokens = largest_step_tokens(each.phase, section) * each.dp_size
        sizes = Sizes(each.num_physical_experts, each.ep_size, each.nodes_per_unit)
        pairs = tokens * spec.model.num_experts_per_token
        sampled[each.phase] = max_over_mean_sampled(decided.expert_maps[each.phase], loads, sizes, pairs)
    return sampled
