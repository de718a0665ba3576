"""`auto` by speed: the layouts that serve most under the SLO and in memory, and why the others do not.

A phase's candidates (`candidates.py`) are reduced to its best of each number of nodes, and units of these fill the
cluster, or serve the traffic on fewest nodes (`fleet.py`). Nothing that does not fit is ever a candidate. What is
predicted here is predicted again by the plan with the maps that it has found.

It decides only where speeds are known, and only for specs that ask for it: with an SLO, or with `auto` for what memory
alone cannot decide.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil

from planner.cluster.inventory import nodes_for
from planner.estimate.case import is_predictable
from planner.estimate.expert_loads import expert_loads
from planner.estimate.utilisation import KEPT
from planner.facts.terms import Phase
from planner.layout.memory import MemoryOf
from planner.problems.errors import InfeasibleError
from planner.problems.finding import Finding
from planner.problems.fix import Change, nearest
from planner.search.asked import FIELDS, LayoutOf, is_auto
from planner.search.broken_slo import require_slo
from planner.search.candidates import Candidate, Lost, Why, candidates_of
from planner.search.fleet import Demand, Fleet, Offer, fill, meet, units_that_serve
from planner.search.front import FrontPoint, front_of
from planner.search.replicas import ReplicaBalance
from planner.search.speed import Trials, speed_of
from planner.spec.check import ResolvedSpec, with_values
from planner.spec.cluster import MAX_NODES
from planner.spec.phase import MAX_UNITS
from planner.spec.request_lengths import assuming_lengths

Found = list[Candidate | Lost]

__all__ = ["LayoutSearch", "PhaseSearch", "Ranked", "search_layouts", "units_by_nodes"]

MAX_RANKED = 8  # candidates of a phase that a plan tells
MAX_FRONT_SIZES = 16  # layouts whose smaller loads are tried for the front
ASSUMED_OUTPUT = 0.5  # tokens of output for one of a prompt, where neither traffic nor points say: assumed
BINDS = 1.03  # times as full as the chosen layout's fullest GPU, to be told as the reason: assumed


@dataclass(frozen=True)
class Ranked:
    """A candidate and why another was taken; the chosen one has no reason."""

    candidate: Candidate
    why_not: str | None


@dataclass(frozen=True)
class PhaseSearch:
    """What was tried for a phase."""

    phase: Phase
    tried: int
    chosen: Candidate
    ranked: tuple[Ranked, ...]  # each size's best from the fastest a node, the chosen one among them
    lost: Mapping[Why, tuple[int, Lost]]  # how many, and the nearest of them
    front: tuple[FrontPoint, ...]


@dataclass(frozen=True)
class LayoutSearch:
    """The layouts that were found, and what they serve."""

    phases: tuple[PhaseSearch, ...]
    fleet: Fleet
    tokens: Mapping[Phase, float]  # of each phase for one token of output
    room: int  # nodes
    demand: Demand | None = None  # that they serve on fewest nodes; else they serve the most

    def values(self, spec: ResolvedSpec) -> dict[str, int]:
        """Return what stands in place of `auto`: path -> number. Prefill's requests are left to its memory."""
        found: dict[str, int] = {}
        for each in self.phases:
            section = spec.phase(each.phase)
            fields = [field for field in FIELDS if (each.phase, field) != ("prefill", "max_requests")]
            found |= {f"{each.phase}.{f}": each.chosen.numbers[f] for f in fields if is_auto(section, f)}
            if is_auto(section, "units"):
                found[f"{each.phase}.units"] = self.fleet.units[each.phase]
        return found


