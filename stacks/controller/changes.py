"""Records what an update of the plan does to its units, and what was promised when the update began. Pure.

A change begins at the look that finds a unit with an older template than its object's, a unit that the plan did not
have before, or one that has left it. It ends when none is left to change and all units that are wanted serve; or when a
unit that has had its turn gets another template, as after a revert: then another change begins.

    units       those that have changed, in order: a unit restarts when its turn begins
    left        those that are still to change
    least       the units that served, of those that were to serve, at the look with the lowest share
    failed      the requests that failed meanwhile, by the counts of all gateways
    promised    the same by the laws of `planner/diff/serving.py`, for the state of the day in which the change begins

The promise is made here and not when the plan is rendered (docs/design/controller.md). All of it is in the deployment's
status, and each look is written there before anything is done (`loop.py`). What has changed is seen in the cluster,
and not in what this process has done. So a controller may be killed at any moment.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from types import MappingProxyType
from typing import Any, Literal

from planner.diff.serving import PhaseUnits, Turns, change_s, least_serving
from planner.facts.day import MINUTE_S
from planner.facts.terms import Phase
from stacks.controller.clock import timestamp
from stacks.controller.decide import Decision
from stacks.controller.situation import LiveUnit, Situation
from stacks.controller.turns import find_awaited
from stacks.kube.manifest import Manifest, parse_instant

__all__ = ["ChangeRecord", "Share", "UnitChange", "changes_json", "follow_changes", "previous_changes"]

MAX_CHANGES, MAX_UNITS = 5, 1000  # kept in the status; assumed: 60 kB of an object, which may have 1.5 MB

Fate = Literal["restarted", "new", "removed"]


@dataclass(frozen=True)
class UnitChange:
    """What a change does to one unit."""

    name: str
    phase: Phase
    change: Fate


@dataclass(frozen=True)
class Share:
    """How many units of a phase serve (`units`), and how many should (`of_units`)."""

    units: int
    of_units: int

    @property
    def share(self) -> float:
        """Return the serving units over those that should serve; 1 if none should."""
        return self.units / self.of_units if self.of_units else 1.0


@dataclass(frozen=True)
class ChangeRecord:
    """The record of one change, finished or under way. Times are seconds since 1970-01-01 00:00 UTC.

    `promised_s` is None if the deployment does not say how long a start takes, or if turns wait for a state with room.
    """

    began: float
    units: tuple[UnitChange, ...] = ()
    left: tuple[UnitChange, ...] = ()
    least: Mapping[Phase, Share] = field(default_factory=dict)
    promised_least: Mapping[Phase, Share] = field(default_factory=dict)
    promised_s: int | None = None
    ended: float | None = None
    is_replaced: bool = False  # another change has taken its place
    num_failed: int | None = None  # None until a gateway's metrics have been read
    gateways: Mapping[str, int] = field(default_factory=dict)  # address -> its count of failed requests, last seen


def follow_changes(
    deployment: Manifest,
    situation: Situation,
    decision: Decision,
    known: Sequence[str],
    now: float,
    failed: Mapping[str, int] = MappingProxyType({}),
) -> tuple[ChangeRecord, ...]:
    """Return the records of recent changes, updated by a look at the wall-clock time `now`. The newest is last.

    `known` are the units that the plan had at the previous look. `failed` is each gateway's count of failed requests.
    """
    changes = previous_changes(deployment)
    going = _count_failed(changes.pop(), failed) if changes and changes[-1].ended is None else None
    if going and _is_superseded(going, situation):
        changes.append(replace(going, ended=now, is_replaced=True))
        going = None
    found = list(_find_changing(situation, known))
    if going or found:
        going = _update_change(
            going or _count_failed(ChangeRecord(now), failed), found, situation, decision, deployment["spec"]
        )
        is_over = not (going.left or decision.turns.outdated or decision.shortages)
        changes.append(replace(going, ended=now) if is_over else going)
    return tuple(_keep_newest(changes))


def previous_changes(deployment: Manifest) -> list[ChangeRecord]:
    """Return the changes in the deployment's status, without those whose beginning is not a valid time."""
    written = (deployment.get("status") or {}).get("changes") or []
    return [_read_change(each, began) for each in written if (began := parse_instant(each["began"])) is not None]


def changes_json(changes: Sequence[ChangeRecord]) -> list[dict[str, Any]]:
    """Return the changes in the form of the deployment's status."""
    return [_change_json(each) for each in changes]


def _find_changing(situation: Situation, known: Sequence[str]) -> Iterator[UnitChange]:
    """Yield the units to restart, start or remove.

    At the first look at a plan (`known` is empty) no unit counts as new.
    """
    for unit in situation.units:
        if known and unit.name not in known:
            yield UnitChange(unit.name, unit.phase, "new")
        elif unit.is_on and unit.is_outdated:
            yield UnitChange(unit.name, unit.phase, "restarted")
    for unit in situation.departed:
        yield UnitChange(unit.name, unit.phase, "removed")


