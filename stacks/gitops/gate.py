"""Decide whether a change may be merged. The words of `--fail-on` name the conditions; none of them reads a file.

    outage      a phase has no unit that serves, or may have none at some hour
    degraded    a phase serves less than is asked of it; an outage is worse, so it counts too
    slo         a promised latency is missed at the expected speed
    cost+10%    a day costs over 10 % more than before
    stale       rendering the spec into its folder again would change a file

A condition that cannot be judged holds: a gate that nobody can read must not open. Where nothing runs yet, there is no
outage and no cost to compare with.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planner.diff.change import Change, Verdict
from planner.diff.rollout import SEVERITY
from planner.diff.wording import verdicts
from planner.facts.part import Part
from planner.facts.quantities import counted
from planner.plan.expected import Promise
from planner.plan.plan import Plan
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.report.report import format_value

__all__ = ["CHECK", "Condition", "Evidence", "Objection", "find_objections", "promises_of", "read_conditions"]

CHECK = "tidemill gitops check"
COST = re.compile(r"cost\+(\d{1,6}(?:\.\d{1,6})?)%")
MAX_NAMES = 3  # of files that are not as rendered


@dataclass(frozen=True)
class Condition:
    """A word of `--fail-on`; `percent` is that of a cost."""

    word: str
    percent: float | None = None


@dataclass(frozen=True)
class Evidence:
    """What conditions are judged by. `change` is None where nothing runs yet."""

    change: Change | None
    promises: Mapping[str, Promise | None]  # latency -> the promise beside the prediction; None where none can be made
    stale: tuple[str, ...]  # names of files


class Objection(Part):
    """A condition that holds, and why."""

    condition: str
    reason: str


def read_conditions(text: str) -> tuple[Condition, ...]:
    """Return the conditions in a list with commas. Raises CallError for a word that is none."""
    return tuple(_condition(word) for word in text.split(","))


def _condition(word: str) -> Condition:
    if found := COST.fullmatch(word):
        return Condition(word, float(found[1]))
    if word not in JUDGES:
        rule = f"R601 must be a list of {', '.join(JUDGES)} and cost+N%"
        reason = "each word is a condition, with commas and no spaces between them"
        raise CallError([Finding("--fail-on", word, rule, reason, "for example outage,slo,cost+10%").at(CHECK)])
    return Condition(word)


def promises_of(plan: Plan) -> dict[str, Promise | None]:
    """Return each latency that the spec promises, with what is predicted of it."""
    promised = [name for name, value in plan.spec.slo.model_dump().items() if value is not None]
    of_phases = [each.slo or {} for each in (plan.performance or {}).values()]
    found = {str(name): promise for slo in of_phases for name, promise in slo.items()}
    return {name: found.get(name) for name in promised}


def find_objections(conditions: Sequence[Condition], evidence: Evidence) -> tuple[Objection, ...]:
    """Return the conditions that hold, in the order in which they were named."""
    judged = ((each.word, _judge(each, evidence)) for each in conditions)
    return tuple(Objection(condition=word, reason=reason) for word, reason in judged if reason)


def _judge(condition: Condition, evidence: Evidence) -> str:
    """Return why the condition holds; empty where it does not."""
    if condition.percent is not None:
        return _costs_more(evidence.change, condition.percent)
    return JUDGES[condition.word](evidence)


def _goes_worse(evidence: Evidence, least: Verdict) -> str:
    change = evidence.change
    if change is None or SEVERITY.index(change.verdict) < SEVERITY.index(least):
        return ""
    return "; ".join(verdicts(change))


def _misses_promises(evidence: Evidence) -> str:
    reasons = []
    for name, promise in evidence.promises.items():
        if promise is None:
            reasons.append(f"slo.{name} cannot be predicted")
        elif not promise.met:
            reasons.append(f"slo.{name} of {promise.promised:g} is missed: {promise.predicted:,.4g} ms are expected")
    return "; ".join(reasons)


def _is_stale(evidence: Evidence) -> str:
    names = evidence.stale
    if not names:
        return ""
    more = [f"and {counted(len(names) - MAX_NAMES, 'other')}"] if len(names) > MAX_NAMES else []
    listed = ", ".join([*names[:MAX_NAMES], *more])
    return f"tidemill render would change {counted(len(names), 'file')}: {listed}; render again, and commit the folder"


def _costs_more(change: Change | None, percent: float) -> str:
    if change is None:
        return ""
    old, new = (side.get("usd_per_day") for side in (change.cost.before, change.cost.after))
    if old is None or new is None or isinstance(old.value, str) or isinstance(new.value, str):
        return f"what a day costs {'before' if new else 'after'} the change is unknown"
    if new.value <= old.value * (1 + percent / 100):
        return ""
    more = f", {new.value / old.value - 1:.1%} more" if old.value else ""
    return f"a day costs {format_value(new)} instead of {format_value(old)}{more}"


JUDGES: dict[str, Callable[[Evidence], str]] = {
    "outage": lambda evidence: _goes_worse(evidence, "outage"),
    "degraded": lambda evidence: _goes_worse(evidence, "degraded"),
    "slo": _misses_promises,
    "stale": _is_stale,
}
