"""What the planner has to know for an `auto` to become a number, where other fields say it."""

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


def windows_follow_a_profile(c: Written) -> Iterator[Finding]:
    """Windows that the planner makes follow the demand of each hour."""
    if _is_left(c, *WINDOWS) and not c.gives("traffic.profile") and not c.gives("traffic.history"):
        rule = "S516 needs traffic.profile or traffic.history"
        reason = "auto windows follow the demand of each hour"
        fix = "write traffic.profile: the demand of each of 24 hours, or traffic.history: a CSV file of past days"
        yield Finding("schedule.windows", AUTO, rule, reason, fix)


def other_days_are_the_traffics(c: Written) -> Iterator[Finding]:
    """Windows that the planner makes are those of all days."""
    if _is_left(c, *WINDOWS) and (written := c["schedule.other_days"]):
        reason = "auto windows follow traffic.other_days"
        yield without_effect("with windows: auto", reason, "schedule.other_days", written)


def capacity_is_of_written_units(c: Written) -> Iterator[Finding]:
    """It says what they carry, and beside windows that the planner makes some may be written."""
    capacity: float | None = c["traffic.capacity"]
    if capacity is not None and _is_left(c, *WINDOWS) and all(_is_left(c, f"{phase}.units") for phase in _phases(c)):
        reason = "it says what written units carry, and the planner counts all units"
        yield without_effect("with units: auto", reason, "traffic.capacity", capacity, removal())


def starts_load_known_bytes(c: Written) -> Iterator[Finding]:
    """What a unit loads follows from the memory of its GPUs."""
    gpus = [GPUS.get(c.get(f"{phase}.gpu") or "", c.gpu) for phase in _phases(c)]
    if _is_left(c, "schedule.warm_up") and any(gpu.usable_bytes is None for gpu in gpus):
        rule = "S523 must be a time, since the GPU's memory is not known"
        reason = "auto computes the time from the bytes that a unit loads, and these follow from its memory"
        fix = "write a time that you have measured, such as 10min"
        yield Finding("schedule.warm_up", AUTO, rule, reason, fix)


def nodes_follow_units_or_traffic(c: Written) -> Iterator[Finding]:
    """Nodes that the planner counts are those of written units, or those that the traffic takes."""
    are_units_left = any(_is_left(c, f"{phase}.units") for phase in _phases(c))
    if _is_left(c, "cluster.nodes") and are_units_left and "traffic" not in c.sections:
        rule = "S728 must be a number when units are auto and there is no traffic"
        reason = "without traffic, the planner counts units from nodes, or nodes from units"
        fix = "write cluster.nodes, or units of each phase, or traffic"
        yield Finding("cluster.nodes", AUTO, rule, reason, fix)


def _is_left(c: Written, *paths: str) -> bool:
    """Return whether the file says `auto` at one of `paths`, the last below all others, and no value is there yet."""
    return bool(c.autos & set(paths)) and paths[-1] not in c.values


def _phases(c: Written) -> list[str]:
    return [phase for phase in PHASES if phase in c.sections]


RULES = (
    Rule("S516", "fields", windows_follow_a_profile),
    Rule("S560", "fields", other_days_are_the_traffics),
    Rule("S560", "fields", capacity_is_of_written_units),
    Rule("S523", "resolved", starts_load_known_bytes),
    Rule("S728", "fields", nodes_follow_units_or_traffic),
)