def _count_failed(change: ChangeRecord, failed: Mapping[str, int]) -> ChangeRecord:
    """Return the change, with the requests added that have failed at gateways since the last look.

    A gateway that is new counts from now on. If a gateway's count has fallen, it has started again and counts from 0.
    """
    if not failed:
        return change
    before = {address: change.gateways.get(address, count) for address, count in failed.items()}
    grown = sum(count - before[address] if count >= before[address] else count for address, count in failed.items())
    return replace(change, num_failed=(change.num_failed or 0) + grown, gateways={**change.gateways, **failed})


def _is_superseded(change: ChangeRecord, situation: Situation) -> bool:
    """Return whether a newer template has come: a unit that the change has reached is outdated again."""
    changed = {each.name for each in change.units}
    return any(unit.name in changed and unit.is_on and unit.is_outdated for unit in situation.units)


def _update_change(
    change: ChangeRecord,
    found: Sequence[UnitChange],
    situation: Situation,
    decision: Decision,
    spec: Mapping[str, Any],
) -> ChangeRecord:
    """Return the change after one look. `found` are the units that still have to change.

    Objects are applied one by one, so a later look may find more units.
    """
    known = {each.name for each in (*change.units, *change.left)}
    more = [each for each in found if each.name not in known]
    waiting = [*change.left, *more]
    live = {unit.name: unit for unit in (*situation.units, *situation.departed)}
    begun = [each for each in waiting if _is_reached(each, live.get(each.name))]
    after = replace(change, units=(*change.units, *begun), left=tuple(each for each in waiting if each not in begun))
    serving = _count_serving(after, situation, decision)
    lower = {
        phase: min(change.least.get(phase, each), each, key=lambda at: at.share) for phase, each in serving.items()
    }
    after = replace(after, least=lower)
    return _promise(after, situation, decision, spec) if more else after


def _is_reached(change: UnitChange, unit: LiveUnit | None) -> bool:
    """Return whether a unit's change has begun: its turn to restart has come, it was created, or it is gone."""
    if change.change == "removed" or unit is None:
        return unit is None
    return unit.replicas is not None if change.change == "new" else not (unit.is_on and unit.is_outdated)


def _count_serving(change: ChangeRecord, situation: Situation, decision: Decision) -> dict[Phase, Share]:
    """Return for each phase how many units serve now, and how many should.

    For an instant after a new template is applied, a unit is not called ready although its pods go on serving.
    """
    wanted = _count_wanted(change, situation, decision)
    units = [*situation.units, *situation.departed]
    serving = Counter(unit.phase for unit in units if _serves(unit, situation))
    return {phase: Share(min(serving[phase], number), number) for phase, number in wanted.items()}


def _serves(unit: LiveUnit, situation: Situation) -> bool:
    """Return whether a unit is up and gets requests.

    It gets some if its KV format is the one that the gateway serves, or if the gateway does not look at formats.
    """
    if not unit.is_on or not (unit.is_ready or unit.is_unseen):
        return False
    return situation.gateway == "blind" or unit.has_other_kv_format == (situation.gateway == "former")


def _count_wanted(change: ChangeRecord, situation: Situation, decision: Decision) -> Counter[Phase]:
    """Return for each phase how many units should serve: the day's, without new ones, and those that leave."""
    leaving = [each.phase for each in (*change.units, *change.left) if each.change == "removed"]
    phases = situation.phases()
    return Counter([*(phases[name] for name in _find_staying(change, decision)), *leaving])


def _find_staying(change: ChangeRecord, decision: Decision) -> list[str]:
    """Return the wanted units, without those that the change adds."""
    fates = _fates(change)
    return [name for name in decision.wanted if (name, "new") not in fates]


def _promise(change: ChangeRecord, situation: Situation, decision: Decision, spec: Mapping[str, Any]) -> ChangeRecord:
    """Return the change with what `tidemill diff` would promise now: the least share of each phase, and the seconds.

    The seconds are None if the deployment does not say how long a start or a turn takes. They are None, too, if units
    restart only while a stand-in is on and a phase has none: nobody knows when there will be room.
    """
    units = [unit for unit in situation.units if (unit.name, "restarted") in _fates(change)]
    in_turn = Counter(unit.phase for unit in units if unit not in find_awaited(unit, situation.units))
    is_crossing = any(unit.has_other_kv_format for unit in units)
    rounds = max(in_turn.values(), default=0) + (len(units) > in_turn.total())
    if is_crossing:
        rounds = min(rounds, 1 if situation.gateway == "blind" else 2)
    stand_ins = {situation.phases()[name] for name in decision.stand_ins}
    least = _promise_least(change, situation, decision, in_turn, is_crossing=is_crossing)
    if not (situation.may_lack_one or stand_ins.issuperset(in_turn)):
        return replace(change, promised_least=least, promised_s=None)
    seconds = _expected_s(change, spec, rounds, situation.extra_drain_s, has_stand_ins=bool(stand_ins))
    return replace(change, promised_least=least, promised_s=seconds)


