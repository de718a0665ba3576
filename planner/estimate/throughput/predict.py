"""Predict a phase at an operating point: its rates, latencies and bottleneck.

    decode     tokens/s per GPU = requests x accepted / attention TP / step     accepted: one token, and right drafts
    prefill    tokens/s per GPU = step tokens / attention TP / step            computed tokens, without cache hits
    mixed      prompts and tokens alternate (`turns.py`), in a steady state

`utilisation`, the used share of the saturated rate, is an input. If the TTFT SLO sets it, `estimate/utilisation.py`
computes it.

Prompts wait for prefill in a queue whose server takes one step at a time (`queue.py`). A saturated phase has no mean
wait: its TTFT leaves waiting out, and the plan says so. Mixed units take all waiting prompts at once. TPOT's 99th
percentile comes from the KV of requests with exponential lengths, or from a step of tokens that waits for prompts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt

from planner.estimate.throughput.dimensions import Bytes, Seconds, transfer_time
from planner.estimate.throughput.engines import EngineModel
from planner.estimate.throughput.intervals import Estimate, Evidence, add_range
from planner.estimate.throughput.machine import RESOURCES, Machine
from planner.estimate.throughput.point import OperatingPoint
from planner.estimate.throughput.stages import Exchange, Imbalance, Overheads, Setup, UnitShape
from planner.estimate.throughput.step import StepTime, decode_step, prompt_step
from planner.estimate.throughput.turns import SteadyTurns, pieces_per_turn, steady_turns
from planner.estimate.throughput.work import ModelWork
from planner.facts.quantities import MS_PER_S
from planner.facts.terms import Overlap, Phase

MORE = 1.1  # factor on a resource's rate, to find the bottleneck
RARE = 0.01  # share of requests at or beyond the 99th percentile
NORMAL_99 = 2.326  # quantile
NO_OVERHEADS = Overheads(0.0, 0.0, 1.0, 0.0)


@dataclass(frozen=True)
class Case:
    """The input of a prediction: a phase of an engine on a GPU, with its layout and load."""

    phase: Phase
    machine: Machine
    model: ModelWork
    unit: UnitShape
    overlap: Overlap
    engine: EngineModel
    imbalance: Imbalance  # of the plan's map, without the engine's own
    exchange: Exchange  # of normal dispatch
    point: OperatingPoint
    kv_bytes_per_token: int = 0  # on one GPU of an attention group
    whole_kv_bytes_per_token: int = 0  # of the whole attention group, as a prefix cache stores it
    gpus_per_node: int = 8

    @property
    def setup(self) -> Setup:
        """Return everything that determines a step's time except the load."""
        return Setup(
            *(self.machine, self.model, self.unit, self.imbalance, self.engine.overheads, self.overlap, self.exchange)
        )

    @property
    def pairs_per_gpu(self) -> float:
        """Return the mean number of token-expert pairs that a GPU receives in one MoE layer of a step."""
        point = self.point
        tokens = point.step_tokens if self.phase == "prefill" else point.requests * point.step_queries
        return tokens / self.unit.attention_tp * max(each.experts_per_token for each in self.model.layers)

    @property
    def num_groups(self) -> float:
        """Return the number of attention groups in a unit."""
        return self.unit.num_gpus / self.unit.attention_tp

    @property
    def piece(self) -> float:
        """Return how many tokens of one prompt an attention group computes in a step: all, or at most `step_tokens`."""
        return min(max(self.point.computed_tokens, 1.0), self.point.step_tokens)

    @property
    def pieces_per_prompt(self) -> float:
        """Return how many pieces a prompt has on average. A piece is what a group computes of a prompt in one step."""
        return max(self.point.computed_tokens, 1.0) / self.piece

    @property
    def most_pieces(self) -> float:
        """Return the most pieces of prompts that all groups of a mixed unit compute in one turn."""
        return self.num_groups * self.point.step_tokens / self.piece

    @property
    def context(self) -> float:
        """Return how many tokens of its prompt a computed token attends to on average, cached ones included."""
        hits = self.point.cache_hit_rate
        return self.point.prompt_tokens * (hits + (1 - hits) / 2)