def search_layouts(
    spec: ResolvedSpec, memory_of: MemoryOf, layout_of: LayoutOf, demand: Demand | None = None
) -> LayoutSearch | None:
    """Return the best layouts; None where speeds are not known, or nothing fits, whatever the SLO.

    They fill the nodes or, with a `demand`, serve it on the fewest. Where the nodes do not hold that, they are those of
    the smallest cluster that would: whoever places them says how many nodes that is, whatever number there are.

    Raises InfeasibleError, with the least that could be promised, when the SLO is all that nothing keeps, and with the
    units that it takes when those that are written do not serve the demand.
    """
    if not all(is_predictable(spec, phase) and spec.gpu_of(phase).usable_bytes for phase in spec.phases):
        return None
    trials, tokens = Trials(memory_of, layout_of, ReplicaBalance(expert_loads(spec))), _tokens(spec)
    found, fleet = _found_and_fleet(spec, trials, tokens, demand)
    if fleet is None:
        return None
    candidates = {phase: _candidates(each) for phase, each in found.items()}
    chosen = {phase: candidates[phase][offer.candidate] for phase, offer in fleet.offers.items()}
    phases = tuple(
        PhaseSearch(
            phase=phase,
            tried=len(found[phase]),
            chosen=chosen[phase],
            ranked=_ranked(candidates[phase], chosen[phase]),
            lost=_lost([each for each in found[phase] if isinstance(each, Lost)]),
            front=_front(spec, phase, candidates[phase], trials),
        )
        for phase in spec.phases
    )
    nodes = fleet.nodes if demand and demand.counts_nodes else sum(_room(spec).values())
    return LayoutSearch(phases, fleet, tokens, nodes, demand)


