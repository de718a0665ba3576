"""How many units of which layout fill a cluster or serve a demand: the second half of a search for layouts.

    served = min over phases of  units x tokens/s of a unit / tokens for one of output

Each phase offers its best layout for each number of nodes. Where some `units` are `auto`, the pair and the counts that
serve most are taken: units of one phase are added until the other binds, so that the ratio of prefill to decode follows
from both speeds and from the traffic's tokens. Where all counts are written, each phase takes its fastest layout per
node, as far as the nodes go. Of pairs that serve as much, the one on fewer nodes is taken. Nodes that only one phase
can use are filled with its units.

Where traffic counts the units, a demand is given: then each phase takes the fewest nodes that serve it. That number
does not depend on the nodes that there are, and on fewer nothing serves the demand. Where there are more, some may be
better used by more and smaller units than left idle: a unit that loses a node stops, with its share of what is served.
Units that are written carry the demand because their user says so. A layout with which they are predicted to is
preferred where it fits, and the smallest one is the least that a cluster must hold.

A cluster whose `nodes` are `auto` has those that serve the traffic's peak hour, or that its written units take. Where
no units are written, it is the least that a cluster must have whose nodes are given, and whose schedule follows the
traffic.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from planner.estimate.uptime import outage_of_an_hour
from planner.facts.terms import Phase
from planner.layout.layout import lay_out
from planner.problems.errors import SpecError
from planner.problems.finding import Finding
from planner.rules.check import with_values
from planner.schedule.demand import whole_units
from planner.search.decision import Decision
from planner.spec.cluster import MAX_NODES
from planner.spec.phase import MAX_UNITS
from planner.spec.resolved import ResolvedSpec
from planner.spec.undecided import AUTO, is_undecided

__all__ = [
    "MOST_REFUSED",
    "Demand",
    "Fleet",
    "Offer",
    "demand_to_meet",
    "fill",
    "meet",
    "require_speeds",
    "units_that_serve",
    "with_counted_nodes",
    "with_room",
]

MOST_REFUSED = 0.4  # of an hour's requests when one node is lost, for which more nodes are taken: assumed


@dataclass(frozen=True)
class Offer:
    """A phase's best layout of one size."""

    phase: Phase
    nodes: int  # of a unit
    tokens_per_s: float  # of a unit
    share_of_best: float  # tokens/s a node, over the phase's best
    number: int  # among the phase's layouts


@dataclass(frozen=True)
class Fleet:
    """Units of each phase."""

    offers: Mapping[Phase, Offer]
    units: Mapping[Phase, int]
    served_per_s: float  # tokens of output that all of it serves

    @property
    def nodes_by_phase(self) -> dict[Phase, int]:
        """Return the nodes that each phase takes."""
        return {phase: self.units[phase] * offer.nodes for phase, offer in self.offers.items()}

    @property
    def nodes(self) -> int:
        """Return the nodes that all units take."""
        return sum(self.nodes_by_phase.values())


@dataclass(frozen=True)
class Demand:
    """What the busiest hour asks for."""

    tokens_per_s: Mapping[Phase, float]
    capacity: float  # that is wanted, over what is asked for
    floor: Mapping[Phase, int]  # units that are on at any time
    outage: Mapping[Phase, float]  # share of the hour for which a unit that loses a node is out
    counts_nodes: bool  # that there must be; else there are some, and windows follow the traffic

    def units_of(self, offer: Offer) -> int:
        """Return the units of an offer that serve it."""
        asked = self.capacity * self.tokens_per_s[offer.phase] / offer.tokens_per_s
        return whole_units(asked, self.floor[offer.phase])

    def misses(self, fleet: Fleet) -> float:
        """Return 0 where the fleet serves it; else how many times slower a node its slow units are than the fastest."""
        return sum(1 / offer.share_of_best for phase, offer in fleet.offers.items() if self.is_short(fleet, phase))

    def is_short(self, fleet: Fleet, phase: Phase) -> bool:
        """Return whether a phase has fewer units than serve it: only where they are written."""
        return self.units_of(fleet.offers[phase]) > fleet.units[phase]

    def lost(self, fleet: Fleet) -> float:
        """Return the share of the hour's requests that are refused when a node is lost, of the worst phase."""
        return max(self._lost(offer, fleet.units[phase]) for phase, offer in fleet.offers.items())

    def _lost(self, offer: Offer, units: int) -> float:
        left = (units - 1) * offer.tokens_per_s / self.tokens_per_s[offer.phase]
        return max(1 - left, 0.0) * self.outage[offer.phase]


def demand_to_meet(spec: ResolvedSpec) -> Demand | None:
    """Return what each phase must make where traffic counts its units: nodes follow, or windows do; else None."""
    free = [phase for phase in spec.phases if is_undecided(spec.phase(phase).units)]
    is_counted, traffic, day = is_undecided(spec.cluster.nodes), spec.written.traffic, spec.written.schedule
    follows = day if day is not None and is_undecided(day.windows) else None
    if traffic is None or not free or not (is_counted or follows):
        return None
    return Demand(
        tokens_per_s={phase: traffic.peak_per_s(phase) for phase in spec.phases},
        capacity=1 + (follows.headroom if follows else 0),
        floor={phase: follows.min_units.of(phase) if follows else 1 for phase in spec.phases},
        outage={phase: 1.0 if is_counted else outage_of_an_hour(spec.written, phase) for phase in spec.phases},
        counts_nodes=is_counted,
    )


def with_room(spec: ResolvedSpec) -> ResolvedSpec:
    """Return `spec` with more nodes than any units take, in place of `auto`, for as long as it is being decided."""
    return with_values(spec, {"cluster.nodes": MAX_NODES}) if is_undecided(spec.cluster.nodes) else spec


