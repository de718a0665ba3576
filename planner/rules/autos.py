"""The rules of `auto` that concern other fields: the ones that it needs, and the ones that it excludes."""

from collections.abc import Iterator

from planner.facts.catalog import GPUS
from planner.facts.terms import PHASES
from planner.problems.finding import Finding
from planner.problems.fix import removal
from planner.rules.rule import Rule, without_effect
from planner.rules.written import Written
from planner.spec.undecided import AUTO

__all__ = ["RULES"]

WINDOWS = ("schedule", "schedule.windows")


def auto_windows_need_profile(c: Written) -> Iterator[Finding]:
    """Reject auto windows without a profile: they follow the demand of each hour."""
    if _is_open(c, *WINDOWS) and not c.is_given("traffic.profile") and not c.is_given("traffic.history"):
        rule = "S516 needs traffic.profile or traffic.history"
        reason = "auto windows follow the demand of each hour"
        fix = "write traffic.profile: the demand of each of 24 hours, or traffic.history: a CSV file of past days"
        yield Finding("schedule.windows", AUTO, rule, reason, fix)


def auto_windows_exclude_other_days(c: Written) -> Iterator[Finding]:
    """Reject other days beside auto windows: the planner makes the windows of all days."""
    if _is_open(c, *WINDOWS) and (written := c["schedule.other_days"]):
        reason = "auto windows follow traffic.other_days"
        yield without_effect("with windows: auto", reason, "schedule.other_days", written)


def capacity_needs_written_units(c: Written) -> Iterator[Finding]:
    """Reject traffic.capacity if all units are auto: it tells what written units serve."""
    capacity: float | None = c["traffic.capacity"]
    if capacity is not None and _is_open(c, *WINDOWS) and all(_is_open(c, f"{phase}.units") for phase in _phases(c)):
        reason = "it says what written units carry, and the planner counts all units"
        yield without_effect("with units: auto", reason, "traffic.capacity", capacity, removal())


def auto_warm_up_needs_gpu_memory(c: Written) -> Iterator[Finding]:
    """Reject an auto warm-up on GPUs of unknown memory: the bytes that a unit loads follow from it."""
    gpus = [GPUS.get(c.get(f"{phase}.gpu") or "", c.gpu) for phase in _phases(c)]
    if _is_open(c, "schedule.warm_up") and any(gpu.usable_bytes is None for gpu in gpus):
        rule = "S523 must be a time, since the GPU's memory is not known"
        reason = "auto computes the time from the bytes that a unit loads, and these follow from its memory"
        fix = "write a time that you have measured, such as 10min"
        yield Finding("schedule.warm_up", AUTO, rule, reason, fix)


def auto_nodes_need_units_or_traffic(c: Written) -> Iterator[Finding]:
    """Reject auto nodes if units are auto too and there is no traffic to decide either."""
    are_units_open = any(_is_open(c, f"{phase}.units") for phase in _phases(c))
    if _is_open(c, "cluster.nodes") and are_units_open and "traffic" not in c.sections:
        rule = "S728 must be a number when units are auto and there is no traffic"
        reason = "without traffic, the planner counts units from nodes, or nodes from units"
        fix = "write cluster.nodes, or units of each phase, or traffic"
        yield Finding("cluster.nodes", AUTO, rule, reason, fix)


def _is_open(c: Written, *paths: str) -> bool:
    """Return whether the file says `auto` at one of `paths`, sections before the field, and it has no value yet."""
    return bool(c.autos & set(paths)) and paths[-1] not in c.values


def _phases(c: Written) -> list[str]:
    return [phase for phase in PHASES if phase in c.sections]


RULES = (
    Rule("S516", "fields", auto_windows_need_profile),
    Rule("S560", "fields", auto_windows_exclude_other_days),
    Rule("S560", "fields", capacity_needs_written_units),
    Rule("S523", "resolved", auto_warm_up_needs_gpu_memory),
    Rule("S728", "fields", auto_nodes_need_units_or_traffic),
)
