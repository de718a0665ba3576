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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any, Literal

from planner.engines.limits import runs_layout
from planner.estimate.utilisation import KEPT
from planner.expert_map import consecutive_domains, fewest_slots_per_gpu
from planner.facts.terms import Phase
from planner.layout.memory import MemoryPlan
from planner.search.asked import MAX_REQUESTS, is_auto
from planner.search.replicas import Balance, BestBalance
from planner.search.speed import Numbers, Speed, Trial, Trials, speed_of
from planner.spec.attention_rules import attention_sizes
from planner.spec.check import ResolvedSpec
from planner.spec.phase import MAX_REDUNDANT, PhaseSpec
from planner.spec.request_lengths import request_lengths
from planner.spec.undecided import AUTO

__all__ = ["Candidate", "Lost", "Why", "candidates_of"]

SIZES = ("ep_size", "attention_tp", "redundant_experts", "max_requests")  # that an engine's exchange depends on
BATCH_TOKENS = tuple(2**power for power in range(9, 16))  # 512 to 32,768

TrialAt = Callable[[int, int], Trial]  # of one size: redundant experts, requests
Why = Literal["memory", "slo", "failure domain", "cluster", "engine"]


@dataclass(frozen=True)
class Candidate:
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


def candidates_of(spec: ResolvedSpec, phase: Phase, nodes: range, trials: Trials) -> Iterator[Candidate | Lost]:
    """Yield what becomes of each layout of `phase` in units of `nodes` nodes.

    A written size is tried whatever nodes it takes, where `nodes` begins with 1.
    """
    section, per_node = spec.phase(phase), spec.cluster.gpus_per_node
    best: dict[int, float] = {}
    for ep_size in _ep_sizes(spec, section, nodes):
        for attention_tp in _attention_sizes(spec, section, ep_size):
            for batch_tokens in _batch_tokens(spec, phase):
                start = {"ep_size": ep_size, "attention_tp": attention_tp, "max_batch_tokens": batch_tokens}
                yield from _with_slots(spec, phase, start, max(1, ep_size // per_node), trials, best)


def _ep_sizes(spec: ResolvedSpec, section: PhaseSpec, nodes: range) -> Sequence[int]:
    if not is_auto(section, "ep_size"):
        return [section.ep_size] if 1 in nodes else []  # of whatever nodes it takes
    per_node = spec.cluster.gpus_per_node
    within = [size for size in range(1, per_node + 1) if per_node % size == 0]
    beyond = range(2 * per_node, 2 * spec.model.num_routed_experts + 1, per_node)
    return [size for size in (*within, *beyond) if max(1, size // per_node) in nodes]


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


def _with_slots(
    spec: ResolvedSpec,
    phase: Phase,
    start: Numbers,
    nodes: int,
    trials: Trials,
    best: dict[int, float],
) -> Iterator[Candidate | Lost]:
    """Try one size with more and more slots, until more can only be worse than the `best` of its number of nodes."""
    ep_size, num_logical = start["ep_size"], spec.model.num_routed_experts
    all_redundant = list(_redundant(spec, spec.phase(phase), ep_size))
    if not all_redundant:  # what is written does not divide
        return

    @cache  # one is looked at for its memory, its speed, and the speed that balance could bring
    def trial_at(redundant: int, requests: int) -> Trial:
        return trials.at(spec, phase, {**start, "redundant_experts": redundant}, requests)

    fewest_requests, most_requests = _requests(spec, phase, spec.phase(phase))
    are_free = fewest_requests < most_requests
    if refusal := _refusal(trial_at(all_redundant[0], fewest_requests)):  # more slots or requests only take more room
        yield Lost({**start, "redundant_experts": all_redundant[0]}, "engine", refusal, {})
        return
    most = _most_that_fit(trial_at, all_redundant, fewest_requests)
    ideal = BestBalance(trials.balance, num_logical + most)
    for redundant in all_redundant:
        numbers = {**start, "redundant_experts": redundant}
        if dark := _dark(spec, phase, ep_size, (num_logical + redundant) // ep_size):
            yield Lost(numbers, "failure domain", dark, {})
            continue
        found = _tried(spec, phase, numbers, nodes, trial_at, trials.balance)
        yield found
        best[nodes] = max(best.get(nodes, 0.0), _rate(found))
        if redundant >= most or _bound(found, are_free=are_free) <= best[nodes]:
            return
        if _rate(_tried(spec, phase, numbers, nodes, trial_at, ideal, beyond=found)) <= best[nodes]:
            return


def _most_that_fit(trial_at: TrialAt, all_redundant: Sequence[int], requests: int) -> int:
    """Return the most redundant experts that leave memory for one request, else the fewest that there are."""

    def memory_with(redundant: int) -> MemoryPlan:
        return trial_at(redundant, requests).memory

    fewest = memory_with(all_redundant[0])
    more_slots = max(-fewest.short, 0) // fewest.weights.slot  # besides, activations and buffers never shrink with them
    bounded = all_redundant[: 1 + more_slots]
    if len(bounded) == 1 or memory_with(bounded[-1]).short <= 0:
        return bounded[-1]
    return bounded[bisect_left(bounded, True, key=lambda each: memory_with(each).short > 0) - 1]


def _rate(found: Candidate | Lost) -> float:
    return found.tokens_per_s_per_node if isinstance(found, Candidate) else 0.0


def _bound(found: Candidate | Lost, *, are_free: bool) -> float:
    """Return a rate that no balance exceeds; infinity where nobody knows one, as with `are_free` requests.

    Where all GPUs were like the mean, no part of a step would take less than by as much as the fullest is above it.
    """
    return inf if are_free or isinstance(found, Lost) else found.tokens_per_s_per_node * found.speed.max_over_mean


def _dark(spec: ResolvedSpec, phase: Phase, ep_size: int, slots: int) -> str | None:
    """Return why some expert goes dark with a failure domain that `coverage` names; None where none need."""
    coverage, per_node = spec.written.coverage, spec.cluster.gpus_per_node
    if coverage == "none":
        return None
    of_domain = per_node * (spec.cluster.rack_size or 1 if coverage == "rack" else 1)
    parts = consecutive_domains(ep_size, min(of_domain, ep_size))
    fewest = fewest_slots_per_gpu(spec.model.num_routed_experts, parts)
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


def _tried(
    spec: ResolvedSpec,
    phase: Phase,
    numbers: Numbers,
    nodes: int,
    trial_at: TrialAt,
    balance: Balance,
    beyond: Candidate | Lost | None = None,
) -> Candidate | Lost:
    """Return the layout with as many requests as it takes under a balance, or why it takes none.

    It takes as many as `beyond` at least, which is the same layout with a balance that is no better.
    """
    section = spec.phase(phase)
    looks: dict[int, _Look] = {}

    def look(requests: int) -> "_Look":
        if requests not in looks:
            trial = trial_at(numbers["redundant_experts"], requests)
            looks[requests] = _look(trial, balance, _kv_tokens(spec, phase, requests))
        return looks[requests]

    least, most = _requests(spec, phase, section)
    least = beyond.numbers["max_requests"] if isinstance(beyond, Candidate) else least
    if (first := look(least)).broken is not None:
        return Lost({**numbers, "max_requests": least}, first.broken[0], first.broken[1], first.reached)
    requests = _most_requests(look, least, most, _kv_tokens(spec, phase, 1)) if least < most else least
    speed = look(requests).speed
    assert speed is not None
    per_node = numbers["ep_size"] / nodes
    return Candidate({**numbers, "max_requests": requests}, nodes, speed, speed.tokens_per_s_per_gpu * per_node)


def _most_requests(look: "Callable[[int], _Look]", least: int, most: int, kv_tokens: int) -> int:
    """Return the most requests, each with `kv_tokens`, that break no limit; `least` breaks none.

    The first guess is as many as there is room for beside the buffers of more: fewer leave no less room.
    """
    most = max(min(most, look(least).kv_room // max(kv_tokens, 1)), least)
    guess = look(most).kv_room // max(kv_tokens, 1)
    while least < most:
        middle = min(max(guess, least + 1), most)
        least, most = (middle, most) if look(middle).broken is None else (least, middle - 1)
        guess = (least + most + 1) // 2
    return least


def _requests(spec: ResolvedSpec, phase: Phase, section: PhaseSpec) -> tuple[int, int]:
    """Return the fewest and the most requests that are tried."""
    point: Any = getattr(spec.written.operating_point, phase)
    if not is_auto(section, "max_requests"):
        return section.max_requests, section.max_requests
    if phase == "prefill":
        return 1, 1  # as many as its KV holds: they do not change its speed
    return (point.requests, point.requests) if point and point.requests != AUTO else (1, MAX_REQUESTS)


@dataclass(frozen=True)
class _Look:
    """One layout at one number of requests."""

    kv_room: int  # tokens
    speed: Speed | None
    broken: tuple[Why, str] | None
    reached: Mapping[str, float]


def _look(trial: Trial, balance: Balance, kv_tokens: int) -> _Look:
    memory = trial.memory
    if memory.short > 0:
        return _Look(0, None, ("memory", f"{memory.short / 1e9:.1f} GB short of one request"), {})
    if kv_tokens > memory.kv_tokens:
        room = memory.kv_tokens
        return _Look(room, None, ("memory", f"KV has room for {room:,} of {kv_tokens:,} tokens"), {})
    if refusal := _refusal(trial):
        return _Look(memory.kv_tokens, None, ("engine", refusal), {})
    speed, slo = speed_of(trial, balance), trial.spec.written.slo
    reached = {"tpot_ms": speed.tpot_ms, "ttft_ms": speed.ttft_ms}
    known = {field: value for field, value in reached.items() if value is not None}
    broken = [
        f"{field[:4].upper()} is {value:,.4g} ms, over {KEPT:.0%} of {most:g}"
        for field, value in known.items()
        if (most := getattr(slo, field)) is not None and value > KEPT * most
    ]
    return _Look(memory.kv_tokens, speed, ("slo", " and ".join(broken)) if broken else None, known)


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
