"""The expert maps of a simulated day: how often units change theirs, for what gain and how many bytes.

    a window       loads are constant; from one to the next, experts' popularity drifts
    a decision     at the end of every `expert_load.live.every`, by the functions that decide in service
    a start        the plan's map, or the unit's former one if that moves at most `max_bytes`

A window's loads are those of the plan with each expert at another rank of popularity: a Gaussian copula within each
layer, as in `planner/facts/drawn.py`, with as much drift as the plan's own prediction assumes. So popularity changes,
and its distribution does not. Ranks count expected rows without chance, which decisions are made to withstand.

Of each phase one unit is played, that which is on for longest, and at most `MOST_LAYERS` of its layers stand for all:
with every layer, a day of DeepSeek-V3 takes minutes. `max_bytes` is cut, and bytes are multiplied, in proportion.

Nothing published says for how long loads stay as they are. `WINDOW_S` is the period after which DeepSeek-V3 moves its
redundant experts (arXiv 2412.19437, section 3.4).
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from planner.compiler import Compiled
from planner.estimate.throughput.imbalance import DRIFT_SHARE, MAX_DRIFT_SHARE, WINDOW_DRIFT
from planner.facts.day import DAY_MINUTES, HOUR_MINUTES, MINUTE_S
from planner.facts.loads import Loads
from planner.facts.terms import Phase
from planner.plan.sections import LiveMap
from stacks.measured.better_map import bytes_to_restore, find_better_map, mean_balance
from stacks.measured.epochs import InService, Rows
from stacks.measured.halves import MeasuredLoads
from stacks.measured.limits import Limits
from stacks.simulator.flows.curves import Curve, Curves
from stacks.simulator.flows.fleet import planned_fleet
from stacks.simulator.flows.service import Service
from stacks.simulator.speed import Level

__all__ = ["WINDOW_S", "PlayedMaps", "play_maps"]

WINDOW_S = 600.0  # assumed: see the module's docstring
MOST_LAYERS = 8  # assumed: of the published system they move 84 % and 114 % of the bytes that all 58 layers do
DRIFT: Mapping[Level, float] = {"mid": DRIFT_SHARE, "low": MAX_DRIFT_SHARE}  # shares of drawn.py's drift
WINDOW_MINUTES = round(WINDOW_S / MINUTE_S)
SMALLEST = 2.0**-53  # the smallest number above 0 that `random` returns
NORMAL = NormalDist()

Window = NDArray[np.float64]  # each expert's share of its layer's rows, `[layers, experts]`


@dataclass(frozen=True)
class PlayedMaps:
    """The maps of one unit in a simulated day. Balances are means over the unit's rows, as max/mean of its ranks."""

    unit: str
    hours: float  # for which the unit is on
    decisions: int
    switches: int
    num_bytes: int  # of all switches together
    planned: float  # balance with the plan's map all day
    live: float  # balance with the maps that the unit had


def play_maps(
    plan: Compiled,
    services: Mapping[Level, Service],
    curves: Mapping[Level, Curves],
    date: str | None = None,
    on_progress: Callable[[float], None] = lambda _: None,
) -> dict[Phase, dict[Level, PlayedMaps]]:
    """Return phase -> level -> the maps of a unit in the simulated day, for phases whose units change their maps.

    With `mid` loads drift as the plan expects, with `low` as much as it allows for. Empty without `expert_load.live`.
    `on_progress` is called with the fraction done.
    """
    phases = plan.plan.live_maps or {}
    serving, found = planned_fleet(plan, date=date).serving if phases else {}, dict[Phase, dict[Level, PlayedMaps]]()
    for number, (phase, (level, drift_share)) in enumerate(product(phases, DRIFT.items())):
        unit, is_on = _longest_on(serving[phase])
        rows = _rows_of_unit(plan, services[level], curves[level], phase)
        day = _UnitDay(plan, phase, phases[phase])
        for place, window in enumerate(_draw_windows(day.loads, drift_share, plan.spec.expert_load.seed)):
            on_progress((number + place * WINDOW_MINUTES / DAY_MINUTES) / (len(phases) * len(DRIFT)))
            for minute in range(place * WINDOW_MINUTES, (place + 1) * WINDOW_MINUTES):
                day.play(minute, window, rows[minute] if is_on[minute] else None)
        found.setdefault(phase, {})[level] = day.outcome(unit, sum(is_on) / HOUR_MINUTES)
    return found


