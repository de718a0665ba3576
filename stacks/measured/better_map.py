"""Decide whether a unit that serves gets a better expert map: measured loads, its map -> another one, or why not.

    balance     max over mean of the ranks' loads, as a mean over layers; 1.0 is perfect
    gain        balance of the map in service / balance of the better map - 1
    bytes       moved slots x the bytes of an expert: what all ranks of the unit receive together

A map is made from the loads of the earlier half of a time and judged by those of the later half. A map that only fits
the chance of its own loads, or loads that do not last, gains nothing later. If it gains enough, the unit gets one that
is made from both halves, since newer loads make a better map. By chance alone, n rows of a rank vary by 1 / sqrt(n). So
each half needs enough rows that this is well below `min_gain`.

Each layer may take one of several maps near the one in service (`planner/expert_map/renew.py`): the closer it has to
come to an even map, the more slots move. Steps towards these maps are taken in the order of what they gain for each
slot, until `max_bytes` is reached. A step that gains less for its bytes than `min_gain` for `max_bytes` is not taken.

The decision is pure: the same loads, map and limits give the same map.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import ne
from statistics import fmean

from planner.expert_map import Sizes, balance
from planner.expert_map.bound import compute_bounds
from planner.expert_map.domains import fewest_slots_per_gpu
from planner.expert_map.problem import Problem
from planner.expert_map.weigh import as_slots, scale
from planner.facts.loads import Loads
from planner.facts.quantities import counted
from planner.plan.sections import LiveMap
from stacks.measured.epochs import InService, Rows
from stacks.measured.limits import Limits

__all__ = ["BetterMap", "bytes_to_restore", "find_better_map", "mean_balance"]

DEVIATIONS = 2  # assumed: min_gain is at least so many standard deviations of a rank's load
EPSILON = 1e-9  # moves of a step that needs none, so that it is worth most
KEEP_WITHIN = (0.0, 0.01, 0.03, 0.1)  # assumed: shares above an even map's max over mean at which a layer may stay


@dataclass(frozen=True)
class BetterMap:
    """The best map found for a unit, and whether the unit gets it.

    `why_not` says why the unit keeps its present map; it is None if the unit gets this one. `before`, `after` and
    `bound` are balances (max over mean of the ranks' loads) under the later loads: of the present map, of this map, and
    the least that any map can have.
    """

    physical_to_logical: Rows
    moves: int
    num_bytes: int
    before: float
    after: float
    bound: float
    why_not: str | None = None

    @property
    def gain(self) -> float:
        """The gain of this map: the balance of the map in service over this map's balance, minus 1."""
        return self.before / self.after - 1

    def __str__(self) -> str:
        moved = f"{counted(self.moves, 'expert')}, {self.num_bytes / 1e6:,.1f} MB"
        return f"max/mean {self.before:.3f} -> {self.after:.3f} (no map is below {self.bound:.3f}) for {moved}"


@dataclass(frozen=True)
class _Step:
    """A step of one layer to a nearby map: its row, its max over mean under the earlier loads, and its moved slots."""

    layer: int
    row: Sequence[int]
    ratio: float
    moves: int


def find_better_map(
    earlier: Loads, later: Loads, in_service: Rows, num_ranks: int, rules: LiveMap, limits: Limits
) -> BetterMap:
    """Return a better map within `limits` for a unit of `num_ranks` ranks, or in `why_not` why it keeps its own.

    `earlier` and `later` have the rows that each expert of each layer computed in the first and the second half of
    `limits.every_s`. If no map within the limits gains enough, the result is, for the report only, the map built
    without limits. If there are too few rows to judge, it is the map in service. Raises ValueError if no map can keep
    the rules.
    """
    _require_of_loads(in_service, earlier)
    _require_fit(rules, num_ranks, len(in_service[0]), len(earlier[0]))
    fewest, rows = (DEVIATIONS / limits.min_gain) ** 2, min(map(sum, (*earlier, *later))) / num_ranks
    if rows < fewest:
        why_not = (
            f"a rank computed {rows:,.0f} rows in half of the time, and only {fewest:,.0f} tell min_gain from chance"
        )
        return BetterMap(in_service, 0, 0, 1.0, 1.0, 1.0, why_not)
    sizes = _sizes(in_service, num_ranks, rules)
    tried = _build_and_judge(earlier, later, in_service, sizes, rules, limits)
    if tried.why_not is not None:
        return tried
    found = _build_and_judge(_add(earlier, later), later, in_service, sizes, rules, limits)
    return tried if found.why_not is not None else found


def bytes_to_restore(former: InService, found: InService, rules: LiveMap, limits: Limits) -> int | None:
    """Return the bytes that move when a unit that has started again gets its map of before, `former`, for `found`.

    None if the unit keeps `found`: its plan has changed, or the limits forbid the move.
    """
    num_bytes = sum(map(_count_moves, former.rows, found.rows)) * rules.expert_bytes
    return None if former.unit_digest != found.unit_digest or num_bytes > limits.max_bytes else num_bytes


def mean_balance(loads: Loads, rows: Rows, num_ranks: int, rules: LiveMap) -> float:
    """Return the max over mean of the ranks' loads under the map `rows`, as a mean over layers."""
    return fmean(_balances(loads, rows, _sizes(rows, num_ranks, rules), rules))


def _sizes(rows: Rows, num_ranks: int, rules: LiveMap) -> Sizes:
    return Sizes(len(rows[0]), num_ranks, rules.num_nodes, rules.num_groups, rules.gate)


def _require_of_loads(rows: Rows, loads: Loads) -> None:
    """Raise ValueError if the map `rows` is not one of the experts that the loads are of."""
    if len(rows) != len(loads) or any(
        len(row) != len(rows[0]) or {*row} != {*range(len(experts))} for row, experts in zip(rows, loads, strict=True)
    ):
        raise ValueError("its map has other layers or experts than its loads")


def _require_fit(rules: LiveMap, num_ranks: int, num_slots: int, num_experts: int) -> None:
    """Raise ValueError if no map can keep the rules: the native search would write beyond its arrays."""
    if num_slots % num_ranks:
        raise ValueError(f"its map has {num_slots} slots in a layer, which {num_ranks} ranks cannot divide")
    if num_ranks % rules.num_nodes:
        raise ValueError(f"its rules are for {rules.num_nodes} nodes, among which {num_ranks} ranks cannot be divided")
    if any(len(each) != num_ranks or not {*each} <= {*range(num_ranks)} for each in rules.domains):
        raise ValueError(f"its rules have failure domains that are not those of {num_ranks} ranks")
    if rules.domains and num_slots // num_ranks < (fewest_slots_per_gpu(num_experts, rules.domains) or inf):
        raise ValueError("its rules have failure domains, and no map can keep every expert in two of them")


def _build_and_judge(
    loads: Loads, later: Loads, in_service: Rows, sizes: Sizes, rules: LiveMap, limits: Limits
) -> BetterMap:
    """Build a map step by step within `limits`, by the balance under `loads`, and judge it under `later`.

    If it gains too little, return the map built without limits, and in `why_not` why the unit keeps its own.
    """
    steps = list(_list_steps(loads, in_service, sizes, rules))
    stays = _balances(loads, in_service, sizes, rules)
    most_moves = limits.max_bytes // rules.expert_bytes

    def best_with(most: float, least_worth: float) -> BetterMap:
        return _judge(later, in_service, _take_steps(steps, in_service, stays, most, least_worth), sizes, rules)

    best = best_with(most_moves, limits.min_gain * rules.expert_bytes / limits.max_bytes)
    if best.moves and best.gain >= limits.min_gain:
        return best
    unlimited = best_with(inf, 0.0)
    if not unlimited.moves:
        return replace(unlimited, why_not="no map nearby is better")
    if unlimited.moves > most_moves and unlimited.gain >= limits.min_gain:
        within = f"{best.gain:.1%}" if best.moves else "nothing"
        return replace(unlimited, why_not=f"within max_bytes ({limits.max_bytes / 1e6:,.1f} MB) a map gains {within}")
    return replace(
        unlimited, why_not=f"by the later loads it gains {unlimited.gain:.1%}, not min_gain ({limits.min_gain:.1%})"
    )


def _add(loads: Loads, others: Loads) -> Loads:
    return tuple(tuple(map(sum, zip(*rows, strict=True))) for rows in zip(loads, others, strict=True))


def _list_steps(loads: Loads, in_service: Rows, sizes: Sizes, rules: LiveMap) -> Iterator[_Step]:
    """Yield steps from the map in service towards the best map, layer by layer, with the new balance under `loads`."""
    for keep_within, as_a_whole in (*((each, False) for each in KEEP_WITHIN), (0.0, True)):
        found = balance(
            loads,
            sizes.num_slots,
            sizes.num_gpus,
            num_nodes=sizes.num_nodes,
            num_groups=sizes.num_groups,
            gate=sizes.gate,
            previous=in_service,
            keep_within=keep_within,
            domains=rules.domains,
            split=rules.split,
            as_a_whole=as_a_whole,
        )
        rows = found.physical_to_logical
        for layer, ratio in enumerate(_balances(loads, rows, sizes, rules)):
            if moves := _count_moves(rows[layer], in_service[layer]):
                yield _Step(layer, rows[layer], ratio, moves)


def _take_steps(
    steps: Sequence[_Step], in_service: Rows, stays: Sequence[float], most_moves: float, least_worth: float
) -> Rows:
    """Return the map in service, changed by one step after another.

    The next step is always the one that gains most for each slot it moves. Stop before a step that gains less than
    `least_worth` for each slot, or when every better step would move more than `most_moves` slots in all. `stays` are
    the layers' balances without any step.
    """
    rows, ratios, moves = list(in_service), list(stays), [0] * len(in_service)

    def more_moves(step: _Step) -> int:
        return step.moves - moves[step.layer]

    def worth(step: _Step) -> float:
        return (ratios[step.layer] - step.ratio) / sum(ratios) / max(more_moves(step), EPSILON)

    while True:
        room = most_moves - sum(moves)
        better = [each for each in steps if each.ratio < ratios[each.layer] and more_moves(each) <= room]
        best = max(better, key=lambda step: (worth(step), -step.layer), default=None)
        if best is None or worth(best) < least_worth:
            return rows
        rows[best.layer], ratios[best.layer], moves[best.layer] = best.row, best.ratio, best.moves


def _judge(loads: Loads, in_service: Rows, rows: Rows, sizes: Sizes, rules: LiveMap) -> BetterMap:
    """Return the map `rows` with its balance under `loads`, beside the balance of the map in service and the bound."""
    before, after = (fmean(_balances(loads, each, sizes, rules)) for each in (in_service, rows))
    bounds, _ = compute_bounds(
        scale(loads), sizes, within_nodes=False, are_covered=bool(rules.domains), split=rules.split
    )
    moves = sum(map(_count_moves, rows, in_service))
    return BetterMap(rows, moves, moves * rules.expert_bytes, before, after, fmean(bounds.tolist()))


def _count_moves(row: Sequence[int], before: Sequence[int]) -> int:
    """Return how many slots of a row get another expert than in `before`.

    An expert that stays on a rank keeps its slot when a row is made anew.
    """
    return sum(map(ne, row, before))


def _balances(loads: Loads, rows: Rows, sizes: Sizes, rules: LiveMap) -> list[float]:
    """Return each layer's balance, the max over mean of the ranks' loads, `[num_moe_layers]`."""
    problem = Problem(scale(loads), sizes, split=rules.split)
    found: list[float] = problem.ratio(as_slots(rows, sizes)).tolist()
    return found