@dataclass(frozen=True)
class Binding:
    """The bottleneck: the resource that raises throughput most if increased by ten per cent."""

    resource: str
    tokens_per_s_per_gpu: float  # with ten per cent more of the resource


@dataclass(frozen=True)
class Prediction:
    """The predicted rates and latencies of a phase at its operating point. Prefill's rates count computed tokens."""

    phase: Phase
    point: OperatingPoint
    tokens_per_s_per_gpu: Estimate
    num_gpus: int
    step: StepTime
    step_seconds: Estimate
    ttft_seconds: Estimate | None
    ttft_99_seconds: Estimate | None
    tpot_seconds: Estimate | None
    tpot_99_seconds: Estimate | None
    kv_transfer_seconds: float | None
    cache_read_bytes_per_s: float  # cached KV that a node reads, at the predicted rate
    cache_read_seconds: float  # time to read a prompt's cached KV
    imbalance: Imbalance
    binding: Binding
    evidence: Evidence
    engine: str

    @property
    def is_saturated(self) -> bool:
        """Return whether prefill is fully used, so that its queue grows without end.

        If so, the predicted TTFT is the TTFT of a prompt that does not wait.
        """
        return self.phase == "prefill" and self.point.utilisation >= 1

    def meets(self, mean: Estimate, promised_ms: float) -> bool:
        """Return whether `mean`, this prediction's TTFT or TPOT, is within `promised_ms` at the expected speed."""
        return self.meets_at(mean, mean.mid, promised_ms)

    def meets_at(self, mean: Estimate, seconds: float, promised_ms: float) -> bool:
        """Return whether `mean`, this prediction's TTFT or TPOT, keeps `promised_ms` if its true value is `seconds`.

        A saturated prefill keeps no TTFT.
        """
        return seconds * MS_PER_S <= promised_ms and not (mean is self.ttft_seconds and self.is_saturated)

    @property
    def tokens_per_s_with_hits(self) -> Estimate | None:
        """Return prefill's tokens/s per GPU with cached prompt tokens counted; None if there are no cache hits."""
        hits = self.point.cache_hit_rate
        return self.tokens_per_s_per_gpu.times(1 / (1 - hits)) if self.phase == "prefill" and 0 < hits < 1 else None


def predict(case: Case, evidence: Evidence, worst: Imbalance | None = None, *, with_spans: bool = False) -> Prediction:
    """Predict the rates and latencies of `case`.

    `evidence`, and the `worst` imbalance if given, determine the width of ranges. `with_spans` adds the times of the
    spans of one layer to the prediction.
    """
    drifted = None if worst is None else saturated_rate(replace(case, imbalance=worst))
    turns = mixed_turns(case) if case.phase == "mixed" else None
    case = _apply_engine(case)
    rate, step = _rate_and_step(case, with_spans=with_spans)
    rates = add_range(rate, max(rate, overhead_free_rate(case)), evidence, drifted)
    per_step = rates.inverse(rate * step.seconds)
    latencies = _decode_latencies(case, per_step, rates, turns) if case.phase != "prefill" else (None, None)
    waits = _prompt_latencies(case, rates, rate, turns) if case.phase != "decode" else (None, None, None)
    return Prediction(
        phase=case.phase,
        point=case.point,
        tokens_per_s_per_gpu=rates.times(case.point.utilisation),
        num_gpus=case.unit.num_gpus,
        step=step,
        step_seconds=per_step,
        ttft_seconds=waits[0],
        ttft_99_seconds=waits[1],
        kv_transfer_seconds=waits[2],
        cache_read_bytes_per_s=_cache_read_rate(case, rate),
        cache_read_seconds=prompt_read_time(case),
        tpot_seconds=latencies[0],
        tpot_99_seconds=latencies[1],
        imbalance=case.imbalance,
        binding=_binding(case),
        evidence=evidence,
        engine=case.engine.name,
    )