class _UnitDay:
    """One unit and its map, minute by minute."""

    def __init__(self, plan: Compiled, phase: Phase, rules: LiveMap) -> None:
        assert plan.spec.expert_load.live is not None
        written, rows = Limits.of(plan.spec.expert_load.live), plan.maps[phase].physical_to_logical
        layers = range(0, len(rows), -(-len(rows) // MOST_LAYERS))
        self._share = len(layers) / len(rows)
        self._rules, self._limits = rules, replace(written, max_bytes=round(written.max_bytes * self._share))
        self.loads = [plan.loads[layer] for layer in layers]
        (self._num_ranks,) = (each.ep_size for each in plan.layouts if each.phase == phase)
        self._first = self._now = InService(0, [rows[layer] for layer in layers], "", "")
        self._life: int | None = None  # the minute in which the unit has started; None while it is off
        self._measured, self._counts = MeasuredLoads(written.every_s), np.zeros(np.shape(self.loads))
        self._decisions = self._switches = self._num_bytes = 0
        self._sums = np.zeros(3)  # of rows, and of rows times the balance with the plan's map and with the present one
        self._judged: tuple[Window | None, InService | None] = None, None  # what the balances are of
        self._balances = 1.0, 1.0

    def play(self, minute: int, window: Window, rows: float | None) -> None:
        """Play a minute in which the unit computes `rows` of each layer; None if it is off."""
        if rows is None:
            self._life = None
            return
        if self._life is None:
            self._start(minute)
        self._counts += window * rows
        self._sums += rows * np.array([1.0, *self._balance(window)])
        end = (minute + 1) * MINUTE_S
        if self._measured.is_due(end, self._life):
            self._look(end)

    def outcome(self, unit: str, hours: float) -> PlayedMaps:
        """Return what has become of the unit's maps."""
        rows, planned, live = self._sums.tolist()
        balances = (planned / rows, live / rows) if rows else (1.0, 1.0)
        num_bytes = round(self._num_bytes / self._share)
        return PlayedMaps(unit, hours, self._decisions, self._switches, num_bytes, *balances)

    def _start(self, minute: int) -> None:
        """Start the unit: with the plan's map, or with the one that it had before if the limits allow it."""
        former, self._now, self._life = self._now, self._first, minute
        self._begin(minute * MINUTE_S)
        if former.epoch and (num_bytes := bytes_to_restore(former, self._first, self._rules, self._limits)) is not None:
            self._switch(former.rows, num_bytes)

    def _look(self, now: float) -> None:
        """Read what the ranks have counted, and decide about the map at the end of a period."""
        halves = self._measured.add(now, self._life, _as_loads(self._counts))
        if halves is None:
            return
        self._decisions += 1
        better = find_better_map(*halves, self._now.rows, self._num_ranks, self._rules, self._limits)
        if better.why_not is None:
            self._switch(better.physical_to_logical, better.num_bytes)
            self._begin(now)

    def _switch(self, rows: Rows, num_bytes: int) -> None:
        self._now = InService(self._now.epoch + 1, rows, "", "")
        self._switches, self._num_bytes = self._switches + 1, self._num_bytes + num_bytes

    def _begin(self, now: float) -> None:
        """Measure anew: loads of a former map decide nothing."""
        self._measured = MeasuredLoads(self._limits.every_s)
        self._counts[:] = 0
        self._measured.add(now, self._life, _as_loads(self._counts))

    def _balance(self, window: Window) -> tuple[float, float]:
        """Return the balances of a window with the plan's map and with the present one."""
        if self._judged[0] is not window or self._judged[1] is not self._now:
            loads, maps = tuple(map(tuple, window.tolist())), (self._first, self._now)
            planned, live = (mean_balance(loads, each.rows, self._num_ranks, self._rules) for each in maps)
            self._judged, self._balances = (window, self._now), (planned, live)
        return self._balances


def _longest_on(serving: Sequence[frozenset[str]]) -> tuple[str, list[bool]]:
    """Return the unit that is on for most of the day, and whether it is on in each minute. Of equals, the first."""
    units = sorted(frozenset[str]().union(*serving))
    unit = max(units, key=lambda each: sum(each in on for on in serving))
    return unit, [unit in on for on in serving]


def _rows_of_unit(plan: Compiled, service: Service, curves: Curves, phase: Phase) -> Curve:
    """Return the rows that the experts of one layer compute in a unit of `phase`, in each minute."""
    prompts = curves.prompts * service.request.computed / np.maximum(curves.prompt_units, 1)
    tokens = curves.tokens / np.maximum(curves.token_units, 1)
    computed = {"prefill": prompts, "decode": tokens, "mixed": prompts + tokens}[phase]
    rows: Curve = computed * plan.plan.model.num_experts_per_token
    return rows


def _draw_windows(loads: Sequence[Sequence[float]], drift_share: float, seed: int) -> Iterator[Window]:
    """Yield the day's windows. The first one has the plan's loads; the same for the same arguments."""
    generator = random.Random(seed)  # noqa: S311 (its sequence is promised never to change, which numpy's is not)
    known = np.array(loads, dtype=np.float64)
    num_experts, ascending = known.shape[1], np.sort(known, axis=1)
    middles = (np.arange(num_experts) + 0.5) / num_experts
    ranks = known.argsort(axis=1, kind="stable").argsort(axis=1)
    normals = np.array([NORMAL.inv_cdf(each) for each in middles.tolist()])[ranks]
    correlation = 1 - (WINDOW_DRIFT * drift_share) ** 2 / 2
    for _ in range(DAY_MINUTES // WINDOW_MINUTES):
        uniform = np.array([NORMAL.cdf(each) for each in normals.ravel().tolist()]).reshape(normals.shape)
        drawn = np.array([np.interp(row, middles, own) for row, own in zip(uniform, ascending, strict=True)])
        yield drawn / np.maximum(drawn.sum(axis=1, keepdims=True), 1e-12)
        fresh = np.array([NORMAL.inv_cdf(max(generator.random(), SMALLEST)) for _ in range(normals.size)])
        normals = correlation * normals + sqrt(1 - correlation**2) * fresh.reshape(normals.shape)


def _as_loads(counts: NDArray[np.float64]) -> Loads:
    return tuple(map(tuple, np.rint(counts).astype(np.int64).tolist()))
