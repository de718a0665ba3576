"""All layouts of one phase that its `auto` fields allow, each with its speed or with why it is out.

    ep_size             whole nodes, up to two GPUs an expert and to the cluster; parts of a node that divide it
    redundant_experts   equal slots for all GPUs: from the fewest, until no replica is hotter than a GPU's mean load
    attention_tp        sizes that divide heads and node
    max_batch_tokens    powers of two
    max_requests        the most that KV has room for and the SLO allows

Each is tried with each, as far as the engine can run them. Three kinds of branches are cut, since none of them can hold
the best:
    more slots where memory is short           memory only gets shorter
    more slots once they are bounded           more slots take memory from KV and bandwidth from all, and gain balance:
                                               as many as now, with the best balance that memory has slots for, would
                                               be no better than what was found for as many nodes
    more requests where one limit is broken    TPOT and KV grow with them, so the most is found by halving

Where the halving begins is bounded too: room for KV only shrinks as requests or slots are added, and a layout with the
best balance takes no fewer requests than it takes with its own.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import inf
from typing import Any, Literal

from planner.candidate.trial import Numbers, Speed, Trial, speed_of, trial_of
from planner.estimate.coverage import fewest_slots
from planner.estimate.throughput.replicas import Balance, BestBalance, ReplicaBalance
from planner.estimate.utilisation import KEPT
from planner.facts.terms import Phase
from planner.rules.attention import attention_sizes
from planner.rules.engine_limits import runs_layout
from planner.search.decision import MAX_REQUESTS, is_auto
from planner.search.unit_sizes import all_sizes
from planner.spec.phase import MAX_REDUNDANT, PhaseSpec
from planner.spec.request_lengths import request_lengths
from planner.spec.resolved import ResolvedSpec
from planner.spec.undecided import AUTO

__all__ = ["Kept", "Lost", "Why", "layouts_of"]

SIZES = ("ep_size", "attention_tp", "redundant_experts", "max_requests")  # that an engine's exchange depends on
BATCH_TOKENS = tuple(2**power for power in range(9, 16))  # 512 to 32,768

Why = Literal["memory", "slo", "failure domain", "cluster", "engine"]


@dataclass(frozen=True)
class Kept:
    """A layout that fits and keeps the SLO."""

    numbers: Numbers  # every field that a phase may leave to the planner, but `units`
    nodes: int  # of a unit
    speed: Speed
    tokens_per_s_per_node: float  # a GPU of the node that the unit leaves idle counts

    @property
    def latency_ms(self) -> float:
        """Return TPOT, or in prefill TTFT."""
        found = self.speed.ttft_ms if self.speed.tpot_ms is None else self.speed.tpot_ms
        assert found is not None
        return found


@dataclass(frozen=True)
class Lost:
    """A layout that is out, and why; with what it would take."""

    numbers: Numbers
    why: Why
    detail: str
    reached: Mapping[str, float]  # slo field -> the least that this layout reaches


def layouts_of(spec: ResolvedSpec, phase: Phase, nodes: range, balance: ReplicaBalance) -> Iterator[Kept | Lost]:
    """Yield what becomes of each layout of `phase` in units of `nodes` nodes.

    A written size is tried whatever nodes it takes, where `nodes` begins with 1.
    """
    section = spec.phase(phase)
    best: dict[int, float] = {}
    for ep_size in _ep_sizes(spec, section, nodes):
        for attention_tp in _attention_sizes(spec, section, ep_size):
            for batch_tokens in _batch_tokens(spec, phase):
                start = {"ep_size": ep_size, "attention_tp": attention_tp, "max_batch_tokens": batch_tokens}
                yield from _with_slots(_Size(spec, phase, start), balance, best)


def _ep_sizes(spec: ResolvedSpec, section: PhaseSpec, nodes: range) -> Sequence[int]:
    if not is_auto(section, "ep_size"):
        return [section.ep_size] if 1 in nodes else []  # of whatever nodes it takes
    return [size for size in all_sizes(spec) if max(1, size // spec.cluster.gpus_per_node) in nodes]


def _attention_sizes(spec: ResolvedSpec, section: PhaseSpec, ep_size: int) -> Sequence[int]:
    if not is_auto(section, "attention_tp"):
        return [section.attention_tp] if ep_size % section.attention_tp == 0 else []
    per_node = spec.cluster.gpus_per_node
    return [each for each in attention_sizes(ep_size, per_node, spec.model) if each <= per_node]


def _batch_tokens(spec: ResolvedSpec, phase: Phase) -> Sequence[int]:
    section, point = spec.phase(phase), getattr(spec.written.operating_point, phase)
    if not is_auto(section, "max_batch_tokens"):
        return [section.max_batch_tokens]
    if phase == "decode":
        return [int(PhaseSpec.model_fields["max_batch_tokens"].default)]  # of no effect: prompts are prefill's
    if phase == "prefill" and point and point.step_tokens != AUTO:
        return [point.step_tokens]
    return BATCH_TOKENS[::-1]  # the largest is mostly best


def _redundant(spec: ResolvedSpec, section: PhaseSpec, ep_size: int) -> Iterator[int]:
    """Yield redundant experts from the fewest that give all GPUs equally many slots."""
    num_logical = spec.model.num_routed_experts
    if not is_auto(section, "redundant_experts"):
        if (num_logical + section.redundant_experts) % ep_size == 0:
            yield section.redundant_experts
        return
    most = min(num_logical * (ep_size - 1), MAX_REDUNDANT)
    yield from range(-num_logical % ep_size, most + 1, ep_size)


@dataclass(frozen=True)
class _Size:
    """One EP size, attention TP and step length of a phase, and its trials with slots and requests."""

    spec: ResolvedSpec
    phase: Phase
    start: Numbers
    trials: dict[tuple[int, int], Trial] = field(default_factory=dict)

    def trial(self, redundant: int, requests: int) -> Trial:
        """Return one of them, made once: it is asked for memory, for speed, and for the speed of the best balance."""
        key = redundant, requests
        if key not in self.trials:
            self.trials[key] = trial_of(self.spec, self.phase, {**self.start, "redundant_experts": redundant}, requests)
        return self.trials[key]


def _with_slots(size: _Size, balance: ReplicaBalance, best: dict[int, float]) -> Iterator[Kept | Lost]:
    """Try one size with more and more slots, until more can only be worse than the `best` of its number of nodes."""
    spec, ep_size, num_logical = size.spec, size.start["ep_size"], size.spec.model.num_routed_experts
    all_redundant = list(_redundant(spec, spec.phase(size.phase), ep_size))
    if not all_redundant:  # what is written does not divide
        return
    fewest_requests, most_requests = _requests(spec, size.phase)
    first = size.trial(all_redundant[0], fewest_requests)
    if refusal := _refusal(first):  # more slots or requests only take more room
        yield Lost({**size.start, "redundant_experts": all_redundant[0]}, "engine", refusal, {})
        return
    most, nodes = _most_that_fit(size, all_redundant, fewest_requests), first.layout.nodes_per_unit
    ideal = BestBalance(balance, num_logical + most)
    for redundant in all_redundant:
        if dark := _dark(spec, ep_size, (num_logical + redundant) // ep_size):
            yield Lost({**size.start, "redundant_experts": redundant}, "failure domain", dark, {})
            continue
        found = _with_most_requests(size, redundant, balance, fewest_requests)
        yield found
        best[nodes] = max(best.get(nodes, 0.0), _rate(found))
        if redundant >= most or _bound(found, are_free=fewest_requests < most_requests) <= best[nodes]:
            return
        least = found.numbers["max_requests"] if isinstance(found, Kept) else fewest_requests
        if _rate(_with_most_requests(size, redundant, ideal, least)) <= best[nodes]:
            return


def _most_that_fit(size: _Size, all_redundant: Sequence[int], requests: int) -> int:
    """Return the most redundant experts that leave memory for one request, else the fewest that there are."""
    fewest = size.trial(all_redundant[0], requests).memory
    more_slots = max(-fewest.short, 0) // fewest.weights.slot  # besides, activations and buffers never shrink with them
    bounded = all_redundant[: 1 + more_slots]
    if size.trial(bounded[-1], requests).memory.short <= 0:
        return bounded[-1]
    short = bisect_left(bounded, True, lo=1, key=lambda each: size.trial(each, requests).memory.short > 0)
    return bounded[short - 1]


def _rate(found: Kept | Lost) -> float:
    return found.tokens_per_s_per_node if isinstance(found, Kept) else 0.0


def _bound(found: Kept | Lost, *, are_free: bool) -> float:
    """Return a rate that no balance exceeds; infinity where nobody knows one, as with `are_free` requests.

    Where all GPUs were like the mean, no part of a step would take less than by as much as the fullest is above it.
    """
    return inf if are_free or isinstance(found, Lost) else found.tokens_per_s_per_node * found.speed.max_over_mean


def _dark(spec: ResolvedSpec, ep_size: int, slots: int) -> str | None:
    """Return why some expert goes dark with a failure domain that `coverage` names; None where none need."""
    coverage = spec.written.coverage
    if coverage == "none":
        return None
    fewest = fewest_slots(spec, ep_size, coverage)
    if fewest is None:
        return f"all of a unit's experts are in one {coverage}"
    return f"two {coverage}s for each expert take {fewest} slots a GPU, not {slots}" if slots < fewest else None


def _refusal(trial: Trial) -> str | None:
    """Return why the spec's engine cannot run these sizes; None where it can, or where the spec writes all of them."""
    phase, written = trial.layout.phase, trial.spec.written
    is_left = any(f"{phase}.{field}" in trial.spec.document.autos for field in SIZES)
    if not is_left or runs_layout(trial.spec, phase):
        return None
    return f"{written.engine_name} {written.engine_version} cannot run it"


