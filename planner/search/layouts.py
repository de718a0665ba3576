"""Search for the layouts that serve most within memory and the SLO, and explain the choice.

`trials.py` tries all layouts of a phase. `fleet.py` gets the best layout for each number of nodes, and fills the
cluster with units or serves the traffic on the fewest nodes. The plan predicts the chosen layouts again, with the
expert maps that it finds.

If memory alone decides (`needs_speed` says so, or speeds cannot be predicted), all GPUs count as equally fast. The
smallest units are then taken that hold the requests, with the fewest replicas: smaller units lose fewer GPUs together.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from planner.candidate.trial import Numbers
from planner.estimate.case import is_predictable
from planner.estimate.throughput.replicas import ReplicaBalance
from planner.estimate.utilisation import SLO_MARGIN
from planner.facts.terms import Phase
from planner.layout.nodes import nodes_for
from planner.problems.errors import InfeasibleError
from planner.problems.finding import Finding
from planner.problems.fix import Change, nearest
from planner.rules.check import change_spec
from planner.search.broken_slo import require_slo
from planner.search.fleet import (
    MOST_REFUSED,
    Demand,
    Fleet,
    Offer,
    fill_nodes,
    meet_demand,
    require_nodes,
    units_by_offer,
)
from planner.search.ranked import AcceptedLayout, PhaseSearch, RejectedLayout, summarize_search
from planner.search.trials import try_layouts
from planner.search.windows import most_units
from planner.spec.cluster import MAX_NODES
from planner.spec.decision import Decision, is_auto, needs_speed, searched_fields
from planner.spec.phase import MAX_UNITS, PhaseSpec
from planner.spec.request_lengths import describe_assumed_lengths
from planner.spec.resolved import ResolvedSpec

Outcomes = list[AcceptedLayout | RejectedLayout]

RATE_NAMES = {"prefill": "computed prompt tokens/s", "decode": "output tokens/s", "mixed": "output tokens/s"}
UNKNOWN = "how fast they are is not known"
WHYS_BY_MEMORY = {
    "ep_size": "the smallest unit of whole nodes that has room for all requests of full length, else for one",
    "redundant_experts": "the fewest that give all GPUs equally many slots and, if there is room, hot experts replicas",
    "max_requests": "as many of full length as a GPU's KV has room for, or the default if its memory is not known",
    "attention_tp": f"what it is by default: {UNKNOWN}",
    "max_batch_tokens": f"what it is by default: {UNKNOWN}",
    "units": f"as many as the nodes hold: {UNKNOWN}",
}
WHY_NOTHING_FITS = "no layout fits"
ASSUMED_OUTPUT = 0.5  # assumed: output tokens per prompt token, if neither traffic nor operating points give the ratio


@dataclass(frozen=True)
class LayoutSearch:
    """The result of a search: each phase's chosen layout, and the fleet of units that fills or serves."""

    phases: dict[Phase, PhaseSearch]
    chosen: Mapping[Phase, AcceptedLayout]
    fleet: Fleet
    tokens: Mapping[Phase, float]  # tokens that each phase computes for one output token
    room: int  # number of nodes for the fleet
    demand: Demand | None = None  # None if the fleet serves as much as it can

    @property
    def is_short(self) -> bool:
        """Whether the fleet does not serve the demand."""
        return self.demand is not None and self.demand.shortfall(self.fleet) > 0


