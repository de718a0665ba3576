"""Compare two plans. A pure function: it reads no file and asks no cluster.

Figures are rows of both plans' reports, matched by section and name. Pods are compared as rendered, so a reviewer sees
the effects of the objects that would be applied.
"""

import re
from collections.abc import Sequence

from planner.diff.change import (
    Change,
    LossSides,
    NodeMoves,
    Sides,
    State,
    StateSides,
    WarningMoves,
)
from planner.diff.experts import count_expert_moves, estimate_weight_reads
from planner.diff.pods import compare_pods
from planner.diff.rollout import judge_rollouts, rollout_assumptions, worst_rollout
from planner.facts.terms import Phase
from planner.plan.plan import Plan
from planner.plan.row import Row
from planner.problems.finding import Finding
from planner.report.report import Report

__all__ = ["compare_plans"]

NUMBERS = re.compile(r"[\d.,:%\s-]+")
COSTS = (
    "usd_per_day",
    "usd_per_million_output_tokens",
    "usd_per_million_input_tokens",
    "margin",
    "answered_share",
    "mean_nodes",
)
SPEEDS = (
    "tokens_per_s_per_gpu",
    "tokens_per_s_per_unit",
    "ttft_ms",
    "slo.ttft_ms.promised",
    "ttft_promise",
    "tpot_ms",
    "slo.tpot_ms.promised",
    "tpot_promise",
    "not_predicted",
)


def compare_plans(before: Plan, after: Plan, notes: Sequence[str] = ()) -> Change:
    """Return the effects of changing from one plan to the other. `notes` say how the plans were obtained.

    Raises InfeasibleError if an engine cannot run its plan, because there are no pods to compare.
    """
    units = compare_pods(before, after)
    ways = judge_rollouts(before, after, units)
    worst = worst_rollout(ways)
    return Change(
        name=after.name,
        old=before.digest,
        new=after.digest,
        verdict=worst.verdict,
        minutes=worst.minutes,
        least_capacity=worst.least_capacity,
        ways=ways,
        units=units,
        experts=count_expert_moves(before, after),
        weights=estimate_weight_reads(after, units),
        nodes=_nodes(before, after),
        schedule=_schedule(before, after),
        performance={phase: _sides(before, after, f"performance.{phase}", SPEEDS) for phase in _phases(before, after)},
        cost=_sides(before, after, "cost", COSTS),
        failures={phase: _failures(before, after, phase) for phase in _phases(before, after)},
        warnings=_warnings(before, after),
        assumed=(*notes, *rollout_assumptions(before, after, units)),
    )


def _phases(before: Plan, after: Plan) -> list[Phase]:
    return list(dict.fromkeys([*after.phases, *before.phases]))


def _nodes(before: Plan, after: Plan) -> NodeMoves:
    old, new = ([node for unit in plan.units for node in unit.nodes] for plan in (before, after))
    taken, freed = set(new) - set(old), set(old) - set(new)
    return NodeMoves(
        taken=tuple(node for node in new if node in taken), freed=tuple(node for node in old if node in freed)
    )


def _schedule(before: Plan, after: Plan) -> StateSides | None:
    if before.schedule is None and after.schedule is None:
        return None
    return StateSides(before=_states(before), after=_states(after))


def _states(plan: Plan) -> tuple[State, ...]:
    steps = plan.schedule.steps if plan.schedule else ()
    phase_of = {unit.name: unit.phase for unit in plan.units}
    return tuple(
        State(
            at=step.at,
            nodes=step.nodes,
            units={phase: sum(phase_of[unit] == phase for unit in step.units) for phase in plan.phases},
        )
        for step in steps
    )


def _sides(before: Plan, after: Plan, section: str, names: Sequence[str]) -> Sides:
    return Sides(before=_figures(before, section, names), after=_figures(after, section, names))


def _figures(plan: Plan, section: str, names: Sequence[str]) -> dict[str, Row]:
    report = Report(plan.report or ())
    return {name: row for name in names if (row := report.find(section, name)) is not None}


def _failures(before: Plan, after: Plan, phase: Phase) -> LossSides:
    old, new = ((plan.failures or {}).get(phase, {}) for plan in (before, after))
    return LossSides(before=old, after=new)


def _warnings(before: Plan, after: Plan) -> WarningMoves:
    """Compare warnings by their words, ignoring numbers and files.

    A plan without estimates, as in rendered folders, has no warnings to compare.
    """
    if before.report is None or after.report is None:
        return WarningMoves(new=(), gone=())
    old, new = ({_wording_key(each): each for each in plan.warnings} for plan in (before, after))
    return WarningMoves(
        new=tuple(each for said, each in new.items() if said not in old),
        gone=tuple(each for said, each in old.items() if said not in new),
    )


def _wording_key(warning: Finding) -> tuple[str, str]:
    return warning.path, NUMBERS.sub(" ", warning.message)