def saturated_rate(case: Case) -> float:
    """Return the tokens/s of one GPU at full use. The search compares layouts by this rate."""
    return _rate_and_step(_apply_engine(case))[0]


def overhead_free_rate(case: Case) -> float:
    """Return the tokens/s of one GPU without overheads and with balanced GPUs."""
    return _rate_and_step(_without_overheads(_apply_engine(case)))[0]


def token_step_seconds(case: Case, requests: float, kv_tokens: float, fullness: float = 1.0) -> float:
    """Return the seconds in which each of an attention group's `requests`, with `kv_tokens` of KV each, gets one token.

    With drafts, a step gives a request several tokens, and its time is divided by their mean number. The group is the
    fullest of its unit. `fullness` is the mean group's load over the fullest group's, because experts see the mean. The
    imbalance of experts stays that of the case's own operating point.
    """
    point = replace(case.point, requests=requests, kv_tokens=kv_tokens)
    step = _token_step(_scale_imbalance(_apply_engine(replace(case, point=point)), fullness))
    return step.seconds / case.point.accepted_tokens / case.engine.factor.get(case.phase, 1.0)


def prompt_step_seconds(
    case: Case, tokens: float, context: float, prompt_tokens: float, fullness: float = 1.0
) -> float:
    """Return the seconds of a step in which an attention group computes `tokens` prompt tokens.

    Each token reads `context` tokens of its prompt on average, and `prompt_tokens` of each prompt are computed.
    `fullness` and the imbalance of experts are as in `token_step_seconds`.
    """
    case = _scale_imbalance(_apply_engine(case), fullness)
    seconds: float = _prompt_step(case, tokens, context, prompt_tokens).seconds
    if case.phase == "prefill":
        of_node = fullness * tokens / case.unit.attention_tp * case.gpus_per_node
        seconds = max(seconds, case.point.cache_read_time(of_node, case.whole_kv_bytes_per_token))
    return seconds / case.engine.factor.get(case.phase, 1.0)


def turn_prompt_seconds(case: Case, load: float) -> float:
    """Return the seconds for which a mixed unit computes prompts in one turn, if `load` pieces arrive per turn.

    A turn is a step for all waiting pieces of prompts, and then a step of tokens (`turns.py`). The pieces are spread
    over as many groups as possible.
    """
    return _turn_prompt_seconds(_apply_engine(case), load) / case.engine.factor.get(case.phase, 1.0)


def mixed_turns(case: Case) -> SteadyTurns:
    """Return how a mixed unit divides its time between prompts and tokens, at the operating point's requests."""
    case = _apply_engine(case)
    return _engine_turns(case).times(1 / case.engine.factor.get(case.phase, 1.0))


def turns_rate(case: Case, turns: SteadyTurns) -> float:
    """Return the output tokens/s of one GPU of a mixed unit that divides its time like `turns`."""
    prompts_per_s = turns.pieces_per_s / case.pieces_per_prompt
    return prompts_per_s * case.point.output_tokens / case.unit.num_gpus


def _scale_imbalance(case: Case, fullness: float) -> Case:
    """Return `case` with the imbalance of experts multiplied by `fullness`.

    A step is predicted for the fullest attention group, but experts receive tokens of all groups, as many as if every
    group had the mean load.
    """
    imbalance = Imbalance(case.imbalance.gpus * fullness, case.imbalance.nodes * fullness)
    return replace(case, imbalance=imbalance)


def prompt_read_time(case: Case) -> Seconds:
    """Return the time to read a prompt's cached KV, if no other rank of the node reads."""
    return case.point.cache_read_time(case.point.computed_tokens, case.whole_kv_bytes_per_token)


