"""Put a change into words: topics in the order of interest, each a few lines. Nothing is computed here.

`text.py` and `markdown.py` print these topics. Long lists are cut, so that a change of a thousand units reads as fast
as a change of three; the JSON has complete lists.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from planner.diff.change import (
    ENDING_FATES,
    Change,
    Fate,
    PhaseMoves,
    Rollout,
    Shortage,
    Sides,
    SpecField,
    State,
    Tool,
    UnitChange,
    Verdict,
    WarningSides,
)
from planner.diff.hours import name_days
from planner.diff.net import describe_net
from planner.diff.rollout import SEVERITY
from planner.diff.yardsticks import LOADS
from planner.facts import names
from planner.facts.quantities import counted
from planner.facts.terms import PHASES
from planner.plan.row import Row
from planner.report.columns import group_numbered, numeric_order
from planner.report.report import format_range, format_value

PARENTHESES_OR_WORDS = re.compile(r"\([^()]*\)\S*|\S+")
MAX_CAUSES = 6  # shown for a restart
MAX_GROUPS = 4  # shown; a group is units that restart for the same causes
MAX_RUNS = 6  # shown; a run is names with consecutive numbers
ALL_NAMED = "(--format json names all)"
FATES: tuple[Fate, ...] = ("new", "moved", "restarted", "removed")
TOOL_WORDS: dict[Tool, str] = {"git": "by Git or kubectl, all at once", "pulumi": "by pulumi up, in turns"}
COSTS = {
    "answered_share": "answered",
    "usd_per_day": "each day",
    "usd_per_million_output_tokens": "per million output tokens",
    "usd_per_million_input_tokens": "per million input tokens",
    "revenue_usd_per_day": "income each day",
    "margin": "margin",
    "mean_nodes": "nodes on average",
}
EFFECTS: dict[Verdict, str] = {  # what callers of the service notice while the change is applied
    "no_restart": "no running pod ends",
    "rolling": "each phase's throughput suffices",
    "degraded": "a phase's throughput falls short",
    "outage": "a phase serves nobody for a while",
}
GATEWAY_SERVES = "at least one gateway stays up"
AS_SCHEDULED = "as scheduled, but without kubernetes.controller all units stay on"
SPEEDS = {
    "tokens_per_day": "tokens asked a day",
    "highest_load_of_most": "peak load, % of capacity",
    "tokens_per_s_per_gpu": "tokens/s of a GPU",
    "ttft_ms": "TTFT in ms",
    "operating_point.utilisation": "busy time assumed for this TTFT",
    "slo.ttft_ms.promised": "TTFT promised in ms",
    "ttft_promise": "TTFT promise",
    "ttft_missed_at": "TTFT promise missed under the day's traffic",
    "tpot_ms": "TPOT in ms",
    "operating_point.requests": "requests of a DP rank for this TPOT",
    "slo.tpot_ms.promised": "TPOT promised in ms",
    "tpot_promise": "TPOT promise",
    "tpot_missed_at": "TPOT promise missed under the day's traffic",
}
UNDER_FORMER = (  # what maps make, and figures that conditions of `gitops check` are about
    "tokens_per_s_per_gpu",
    "answered_share",
    "usd_per_day",
    "highest_load_of_most",
    "ttft_promise",
    "ttft_missed_at",
    "tpot_promise",
    "tpot_missed_at",
)
# figure -> text in its place if a plan has figures, but not this one, because the spec does not ask for it
ABSENT = {
    "tokens_per_day": "no traffic",
    "highest_load_of_most": "no traffic",
    "answered_share": "no traffic",
    **dict.fromkeys(("ttft_missed_at", "tpot_missed_at"), "never"),
    "usd_per_million_output_tokens": "no traffic",
    "usd_per_million_input_tokens": "no traffic",
    **dict.fromkeys(("revenue_usd_per_day", "margin"), "no token prices"),
}


@dataclass(frozen=True)
class Topic:
    """A few lines about one subject. A terminal shows at most `most` lines; markdown folds topics that are details."""

    name: str
    lines: tuple[str, ...]
    most: int
    is_detail: bool = False


def headline(change: Change) -> str:
    """Return a line with the change's name and the digests of both plans."""
    return f"Change of {change.name}: plan {_short(change.old)} -> {_short(change.new)}"


