"""Choose how many units of which layout fill a cluster or serve a demand: the second half of a search for layouts.

    served = min over phases of  units x tokens/s of a unit / tokens that the phase computes for one output token

Each phase offers its best layout for each number of nodes. If some `units` are `auto`, take the layouts and counts that
serve most: add units of one phase until the other is the bottleneck, so the ratio of prefill to decode follows from
both speeds and from the traffic's tokens. If all counts are written, each phase takes its fastest layout per node that
fits. A tie goes to the fleet on fewer nodes. Nodes that only one phase can use are filled with its units.

With a demand (the traffic decides the units), each phase takes the fewest nodes that serve it. If the cluster has more
nodes, more and smaller units may use them: a unit that loses a node stops completely, so smaller units lose less. The
user's written units are assumed to serve the demand. Layouts that are predicted to serve it come first if they fit; the
smallest layout determines how many nodes a cluster needs at least.

`cluster.nodes: auto` becomes the nodes that serve the traffic's peak hour, or that the written units take.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from planner.estimate.failures import outage_share
from planner.facts.terms import Phase
from planner.layout.layout import lay_out
from planner.problems.errors import SpecError
from planner.problems.finding import Finding
from planner.rules.check import change_spec
from planner.schedule.derived import round_up_units
from planner.spec.cluster import MAX_NODES
from planner.spec.decision import Decision
from planner.spec.phase import MAX_UNITS
from planner.spec.resolved import ResolvedSpec
from planner.spec.undecided import AUTO, is_undecided

MOST_REFUSED = 0.4  # assumed: share of an hour's requests that may be refused after a node loss while nodes are idle


@dataclass(frozen=True)
class Offer:
    """The fastest layout of a phase whose unit takes `nodes` nodes."""

    phase: Phase
    nodes: int  # of a unit
    tokens_per_s: float  # of a unit
    share_of_best: float  # tokens/s per node, over that of the phase's fastest layout
    number: int  # index in the phase's accepted layouts


@dataclass(frozen=True)
class Fleet:
    """The layout and the number of units of each phase on a cluster."""

    offers: Mapping[Phase, Offer]
    units: Mapping[Phase, int]
    served_per_s: float  # output tokens/s of the whole fleet

    @property
    def nodes_by_phase(self) -> dict[Phase, int]:
        """Phase -> the number of nodes that its units take."""
        return {phase: self.units[phase] * offer.nodes for phase, offer in self.offers.items()}

    @property
    def nodes(self) -> int:
        """The number of nodes that all units take."""
        return sum(self.nodes_by_phase.values())


@dataclass(frozen=True)
class Demand:
    """The load in the traffic's busiest hour, in tokens/s of each phase, and the reserve on top of it."""

    tokens_per_s: Mapping[Phase, float]
    capacity: float  # wanted capacity over the load: 1 + headroom
    floor: Mapping[Phase, int]  # fewest units that are on at any time
    outage: Mapping[Phase, float]  # share of an hour that a unit is down after it loses a node
    decides_nodes: bool  # True: the demand decides cluster.nodes; False: nodes are given, and windows follow the demand

    def required_units(self, offer: Offer) -> int:
        """Return how many units of the layout `offer` serve the demand with its reserve."""
        asked = self.capacity * self.tokens_per_s[offer.phase] / offer.tokens_per_s
        return round_up_units(asked, self.floor[offer.phase])

    def shortfall(self, fleet: Fleet) -> float:
        """Return the sum of 1 / `share_of_best` over phases that lack units for the demand; 0 if none does."""
        return sum(1 / offer.share_of_best for phase, offer in fleet.offers.items() if self.is_short(fleet, phase))

    def is_short(self, fleet: Fleet, phase: Phase) -> bool:
        """Return whether `phase` has too few units for the demand. Only a number that the user wrote can be too low."""
        return self.required_units(fleet.offers[phase]) > fleet.units[phase]

    def refused_on_loss(self, fleet: Fleet) -> float:
        """Return the share of the busiest hour's requests refused after one node is lost, in the worst phase."""
        return max(self._refused_on_loss(offer, fleet.units[phase]) for phase, offer in fleet.offers.items())

    def _refused_on_loss(self, offer: Offer, units: int) -> float:
        left = (units - 1) * offer.tokens_per_s / self.tokens_per_s[offer.phase]
        return max(1 - left, 0.0) * self.outage[offer.phase]