def _cache_read_rate(case: Case, rate: float) -> float:
    """Return the bytes/s of cached KV that a node reads, if `rate` is the tokens/s of one GPU at full use."""
    per_token = case.point.cached_bytes(1, case.whole_kv_bytes_per_token)
    if case.phase == "mixed":
        rate *= case.point.computed_tokens / case.point.output_tokens
    return rate * case.point.utilisation * case.gpus_per_node * per_token


def _step_read_time(case: Case) -> Seconds:
    """Return the time in which a node reads the cached KV that one prefill step of all its GPUs needs."""
    of_node = case.point.step_tokens / case.unit.attention_tp * case.gpus_per_node
    return case.point.cache_read_time(of_node, case.whole_kv_bytes_per_token)


def _apply_engine(case: Case) -> Case:
    """Return `case` with the engine's constants for imbalance and core attention applied to it."""
    engine, excess = case.engine, case.engine.imbalance.get(case.phase, 1.0)
    imbalance = Imbalance(case.imbalance.gpus * excess, case.imbalance.nodes * excess)
    machine = case.machine
    if engine.core_share is not None:
        machine = replace(machine, kernels=replace(machine.kernels, core_share=engine.core_share))
    return replace(case, imbalance=imbalance, machine=machine)


def _without_overheads(case: Case) -> Case:
    engine = replace(case.engine, overheads=NO_OVERHEADS, factor={})
    return replace(case, engine=engine, imbalance=Imbalance())


def _rate_and_step(case: Case, *, with_spans: bool = False) -> tuple[float, StepTime]:
    """Return (tokens/s of one GPU at full use, time of one step). A mixed unit's step generates tokens."""
    factor = case.engine.factor.get(case.phase, 1.0)
    point, group = case.point, case.unit.attention_tp
    if case.phase == "prefill":
        step = _full_prompt_step(case, with_spans=with_spans)
        return factor * point.step_tokens / group / max(step.seconds, _step_read_time(case)), step
    step = _token_step(case, with_spans=with_spans)
    if case.phase == "decode":
        return factor * point.requests * point.accepted_tokens / group / step.seconds, step
    return factor * turns_rate(case, _engine_turns(case)), step


def _engine_turns(case: Case) -> SteadyTurns:
    """Return how a mixed unit divides its time, before the engine's constant factor on its rate.

    `case` is a result of `_apply_engine`.
    """
    point = case.point
    ended = case.num_groups * point.requests * point.accepted_tokens / point.output_tokens

    def token_seconds(share: float) -> float:
        seconds: float = _token_step(replace(case, point=replace(point, requests=share * point.requests))).seconds
        return seconds

    return steady_turns(
        ended * case.pieces_per_prompt, case.most_pieces, lambda load: _turn_prompt_seconds(case, load), token_seconds
    )


def _turn_prompt_seconds(case: Case, load: float) -> float:
    """Return the seconds that prompts take in one turn (`turns.py`), before the engine's constant factor.

    `load` is the mean number of pieces of prompts that arrive in a turn of a mixed unit. The fullest group
    determines the time of attention, and the mean group the time of experts.
    """
    each = min(pieces_per_turn(load), case.most_pieces) / case.num_groups
    fullest = max(each, 1.0)
    whole = max(case.point.computed_tokens, 1.0)
    return _prompt_step(_scale_imbalance(case, each / fullest), fullest * case.piece, case.context, whole).seconds


def _token_step(case: Case, *, with_spans: bool = False) -> StepTime:
    point = case.point
    return decode_step(case.setup, point.requests, point.kv_tokens, point.draft_tokens, with_spans=with_spans)


def _full_prompt_step(case: Case, *, with_spans: bool = False) -> StepTime:
    whole = max(case.point.computed_tokens, 1.0)
    return _prompt_step(case, case.point.step_tokens, case.context, whole, with_spans=with_spans)