def topics(change: Change) -> tuple[Topic, ...]:
    """Return the topics on which the change has something to say, in the order of interest."""
    is_long = len(change.unjudged) > MAX_CAUSES
    performance = (Topic(phase, tuple(_speeds(change, sides)), 9) for phase, sides in change.performance.items())
    found = (
        Topic("compared", change.compared, 8),
        Topic("verdict", verdicts(change), 8),
        Topic("clients", tuple(_clients(change)), 3),
        Topic("unjudged", tuple(_unjudged(change)), 4),
        Topic("net", tuple(describe_net(change.net)), 3),
        *(Topic(fate, tuple(_units(change, fate)), 5 if fate in ENDING_FATES else 2) for fate in FATES),
        Topic("kept", tuple(_units(change, "kept")), 2, is_detail=True),
        Topic("experts", tuple(_experts(change)), 4),
        Topic("weights", tuple(_weights(change)), 2),
        Topic("nodes", tuple(_nodes(change)), 3),
        Topic("day", tuple(_day(change)), 4, is_detail=True),
        Topic("yardstick", tuple(_yardsticks(change)), 6),
        Topic("decided", tuple(_describe_decisions(change)), 6),
        Topic("loads", tuple(_loads(change)), 5),
        Topic("cost", tuple(_cost(change)), 10),
        *performance,
        Topic("failure", tuple(_failures(change)), 3, is_detail=True),
        Topic("warnings", tuple(_warnings(change)), 12),
        Topic("assumed", change.assumed, 8, is_detail=True),
        Topic("all unjudged", tuple(_format_fields(change.unjudged)) if is_long else (), 0, is_detail=True),
    )
    return tuple(each for each in found if each.lines)


def verdicts(change: Change) -> tuple[str, ...]:
    """Return a line with the verdict for each tool, or a single line if both are equal, and lines on other matters.

    These are: that the gateway goes on serving if it restarts, and that a controller would help.
    """
    short = [describe_shortage(each) for each in change.shortages]
    if change.verdict == "no_restart":
        starts = any(each.change == "new" for each in change.units)
        ready = f"; new units are ready after {change.minutes} min" if starts else ""
        return (f"no_restart: {EFFECTS['no_restart']}{ready}", *short)
    gateway = [GATEWAY_SERVES] if any(map(_is_replaced_gateway, change.units)) else []
    if len(set(map(repr, change.ways.values()))) == 1:
        return (_describe_rollout(change.ways["git"], ""), *short, *gateway)
    lines = [_describe_rollout(way, f" {TOOL_WORDS[tool]}") for tool, way in change.ways.items()]
    return (*lines, *short, *gateway, *_offer_turns(change))


def describe_shortage(short: Shortage) -> str:
    """Say at which hours units of a phase miss demand."""
    known = "" if short.missed_share is None else f"; up to {_format_share(short.missed_share)} of requests are refused"
    found = f"no {short.phase} unit is on" if short.has_no_unit else f"too few {short.phase} units are on"
    if short.missed_share is None and not short.has_no_unit:
        found = f"nobody can tell whether enough {short.phase} units are on"
    since = "" if short.is_new else ", as before the change"
    return f"{found} {_at(short.times)}{since}{'' if short.has_no_unit else known}"


def _is_replaced_gateway(unit: UnitChange) -> bool:
    """Return whether the gateway's Deployment gets new pods; in another namespace it would be another Deployment."""
    return unit.phase == "gateway" and unit.change == "restarted" and "namespace" not in unit.why


def _offer_turns(change: Change) -> Iterator[str]:
    """Yield the advice to have a controller, if units that change in turns leave more serving than all at once."""
    in_turns, at_once = (SEVERITY.index(change.ways[tool].verdict) for tool in ("pulumi", "git"))
    if change.may_take_turns and in_turns < at_once:
        is_removed = any(each.phase == "controller" and each.change == "removed" for each in change.units)
        which = "keep kubernetes.controller: with it" if is_removed else "with kubernetes.controller"
        yield f"{which} units change in turns by Git too"


