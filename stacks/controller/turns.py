"""Decides which units restart now to take a new template. Pure: it reads no clock and no cluster.

A unit's object withholds a new template from running pods (`partition`), so the unit is outdated until it is drained:
at 0 replicas the new template becomes current, and the next start uses it. A turn is that drain. The start follows from
the day, since the unit is still wanted (`decide.py`).

    begins    while all units that are to run are on, and those with the newest template are ready; at the second look
              that finds the same outdated units, since a tool applies objects one by one
    whose     the first outdated unit of each phase, prefill and decode side by side; unready ones come first
    costs     nothing while its phase has a stand-in: the next unit that is off, which starts with the new template.
              Without nodes for one, `with_room` waits for a state of the day that has them, and `now` lacks a unit

So a template that does not start takes one unit of a phase, or only the stand-in, and nothing further begins until that
unit is ready or has another template: the former one, for which it has the first turn.

Outdated units that are not ready serve nobody. Once their phase has a ready unit with the new template they all go at
once.

Units of two KV formats cannot exchange KV, and the gateway serves one format. The new gateway is ready once each phase
has a unit of the new format, so one of each phase goes first, all at once: the old gateway needs the others. When the
new gateway has taken over, nobody uses the others, and they go together.

Units of another engine may exchange KV only with those of their own image, and its router does not know. They all go at
once when the image changes, and nobody stands in. `with_room`, they never go.

A unit may get other nodes. It waits for a unit that still has pods there; units that wait for each other go together.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.facts.terms import Phase
from stacks.controller.situation import Gateway, LiveUnit

__all__ = ["Turns", "decide_turns", "find_awaited", "find_holders"]


@dataclass(frozen=True)
class Turns:
    """The units that restart now, all outdated units, and what the outdated ones wait for."""

    begin: tuple[str, ...] = ()
    outdated: tuple[str, ...] = ()
    reason: str = ""
    is_stopped: bool = False  # a unit with its newest template has not become ready in time


def decide_turns(
    units: Sequence[LiveUnit],
    on: Collection[str],
    needed: Mapping[Phase, int],
    stand_ins: Collection[str],
    gateway: Gateway,
    *,
    may_lack_one: bool,
) -> Turns:
    """Return which outdated units restart now with their new template.

    `on` are the units that should run, and `needed` counts for each phase how many have to serve. `stand_ins` are on,
    or will be once users of their free nodes have had notice. If `may_lack_one`, a phase may restart a unit without
    having one in its place.
    """
    outdated = tuple(unit.name for unit in units if unit.is_outdated and (unit.is_on or unit.name in on))
    if not outdated:
        return Turns()
    running = tuple(unit.name for unit in units if unit.is_outdated and unit.is_on)
    kv_formats_differ = any(unit.has_other_kv_format for unit in units)
    if kv_formats_differ and gateway == "blind":
        return Turns(
            running if may_lack_one else (),
            outdated,
            "units exchange KV only with those of their own image, so all change at once",
        )
    if paused := next(_find_pauses(units, on), None):
        unit, why = paused
        return Turns((), outdated, _say_who_waits([name for name in outdated if name != unit.name], why), unit.is_late)
    if kv_formats_differ and _proven_phases(units) >= {unit.phase for unit in units if unit.name in on}:
        return _restart_the_rest(running, outdated, gateway)
    noticed = {unit.phase for unit in units if unit.name in stand_ins and unit.name not in on}
    ready = Counter(unit.phase for unit in units if unit.is_ready)
    begin: list[str] = []
    for group in _next_groups(units, on, kv_formats_differ=kv_formats_differ):
        lost = Counter(unit.phase for unit in group if unit.is_ready)
        if _keeps_enough(lost, ready, needed) or (may_lack_one and noticed.isdisjoint(lost)):
            begin += [unit.name for unit in group]
        elif kv_formats_differ:
            begin = []
            break
    if begin:
        return Turns(tuple(begin), outdated, f"{', '.join(begin)} take their new template")
    why = "whoever uses free nodes gets notice first" if noticed else "no unit is left over in this state of the day"
    return Turns((), outdated, _say_who_waits(outdated, why))


def find_holders(unit: LiveUnit, units: Sequence[LiveUnit]) -> list[LiveUnit]:
    """Return the other units that have pods on the nodes of `unit`."""
    return [each for each in units if each.name != unit.name and not each.holds.isdisjoint(unit.nodes)]


def find_awaited(unit: LiveUnit, units: Sequence[LiveUnit]) -> list[LiveUnit]:
    """Return the units that must leave before `unit` can start on its nodes, those that they wait for included."""
    found: list[LiveUnit] = []
    left = [unit]
    while left:
        more = [each for each in find_holders(left.pop(), units) if each not in found]
        found += more
        left += more
    return found


def _restart_the_rest(running: tuple[str, ...], outdated: tuple[str, ...], gateway: Gateway) -> Turns:
    """Return the turns of units in the former KV format.

    All restart at once when the gateway serves the new format, and none before.
    """
    if gateway == "former":
        return Turns((), outdated, _say_who_waits(outdated, "the gateway for their new KV format is not ready yet"))
    return Turns(running, outdated, "the gateway serves another KV format now, so all others change at once")


def _find_pauses(units: Sequence[LiveUnit], on: Collection[str]) -> Iterator[tuple[LiveUnit, str]]:
    """Yield (unit, why) for each unit that has to start or get ready before another unit restarts.

    A unit that waits for an outdated unit's nodes holds nothing up: it waits for that unit's restart.
    """
    for unit in units:
        if any(each.is_on and each.is_outdated for each in find_holders(unit, units)):
            continue
        if unit.name in on and unit.replicas == 0:
            yield unit, f"{unit.name} has to start"
        elif unit.is_on and not unit.is_ready and not unit.is_outdated:
            late = "has not become ready in time" if unit.is_late else "is not ready yet"
            yield unit, f"{unit.name} {late} with its newest template"


def _next_groups(
    units: Sequence[LiveUnit], on: Collection[str], *, kv_formats_differ: bool
) -> Iterator[list[LiveUnit]]:
    """Yield the units to restart next, in groups that restart together.

    While KV formats differ, phases that already have a ready unit with the newest template are skipped.
    """
    waiting = sorted((unit for unit in units if unit.is_outdated and unit.is_on and unit.name in on), key=_is_serving)
    free = [unit for unit in waiting if not find_holders(unit, units)]
    if not free:
        yield _find_cycle(waiting, units)
    proven = _proven_phases(units)
    for phase in dict.fromkeys(unit.phase for unit in free):
        if kv_formats_differ and phase in proven:
            continue
        first, *others = [unit for unit in free if unit.phase == phase]
        is_down = not first.is_ready and phase in proven
        yield [first, *(unit for unit in others if is_down and not unit.is_ready)]


def _proven_phases(units: Sequence[LiveUnit]) -> set[Phase]:
    """Return the phases that have a ready unit with the newest template."""
    return {unit.phase for unit in units if unit.is_ready and not unit.is_outdated}


def _keeps_enough(lost: Mapping[Phase, int], ready: Mapping[Phase, int], needed: Mapping[Phase, int]) -> bool:
    """Return whether each phase that loses units still has as many ready ones as needed.

    All three mappings are phase -> number of units.
    """
    return all(ready[phase] - number >= needed.get(phase, 0) for phase, number in lost.items())


def _is_serving(unit: LiveUnit) -> bool:
    return unit.is_ready


def _find_cycle(waiting: Sequence[LiveUnit], units: Sequence[LiveUnit]) -> list[LiveUnit]:
    """Return the smallest set of outdated units that wait only for each other's nodes; empty if there is none."""
    cycles = [found for unit in waiting if unit in (found := find_awaited(unit, units))]
    return min((each for each in cycles if all(unit.is_on and unit.is_outdated for unit in each)), key=len, default=[])


def _say_who_waits(waiting: Sequence[str], why: str) -> str:
    return f"{', '.join(waiting)} {'waits' if len(waiting) == 1 else 'wait'}: {why}" if waiting else why