def require_speeds(spec: ResolvedSpec) -> None:
    """Raise SpecError where traffic decides the nodes, and nobody knows what a node serves."""
    from planner.estimate.case import is_predictable  # only who asks for speed should wait for its imports

    if all(is_predictable(spec, phase) for phase in spec.phases):
        return  # nothing fits into memory, which is said with what would
    rule = "S728 must be a number when speeds are not known"
    reason = "nobody can predict how many nodes the traffic's peak hour needs"
    finding = Finding("cluster.nodes", AUTO, rule, reason, "write nodes, or units of each phase")
    raise SpecError([spec.locate(finding)])


def with_counted_nodes(spec: ResolvedSpec, demand: Demand | None) -> tuple[ResolvedSpec, Decision]:
    """Return `spec`, whose units are known, with the nodes that they take; spares come on top."""
    why = f"the fewest that serve the traffic's peak hour: {_in_words(demand)}" if demand else "what the units take"
    layouts = [lay_out(spec, phase) for phase in spec.phases]
    nodes = sum(each.num_units * each.nodes_per_unit for each in layouts) + len(spec.cluster.spares)
    return with_values(spec, {"cluster.nodes": nodes}), Decision("cluster.nodes", nodes, why)


def fill(
    offers: Mapping[Phase, Sequence[Offer]],
    written: Mapping[Phase, int | None],
    tokens: Mapping[Phase, float],
    room: Mapping[frozenset[Phase], int],
    floor: Mapping[Phase, int] | None = None,
) -> Fleet | None:
    """Return the best fleet; None where the fewest units of each phase do not fit.

    `written` are counts of units that are not free, `tokens` those of each phase for one token of output, `room` the
    nodes that phases share or have alone, `floor` the fewest units of each phase: 1 unless given.
    """
    floor = floor or dict.fromkeys(offers, 1)
    fleets = [
        fleet
        for chosen in product(*offers.values())
        for fleet in _counted({each.phase: each for each in chosen}, written, tokens, room, floor)
        if all(fleet.units[phase] >= number for phase, number in floor.items())
    ]
    is_free = any(number is None for number in written.values())
    return max(fleets, key=_served if is_free else _fastest, default=None)


def units_that_serve(
    offers: Mapping[Phase, Sequence[Offer]], written: Mapping[Phase, int | None], demand: Demand
) -> dict[Phase, dict[Offer, int]]:
    """Return the units of each offer with which its phase serves the demand; offers that take too many are left out.

    Units that are written carry the busiest hour, whatever they are predicted to make. Only where nodes are counted
    must they be predicted to.
    """
    found: dict[Phase, dict[Offer, int]] = {}
    for phase, all_ in offers.items():
        number = written[phase]
        needed = {each: demand.units_of(each) for each in all_}
        if number and not demand.counts_nodes:
            found[phase] = dict.fromkeys(all_, number)
        else:
            found[phase] = {each: number or units for each, units in needed.items() if units <= (number or MAX_UNITS)}
    return found


def meet(
    units: Mapping[Phase, Mapping[Offer, int]],
    tokens: Mapping[Phase, float],
    demand: Demand,
    room: Mapping[frozenset[Phase], int] | None = None,
) -> Fleet | None:
    """Return the fleet of these `units` on fewest nodes.

    Of those that fit into the `room`, fleets come first that are predicted to serve the demand, else of the fastest
    layout a node. Then come those of which a node's loss refuses no more than MOST_REFUSED: nodes would be idle
    otherwise. None where none fits.
    """
    counted = product(*(each.items() for each in units.values()))
    fleets = (_fleet(dict(zip(units, chosen, strict=True)), tokens) for chosen in counted)
    if room is None:
        return min(fleets, key=_fewest_nodes, default=None)
    fitting = (each for each in fleets if _fits(each.nodes_by_phase, room))

    def rank(fleet: Fleet) -> tuple[float, ...]:
        return demand.misses(fleet), demand.lost(fleet) > MOST_REFUSED, *_fewest_nodes(fleet)

    return min(fitting, key=rank, default=None)


def _fleet(chosen: Mapping[Phase, tuple[Offer, int]], tokens: Mapping[Phase, float]) -> Fleet:
    served = min(units * offer.tokens_per_s / tokens[phase] for phase, (offer, units) in chosen.items())
    offers = {phase: offer for phase, (offer, _) in chosen.items()}
    return Fleet(offers, {phase: units for phase, (_, units) in chosen.items()}, served)


def _fewest_nodes(fleet: Fleet) -> tuple[int, float]:
    return fleet.nodes, -sum(each.share_of_best for each in fleet.offers.values())


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
    floor: Mapping[Phase, int],
) -> Iterator[Fleet]:
    """Yield the counts that may be best of these layouts: on both sides of where the other phase begins to bind."""
    free = [phase for phase in offers if written[phase] is None]
    units = {phase: number or floor[phase] for phase, number in written.items()}
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

    low, high = floor[first], max(most, floor[first])  # the other binds above, the first below
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
    fleet = _fleet({phase: (offer, units[phase]) for phase, offer in offers.items()}, tokens)
    if _fits(fleet.nodes_by_phase, room):
        yield fleet


def _fits(nodes: Mapping[Phase, int], room: Mapping[frozenset[Phase], int]) -> bool:
    return all(sum(nodes[each] for each in phases) <= there for phases, there in room.items())


def _in_words(demand: Demand) -> str:
    rates = demand.tokens_per_s.items()
    return " and ".join(f"{demand.capacity * rate:,.0f} tokens/s of {phase}" for phase, rate in rates)