def _short(digest: str) -> str:
    return digest[:19]


def _describe_rollout(way: Rollout, applied: str) -> str:
    least = [
        f"{each.units} of {counted(each.of_units, f'{phase} unit')}"
        for phase in PHASES
        if (each := way.least_units.get(phase)) is not None and each.units < each.of_units
    ]
    effect = "every unit goes on serving" if way.verdict == "rolling" and not least else EFFECTS[way.verdict]
    parts = [f"{effect}, with {' and '.join(least)} serving" if least else effect]
    if way.verdict == "degraded" and way.missed_share is not None:
        parts.append(f"up to {_format_share(way.missed_share)} of requests are refused")
    parts += [f"takes {way.minutes} min"] if way.minutes else []
    if "no_restart" not in way.times:  # otherwise only shortages differ by hour, and have lines of their own
        parts += [f"{verdict} {_at(times)}" for verdict, times in reversed(way.times.items())]
    return f"{way.verdict}{applied}: {'; '.join(parts)}"


def _at(times: str) -> str:
    return f"at {times}" if times[0].isdigit() else times


def _units(change: Change, fate: Fate) -> Iterator[str]:
    """Yield a line for each group of units that meet the same `fate` for the same causes."""
    found = sorted((each for each in change.units if each.change == fate), key=_causes)
    groups = [(causes, list(units)) for causes, units in groupby(found, key=_causes)]
    for why, units in groups[:MAX_GROUPS]:
        causes = f": {_join_limited(why, MAX_CAUSES)}" if why else ""
        yield f"{_name_units(change.name, units)}{causes}"
    if rest := [unit for _, units in groups[MAX_GROUPS:] for unit in units]:
        yield f"{counted(len(rest), 'other')} for other causes {ALL_NAMED}"


def _causes(unit: UnitChange) -> tuple[str, ...]:
    """Return what differs in a unit's pods, with the old and the new value where both are short."""
    return tuple(f"{cause} {' -> '.join(unit.values[cause])}" if cause in unit.values else cause for cause in unit.why)


def _name_units(plan: str, units: Sequence[UnitChange]) -> str:
    """Return the units' names, consecutive numbers joined: `prefill-0 to 4, gateway`."""
    runs = group_numbered([names.short_name(each.name, plan) for each in units])
    return _join_limited(
        [f"{run[0]} to {run[-1].rpartition('-')[2]}" if len(run) > 1 else run[0] for run in runs], MAX_RUNS
    )


def _join_limited(parts: Sequence[str], most: int) -> str:
    more = [f"and {counted(len(parts) - most, 'other')} {ALL_NAMED}"] if len(parts) > most else []
    return ", ".join([*parts[:most], *more])


def _experts(change: Change) -> Iterator[str]:
    """Yield a line on the changed expert slots of each phase."""
    moves = {phase: each for phase, each in change.experts.phases.items() if each.slots_changed}
    yield from (f"{phase}: {_describe_moves(each)}" for phase, each in moves.items())
    if not moves:
        yield "no expert moves"


def _weights(change: Change) -> Iterator[str]:
    """Yield a line on the weights that starting units read."""
    reads = change.weights
    if reads.units:
        size = _format_bytes(reads.bytes)
        yield f"{size}, read from {reads.checkpoint or 'storage'} to start {counted(reads.units, 'unit')}"


def _describe_moves(moves: PhaseMoves) -> str:
    size = f", {_format_bytes(moves.bytes)} in {counted(moves.units, 'unit')}"
    return f"{moves.slots_changed:,} of a unit's {counted(moves.of_slots, 'slot')} change{size}"


def _nodes(change: Change) -> Iterator[str]:
    for word, nodes in (("taken", change.nodes.taken), ("freed", change.nodes.freed)):
        if nodes:
            runs = group_numbered(sorted(nodes, key=numeric_order))
            names = [f"{run[0]} to {run[-1]}" if len(run) > 1 else run[0] for run in runs]
            yield f"{counted(len(nodes), 'node')} {word}: {_join_limited(names, MAX_RUNS)}"


