"""Try every layout that a phase's `auto` fields allow, and return its speed or the reason for its rejection.

    ep_size             whole nodes, up to two GPUs per expert and the size of the cluster; divisors of a node
    redundant_experts   equal slots for all GPUs: from the fewest, until no replica is hotter than a GPU's mean load
    attention_tp        sizes that divide heads and node
    max_batch_tokens    powers of two
    max_requests        the most that KV holds and the SLO allows

All combinations that the engine can run are tried. Three kinds of branches are cut, since the best layout cannot be in
them:
    more slots when memory is short            more slots only take more memory
    more slots that cannot pay                 more slots cost KV and bandwidth, and gain only balance. Stop if the
                                               current slots, with the best balance that memory has slots for, would
                                               not beat the best layout on the same number of nodes
    more requests when a limit is broken       TPOT and KV grow with requests, so bisection finds the most

Bisection starts from narrow limits. KV only shrinks as requests or slots are added. A layout with the best balance
takes at least as many requests as with the balance that it really has.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import inf
from typing import Any

from planner.candidate.trial import Numbers, Speed, Trial, speed_of, trial_of
from planner.estimate.coverage import fewest_slots
from planner.estimate.throughput.replicas import Balance, BestBalance, ReplicaBalance
from planner.estimate.utilisation import SLO_MARGIN
from planner.facts.terms import Phase
from planner.rules.attention import attention_sizes
from planner.rules.engine_limits import runs_layout
from planner.search.ranked import AcceptedLayout, RejectedLayout
from planner.search.unit_sizes import ep_sizes, even_redundants
from planner.spec.decision import DEFAULT_REQUESTS, MAX_REQUESTS, is_auto
from planner.spec.phase import PhaseSpec
from planner.spec.request_lengths import request_lengths
from planner.spec.resolved import ResolvedSpec
from planner.spec.undecided import AUTO

SIZES = ("ep_size", "attention_tp", "redundant_experts", "max_requests")  # an engine's exchange depends on them
UNKNOWN_SPEED = Speed(1.0, None, None, 1.0)  # all GPUs count as equally fast
BATCH_TOKENS = tuple(2**power for power in range(9, 16))  # 512 to 32,768


def try_layouts(
    spec: ResolvedSpec, phase: Phase, nodes: range, balance: ReplicaBalance | None, *, at_full_length: bool = False
) -> Iterator[AcceptedLayout | RejectedLayout]:
    """Yield an outcome, accepted or rejected, for each layout of `phase` whose unit takes a number of nodes in `nodes`.

    If the spec writes the EP size, it is tried if `nodes` contains 1, however many nodes it takes. Without a `balance`
    memory alone decides, and all GPUs count as equally fast. `at_full_length` asks for room for all requests at full
    length.
    """
    section, is_speed_known = spec.phase(phase), balance is not None
    best: dict[int, float] = {}
    for ep_size in _ep_size_candidates(spec, phase, nodes):
        for attention_tp in _attention_tp_candidates(spec, section, ep_size, is_speed_known):
            for batch_tokens in _batch_token_candidates(spec, phase, is_speed_known):
                start = {"ep_size": ep_size, "attention_tp": attention_tp, "max_batch_tokens": batch_tokens}
                yield from _try_slots(_SizeTrials(spec, phase, start, at_full_length), balance, best)


def _ep_size_candidates(spec: ResolvedSpec, phase: Phase, nodes: range) -> Sequence[int]:
    sizes = ep_sizes(spec, phase)
    if not is_auto(spec.phase(phase), "ep_size"):
        return sizes if 1 in nodes else []  # only in the first of several calls
    return [size for size in sizes if max(1, size // spec.cluster.gpus_per_node) in nodes]


def _attention_tp_candidates(
    spec: ResolvedSpec, section: PhaseSpec, ep_size: int, is_speed_known: bool
) -> Sequence[int]:
    if not is_auto(section, "attention_tp"):
        return [section.attention_tp] if ep_size % section.attention_tp == 0 else []
    if not is_speed_known:
        return [1]
    per_node = spec.cluster.gpus_per_node
    return [each for each in attention_sizes(ep_size, per_node, spec.model) if each <= per_node]


def _batch_token_candidates(spec: ResolvedSpec, phase: Phase, is_speed_known: bool) -> Sequence[int]:
    section, point = spec.phase(phase), getattr(spec.written.operating_point, phase)
    if not is_auto(section, "max_batch_tokens"):
        return [section.max_batch_tokens]
    if phase == "decode" or not is_speed_known:
        return [int(PhaseSpec.model_fields["max_batch_tokens"].default)]  # in decode, which computes no prompts, idle
    if phase == "prefill" and point and point.step_tokens != AUTO:
        return [point.step_tokens]
    return BATCH_TOKENS[::-1]  # the largest is mostly best


@dataclass(frozen=True)
class _SizeTrials:
    """The trials of one EP size, attention TP and step length, by numbers of redundant experts and requests."""

    spec: ResolvedSpec
    phase: Phase
    start: Numbers
    at_full_length: bool  # whether KV must have room for all requests at full length
    trials: dict[tuple[int, int], Trial] = field(default_factory=dict)

    def trial(self, redundant: int, requests: int) -> Trial:
        """Return the trial with these numbers of redundant experts and requests. Each trial is made once."""
        key = redundant, requests
        if key not in self.trials:
            self.trials[key] = trial_of(self.spec, self.phase, self.numbers(redundant, requests), requests)
        return self.trials[key]

    def numbers(self, redundant: int, requests: int) -> Numbers:
        """Return the sizes of the trial with these numbers of redundant experts and requests, by field."""
        return {**self.start, "redundant_experts": redundant, "max_requests": requests}


def _try_slots(
    size: _SizeTrials, balance: ReplicaBalance | None, best: dict[int, float]
) -> Iterator[AcceptedLayout | RejectedLayout]:
    """Yield the outcome of one EP size with more and more redundant experts, until more cannot beat the best rate.

    `best` is number of nodes of a unit -> the best tokens/s per node so far, and is updated. Without a `balance` only
    the fewest are tried. Yield nothing if the written number does not give all GPUs equally many slots, and only a
    rejection if the engine cannot run the EP size.
    """
    spec, ep_size, num_logical = size.spec, size.start["ep_size"], size.spec.model.num_routed_experts
    all_redundant = even_redundants(spec, size.phase, ep_size)
    if not all_redundant:  # the written number does not give equal slots
        return
    if balance is None:
        yield from _try_fewest_slots(size, all_redundant)
        return
    fewest_requests, most_requests = _request_range(spec, size.phase)
    first = size.trial(all_redundant[0], fewest_requests)
    if refusal := _engine_refusal(first):  # more slots or requests only take more room
        yield RejectedLayout(size.numbers(all_redundant[0], fewest_requests), "engine", refusal, {})
        return
    nodes = first.layout.nodes_per_unit
    most = _max_redundant_in_memory(size, all_redundant, fewest_requests)
    ideal = BestBalance(balance, num_logical + most)
    for redundant in all_redundant:
        if failure := _coverage_failure(spec, ep_size, (num_logical + redundant) // ep_size):
            yield RejectedLayout(size.numbers(redundant, fewest_requests), "failure domain", failure, {})
            continue
        found = _find_most_requests(size, redundant, balance, fewest_requests)
        yield found
        best[nodes] = max(best.get(nodes, 0.0), _rate(found))
        if redundant >= most or _rate_bound(found, are_free=fewest_requests < most_requests) <= best[nodes]:
            return
        least = found.numbers["max_requests"] if isinstance(found, AcceptedLayout) else fewest_requests
        if _rate(_find_most_requests(size, redundant, ideal, least)) <= best[nodes]:
            return


def _try_fewest_slots(size: _SizeTrials, all_redundant: Sequence[int]) -> Iterator[AcceptedLayout | RejectedLayout]:
    """Yield the outcome of the fewest redundant experts above 0 with which `coverage` is met.

    These give hot experts replicas. Where they are rejected, because the engine has no such slots or memory no room for
    them, yield 0's outcome as well.
    """
    spec, ep_size, fewest_requests = size.spec, size.start["ep_size"], _request_range(size.spec, size.phase)[0]
    num_logical = spec.model.num_routed_experts
    failures = {each: _coverage_failure(spec, ep_size, (num_logical + each) // ep_size) for each in all_redundant}
    covered = [each for each, failure in failures.items() if failure is None]
    above = [each for each in covered if each > 0][:1]
    for redundant in [*above, *(each for each in covered if each == 0)]:
        found = _find_most_requests(size, redundant, None, fewest_requests)
        yield found
        if isinstance(found, AcceptedLayout):
            return
    if failure := failures[all_redundant[-1]]:
        yield RejectedLayout(size.numbers(all_redundant[-1], fewest_requests), "failure domain", failure, {})


def _max_redundant_in_memory(size: _SizeTrials, all_redundant: Sequence[int], requests: int) -> int:
    """Return the largest of `all_redundant` that fits into memory beside one request.

    Return the smallest if none fits.
    """
    fewest = size.trial(all_redundant[0], requests).memory
    more_slots = max(-fewest.missing_bytes, 0) // fewest.weights.slot  # an upper bound: buffers grow with slots too
    bounded = all_redundant[: 1 + more_slots]
    if size.trial(bounded[-1], requests).memory.missing_bytes <= 0:
        return bounded[-1]
    short = bisect_left(bounded, True, lo=1, key=lambda each: size.trial(each, requests).memory.missing_bytes > 0)
    return bounded[short - 1]


def _rate(found: AcceptedLayout | RejectedLayout) -> float:
    return found.tokens_per_s_per_node if isinstance(found, AcceptedLayout) else 0.0


def _rate_bound(found: AcceptedLayout | RejectedLayout, *, are_free: bool) -> float:
    """Return the tokens/s per node that a layout cannot exceed even with perfectly balanced load; infinity if unknown.

    The bound is unknown for a rejected layout, and if the number of requests is free (`are_free`). With perfect
    balance, every part of a step takes at least 1 / (max/mean) of its current time.
    """
    return (
        inf
        if are_free or isinstance(found, RejectedLayout)
        else found.tokens_per_s_per_node * found.speed.max_over_mean
    )


def _coverage_failure(spec: ResolvedSpec, ep_size: int, slots: int) -> str | None:
    """Return the reason why some expert would not survive the loss of a node or rack; None if `coverage` can be met.

    `slots` is the number of expert slots of one GPU.
    """
    coverage = spec.written.coverage
    if coverage == "none":
        return None
    fewest = fewest_slots(spec, ep_size, coverage)
    if fewest is None:
        return f"all of a unit's experts are in one {coverage}"
    return f"two {coverage}s for each expert take {fewest} slots a GPU, not {slots}" if slots < fewest else None


def _engine_refusal(trial: Trial) -> str | None:
    """Return the reason why the engine cannot run the trial's sizes.

    Return None if the engine can run them, or if the spec wrote all of them.
    """
    phase, written = trial.layout.phase, trial.spec.written
    is_left = any(f"{phase}.{field}" in trial.spec.document.autos for field in SIZES)
    if not is_left or runs_layout(trial.spec, phase):
        return None
    return f"{written.engine_name} {written.engine_version} cannot run it"


def _find_most_requests(
    size: _SizeTrials, redundant: int, balance: Balance | None, least: int
) -> AcceptedLayout | RejectedLayout:
    """Return the layout with the most requests that memory and SLO allow, at least `least`.

    Return the rejection if even `least` requests are too many. Buffers grow with requests and take memory from KV. So
    the first guess is the number of requests whose KV fits beside the buffers for the most requests to try.
    """
    most = _request_range(size.spec, size.phase)[1]
    judged = cache(lambda requests: _judge(size, redundant, requests, balance))
    if isinstance(judged(least), RejectedLayout) or least == most:
        return judged(least)
    kv_tokens = max(_kv_tokens(size, 1), 1)
    most = max(min(most, size.trial(redundant, least).memory.kv_tokens // kv_tokens), least)
    guess = size.trial(redundant, most).memory.kv_tokens // kv_tokens
    while least < most:
        middle = min(max(guess, least + 1), most)
        least, most = (middle, most) if isinstance(judged(middle), AcceptedLayout) else (least, middle - 1)
        guess = (least + most + 1) // 2
    return judged(least)


def _request_range(spec: ResolvedSpec, phase: Phase) -> tuple[int, int]:
    """Return (fewest, most) requests per GPU that the search tries for `phase`."""
    point: Any = getattr(spec.written.operating_point, phase)
    if not is_auto(spec.phase(phase), "max_requests"):
        return spec.phase(phase).max_requests, spec.phase(phase).max_requests
    if spec.gpu_of(phase).usable_bytes is None:
        return DEFAULT_REQUESTS, DEFAULT_REQUESTS
    if phase == "prefill":
        return 1, 1  # it becomes as many as its KV holds, and a trial is predicted with those
    return (point.requests, point.requests) if point and point.requests != AUTO else (1, MAX_REQUESTS)


def _judge(
    size: _SizeTrials, redundant: int, requests: int, balance: Balance | None
) -> AcceptedLayout | RejectedLayout:
    """Return the layout with these redundant experts and requests, accepted or rejected by memory, engine and SLO."""
    trial, numbers = size.trial(redundant, requests), size.numbers(redundant, requests)
    if refusal := _memory_refusal(size, trial, requests):
        return RejectedLayout(numbers, "memory", refusal, {})
    if refusal := _engine_refusal(trial):
        return RejectedLayout(numbers, "engine", refusal, {})
    speed, slo = speed_of(trial, balance) if balance else UNKNOWN_SPEED, size.spec.written.slo
    reached = {"tpot_ms": speed.tpot_ms, "ttft_ms": speed.ttft_ms}
    known = {field: value for field, value in reached.items() if value is not None}
    broken = [
        f"{field[:4].upper()} is {value:,.4g} ms, over {SLO_MARGIN:.0%} of {most:g}"
        for field, value in known.items()
        if (most := getattr(slo, field)) is not None and value > SLO_MARGIN * most
    ]
    if broken:
        return RejectedLayout(numbers, "slo", " and ".join(broken), known)
    per_node = trial.layout.ep_size / trial.layout.nodes_per_unit
    return AcceptedLayout(numbers, trial.layout.nodes_per_unit, speed, speed.tokens_per_s_per_gpu * per_node)


def _memory_refusal(size: _SizeTrials, trial: Trial, requests: int) -> str | None:
    """Return what a GPU's memory has no room for in the trial; None if it has room, or if its size is unknown."""
    if size.spec.gpu_of(size.phase).usable_bytes is None:
        return None
    memory, kv_tokens = trial.memory, _kv_tokens(size, requests)
    if memory.missing_bytes > 0:
        return f"{memory.missing_bytes / 1e9:.1f} GB short of one request"
    return f"KV has room for {memory.kv_tokens:,} of {kv_tokens:,} tokens" if kv_tokens > memory.kv_tokens else None


def _kv_tokens(size: _SizeTrials, requests: int) -> int:
    """Return the tokens of KV that must fit on a GPU: those of `requests` requests of mean length.

    The mean length comes from the operating point, else from the traffic, else it is half the longest request. Only
    one request of full length must fit in prefill, and if `max_requests` is written but the operating point gives
    no requests, because `max_requests` is then only a limit. If asked for, all requests must fit at full length.
    """
    phase, section = size.phase, size.spec.phase(size.phase)
    point = getattr(size.spec.written.operating_point, phase)
    of_point = int(point.requests * point.kv_tokens) if point and phase != "prefill" and point.requests != AUTO else 0
    if size.at_full_length and phase != "prefill":
        return max(requests * section.max_request_tokens, of_point)
    if of_point:
        return of_point
    if phase == "prefill" or not is_auto(section, "max_requests"):
        return section.max_request_tokens
    return int(requests * (point.kv_tokens if point else request_lengths(size.spec.written, phase).kv))