def traffic_demand(spec: ResolvedSpec) -> Demand | None:
    """Return the busiest hour's demand; None unless the demand decides the phases' numbers of units.

    The demand decides them if `units` is `auto`, and `cluster.nodes` or `schedule.windows` is `auto` too.
    """
    free = [phase for phase in spec.phases if is_undecided(spec.phase(phase).units)]
    is_counted, traffic, day = is_undecided(spec.cluster.nodes), spec.written.traffic, spec.written.schedule
    follows = day if day is not None and is_undecided(day.windows) else None
    if traffic is None or not free or not (is_counted or follows):
        return None
    return Demand(
        tokens_per_s={phase: traffic.peak_per_s(phase) for phase in spec.phases},
        capacity=1 + (follows.headroom if follows else 0),
        floor={phase: follows.min_units.of(phase) if follows else 1 for phase in spec.phases},
        outage={phase: 1.0 if is_counted else outage_share(spec.written, phase) for phase in spec.phases},
        decides_nodes=is_counted,
    )


def with_max_nodes(spec: ResolvedSpec) -> ResolvedSpec:
    """Return `spec` with MAX_NODES nodes if `cluster.nodes` is `auto`, for the time in which units are decided."""
    return change_spec(spec, {"cluster.nodes": MAX_NODES}) if is_undecided(spec.cluster.nodes) else spec


def require_nodes(spec: ResolvedSpec, demand: Demand) -> None:
    """Raise SpecError if the `demand` has to decide the number of nodes, which it cannot without speeds."""
    if demand.decides_nodes:
        rule = "S728 must be a number when speeds are not known"
        reason = "nobody can predict how many nodes the traffic's peak hour needs"
        finding = Finding("cluster.nodes", AUTO, rule, reason, "write nodes, or units of each phase")
        raise SpecError([spec.locate(finding)])


def count_nodes(spec: ResolvedSpec, demand: Demand | None) -> tuple[ResolvedSpec, Decision]:
    """Return (spec, decision), where `cluster.nodes` became the number of nodes of all units and spares.

    `demand` is the traffic's, if it decided the units; it only changes the reason.
    """
    why = (
        f"the fewest that serve the traffic's peak hour: {_demand_in_words(demand)}"
        if demand
        else "what the units take"
    )
    layouts = [lay_out(spec, phase) for phase in spec.phases]
    nodes = sum(each.num_units * each.nodes_per_unit for each in layouts) + len(spec.cluster.spares)
    return change_spec(spec, {"cluster.nodes": nodes}), Decision("cluster.nodes", nodes, why)


def fill_nodes(
    offers: Mapping[Phase, Sequence[Offer]],
    written: Mapping[Phase, int | None],
    tokens: Mapping[Phase, float],
    room: Mapping[frozenset[Phase], int],
    floor: Mapping[Phase, int] | None = None,
) -> Fleet | None:
    """Return the fleet with the highest throughput; None if even the fewest units of each phase do not fit.

    Arguments map a phase to: `offers`, the layouts to choose from; `written`, the number of units that the spec fixes
    (None: free); `tokens`, the tokens that the phase computes for one output token; `floor`, the fewest units (default
    1). `room` maps each set of phases that share a GPU type to its number of nodes.
    """
    floor = floor or dict.fromkeys(offers, 1)
    fleets = [
        fleet
        for chosen in product(*offers.values())
        for fleet in _candidate_fleets({each.phase: each for each in chosen}, written, tokens, room, floor)
        if all(fleet.units[phase] >= number for phase, number in floor.items())
    ]
    is_free = any(number is None for number in written.values())
    return max(fleets, key=_served_sort_key if is_free else _speed_sort_key, default=None)


def units_by_offer(
    offers: Mapping[Phase, Sequence[Offer]], written: Mapping[Phase, int | None], demand: Demand
) -> dict[Phase, dict[Offer, int]]:
    """Return phase -> offer -> how many units of it serve the demand. Offers that need too many units are left out.

    Units that the user wrote are assumed to serve the busiest hour, even if predicted to be too slow. But if the
    demand decides the number of nodes, the prediction must agree.
    """
    found: dict[Phase, dict[Offer, int]] = {}
    for phase, all_ in offers.items():
        number = written[phase]
        needed = {each: demand.required_units(each) for each in all_}
        if number and not demand.decides_nodes:
            found[phase] = dict.fromkeys(all_, number)
        else:
            found[phase] = {each: number or units for each, units in needed.items() if units <= (number or MAX_UNITS)}
    return found