def _prompt_step(
    case: Case, tokens: float, context: float, prompt_tokens: float, *, with_spans: bool = False
) -> StepTime:
    with_drafts = case.point.draft_tokens > 0
    return prompt_step(case.setup, tokens, context, prompt_tokens, with_drafts=with_drafts, with_spans=with_spans)


def _decode_latencies(
    case: Case, step: Estimate, rates: Estimate, turns: SteadyTurns | None
) -> tuple[Estimate, Estimate]:
    """Return (mean, 99th percentile) of TPOT in seconds."""
    mean = rates.inverse(case.point.requests / case.unit.attention_tp)
    if turns is not None:
        mean = rates.inverse(rates.mid * turns.seconds_per_step / case.point.accepted_tokens)
    longer = case.point.kv_tokens * (1 + NORMAL_99 / sqrt(max(case.point.requests, 1.0)))
    slow = _token_step(replace(case, point=replace(case.point, kv_tokens=longer))).seconds
    slower = mean.times(slow / step.mid)
    if turns is not None and turns.delays_more_than(RARE):
        slower = rates.inverse(rates.mid * turns.seconds / case.point.accepted_tokens)
    return mean, slower


def _prompt_latencies(
    case: Case, rates: Estimate, rate: float, turns: SteadyTurns | None
) -> tuple[Estimate, Estimate, float | None]:
    """Return (mean of TTFT, its 99th percentile, seconds to send a prompt's KV from prefill to decode).

    The seconds are None in mixed units, and if the GPU has no NIC.
    """
    point, group = case.point, case.unit.attention_tp
    step = max(_full_prompt_step(case).seconds, _step_read_time(case)) / case.engine.factor.get(case.phase, 1.0)
    wait, rarely = point.queued_steps * step, point.queued_steps_exceeded_by(RARE) * step
    if turns is not None:
        step, wait, rarely = turns.seconds, turns.mean_wait_s, turns.wait_exceeded_by(RARE)
    slower, read, computing = rates.inverse(rate), prompt_read_time(case), point.prompt_steps * step
    transfer = None
    if case.phase == "prefill" and case.machine.nic:
        num_bytes = Bytes(point.prompt_tokens * case.kv_bytes_per_token / group)
        transfer = float(transfer_time(num_bytes, case.machine.nic))
    mean, slow = slower.times(computing + wait), slower.times(computing + max(wait, rarely))
    return mean.plus(read), slow.plus(read), transfer


def _binding(case: Case) -> Binding:
    """Return the bottleneck, and the tokens/s of one GPU if it were MORE times as good.

    Each of the GPU's rates, reads of cached KV, the overheads and the balance of experts is improved by MORE in turn.
    The bottleneck is the one whose improvement gives the highest rate.
    """
    tried: dict[str, Callable[[], Case]] = {
        called: lambda field=field: replace(case, machine=case.machine.scale_rate(field, MORE))  # type: ignore[misc]
        for field, called in RESOURCES.items()
        if getattr(case.machine, field)
    }
    if case.phase == "prefill" and case.point.cache_hit_rate:
        more = replace(case.point, cache_read_gbps=case.point.cache_read_gbps * MORE)
        tried["reads of cached KV"] = lambda: replace(case, point=more)
    overheads = case.engine.overheads
    less = replace(
        overheads,
        between_us=overheads.between_us / MORE,
        prompt_between_us=overheads.prompt_between_us / MORE,
        host_ms=overheads.host_ms / MORE,
        skew_us=overheads.skew_us / MORE,
    )
    tried["launches and the host"] = lambda: replace(case, engine=replace(case.engine, overheads=less))
    even = Imbalance(*(1 + (each - 1) / MORE for each in (case.imbalance.gpus, case.imbalance.nodes)))
    tried["the balance of experts"] = lambda: replace(case, imbalance=even)
    rates = {called: _rate_and_step(make())[0] for called, make in tried.items()}
    best = max(rates, key=lambda called: rates[called])
    return Binding(best, rates[best] * case.point.utilisation)