def search_layouts(spec: ResolvedSpec, demand: Demand | None = None) -> tuple[LayoutSearch | None, list[Decision]]:
    """Return (the best layouts, a decision for each `auto` that they decide).

    The layouts are None if memory alone decides, or if nothing fits even without an SLO. If nothing
    fits, the decisions are the sizes of the largest units that were tried, for which rules say what is missing.

    The layouts fill the nodes or, with a `demand`, serve it on the fewest nodes. If the cluster has too few nodes,
    return the layouts of the smallest sufficient cluster: placement then says how many nodes are missing.

    Raises InfeasibleError with the shortest latency that can be promised if only the SLO stands in the way, and
    with the number of units that are needed if the written ones do not serve the demand. Raises SpecError if the demand
    has to decide the number of nodes and speeds are unknown.
    """
    by_speed = needs_speed(spec) and all(
        is_predictable(spec, phase) and spec.gpu_of(phase).usable_bytes for phase in spec.phases
    )
    if demand and not by_speed:
        require_nodes(spec, demand)
        demand = None
    balance, tokens = ReplicaBalance(spec.expert_loads) if by_speed else None, _tokens_per_output_token(spec)
    found, fleet = _search_fleet(spec, balance, tokens, demand)
    if fleet is None:
        numbers = {p: _nearest_numbers(spec, p, found[p]) for p in spec.phases}
        return None, [Decision(path, n, WHY_NOTHING_FITS) for path, n in _name_decided(spec, numbers, {}).items()]
    chosen = {p: _accepted(found[p])[fleet.offers[p].number] for p in spec.phases}
    values = _name_decided(spec, {p: each.numbers for p, each in chosen.items()}, fleet.units)
    if not by_speed:
        return None, [Decision(path, number, WHYS_BY_MEMORY[path.partition(".")[2]]) for path, number in values.items()]
    phases = {p: summarize_search(found[p], chosen[p]) for p in spec.phases}
    nodes = fleet.nodes if demand and demand.decides_nodes else sum(_usable_nodes(spec).values())
    search = LayoutSearch(phases, chosen, fleet, tokens, nodes, demand)
    return search, [Decision(path, number, _explain(search, spec, path)) for path, number in values.items()]


def _name_decided(spec: ResolvedSpec, numbers: Mapping[Phase, Numbers], units: Mapping[Phase, int]) -> dict[str, int]:
    """Return path -> number for each `auto` that a search decides, from each phase's sizes and units (default 1)."""
    return {
        f"{phase}.{field}": units.get(phase, 1) if field == "units" else own[field]
        for phase, own in numbers.items()
        for field in searched_fields(phase)
        if is_auto(spec.phase(phase), field)
    }


def _nearest_numbers(spec: ResolvedSpec, phase: Phase, found: Outcomes) -> Numbers:
    """Return the sizes of the phase's fastest layout that fits, else of the largest one that was tried."""
    if accepted := _accepted(found):
        return max(accepted, key=lambda each: each.tokens_per_s_per_node).numbers
    if found:
        return found[-1].numbers
    defaults = {field: int(PhaseSpec.model_fields[field].default) for field in ("max_batch_tokens", "max_requests")}
    return {"ep_size": 1, "redundant_experts": 0, "attention_tp": 1} | defaults  # attention_tp divides no EP size


def _floor(spec: ResolvedSpec) -> dict[Phase, int]:
    """Return the fewest units of each phase that are on at any time."""
    schedule = spec.written.schedule
    return {p: schedule.min_units.of(p) if schedule else 1 for p in spec.phases}


def _written_units(spec: ResolvedSpec) -> dict[Phase, int | None]:
    """Return phase -> its written number of units at the peak of the day; None for a phase with `units: auto`."""
    return {p: None if is_auto(spec.phase(p), "units") else most_units(spec, p) for p in spec.phases}


def _usable_nodes(spec: ResolvedSpec) -> dict[frozenset[Phase], int]:
    """Return the number of usable nodes of each GPU type. The keys are the phases that run on the type."""
    counts = Counter(node.gpu for node in nodes_for(spec) if node.unusable is None)
    gpus = {gpu: frozenset(p for p in spec.phases if spec.written.gpu_name(p) == gpu) for gpu in spec.written.gpu_names}
    return {phases: counts[gpu] for gpu, phases in gpus.items()}


def _most_nodes(spec: ResolvedSpec) -> dict[Phase, int]:
    """Return phase -> the most nodes that one unit of it may take, if each other phase needs one node."""
    room = _usable_nodes(spec)
    return {p: max(1, min(n - len(phases) + 1 for phases, n in room.items() if p in phases)) for p in spec.phases}


def _search_fleet(
    spec: ResolvedSpec, balance: ReplicaBalance | None, tokens: Mapping[Phase, float], demand: Demand | None
) -> tuple[dict[Phase, Outcomes], Fleet | None]:
    """Return (outcomes of all layouts of each phase, the best fleet or None if nothing fits).

    The best fleet fits on the cluster's nodes. If no fleet fits there, it is the fleet that needs the fewest nodes.
    """
    room, is_counted = _usable_nodes(spec), demand is not None and demand.decides_nodes
    most = _most_nodes(spec)
    found = {p: _try_layouts(spec, p, range(1, most[p] + 1), balance) for p in spec.phases}
    fleet = _best_fleet(spec, found, tokens, demand, None if is_counted else room)
    if fleet is None and not is_counted:
        if demand is None:
            _require_slo(spec, found, most, balance)  # offer a weaker promise before more nodes
        for p in spec.phases:
            found[p] += _try_layouts(spec, p, range(most[p] + 1, MAX_NODES), balance)
        most = dict.fromkeys(spec.phases, MAX_NODES)
        fleet = _best_fleet(spec, found, tokens, demand or _minimal_demand(spec), None)
    _require_slo(spec, found, most, balance)
    return found, fleet


