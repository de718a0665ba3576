"""Decide whether a change may be merged. The words of `--fail-on` name the conditions; none of them reads a file.

    outage      a phase has no unit that serves, while pods restart or at some hour of the new plan's days
    degraded    a phase serves less than is asked of it; an outage is worse, so it counts too
    slo         a promised latency is missed at the expected speed
    capacity    less of the day's traffic is answered than before, or a phase's peak load rises above its capacity
    cost+10%    a day costs over 10 % more than before
    stale       rendering the spec into its folder again would change a file, or a tool would read a foreign one there
    nodes       another environment's units are on nodes of this one's

A condition that cannot be judged holds: a gate that nobody can read must not open. Where nothing runs yet, there is no
outage, and no capacity and no cost to compare with.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from planner.diff.change import Change, Sides, Verdict
from planner.diff.rollout import SEVERITY
from planner.diff.wording import verdicts
from planner.facts.part import Part
from planner.facts.quantities import counted, first_of
from planner.facts.terms import Phase
from planner.plan.expected import Promise
from planner.plan.plan import Plan
from planner.plan.row import Row
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.report.report import format_value

__all__ = [
    "CHECK",
    "Condition",
    "Evidence",
    "Objection",
    "find_objections",
    "gather_evidence",
    "latency_promises",
    "read_conditions",
]

CHECK = "tidemill gitops check"
COST = re.compile(r"cost\+(\d{1,6}(?:\.\d{1,6})?)%")
COST_BEFORE = "what a day costs before the change is unknown"
LEAST_SHARE = 0.0005  # a smaller difference does not show in tenths of a per cent


@dataclass(frozen=True)
class Condition:
    """One condition of `--fail-on`; `percent` is the N of `cost+N%`."""

    word: str
    percent: float | None = None

    @property
    def needs_figures(self) -> bool:
        """Whether judging the condition needs estimates of what ran before the change."""
        return self.percent is not None or self.word == "capacity"


@dataclass(frozen=True)
class Evidence:
    """The facts that conditions are judged by. `change` is None if nothing runs yet."""

    change: Change | None
    promises: Mapping[str, Promise | None]  # SLO latency -> promise and prediction; None if it cannot be predicted
    stale: tuple[str, ...]  # files of the folder that rendering would change
    foreign: tuple[str, ...] = ()  # files that make a tool apply something else than the folder
    not_predicted: str = ""  # the phases whose speed nobody can predict, and why
    no_figures_before: str = ""  # why nobody knows the figures before the change
    shared_nodes: Mapping[str, Sequence[str]] = field(default_factory=dict)  # folder -> its shared nodes


class Objection(Part):
    """A condition of `--fail-on` that is met, so that the change must not be merged, and the reason."""

    condition: str
    reason: str


def read_conditions(text: str) -> tuple[Condition, ...]:
    """Return the conditions in a comma-separated list. Raises CallError for a word that is no condition."""
    return tuple(_condition(word) for word in text.split(","))


def _condition(word: str) -> Condition:
    if found := COST.fullmatch(word):
        return Condition(word, float(found[1]))
    if word not in JUDGES:
        rule = f"R601 must be a list of {', '.join(JUDGES)} and cost+N%"
        reason = "each word is a condition, with commas and no spaces between them"
        raise CallError([Finding("--fail-on", word, rule, reason, "for example outage,slo,cost+10%").at(CHECK)])
    return Condition(word)


def gather_evidence(
    plan: Plan,
    change: Change | None,
    stale: tuple[str, ...],
    foreign: tuple[str, ...],
    no_figures_before: str,
    shared_nodes: Mapping[str, Sequence[str]],
) -> Evidence:
    """Return the facts by which conditions judge `change`, which leads to `plan`."""
    speeds = (plan.performance or {}).items()
    unknown = "; ".join(f"{phase}: {each.not_predicted}" for phase, each in speeds if each.not_predicted)
    return Evidence(change, latency_promises(plan), stale, foreign, unknown, no_figures_before, shared_nodes)


def latency_promises(plan: Plan) -> dict[str, Promise | None]:
    """Return each latency in the spec's SLO -> its promise and prediction; None if it cannot be predicted."""
    promised = [name for name, value in plan.spec.slo.model_dump().items() if value is not None]
    of_phases = [each.slo or {} for each in (plan.performance or {}).values()]
    found = {str(name): promise for slo in of_phases for name, promise in slo.items()}
    return {name: found.get(name) for name in promised}


def find_objections(conditions: Sequence[Condition], evidence: Evidence) -> tuple[Objection, ...]:
    """Return an objection for each condition that is met, in the order of `conditions`."""
    judged = ((each.word, _judge(each, evidence)) for each in conditions)
    return tuple(Objection(condition=word, reason=reason) for word, reason in judged if reason)


def _judge(condition: Condition, evidence: Evidence) -> str:
    """Return the reason why the condition is met; empty if it is not."""
    if condition.percent is not None:
        return _explain_higher_cost(evidence, condition.percent)
    return JUDGES[condition.word](evidence)


