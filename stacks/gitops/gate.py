"""Decide whether a change may be merged. The words of `--fail-on` name the conditions; none of them reads a file.

    outage      a phase has no unit that serves, while pods restart or at some hour of the new plan's days
    degraded    a phase serves less than is asked of it; an outage is worse, so it counts too
    slo         a promised latency is missed at the expected speed, or in hours of a day's traffic in which it was kept,
                or by more than it was missed there
    capacity    less of the day's traffic is answered than before, a phase's peak load rises above its capacity, or
                units miss demand at an hour of any day that they did not miss before, longer requests are refused, or
                controller.demand may start less, or less is on at some hour where the base asks for no traffic
    cost+10%    a day, ordinary or not, costs over 10 % more than before
    stale       rendering the spec into its folder again would change a file, or a tool may read another one there
    nodes       another environment's units are on nodes of this one's
    unjudged    a field differs that may do what no figure of the diff shows, or callers have to change too

A change may move the yardsticks: traffic, promises, the load of predictions, prices. Then slo, capacity and cost are
judged by those of the base as well, unless the change deploys nothing else.

A condition that cannot be judged holds: a gate that nobody can read must not open. Where nothing runs yet, there is no
outage, and no capacity and no cost to compare with.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from planner.diff.change import Change, DayCost, Sides, Verdict, Yardsticks
from planner.diff.clients import LONGEST_REQUEST
from planner.diff.hours import LEAST_SHARE, name_days
from planner.diff.net import describe_lost
from planner.diff.rollout import SEVERITY
from planner.diff.wording import describe_shortage, verdicts
from planner.facts.day import DAY_MINUTES, minute_of, periods
from planner.facts.part import Part
from planner.facts.quantities import counted, first_of
from planner.facts.terms import Phase
from planner.plan.expected import ORDINARY, Miss, Promise
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
    "read_conditions",
]

CHECK = "tidemill gitops check"
COST = re.compile(r"cost\+(\d{1,6}(?:\.\d{1,6})?)%")
BY_FORMER = " by the base's yardsticks"
MERGE_FIRST = "move them first, in a change of nothing else"
DAILY_COST = "usd_per_day"  # of a diff's figures of cost
COST_BEFORE = "what a day costs before the change is unknown"


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
    """Return the facts by which conditions judge `change`, which leads to `plan`.

    The other parameters are as in `Evidence`.
    """
    speeds = (plan.performance or {}).items()
    unknown = "; ".join(f"{phase}: {each.not_predicted}" for phase, each in speeds if each.not_predicted)
    return Evidence(change, plan.promises, stale, foreign, unknown, no_figures_before, shared_nodes)


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
    reasons = {name: _explain_promise(name, each, evidence) for name, each in evidence.promises.items()}
    former = _former_yardsticks(evidence)
    if former is not None:
        again = {name: _explain_promise(name, each, evidence, BY_FORMER) for name, each in former.promises.items()}
        reasons = {name: reasons.get(name) or again.get(name, "") for name in {**reasons, **again}} | {
            "": _unknown(former)
        }
    return "; ".join(filter(None, reasons.values()))


def _explain_promise(name: str, promise: Promise | None, evidence: Evidence, measured: str = "") -> str:
    """Say that a promise is missed, or cannot be predicted; empty if it is met."""
    if promise is None:
        why = f" ({evidence.not_predicted})" if evidence.not_predicted else ""
        return f"slo.{name} cannot be predicted{why}: take it out of the spec, or slo out of --fail-on"
    if not promise.met:
        return f"slo.{name} of {promise.promised:g} is missed{measured}: {promise.predicted:,.4g} ms are expected"
    former = evidence.change.former_promises.get(name) if evidence.change else None
    return "; ".join(_explain_worse_hours(name, promise, former, measured))


def _explain_worse_hours(name: str, promise: Promise, former: Promise | None, measured: str) -> Iterator[str]:
    """Yield a reason for each kind of day with hours in which traffic breaks the promise more than before."""
    days = [day for each in (promise, former) if each for day in each.misses or ()]
    for day in dict.fromkeys([ORDINARY, *days]):
        after, was = (_slowest_by_minute(each.misses_on(day)) if each else {} for each in (promise, former))
        worse = {at: slowest for at, slowest in after.items() if slowest > was.get(at, 0.0) * (1 + LEAST_SHARE)}
        if worse:
            slowest = max(worse.values())
            times = periods((at, 1) for at in worse)
            found = f"{slowest:,.4g} ms are expected" if slowest < inf else "units cannot serve all of the traffic"
            on = "" if day == ORDINARY else f" on {day}"
            more = "more than before " if all(at in was for at in worse) else ""
            yield f"slo.{name} of {promise.promised:g} is missed {more}at {times}{on}{measured}: {found}"


def _slowest_by_minute(misses: Sequence[Miss]) -> dict[int, float]:
    """Return minute of the day -> predicted latency in ms; infinite where units cannot serve all of the traffic."""
    return {
        (minute_of(each.at) + minute) % DAY_MINUTES: inf if each.predicted is None else each.predicted
        for each in misses
        for minute in range(each.minutes)
    }


def _former_yardsticks(evidence: Evidence) -> Yardsticks | None:
    """Return both plans' figures by the yardsticks in force before the change, which moves some of them.

    Return None if it moves no yardstick or changes nothing else: what is deployed is no worse for being measured
    otherwise. Return None too if expert loads are all that changes, since new maps are for new loads.
    """
    change = evidence.change
    is_judged = change is not None and change.old != change.new and change.yardsticks and change.yardsticks.counts
    return change.yardsticks if change is not None and is_judged else None


def _unknown(former: Yardsticks) -> str:
    """Say why the former yardsticks cannot be applied; empty if they can."""
    moved = first_of([each.path for each in former.moved])
    return f"nobody knows what the former {moved} would say ({former.unknown}): {MERGE_FIRST}" if former.unknown else ""


def _explain_stale_files(evidence: Evidence) -> str:
    reasons = []
    if names := evidence.stale:
        changes = f"tidemill render would change {counted(len(names), 'file')}: {first_of(names)}"
        reasons.append(f"{changes}; render again, and commit the folder")
    if evidence.foreign:
        found = f"GitOps tools may apply more than the folder, or less: {first_of(evidence.foreign)}"
        reasons.append(f"{found}; move that beside it, or undo it")
    return "; ".join(reasons)


def _explain_shared_nodes(evidence: Evidence) -> str:
    reasons = [
        f"units of {folder} are on {counted(len(nodes), 'node')} of this plan's: {first_of(nodes)}"
        for folder, nodes in evidence.shared_nodes.items()
    ]
    fix = "give each environment nodes of its own in cluster.nodes"
    return "; ".join([*reasons, fix]) if reasons else ""


def _explain_unjudged(evidence: Evidence) -> str:
    """Say which changed fields a person has to judge; empty if there are none.

    Some fields may do what no figure shows, and others require callers to change too.
    """
    change = evidence.change
    if change is None:
        return ""
    sides = ("figures need not show all that these do", change.unjudged), ("callers have to change too", change.clients)
    reasons = [f"{why}: {first_of([each.path for each in fields])}" for why, fields in sides if fields]
    return "; ".join([*reasons, "a person has to judge that"]) if reasons else ""


def _explain_lost_capacity(evidence: Evidence) -> str:
    change = evidence.change
    if change is None:
        return ""
    reasons = _lost_capacity(change.cost, change.performance, evidence)
    former = _former_yardsticks(evidence)
    if former is not None and not any(reasons):
        reasons = [*_lost_capacity(former.cost, former.performance, evidence, BY_FORMER), _unknown(former)]
    short = [describe_shortage(each) for each in change.shortages if each.is_new]
    refused = [
        f"{each.path} falls from {' to '.join(each.values)}, so longer requests are refused"
        for each in change.clients
        if each.path == LONGEST_REQUEST and each.values
    ]
    return "; ".join(filter(None, [*reasons, *short, *refused, *describe_lost(change.net)]))


def _lost_capacity(
    cost: Sides, performance: Mapping[Phase, Sides], evidence: Evidence, measured: str = ""
) -> list[str]:
    reasons = [
        _explain_answered_drop(cost),
        *(_explain_overload(phase, sides, evidence) for phase, sides in performance.items() if sides.after),
    ]
    return [f"{each}{measured}" for each in reasons if each]


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
    change, former = evidence.change, _former_yardsticks(evidence)
    if change is None:
        return ""
    old, new = (side.get(DAILY_COST) for side in (change.cost.before, change.cost.after))
    if new is None:
        return "what a day costs after the change is unknown: write cost.usd_per_gpu_hour"
    if old is None:
        return _explain_unknown_cost(change, evidence.no_figures_before)
    reason = _explain_increase(_number(old), _number(new), percent)
    if not reason and former is not None:
        again = former.cost.after.get(DAILY_COST)
        reason = (
            _unknown(former) if again is None else _explain_increase(_number(old), _number(again), percent, BY_FORMER)
        )
    return reason or next(
        filter(None, _explain_dearer_days(change.cost_of_other_days, percent, by_former=former is not None)), ""
    )


def _explain_dearer_days(days: Sequence[DayCost], percent: float, *, by_former: bool) -> Iterator[str]:
    """Yield for each kind of day that is not ordinary why its cost is an objection; an empty text if it is none."""
    for each in days:
        for usd, measured in ((each.after, ""), (each.after_by_former if by_former else None, BY_FORMER)):
            if each.before is not None and usd is not None:
                what = f"{name_days(each.days)}: a day costs"
                yield _explain_increase(each.before, usd, percent, measured, what)


def _explain_increase(old: float, new: float, percent: float, measured: str = "", what: str = "a day costs") -> str:
    if new <= old * (1 + percent / 100):
        return ""
    more = f", {new / old - 1:.1%} more" if old else ""
    before, after = (format_value(Row("", "", usd, "USD")) for usd in (old, new))
    return f"{what} {after} instead of {before}{more}{measured}"


def _explain_unknown_cost(change: Change, no_figures_before: str) -> str:
    """Say why the cost before the change is unknown; empty if the plan, and so its cost, stays the same."""
    if no_figures_before:
        return f"{COST_BEFORE}: {no_figures_before}"
    if change.old == change.new:
        return ""
    return f"{COST_BEFORE}: merge cost.usd_per_gpu_hour first, in a change of nothing else"


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
    "unjudged": _explain_unjudged,
}
