"""The table of all rules, in the order in which they are checked and their findings are reported."""

from collections.abc import Iterator, Mapping
from itertools import chain

from planner.facts.terms import EngineName
from planner.problems.finding import Finding
from planner.rules import (
    attention,
    cluster,
    cost,
    duplicates,
    engine_args,
    engine_limits,
    expert_load,
    feasible,
    forms,
    gateway,
    kubernetes,
    kv_cache,
    model,
    operating_point,
    overlay,
    phases,
    plausible,
    pods,
    runtime_limits,
    schedule,
    traffic,
    unused,
    volumes,
)
from planner.rules.rule import Candidate, Level, Rule, is_within
from planner.rules.valid_values import ValidValues

SECTIONS = (
    forms,
    *(gateway, phases, expert_load, model, engine_args, attention, cluster, schedule, traffic, cost),
    *(kubernetes, volumes, pods, overlay, kv_cache, operating_point, plausible, unused, duplicates),
)
RULES: tuple[Rule, ...] = tuple(chain.from_iterable(each.RULES for each in SECTIONS))
LIMITS: Mapping[EngineName, tuple[Rule, ...]] = {
    "tidemill": (*runtime_limits.ALL_ENGINES, *runtime_limits.TIDEMILL),
    "sglang": (*runtime_limits.ALL_ENGINES, *engine_limits.SGLANG),
    "vllm": (*runtime_limits.ALL_ENGINES, *engine_limits.VLLM),
}


def broken_rules(values: ValidValues) -> Iterator[Finding]:
    """Yield the findings of all rules between fields. A rule is silent if a field that it reads is wrong."""
    for rule in RULES:
        if rule.level in ("fields", "resolved"):
            yield from rule.findings(values)


def refusals_of(candidate: Candidate, level: Level) -> tuple[Finding, ...]:
    """Return the findings of the first rule, up to `level`, that makes the candidate infeasible; empty if none does."""
    spec = candidate.resolved
    found = (tuple(rule.findings(candidate)) for rule in feasible.RULES if is_within(rule.level, level))
    return tuple(spec.locate(each) for each in next(filter(None, found), ()))


def findings_at(candidate: Candidate, level: Level) -> tuple[Finding, ...]:
    """Return the findings of all rules of `level` about a candidate without mistakes, each with its line."""
    spec = candidate.resolved
    rules = LIMITS[spec.written.engine_name] if level == "rendered" else rules_at(level)
    return tuple(spec.locate(each) for rule in rules for each in rule.findings(candidate))


def warnings_of(candidate: Candidate, *, is_runnable: bool) -> tuple[Finding, ...]:
    """Return the warnings about layouts and, if the engine can run the candidate, about its pods."""
    found = findings_at(candidate, "laid out")
    if is_runnable:
        found += findings_at(candidate, "started")
    return tuple(sorted(found, key=lambda finding: (finding.line, finding.column)))


def rules_at(level: Level) -> tuple[Rule, ...]:
    """Return the rules of `level` for all engines."""
    if level == "predicted":
        from planner.rules import overload, promises  # imported late: `validate` predicts nothing

        return (*promises.RULES, *overload.RULES)
    if level == "rendered":
        return tuple(dict.fromkeys(chain.from_iterable(LIMITS.values())))
    return tuple(rule for rule in (*feasible.RULES, *RULES) if rule.level == level)