def _format_fields(fields: Iterable[SpecField]) -> list[str]:
    """Return the fields' paths, with the old and the new value where these can be shown."""
    return [each.path if each.values is None else f"{each.path} {' -> '.join(each.values)}" for each in fields]


def _clients(change: Change) -> Iterator[str]:
    if change.clients:
        yield f"get errors until they change too: {', '.join(_format_fields(change.clients))}"


def _unjudged(change: Change) -> Iterator[str]:
    if change.unjudged:
        yield f"figures need not show all that these do: {_join_limited(_format_fields(change.unjudged), MAX_CAUSES)}"


def _yardsticks(change: Change) -> Iterator[str]:
    """Yield a line on the yardsticks that moved, and one on the new plan's figures under the former yardsticks.

    Yield nothing if none moved.
    """
    moved = change.yardsticks
    if moved is None:
        return
    alone = "" if moved.counts else "; nothing else changes, so the verdict is for the new loads alone"
    yield f"moved: {_join_limited(_format_fields(moved.moved), MAX_CAUSES)}{alone}"
    if moved.unknown:
        yield f"nobody knows the new plan's figures under the former ones: {moved.unknown}"
        return
    sides = [(COSTS, "", change.cost.after, moved.cost.after)]
    sides += [
        (SPEEDS, f"{phase}'s ", change.performance[phase].after, each.after)
        for phase, each in moved.performance.items()
    ]
    figures = [
        f"{of}{names[name]} {_format_figure(again[name])}"
        for names, of, own, again in sides
        for name in UNDER_FORMER
        if name in again and name in names and _format_figure(again[name]) != _format_figure(own.get(name))
    ]
    if figures:
        yield f"under the former ones the new plan has: {'; '.join(figures)}"


def _describe_decisions(change: Change) -> Iterator[str]:
    for each in change.decided:
        yield f"{each.path} {each.before} -> {each.after}: {each.why}"


def _loads(change: Change) -> Iterator[str]:
    """Yield which expert loads the plans were made for, and which the figures are for; nothing if they are equal."""
    if change.loads is None:
        return
    yield f"{change.loads.before} -> {change.loads.after}"
    if change.loads.figures_before == "after":
        moved = change.yardsticks
        is_for_both = moved and moved.counts and not moved.unknown and any(each.path == LOADS for each in moved.moved)
        judged = "the verdict is for both, and figures are" if is_for_both else "verdict and figures are"
        yield f"{judged} for the new loads; those before are what the former maps make of them"
    else:
        yield "figures before the change are for the former loads; nobody can tell what the former maps make of the new"


def _day(change: Change) -> Iterator[str]:
    """Yield a line for each time of day from which the new plan's state differs from the old plan's.

    If no controller carries out the schedule, a line that says so comes first.
    """
    if change.schedule is None:
        return
    before, after = change.schedule.before, change.schedule.after
    times = sorted({each.at for each in (*before, *after)})
    states = {at: (_state_at(before, at), _state_at(after, at)) for at in times}
    lines = [
        f"from {at}: {_describe_states(old, new)}"
        for at, (old, new) in states.items()
        if (old.nodes, old.units) != (new.nodes, new.units)
    ]
    if lines and not change.schedule.is_executed:
        yield AS_SCHEDULED
    yield from lines


def _state_at(states: Sequence[State], at: str) -> State:
    """Return the state that holds at a time of day: the last one that has begun, maybe on the day before."""
    return max(states, key=lambda each: (each.at <= at, each.at))


def _describe_states(old: State, new: State) -> str:
    counts = [("nodes", old.nodes, new.nodes)]
    counts += [(phase, old.units.get(phase, 0), new.units.get(phase, 0)) for phase in {**new.units, **old.units}]
    return ", ".join(
        f"{name} {before}" if before == after else f"{name} {before} -> {after}" for name, before, after in counts
    )