def meet_demand(
    units: Mapping[Phase, Mapping[Offer, int]],
    tokens: Mapping[Phase, float],
    demand: Demand,
    room: Mapping[frozenset[Phase], int] | None = None,
) -> Fleet | None:
    """Return the best fleet of one offer for each phase, with its number in `units`; None if none fits into `room`.

    Without a `room`, the fleet on the fewest nodes is best. With a `room`, three things decide in turn. A fleet that is
    predicted to serve the demand is better; if none is, the speed per node decides. A fleet in which the loss of a node
    refuses at most MOST_REFUSED is better, since nodes would be idle otherwise. Fewer nodes are better.
    """
    counted = product(*(each.items() for each in units.values()))
    fleets = (_fleet(dict(zip(units, chosen, strict=True)), tokens) for chosen in counted)
    if room is None:
        return min(fleets, key=_size_sort_key, default=None)
    fitting = (each for each in fleets if _fits(each.nodes_by_phase, room))

    def rank(fleet: Fleet) -> tuple[float, ...]:
        return demand.shortfall(fleet), demand.refused_on_loss(fleet) > MOST_REFUSED, *_size_sort_key(fleet)

    return min(fitting, key=rank, default=None)


def _fleet(chosen: Mapping[Phase, tuple[Offer, int]], tokens: Mapping[Phase, float]) -> Fleet:
    served = min(units * offer.tokens_per_s / tokens[phase] for phase, (offer, units) in chosen.items())
    offers = {phase: offer for phase, (offer, _) in chosen.items()}
    return Fleet(offers, {phase: units for phase, (_, units) in chosen.items()}, served)


def _size_sort_key(fleet: Fleet) -> tuple[int, float]:
    return fleet.nodes, -sum(each.share_of_best for each in fleet.offers.values())


def _served_sort_key(fleet: Fleet) -> tuple[float, int]:
    return fleet.served_per_s, -fleet.nodes


def _speed_sort_key(fleet: Fleet) -> tuple[float, float, int]:
    shares = [each.share_of_best for each in fleet.offers.values()]
    return min(shares), sum(shares), -fleet.nodes


def _candidate_fleets(
    offers: Mapping[Phase, Offer],
    written: Mapping[Phase, int | None],
    tokens: Mapping[Phase, float],
    room: Mapping[frozenset[Phase], int],
    floor: Mapping[Phase, int],
) -> Iterator[Fleet]:
    """Yield the fleets of the given `offers`, one for each phase, that may have the highest throughput.

    Fleets that do not fit into `room` are left out. If at most one phase has a free number of units, there is one
    fleet, in which that phase has as many units as fit. If the numbers of units of two phases are free, there are two
    such fleets: the one in which the first phase is the bottleneck, and the one with a unit more of the first phase, in
    which the other phase is.
    """
    free = [phase for phase in offers if written[phase] is None]
    units = {phase: number or floor[phase] for phase, number in written.items()}
    if not free:
        yield from _yield_if_fitting(offers, units, tokens, room)
        return
    first, *others = free
    most = _max_units(first, offers, units, room)
    if not others:
        yield from _yield_if_fitting(offers, units | {first: most}, tokens, room)
        return
    (other,) = others
    rates = {phase: offer.tokens_per_s / tokens[phase] for phase, offer in offers.items()}

    def with_max_of_other(number: int) -> dict[Phase, int]:
        counts = {**units, first: number}
        return counts | {other: _max_units(other, offers, counts, room)}

    low, high = floor[first], max(most, floor[first])  # up to some count the first phase is the bottleneck
    while low < high:
        middle = (low + high + 1) // 2
        counts = with_max_of_other(middle)
        first_binds = counts[first] * rates[first] <= counts[other] * rates[other]
        low, high = (middle, high) if first_binds else (low, middle - 1)
    for number in (low, low + 1):
        yield from _yield_if_fitting(offers, with_max_of_other(number), tokens, room)


def _max_units(
    phase: Phase, offers: Mapping[Phase, Offer], units: Mapping[Phase, int], room: Mapping[frozenset[Phase], int]
) -> int:
    """Return how many units of `phase` fit on the nodes that the units of the other phases leave free."""
    left = [
        nodes - sum(units[other] * offers[other].nodes for other in phases if other != phase)
        for phases, nodes in room.items()
        if phase in phases
    ]
    return min(max(0, min(left) // offers[phase].nodes), MAX_UNITS)


def _yield_if_fitting(
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


def _demand_in_words(demand: Demand) -> str:
    rates = demand.tokens_per_s.items()
    return " and ".join(f"{demand.capacity * rate:,.0f} tokens/s of {phase}" for phase, rate in rates)