def _try_layouts(spec: ResolvedSpec, phase: Phase, nodes: range, balance: ReplicaBalance | None) -> Outcomes:
    """Return the outcomes of the layouts of `phase`.

    Without a `balance` memory alone decides: if some unit holds all requests at full length, others are rejected.
    """
    if balance is None:
        found = list(try_layouts(spec, phase, nodes, balance, at_full_length=True))
        if _accepted(found):
            return found
    return list(try_layouts(spec, phase, nodes, balance))


def _require_slo(
    spec: ResolvedSpec, found: Mapping[Phase, Outcomes], most: Mapping[Phase, int], balance: ReplicaBalance | None
) -> None:
    def search_with(phase: Phase, change: Change) -> Outcomes:
        return list(try_layouts(change_spec(spec, change), phase, range(1, most[phase] + 1), balance))

    require_slo(spec, found, search_with)


def _minimal_demand(spec: ResolvedSpec) -> Demand:
    """Return a demand that the fewest units of each phase meet with any layout."""
    nothing = dict.fromkeys(spec.phases, 0.0)
    return Demand(nothing, 1.0, _floor(spec), dict.fromkeys(spec.phases, 1.0), decides_nodes=False)


def _accepted(found: Outcomes) -> list[AcceptedLayout]:
    return [each for each in found if isinstance(each, AcceptedLayout)]


def _best_fleet(
    spec: ResolvedSpec,
    found: Mapping[Phase, Outcomes],
    tokens: Mapping[Phase, float],
    demand: Demand | None,
    room: Mapping[frozenset[Phase], int] | None,
) -> Fleet | None:
    """Return the fleet that fills `room`, or that serves a `demand` within it; None if no fleet fits.

    Without a `room`, return the smallest fleet that serves the demand. Raises InfeasibleError if even the largest
    cluster could not serve it.
    """
    kept = {phase: _accepted(each) for phase, each in found.items()}
    if not all(kept.values()):
        return None
    offers = {phase: _best_offers(phase, each) for phase, each in kept.items()}
    written = _written_units(spec)
    if demand is None:
        assert room is not None
        return fill_nodes(offers, written, tokens, room, _floor(spec))
    units = units_by_offer(offers, written, demand)
    fleet = meet_demand(units, tokens, demand, room)
    if room is None:
        _require_enough_nodes(spec, offers, units, written, demand, fleet)
    return fleet


def _require_enough_nodes(
    spec: ResolvedSpec,
    offers: Mapping[Phase, Sequence[Offer]],
    units: Mapping[Phase, Mapping[Offer, int]],
    written: Mapping[Phase, int | None],
    demand: Demand,
    smallest: Fleet | None,
) -> None:
    """Raise InfeasibleError if the demand needs more than MAX_NODES nodes, or more units than the spec has."""
    room = MAX_NODES - len(spec.cluster.spares)
    if smallest is None:
        phase = next(each for each in units if not units[each])
    elif smallest.nodes > room:
        phase = max(smallest.nodes_by_phase, key=smallest.nodes_by_phase.__getitem__)
        room -= smallest.nodes - smallest.nodes_by_phase[phase]
    else:
        return
    asked = demand.capacity * demand.tokens_per_s[phase]
    raise InfeasibleError(
        [spec.locate(_unmet_demand(spec, phase, offers[phase], written[phase] is not None, asked, room))]
    )