def _expected_s(
    change: ChangeRecord, spec: Mapping[str, Any], num_turns: int, extra_drain_s: float, *, has_stand_ins: bool
) -> int | None:
    """Return the seconds that the change should take; None if the deployment has no start or turn time.

    New units and stand-ins start first; stand-ins wait for the notice if nodes are lent. Then come `num_turns`, and
    units that leave drain last. Pods that end take `extra_drain_s` longer for that than new ones.
    """
    if not {"startSeconds", "turnSeconds"} <= spec.keys():
        return None
    start_s, turn_s = float(spec["startSeconds"]), float(spec["turnSeconds"])
    fates = {fate for _, fate in _fates(change)}
    first_s = start_s if has_stand_ins or "new" in fates else 0.0
    if has_stand_ins and "lendNodes" in spec:
        first_s += spec["lendNodes"]["noticeSeconds"] / spec.get("pace", 1)
    drain_s = max(turn_s - start_s + extra_drain_s, 0.0)
    return change_s(first_s, num_turns, drain_s, start_s, drains_last="removed" in fates)


def _promise_least(
    change: ChangeRecord, situation: Situation, decision: Decision, in_turn: Mapping[Phase, int], *, is_crossing: bool
) -> dict[Phase, Share]:
    """Return for each phase the fewest units that serve during the change.

    `in_turn` counts each phase's units that restart one after another; units that wait for each other's nodes restart
    together. `is_crossing` says that the change moves to another KV format.
    """
    phases, fates = situation.phases(), _fates(change)
    stand_ins = {phases[name] for name in decision.stand_ins}
    wanted = _count_wanted(change, situation, decision)
    staying = _find_staying(change, decision)
    kept = Counter(phases[name] for name in staying if (name, "restarted") not in fates)
    stay = Counter(phases[name] for name in staying)
    taken = {node for unit in situation.units for node in unit.nodes}
    last = Counter(unit.phase for unit in situation.departed if unit.is_ready and unit.holds.isdisjoint(taken))
    turns: Turns = "now" if situation.may_lack_one else "with_room"
    is_blind = is_crossing and situation.gateway == "blind"
    found = {}
    for phase, number in wanted.items():
        least = least_serving(
            PhaseUnits(number, kept[phase], in_turn[phase], last[phase], stay[phase]),
            "none" if is_blind else turns,
            is_replaced=phase in stand_ins,
            all_replaced=stand_ins.issuperset(wanted),
            in_pairs=is_crossing and not is_blind,
        )
        found[phase] = Share(least, number)
    return found


def _fates(change: ChangeRecord) -> set[tuple[str, Fate]]:
    return {(each.name, each.change) for each in (*change.units, *change.left)}


def _keep_newest(changes: Sequence[ChangeRecord]) -> list[ChangeRecord]:
    """Return the newest changes, as many as fit into the status (`MAX_CHANGES`, `MAX_UNITS`), and at least one."""
    kept: list[ChangeRecord] = []
    for each in reversed(changes[-MAX_CHANGES:]):
        num_units = sum(len(change.units) + len(change.left) for change in (*kept, each))
        if kept and num_units > MAX_UNITS:
            break
        kept.insert(0, each)
    return kept


def _change_json(change: ChangeRecord) -> dict[str, Any]:
    ended = {} if change.ended is None else {"ended": timestamp(change.ended)}
    outcome = {} if change.ended is None else {"outcome": "Replaced" if change.is_replaced else "CarriedOut"}
    seconds = change.promised_s
    time = {} if seconds is None else {"seconds": seconds, "minutes": ceil(seconds / MINUTE_S)}
    return {
        "began": timestamp(change.began),
        **ended,
        **outcome,
        "units": [vars(each) for each in change.units],
        "left": [vars(each) for each in change.left],
        "least": _shares_json(change.least),
        **({} if change.num_failed is None else {"failed": change.num_failed}),
        **({"gateways": dict(change.gateways)} if change.gateways and change.ended is None else {}),
        "promised": {"least": _shares_json(change.promised_least), **time},
    }


def _shares_json(shares: Mapping[Phase, Share]) -> dict[str, Any]:
    return {phase: {"units": each.units, "ofUnits": each.of_units} for phase, each in shares.items()}


def _read_change(written: Mapping[str, Any], began: float) -> ChangeRecord:
    ended = parse_instant(written["ended"]) if "ended" in written else None
    return ChangeRecord(
        began,
        _read_units(written["units"]),
        _read_units(written["left"]),
        _read_shares(written["least"]),
        _read_shares(written["promised"]["least"]),
        written["promised"].get("seconds"),
        ended,
        written.get("outcome") == "Replaced",
        written.get("failed"),
        written.get("gateways", {}),
    )


def _read_units(written: Sequence[Mapping[str, Any]]) -> tuple[UnitChange, ...]:
    return tuple(UnitChange(each["name"], each["phase"], each["change"]) for each in written)


def _read_shares(written: Mapping[Phase, Any]) -> dict[Phase, Share]:
    return {phase: Share(each["units"], each["ofUnits"]) for phase, each in written.items()}
