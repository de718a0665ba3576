"""A day checked at every instant: enough units serve, each on nodes of its own, and the nodes are as many as there are.

Between two events nothing changes. An event is a unit that takes its nodes, begins to serve, ends serving or gives its
nodes back, or a change of the demand. So the time between two events is checked once, and the check misses no instant.

It reads a finished plan's day and knows nothing of how it was found: planned days are held against it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.facts.day import DAY_S, MINUTE_S, hh_mm_ss, minute_of
from planner.facts.terms import Phase
from planner.schedule.schedule import Timetable

__all__ = ["Breach", "breaches"]

ROUNDING = 1e-6


@dataclass(frozen=True)
class Breach:
    """Something that does not hold from `at` on, for `seconds`."""

    at: str
    seconds: int
    what: str


@dataclass(frozen=True)
class _Span:
    """Seconds of a day; a span that ends before it begins crosses midnight."""

    begin: int
    end: int

    def holds(self, second: int) -> bool:
        if self.begin == self.end:
            return True
        return (second - self.begin) % DAY_S < (self.end - self.begin) % DAY_S


def breaches(
    day: Timetable,
    nodes_of_units: Mapping[str, Sequence[str]],
    num_nodes: int,
    asked: Mapping[Phase, Sequence[float]],
) -> tuple[Breach, ...]:
    """Return what does not hold at some instant of `day`.

    `nodes_of_units` are those of each unit, `num_nodes` those that units may take, and `asked` the units of each phase
    that every entry of the profile asks for.
    """
    serving, taken = _serving(day), _taken(day)
    units = {phase: {unit for step in day.steps for unit in step.units_of(phase)} for phase in asked}
    cuts = {0, *(edge for spans in (*serving.values(), *taken.values()) for each in spans for edge in _edges(each))}
    for entries in asked.values():
        cuts |= {index * DAY_S // len(entries) for index in range(len(entries))}
    ordered = sorted(cuts)
    found = []
    for begin, end in zip(ordered, [*ordered[1:], DAY_S], strict=True):
        on = [unit for unit, spans in serving.items() if any(each.holds(begin) for each in spans)]
        held = [unit for unit, spans in taken.items() if any(each.holds(begin) for each in spans)]
        problems = [
            *_short(units, on, begin, asked),
            *_unready(on, held),
            *_crowded(held, nodes_of_units, num_nodes),
        ]
        found += [Breach(hh_mm_ss(begin), end - begin, what) for what in problems]
    return tuple(found)


def _short(
    units: Mapping[Phase, set[str]], on: Sequence[str], second: int, asked: Mapping[Phase, Sequence[float]]
) -> Iterator[str]:
    """Yield the phases, with all their `units`, of which fewer are on than are asked for, or none: then no expert is
    covered.
    """
    for phase, entries in asked.items():
        number, needed = len(units[phase].intersection(on)), entries[second * len(entries) // DAY_S]
        if number < max(needed - ROUNDING, 1):
            yield f"{number} {phase} units serve where {needed:.2f} are asked for"


def _unready(on: Sequence[str], held: Sequence[str]) -> Iterator[str]:
    for unit in on:
        if unit not in held:
            yield f"{unit} serves without nodes"


def _crowded(held: Sequence[str], nodes_of_units: Mapping[str, Sequence[str]], num_nodes: int) -> Iterator[str]:
    nodes = [node for unit in held for node in nodes_of_units[unit]]
    if len(nodes) > num_nodes:
        yield f"{len(nodes)} nodes are taken of {num_nodes}"
    if len(set(nodes)) < len(nodes):
        yield "a node is taken twice"


def _serving(day: Timetable) -> dict[str, list[_Span]]:
    """Return when each unit serves, step by step."""
    found: dict[str, list[_Span]] = {}
    for step in day.steps:
        begin = minute_of(step.at) * MINUTE_S
        for unit in step.units:
            found.setdefault(unit, []).append(_Span(begin, (begin + step.minutes * 60) % DAY_S))
    return found


def _taken(day: Timetable) -> dict[str, list[_Span]]:
    """Return when each unit has nodes: always, but for the spans that transitions free."""
    free: dict[str, list[_Span]] = {}
    for transition in day.transitions:
        for each in transition.freed:
            free.setdefault(each.unit, []).append(_Span(_second_of(each.begins), _second_of(each.ends)))
    units = {unit for step in day.steps for unit in step.units}
    return {unit: list(_between(free.get(unit, []))) for unit in sorted(units)}


def _second_of(at: str) -> int:
    """Return the seconds from midnight of `HH:MM:SS`."""
    return minute_of(at[:5]) * MINUTE_S + int(at[6:])


def _between(free: Sequence[_Span]) -> Iterator[_Span]:
    """Yield the spans of a day that none of `free`, which do not overlap, has."""
    ordered = sorted(free, key=lambda each: each.begin)
    if not ordered:
        yield _Span(0, 0)
    for index, each in enumerate(ordered):
        following = ordered[(index + 1) % len(ordered)].begin
        if following != each.end:
            yield _Span(each.end, following)


def _edges(span: _Span) -> tuple[int, int]:
    return span.begin, span.end