def _cost(change: Change) -> Iterator[str]:
    yield from _figures(change.cost, COSTS, _name_empty(change, change.cost, "no GPU price"))
    for each in change.cost_of_other_days:
        before, after = (_format_usd(usd) for usd in (each.before, each.after))
        if before != after:
            yield f"on {name_days(each.days)}: {before or 'no GPU price'} -> {after or 'no GPU price'}"


def _speeds(change: Change, sides: Sides) -> Iterator[str]:
    """Yield lines on a phase's figures, and on why a plan predicts none."""
    yield from _figures(sides, SPEEDS, _name_empty(change, sides, "no such phase"))
    why = [str(side["not_predicted"].value) for side in (sides.before, sides.after) if "not_predicted" in side]
    yield from (f"not predicted: {each}" for each in dict.fromkeys(why))


def _name_empty(change: Change, sides: Sides, absent: str) -> tuple[str, str]:
    """Return (text in place of old figures, of new figures). The text is empty for a side that has figures.

    The text is `unknown` for a plan without any figures, and `absent` for a plan that lacks only these.
    """
    all_sides = [change.cost, *change.performance.values()]
    has_figures = any(each.before for each in all_sides), any(each.after for each in all_sides)
    before, after = (absent if has else "unknown" for has in has_figures)
    return "" if sides.before else before, "" if sides.after else after


def _figures(sides: Sides, names: dict[str, str], empty: tuple[str, str]) -> Iterator[str]:
    """Yield a line for each figure that differs, and one line with all figures that do not."""
    told = {name: (_format_figure(sides.before.get(name)), _format_figure(sides.after.get(name))) for name in names}
    for name, (old, new) in told.items():
        if old != new:
            before = old or empty[0] or _missing_text(name, sides.before)
            yield f"{names[name]}: {before} -> {new or empty[1] or _missing_text(name, sides.after)}"
    if same := [f"{names[name]} {new}" for name, (old, new) in told.items() if old == new != ""]:
        yield f"as before: {'; '.join(same)}"


def _missing_text(name: str, side: Mapping[str, Row]) -> str:
    """Return the text to show for a figure that one plan lacks although it has others of the same kind."""
    return ABSENT.get(name) or ("not predicted" if "not_predicted" in side else "none")


def _format_figure(row: Row | None) -> str:
    if row is None:
        return ""
    low, high = format_range(row)
    return f"{format_value(row)} ({low} to {high})" if low else format_value(row)


def _failures(change: Change) -> Iterator[str]:
    """Yield a line for each failure domain whose worst loss differs, for phases that both plans have."""
    for phase, sides in change.failures.items():
        for domain in (each for each in sides.before if each in sides.after):
            losses = sides.before[domain], sides.after[domain]
            old, new = (f"{each.units} of {counted(each.of_units, 'unit')}" for each in losses)
            if old != new:
                yield f"{phase}, loss of one {domain}: stops {old} -> {new}"


def _warnings(change: Change) -> Iterator[str]:
    """Yield a line for each warning that is new, that has other numbers, or that is gone, without its fix."""
    yield from (f"new: {each.rule_and_reason} [{each.id}]" for each in change.warnings.new)
    for sides in change.warnings.changed:
        yield f"changed: {_changed_numbers(sides)} [{sides.after.id}]"
    yield from (f"gone: {each.rule_and_reason} [{each.id}]" for each in change.warnings.gone)


def _changed_numbers(sides: WarningSides) -> str:
    """Return a warning with arrows between its old and new numbers, or only the new warning if its wording differs."""
    old, new = (PARENTHESES_OR_WORDS.findall(each.rule_and_reason) for each in (sides.before, sides.after))
    if len(old) != len(new):
        return sides.after.rule_and_reason
    pairs = zip(old, new, strict=True)
    return " ".join(after if before == after else f"{before.rstrip(';,')} -> {after}" for before, after in pairs)


def _format_share(share: float) -> str:
    return format_value(Row("", "", share, "share"))


def _format_usd(usd: float | None) -> str:
    return "" if usd is None else format_value(Row("", "", usd, "USD"))


def _format_bytes(size: int) -> str:
    return format_value(Row("", "", size, "bytes"))