def units_by_nodes(spec: ResolvedSpec) -> dict[Phase, int]:
    """Return as many units of each phase as the nodes hold, where nobody knows how fast they are; 1 at least."""
    per_node = spec.cluster.gpus_per_node
    offers = [Offer(p, n, 1.0, 1.0, 0) for p in spec.phases for n in [max(1, spec.phase(p).ep_size // per_node)]]
    written = {p: None if is_auto(spec.phase(p), "units") else spec.written.num_units(p) for p in spec.phases}
    alike = dict.fromkeys(spec.phases, 1.0)
    fleet = fill({each.phase: [each] for each in offers}, written, alike, _room(spec))
    return dict(fleet.units) if fleet else {phase: number or 1 for phase, number in written.items()}


def _room(spec: ResolvedSpec) -> dict[frozenset[Phase], int]:
    """Count the nodes that can be used, for all phases that run on each GPU type."""
    counts = Counter(node.gpu for node in nodes_for(spec) if node.unusable is None)
    gpus = {gpu: frozenset(p for p in spec.phases if spec.written.gpu_name(p) == gpu) for gpu in spec.written.gpu_names}
    return {phases: counts[gpu] for gpu, phases in gpus.items()}


def _found_and_fleet(
    spec: ResolvedSpec, trials: Trials, tokens: Mapping[Phase, float], demand: Demand | None
) -> tuple[dict[Phase, Found], Fleet | None]:
    """Return what was tried, and the best fleet of it: on the nodes that there are, else on as few as can be.

    A layout leaves at least one node for each other phase.
    """
    room, is_counted = _room(spec), demand is not None and demand.counts_nodes
    most = {p: max(1, min(n - len(phases) + 1 for phases, n in room.items() if p in phases)) for p in spec.phases}
    found = {p: list(candidates_of(spec, p, range(1, most[p] + 1), trials)) for p in spec.phases}
    fleet = _fleet(spec, found, tokens, demand, None if is_counted else room)
    if fleet is None and not is_counted:
        if demand is None:
            _require_slo(spec, found, most, trials)  # weaker promises are offered before more nodes
        for p in spec.phases:
            found[p] += candidates_of(spec, p, range(most[p] + 1, MAX_NODES), trials)
        most = dict.fromkeys(spec.phases, MAX_NODES)
        fleet = _fleet(spec, found, tokens, demand or _one_unit_each(spec), None)
    _require_slo(spec, found, most, trials)
    return found, fleet


def _require_slo(spec: ResolvedSpec, found: Mapping[Phase, Found], most: Mapping[Phase, int], trials: Trials) -> None:
    def found_with(phase: Phase, change: Change) -> Found:
        return list(candidates_of(with_values(spec, change), phase, range(1, most[phase] + 1), trials))

    require_slo(spec, found, found_with)


def _one_unit_each(spec: ResolvedSpec) -> Demand:
    """Return what a unit of each phase serves, whatever its layout, and written units too."""
    nothing, one = dict.fromkeys(spec.phases, 0.0), dict.fromkeys(spec.phases, 1)
    return Demand(nothing, 1.0, one, dict.fromkeys(spec.phases, 1.0), counts_nodes=False)


def _candidates(found: Found) -> list[Candidate]:
    return [each for each in found if isinstance(each, Candidate)]


def _fleet(
    spec: ResolvedSpec,
    found: Mapping[Phase, Found],
    tokens: Mapping[Phase, float],
    demand: Demand | None,
    room: Mapping[frozenset[Phase], int] | None,
) -> Fleet | None:
    """Return the fleet that fills the `room` or serves the `demand` in it; without a room, the smallest that does.

    None where the room holds none. Raises InfeasibleError where there can be no such fleet.
    """
    candidates = {phase: _candidates(each) for phase, each in found.items()}
    if not all(candidates.values()):
        return None
    offers = {phase: _offers(phase, each) for phase, each in candidates.items()}
    written = {p: None if is_auto(spec.phase(p), "units") else spec.written.num_units(p) for p in spec.phases}
    if demand is None:
        assert room is not None
        return fill(offers, written, tokens, room)
    units = units_that_serve(offers, written, demand)
    fleet = meet(units, tokens, demand, room)
    if room is None:
        _require_few(spec, offers, units, written, demand, fleet)
    return fleet


def _require_few(
    spec: ResolvedSpec,
    offers: Mapping[Phase, Sequence[Offer]],
    units: Mapping[Phase, Mapping[Offer, int]],
    written: Mapping[Phase, int | None],
    demand: Demand,
    smallest: Fleet | None,
) -> None:
    """Raise InfeasibleError with the units that a phase needs, or the tokens that as many as there can be make."""
    room = MAX_NODES - len(spec.cluster.spares)
    if smallest is None:
        phase = next(each for each in units if not units[each])
    elif smallest.nodes > room:
        phase = max(smallest.nodes_by_phase, key=smallest.nodes_by_phase.__getitem__)
        room -= smallest.nodes - smallest.nodes_by_phase[phase]
    else:
        return
    asked = demand.capacity * demand.tokens_per_s[phase]
    raise InfeasibleError([spec.locate(_too_much(spec, phase, offers[phase], written[phase], asked, room))])


def _too_much(
    spec: ResolvedSpec, phase: Phase, offers: Sequence[Offer], units: int | None, asked: float, nodes: int
) -> Finding:
    """Say how many units a phase needs, or how many tokens as many as there can be on `nodes` nodes serve."""
    fastest = max(offers, key=lambda each: each.tokens_per_s)
    needed = ceil(asked / fastest.tokens_per_s)
    reason = f"its peak hour asks for {asked:,.0f} tokens/s, and a unit makes {fastest.tokens_per_s:,.0f} at most"
    reason += f", where auto {assuming}" if (assuming := assuming_lengths(spec.written, phase)) else ""
    if units is not None and needed <= MAX_UNITS:
        rule = f"S729 must be at least {needed} to serve the traffic"
        return Finding(f"{phase}.units", units, rule, reason, nearest(needed))
    field = "input_tokens" if phase == "prefill" else "output_tokens"
    day = getattr(spec.written.traffic, field)
    served = max(min(MAX_UNITS, nodes // each.nodes) * each.tokens_per_s for each in offers)
    most = float(f"{day * served / asked * KEPT:.3g}")
    rule = f"S729 must be at most {most:g} for {MAX_UNITS:,} units and {MAX_NODES:,} nodes to serve it"
    return Finding(f"traffic.{field}", day, rule, reason, nearest(most))


def _tokens(spec: ResolvedSpec) -> dict[Phase, float]:
    """Return the tokens that each phase computes for one token of output: of the traffic, else of the points."""
    traffic, points = spec.written.traffic, spec.written.operating_point
    if spec.written.mixed:
        return {"mixed": 1.0}
    if traffic is not None:
        prompts = traffic.input_tokens * (1 - traffic.cache_hit_rate) / traffic.output_tokens
    elif points.prefill and points.decode and points.decode.kv_tokens > points.prefill.prompt_tokens:
        output = 2 * (points.decode.kv_tokens - points.prefill.prompt_tokens)  # KV is a prompt and half of its answer
        prompts = points.prefill.prompt_tokens * (1 - (points.prefill.cache_hit_rate or 0.0)) / output
    else:
        prompts = 1 / ASSUMED_OUTPUT
    return {"prefill": max(prompts, 1e-9), "decode": 1.0}


def _offers(phase: Phase, candidates: Sequence[Candidate]) -> list[Offer]:
    """Return the best candidate of each number of nodes."""
    best: dict[int, int] = {}
    for number, each in enumerate(candidates):
        held = best.get(each.nodes)
        if held is None or each.tokens_per_s_per_node > candidates[held].tokens_per_s_per_node:
            best[each.nodes] = number
    most = max(each.tokens_per_s_per_node for each in candidates)
    return [
        Offer(phase, nodes, nodes * rate, rate / most, number)
        for nodes, number in sorted(best.items())
        for rate in [candidates[number].tokens_per_s_per_node]
    ]


def _ranked(candidates: Sequence[Candidate], chosen: Candidate) -> tuple[Ranked, ...]:
    """Return the fastest of each EP size and attention TP, from the fastest on, and the chosen one with them."""
    order = sorted(candidates, key=lambda each: (-each.tokens_per_s_per_node, each.nodes))
    first = {_size(chosen): chosen}
    for each in order:
        first.setdefault(_size(each), each)
    best = [each for each in order if first[_size(each)] is each]
    told = best[:MAX_RANKED] if chosen in best[:MAX_RANKED] else [*best[: MAX_RANKED - 1], chosen]
    return tuple(Ranked(each, None if each == chosen else _why_not(each, chosen)) for each in told)


def _size(candidate: Candidate) -> tuple[int, int]:
    return candidate.numbers["ep_size"], candidate.numbers["attention_tp"]


def _why_not(other: Candidate, chosen: Candidate) -> str:
    ratio = other.tokens_per_s_per_node / chosen.tokens_per_s_per_node
    if ratio >= 1:
        return "cluster: fills it worse"
    slower = f"{100 * (1 - ratio):.1f}% slower"
    if other.speed.max_over_mean > BINDS * chosen.speed.max_over_mean:
        return f"bound: {slower}, max/mean {other.speed.max_over_mean:.2f}"
    return slower


def _lost(lost: Sequence[Lost]) -> dict[Why, tuple[int, Lost]]:
    """Count the reasons; the example of each is the last, of the largest units, which comes nearest."""
    found: dict[Why, tuple[int, Lost]] = {}
    for each in lost:
        found[each.why] = (found.get(each.why, (0, each))[0] + 1, each)
    return found


def _front(spec: ResolvedSpec, phase: Phase, candidates: Sequence[Candidate], trials: Trials) -> tuple[FrontPoint, ...]:
    """Try the fastest layouts with fewer and fewer requests, where these are free."""
    order = sorted(candidates, key=lambda each: -each.tokens_per_s_per_node)[:MAX_FRONT_SIZES]
    small = sorted(candidates, key=lambda each: each.latency_ms)[:MAX_FRONT_SIZES]
    points = [FrontPoint(each.numbers, each.speed.tokens_per_s_per_gpu, each.latency_ms) for each in candidates]
    if not is_auto(spec.phase(phase), "max_requests") or phase == "prefill":
        return front_of(points)
    for each in chain(order, small):
        requests = each.numbers["max_requests"] // 2
        while requests:
            speed = speed_of(trials.at(spec, phase, each.numbers, requests), trials.balance)
            assert speed.tpot_ms is not None
            numbers = {**each.numbers, "max_requests": requests}
            points.append(FrontPoint(numbers, speed.tokens_per_s_per_gpu, speed.tpot_ms))
            requests //= 2
    return front_of(points)