def _with_most_requests(size: _Size, redundant: int, balance: Balance, least: int) -> Kept | Lost:
    """Return the layout with as many requests as it takes under a balance, or why it does not even take the `least`.

    Room for KV shrinks as requests are added, so as many as it holds beside the buffers of more are tried first.
    """
    most = _requests(size.spec, size.phase)[1]
    judged = cache(lambda requests: _judged(size, redundant, requests, balance))
    if isinstance(judged(least), Lost) or least == most:
        return judged(least)
    kv_tokens = max(_kv_tokens(size.spec, size.phase, 1), 1)
    most = max(min(most, size.trial(redundant, least).memory.kv_tokens // kv_tokens), least)
    guess = size.trial(redundant, most).memory.kv_tokens // kv_tokens
    while least < most:
        middle = min(max(guess, least + 1), most)
        least, most = (middle, most) if isinstance(judged(middle), Kept) else (least, middle - 1)
        guess = (least + most + 1) // 2
    return judged(least)


def _requests(spec: ResolvedSpec, phase: Phase) -> tuple[int, int]:
    """Return the fewest and the most requests that are tried."""
    point: Any = getattr(spec.written.operating_point, phase)
    if not is_auto(spec.phase(phase), "max_requests"):
        return spec.phase(phase).max_requests, spec.phase(phase).max_requests
    if phase == "prefill":
        return 1, 1  # as many as its KV holds: they do not change its speed
    return (point.requests, point.requests) if point and point.requests != AUTO else (1, MAX_REQUESTS)


def _judged(size: _Size, redundant: int, requests: int, balance: Balance) -> Kept | Lost:
    """Return the layout with so many requests, or what it breaks."""
    trial, kv_tokens = size.trial(redundant, requests), _kv_tokens(size.spec, size.phase, requests)
    numbers, memory = {**size.start, "redundant_experts": redundant, "max_requests": requests}, trial.memory
    if memory.short > 0:
        return Lost(numbers, "memory", f"{memory.short / 1e9:.1f} GB short of one request", {})
    if kv_tokens > memory.kv_tokens:
        return Lost(numbers, "memory", f"KV has room for {memory.kv_tokens:,} of {kv_tokens:,} tokens", {})
    if refusal := _refusal(trial):
        return Lost(numbers, "engine", refusal, {})
    speed, slo = speed_of(trial, balance), size.spec.written.slo
    reached = {"tpot_ms": speed.tpot_ms, "ttft_ms": speed.ttft_ms}
    known = {field: value for field, value in reached.items() if value is not None}
    broken = [
        f"{field[:4].upper()} is {value:,.4g} ms, over {KEPT:.0%} of {most:g}"
        for field, value in known.items()
        if (most := getattr(slo, field)) is not None and value > KEPT * most
    ]
    if broken:
        return Lost(numbers, "slo", " and ".join(broken), known)
    per_node = trial.layout.ep_size / trial.layout.nodes_per_unit
    return Kept(numbers, trial.layout.nodes_per_unit, speed, speed.tokens_per_s_per_gpu * per_node)


def _kv_tokens(spec: ResolvedSpec, phase: Phase, requests: int) -> int:
    """Return the KV of so many requests of the operating point's length, else of the traffic's or of half the longest.

    A number of requests that is written is a limit: where no point says how many there are, one request must fit.
    """
    section, point = spec.phase(phase), getattr(spec.written.operating_point, phase)
    if point and phase != "prefill" and point.requests != AUTO:
        return int(point.requests * point.kv_tokens)
    if phase == "prefill" or not is_auto(section, "max_requests"):
        return section.max_request_tokens
    return int(requests * (point.kv_tokens if point else request_lengths(spec.written, phase).kv))