def _explain_worse_verdict(evidence: Evidence, least: Verdict) -> str:
    change = evidence.change
    if change is None or SEVERITY.index(change.verdict) < SEVERITY.index(least):
        return ""
    return "; ".join(verdicts(change))


def _explain_missed_promises(evidence: Evidence) -> str:
    reasons = []
    for name, promise in evidence.promises.items():
        if promise is None:
            why = f" ({evidence.not_predicted})" if evidence.not_predicted else ""
            reasons.append(f"slo.{name} cannot be predicted{why}: take it out of the spec, or slo out of --fail-on")
        elif not promise.met:
            reasons.append(f"slo.{name} of {promise.promised:g} is missed: {promise.predicted:,.4g} ms are expected")
    return "; ".join(reasons)


def _explain_stale_files(evidence: Evidence) -> str:
    reasons = []
    if names := evidence.stale:
        changes = f"tidemill render would change {counted(len(names), 'file')}: {first_of(names)}"
        reasons.append(f"{changes}; render again, and commit the folder")
    if evidence.foreign:
        reasons.append(f"GitOps tools read {first_of(evidence.foreign)} too, which nobody rendered: remove it")
    return "; ".join(reasons)


def _explain_shared_nodes(evidence: Evidence) -> str:
    reasons = [
        f"units of {folder} are on {counted(len(nodes), 'node')} of this plan's: {first_of(nodes)}"
        for folder, nodes in evidence.shared_nodes.items()
    ]
    fix = "give each environment nodes of its own in cluster.nodes"
    return "; ".join([*reasons, fix]) if reasons else ""


def _explain_lost_capacity(evidence: Evidence) -> str:
    change = evidence.change
    if change is None:
        return ""
    reasons = [_explain_answered_drop(change.cost)]
    reasons += [_explain_overload(phase, sides, evidence) for phase, sides in change.performance.items() if sides.after]
    return "; ".join(filter(None, reasons))


def _explain_answered_drop(cost: Sides) -> str:
    """Say that less of the day's traffic is answered; empty if not, or if a plan has no such figure."""
    before, after = cost.before.get("answered_share"), cost.after.get("answered_share")
    if before is None or after is None or _number(after) > _number(before) - LEAST_SHARE:
        return ""
    return f"{format_value(after)} of the day's traffic is answered instead of {format_value(before)}"


def _explain_overload(phase: Phase, sides: Sides, evidence: Evidence) -> str:
    """Say that a phase's peak load exceeds its capacity, or is unknown.

    Empty if it does not, or if the load before the change was as high.
    """
    before, after = (side.get("highest_load_of_most") for side in (sides.before, sides.after))
    if after is None:
        return _explain_unknown_load(phase, sides.after)
    is_higher = before is None or _number(after) > _number(before) + LEAST_SHARE
    if _number(after) <= 1 or not is_higher:
        return ""
    was = f"instead of {format_value(before)}" if before else f"and before unknown: {evidence.no_figures_before}"
    return f"{phase}'s peak load is {format_value(after)} of its capacity {was}"


def _explain_unknown_load(phase: Phase, after: Mapping[str, Row]) -> str:
    if "hours_beyond" in after:
        return f"{phase} has no unit in its fullest hour"
    if why := after.get("not_predicted"):
        fix = "take capacity out of --fail-on"
        return f"{phase}'s load is unknown, since its speed cannot be predicted ({why.value}): {fix}"
    return f"{phase}'s load is unknown: write what the day asks for in traffic"


def _explain_higher_cost(evidence: Evidence, percent: float) -> str:
    change = evidence.change
    if change is None:
        return ""
    old, new = map(_daily_cost, (change.cost.before, change.cost.after))
    if new is None:
        return "what a day costs after the change is unknown: write cost.usd_per_gpu_hour"
    if old is None:
        return _explain_unknown_cost(change, evidence.no_figures_before)
    if _number(new) <= _number(old) * (1 + percent / 100):
        return ""
    more = f", {_number(new) / _number(old) - 1:.1%} more" if old.value else ""
    return f"a day costs {format_value(new)} instead of {format_value(old)}{more}"


def _explain_unknown_cost(change: Change, no_figures_before: str) -> str:
    """Say why the cost before the change is unknown; empty if the plan, and so its cost, stays the same."""
    if no_figures_before:
        return f"{COST_BEFORE}: {no_figures_before}"
    if change.old == change.new:
        return ""
    return f"{COST_BEFORE}: merge cost.usd_per_gpu_hour first, in a change of nothing else"


def _daily_cost(side: Mapping[str, Row]) -> Row | None:
    """Return the row with the cost of a day: with all units on, if nothing turns them off."""
    return side.get("usd_per_day_if_all_are_on") or side.get("usd_per_day")


def _number(row: Row) -> float:
    assert not isinstance(row.value, str)
    return row.value


JUDGES: dict[str, Callable[[Evidence], str]] = {
    "outage": lambda evidence: _explain_worse_verdict(evidence, "outage"),
    "degraded": lambda evidence: _explain_worse_verdict(evidence, "degraded"),
    "slo": _explain_missed_promises,
    "capacity": _explain_lost_capacity,
    "stale": _explain_stale_files,
    "nodes": _explain_shared_nodes,
}