def _unmet_demand(
    spec: ResolvedSpec, phase: Phase, offers: Sequence[Offer], are_written: bool, asked: float, nodes: int
) -> Finding:
    """Return the finding for a phase with too few written units, or with more traffic than MAX_UNITS units can serve.

    `asked` is the peak hour's demand in tokens/s, `nodes` the number of nodes that the phase can have.
    """
    fastest = max(offers, key=lambda each: each.tokens_per_s)
    needed = ceil(asked / fastest.tokens_per_s)
    reason = f"its peak hour asks for {asked:,.0f} tokens/s, and a unit makes {fastest.tokens_per_s:,.0f} at most"
    reason += f", where auto {assuming}" if (assuming := describe_assumed_lengths(spec.written, phase)) else ""
    least = bisect_left(range(1, MAX_UNITS + 1), needed, key=lambda number: most_units(spec, phase, number)) + 1
    if are_written and least <= MAX_UNITS:
        rule = f"S729 must be at least {least} to serve the traffic"
        return Finding(f"{phase}.units", spec.written.num_units(phase), rule, reason, nearest(least))
    field = "input_tokens" if phase == "prefill" else "output_tokens"
    day = getattr(spec.written.traffic, field)
    served = max(min(MAX_UNITS, nodes // each.nodes) * each.tokens_per_s for each in offers)
    most = float(f"{day * served / asked * SLO_MARGIN:.3g}")
    rule = f"S729 must be at most {most:g} for {MAX_UNITS:,} units and {MAX_NODES:,} nodes to serve it"
    return Finding(f"traffic.{field}", day, rule, reason, nearest(most))


def _tokens_per_output_token(spec: ResolvedSpec) -> dict[Phase, float]:
    """Return phase -> tokens that it computes for one output token; 1 in decode and mixed units.

    Prefill's number follows from the traffic, else from the operating points, else from an assumed length of
    answers.
    """
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


def _best_offers(phase: Phase, kept: Sequence[AcceptedLayout]) -> list[Offer]:
    """Return the fastest of the `kept` layouts for each number of nodes of a unit, as offers."""
    best: dict[int, int] = {}
    for number, each in enumerate(kept):
        held = best.get(each.nodes)
        if held is None or each.tokens_per_s_per_node > kept[held].tokens_per_s_per_node:
            best[each.nodes] = number
    most = max(each.tokens_per_s_per_node for each in kept)
    return [
        Offer(phase, nodes, nodes * rate, rate / most, number)
        for nodes, number in sorted(best.items())
        for rate in [kept[number].tokens_per_s_per_node]
    ]


def _explain(search: LayoutSearch, spec: ResolvedSpec, path: str) -> str:
    named, _, field = path.partition(".")
    if field == "units":
        return _explain_units(search)
    phase = next(each for each in spec.phases if each == named)
    slo, speed = _slo_in_words(spec, phase), search.chosen[phase].speed
    rate = (
        f"{speed.tokens_per_s_per_gpu:,.0f} {RATE_NAMES[phase]} a GPU{slo}, of {search.phases[phase].tried:,} layouts"
    )
    whys = {
        "redundant_experts": f"the balance that is worth its memory: the fullest GPU of a step has "
        f"{speed.max_over_mean:.2f} times the mean, drift and luck included",
        "max_requests": f"the most that KV {'and the SLO allow' if slo else 'has room for'}",
    }
    return whys.get(field, f"{rate} the one that serves {_aim_in_words(search, phase)}")


def _aim_in_words(search: LayoutSearch, phase: Phase) -> str:
    """Return words for the aim of the choice, the highest throughput or the fewest nodes for the busiest hour."""
    if search.demand is None:
        return "most"
    if search.demand.is_short(search.fleet, phase):
        return "most a node: with the written units, none that fits is predicted to serve the busiest hour"
    loses_little = search.fleet.nodes < search.room and search.demand.refused_on_loss(search.fleet) <= MOST_REFUSED
    spared = f", with at most {MOST_REFUSED:.0%} of it refused when a node is lost" if loses_little else ""
    return f"the busiest hour on fewest nodes{spared}"


def _explain_units(search: LayoutSearch) -> str:
    fleet = search.fleet
    ratio = ""
    if "prefill" in search.tokens:
        ratio = f", at {search.tokens['prefill']:.3g} computed prompt tokens for one of output"
    served = f"{fleet.served_per_s:,.0f} output tokens/s on {fleet.nodes} of {search.room} nodes"
    aim = "the fewest for the busiest hour" if search.demand else "the most that they serve"
    return f"{aim}: {served}{ratio}"


def _slo_in_words(spec: ResolvedSpec, phase: Phase) -> str:
    slo = spec.written.slo
    limits = {"TTFT": slo.ttft_ms if phase != "decode" else None, "TPOT": slo.tpot_ms if phase != "prefill" else None}
    kept = [f"{name} {most:g} ms" for name, most in limits.items() if most is not None]
    return f" within {' and '.join(kept)}" if kept else ""
