"""The day of a plan as text: its states, the ways between them, and what the nodes that are free are worth."""

from collections import Counter
from collections.abc import Iterator, Sequence

from planner.plan.columns import filled, table
from planner.plan.estimated import Estimated
from planner.schedule.schedule import NOT_EXECUTED, PLAYED, DaySchedule, OtherDays, Step
from planner.schedule.transitions import Transition

__all__ = ["day_text"]

MAX_DAYS = 8  # names of days in a sentence


def day_text(plan: Estimated) -> str:
    """Return the section; empty where all units are always on."""
    schedule = plan.schedule
    if schedule is None:
        return ""
    taken = f"With warm-up and drain, {schedule.mean_nodes_taken:.2f} are taken." if schedule.transitions else ""
    note = f"Times are in {schedule.timezone}. {_mean(schedule)}. {taken}".rstrip()
    parts = [_states(plan, schedule.steps), *filled(note)]
    if schedule.transitions:
        parts += ["", *_transitions(plan, schedule)]
    for other in schedule.other_days:
        parts += ["", *_other(plan, other)]
    return "\n".join([*parts, *(filled(_executed(plan)) if schedule.switches else [])])


def _states(plan: Estimated, steps: Sequence[Step]) -> str:
    """Return the table of a day's states."""
    phases = plan.spec.phases
    has_racks = any(step.free_racks is not None for step in steps)
    rows = [("from", *(f"{phase} units" for phase in phases), "nodes", *(("racks free",) if has_racks else ()))]
    for step in steps:
        racks = (str(step.free_racks),) if has_racks else ()
        rows.append((step.at, *(str(step.num_units[phase]) for phase in phases), str(step.num_nodes), *racks))
    return table(rows)


def _other(plan: Estimated, other: OtherDays) -> Iterator[str]:
    """Say what is on when on days that are not like most."""
    shown = ", ".join(other.days[:MAX_DAYS])
    hidden = len(other.days) - MAX_DAYS
    more = f" and {hidden} more days (schedule.other_days in the JSON has all)" if hidden > 0 else ""
    yield from filled(f"On {shown}{more} these states hold from midnight to midnight:")
    yield _states(plan, other.steps)
    taken = f", {other.mean_nodes_taken:.2f} with warm-up and drain" if other.transitions else ""
    yield from filled(f"On average {other.mean_nodes:.2f} nodes are on then{taken}.")


def _executed(plan: Estimated) -> str:
    """Say who makes the units follow the day."""
    follows = "In a cluster, kubernetes.controller makes the units follow the day."
    return f"{NOT_EXECUTED if plan.spec.kubernetes.controller is None else follows} {PLAYED}"


def _mean(schedule: DaySchedule) -> str:
    """Say how many nodes are on, and what the others are worth."""
    hours = f"{schedule.released_node_hours:,.1f} node-hours ({schedule.released_gpu_hours:,.0f} GPU-hours)"
    whom = f"the queue {schedule.batch_queue}" if schedule.batch_queue else "other work"
    mean = f"On average {schedule.mean_nodes:.2f} nodes are on, {schedule.peak_nodes} at the peak"
    return f"{mean}, which leaves {hours} a day for {whom}"


def _transitions(plan: Estimated, schedule: DaySchedule) -> Iterator[str]:
    rows = [("at", "starts", "taken", "stops", "free", "hours")]
    rows += [
        (
            each.at[:5],
            _units(plan, each.starts),
            each.warm_up_from or "-",
            _units(plan, each.stops),
            each.drained_by or "-",
            f"{each.freed_node_hours:,.1f}" if each.stops else "-",
        )
        for each in schedule.transitions
    ]
    yield table(rows)
    note = (
        "Nodes are taken and set free at these times; hours are node-hours until they are taken again. Units start in"
        " order and stop in reverse."
        f"{_stages(schedule.transitions)}"
    )
    yield from filled(note)


def _units(plan: Estimated, names: Sequence[str]) -> str:
    """`6 prefill, 2 decode`."""
    phases = {unit.name: unit.phase for unit in plan.units}
    counts = Counter(phases[name] for name in names)
    return ", ".join(f"{counts[phase]} {phase}" for phase in plan.spec.phases if counts[phase]) or "-"


def _stages(transitions: Sequence[Transition]) -> str:
    """Say what the longest start is made of, where that is known."""
    with_stages = [each for each in transitions if each.stages]
    if not with_stages:
        return ""
    longest = max(with_stages, key=lambda each: sum(stage.seconds for stage in each.stages))
    parts = ", ".join(f"{stage.name} {stage.seconds:g} s" for stage in longest.stages)
    return (
        f" The longest start, at {longest.at[:5]}, takes {parts}. Whoever uses its nodes is told to leave at"
        f" {longest.notice_from}."
    )
