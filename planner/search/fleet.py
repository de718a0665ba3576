"""How many units of which layout fill a cluster: the second half of a search for layouts.

    served = min over phases of  units x tokens/s of a unit / tokens for one of output

Each phase offers its best layout for each number of nodes. Where some `units` are `auto`, the pair and the counts that
serve most are taken: units of one phase are added until the other binds, so that the ratio of prefill to decode follows
from both speeds and from the traffic's tokens. Where all counts are written, each phase takes its fastest layout per
node, as far as the nodes go. Of pairs that serve as much, the one on fewer nodes is taken. Nodes that only one phase
can use are filled with its units.

Where nodes are not given, a demand is: then each phase takes the fewest nodes that serve it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil

from planner.facts.terms import Phase
from planner.spec.phase import MAX_UNITS

__all__ = ["Fleet", "Offer", "fill", "meet"]


@dataclass(frozen=True)
class Offer:
    """A phase's best layout of one size."""

    phase: Phase
    nodes: int  # of a unit
    tokens_per_s: float  # of a unit
    share_of_best: float  # tokens/s a node, over the phase's best
    candidate: int  # its number among the phase's candidates


@dataclass(frozen=True)
class Fleet:
    """Units of each phase."""

    offers: Mapping[Phase, Offer]
    units: Mapping[Phase, int]
    served_per_s: float  # tokens of output that all of it serves
    nodes: int


def fill(
    offers: Mapping[Phase, Sequence[Offer]],
    written: Mapping[Phase, int | None],
    tokens: Mapping[Phase, float],
    room: Mapping[frozenset[Phase], int],
) -> Fleet | None:
    """Return the best fleet; None where no unit of each phase fits.

    `written` are counts of units that are not free, `tokens` those of each phase for one token of output, `room` the
    nodes that phases share or have alone.
    """
    fleets = [
        fleet
        for chosen in product(*offers.values())
        for fleet in _counted({each.phase: each for each in chosen}, written, tokens, room)
    ]
    is_free = any(number is None for number in written.values())
    return max(fleets, key=_served if is_free else _fastest, default=None)


def meet(
    offers: Mapping[Phase, Sequence[Offer]],
    written: Mapping[Phase, int | None],
    tokens: Mapping[Phase, float],
    demand: Mapping[Phase, float],
) -> Fleet | Phase:
    """Return the fleet on fewest nodes that makes `demand` tokens/s in each phase; or the phase whose units cannot."""
    chosen: dict[Phase, Offer] = {}
    units: dict[Phase, int] = {}
    for phase, all_ in offers.items():
        needed = {each: ceil(demand[phase] / each.tokens_per_s) for each in all_}
        most = written[phase] or MAX_UNITS
        serving = [each for each in all_ if needed[each] <= most]
        if not serving:
            return phase
        counts = {each: written[phase] or needed[each] for each in serving}
        chosen[phase] = min(serving, key=lambda each: (counts[each] * each.nodes, -each.share_of_best))
        units[phase] = counts[chosen[phase]]
    served = min(units[phase] * each.tokens_per_s / tokens[phase] for phase, each in chosen.items())
    return Fleet(chosen, units, served, sum(units[phase] * each.nodes for phase, each in chosen.items()))


def _served(fleet: Fleet) -> tuple[float, int]:
    return fleet.served_per_s, -fleet.nodes


def _fastest(fleet: Fleet) -> tuple[float, float, int]:
    shares = [each.share_of_best for each in fleet.offers.values()]
    return min(shares), sum(shares), -fleet.nodes


def _counted(
    offers: Mapping[Phase, Offer],
    written: Mapping[Phase, int | None],
    tokens: Mapping[Phase, float],
    room: Mapping[frozenset[Phase], int],
) -> Iterator[Fleet]:
    """Yield the counts that may be best of these layouts: on both sides of where the other phase begins to bind."""
    free = [phase for phase in offers if written[phase] is None]
    units = {phase: number or 1 for phase, number in written.items()}
    if not free:
        yield from _if_it_fits(offers, units, tokens, room)
        return
    first, *others = free
    most = _most(first, offers, units, room)
    if not others:
        yield from _if_it_fits(offers, units | {first: most}, tokens, room)
        return
    (other,) = others
    rates = {phase: offer.tokens_per_s / tokens[phase] for phase, offer in offers.items()}

    def with_most(number: int) -> dict[Phase, int]:
        counts = {**units, first: number}
        return counts | {other: _most(other, offers, counts, room)}

    low, high = 1, max(most, 1)  # the other binds above, the first below
    while low < high:
        middle = (low + high + 1) // 2
        counts = with_most(middle)
        first_binds = counts[first] * rates[first] <= counts[other] * rates[other]
        low, high = (middle, high) if first_binds else (low, middle - 1)
    for number in (low, low + 1):
        yield from _if_it_fits(offers, with_most(number), tokens, room)


def _most(
    phase: Phase, offers: Mapping[Phase, Offer], units: Mapping[Phase, int], room: Mapping[frozenset[Phase], int]
) -> int:
    """Return the units of `phase` that the others leave room for."""
    left = [
        nodes - sum(units[other] * offers[other].nodes for other in phases if other != phase)
        for phases, nodes in room.items()
        if phase in phases
    ]
    return min(max(0, min(left) // offers[phase].nodes), MAX_UNITS)


def _if_it_fits(
    offers: Mapping[Phase, Offer],
    units: Mapping[Phase, int],
    tokens: Mapping[Phase, float],
    room: Mapping[frozenset[Phase], int],
) -> Iterator[Fleet]:
    needed = {phase: units[phase] * offer.nodes for phase, offer in offers.items()}
    if min(units.values()) > 0 and all(sum(needed[each] for each in phases) <= n for phases, n in room.items()):
        served = min(units[phase] * offer.tokens_per_s / tokens[phase] for phase, offer in offers.items())
        yield Fleet(offers, dict(units), served, sum(needed.values()))
