"""What a phase does at an operating point: rates, latencies, what binds.

    decode     tokens/s a GPU = requests x accepted / attention TP / step one token, and drafts that are right
    prefill    tokens/s a GPU = step tokens / attention TP / step         computed tokens: hits are counted besides
    mixed      both take turns (`turns.py`), so that as many requests end as come

`utilisation` is the share of the saturated rate that a service uses: it is an input, and never hidden. Where it follows
from a TTFT that is promised, `estimate/utilisation.py` says so.

Waiting for prefill is that of a queue whose server takes one step at a time (`queue.py`). A saturated phase has no
mean: its TTFT is without waiting, and says so. Mixed units take all prompts that wait at once. TPOT's 99th percentile
is of the KV that requests of exponential length happen to have, or of a step that waits for prompts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt

from planner.estimate.throughput.dimensions import Bytes, Seconds, moving
from planner.estimate.throughput.engines import EngineModel
from planner.estimate.throughput.intervals import Estimate, Evidence, spread
from planner.estimate.throughput.machine import RESOURCES, Machine
from planner.estimate.throughput.point import OperatingPoint
from planner.estimate.throughput.reading import bytes_per_computed_token, reading
from planner.estimate.throughput.stages import Exchange, Imbalance, Overheads, Setup, UnitShape
from planner.estimate.throughput.step import StepTime, decode_step, prompt_step
from planner.estimate.throughput.turns import SteadyTurns, pieces_of_turn, steady_turns
from planner.estimate.throughput.work import ModelWork
from planner.facts.quantities import MS_PER_S
from planner.facts.terms import Overlap, Phase

__all__ = [
    "Binding",
    "Case",
    "Prediction",
    "predict",
    "prompt_reading",
    "prompt_step_seconds",
    "rate_of_turns",
    "saturated_rate",
    "token_step_seconds",
    "turn_prompt_seconds",
    "turns_at",
    "unhindered_rate",
]

MORE = 1.1  # of a resource, to ask what it is worth
RARE = 0.01  # the share of requests that wait for the 99th percentile or longer
NORMAL_99 = 2.326  # quantile
NO_OVERHEADS = Overheads(0.0, 0.0, 1.0, 0.0)


@dataclass(frozen=True)
class Case:
    """What is asked: a phase of an engine on a GPU, laid out and loaded so."""

    phase: Phase
    machine: Machine
    model: ModelWork
    unit: UnitShape
    overlap: Overlap
    engine: EngineModel
    imbalance: Imbalance  # of the plan's map; the engine's is on top
    exchange: Exchange  # of normal dispatch
    point: OperatingPoint
    kv_bytes_per_token: int = 0  # that one GPU of a group has
    whole_kv_bytes_per_token: int = 0  # as a cache has it
    gpus_per_node: int = 8

    @property
    def setup(self) -> Setup:
        """What computes its steps."""
        return Setup(
            *(self.machine, self.model, self.unit, self.imbalance, self.engine.overheads, self.overlap, self.exchange)
        )

    @property
    def pairs_per_gpu(self) -> float:
        """Pairs of a token and an expert that a GPU receives in a step, on average."""
        point = self.point
        tokens = point.step_tokens if self.phase == "prefill" else point.requests * point.step_queries
        return tokens / self.unit.attention_tp * max(each.experts_per_token for each in self.model.layers)

    @property
    def num_groups(self) -> float:
        """Attention groups of a unit."""
        return self.unit.num_gpus / self.unit.attention_tp

    @property
    def piece(self) -> float:
        """Tokens of a prompt that a group computes in a step: all of it, or what a step takes."""
        return min(max(self.point.computed_tokens, 1.0), self.point.step_tokens)

    @property
    def pieces_per_prompt(self) -> float:
        """Pieces of a prompt, on average."""
        return max(self.point.computed_tokens, 1.0) / self.piece

    @property
    def most_pieces(self) -> float:
        """Pieces that a turn of all groups takes."""
        return self.num_groups * self.point.step_tokens / self.piece

    @property
    def context(self) -> float:
        """Tokens of its prompt that a computed token reads, on average."""
        hits = self.point.cache_hit_rate
        return self.point.prompt_tokens * (hits + (1 - hits) / 2)


@dataclass(frozen=True)
class Binding:
    """The resource of which ten per cent more help most."""

    resource: str
    tokens_per_s_per_gpu: float  # with so much more of it


@dataclass(frozen=True)
class Prediction:
    """A phase at its operating point. Rates of prefill count computed tokens."""

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
    cache_read_bytes_per_s: float  # of a node, with this rate
    cache_read_seconds: float  # of a prompt
    imbalance: Imbalance
    binding: Binding
    evidence: Evidence
    engine: str

    @property
    def waits_without_end(self) -> bool:
        """Whether prompts wait longer and longer for their turn: prefill is asked for all that it makes.

        Its TTFT is then that of a prompt which never waits.
        """
        return self.phase == "prefill" and self.point.utilisation >= 1

    def keeps(self, mean: Estimate, promised_ms: float) -> bool:
        """Return whether one of its own mean latencies is within a promise, at the expected speed."""
        return self.keeps_at(mean, mean.mid, promised_ms)

    def keeps_at(self, mean: Estimate, seconds: float, promised_ms: float) -> bool:
        """Return whether that mean is within a promise where it takes so many `seconds` of its range."""
        return seconds * MS_PER_S <= promised_ms and not (mean is self.ttft_seconds and self.waits_without_end)

    @property
    def tokens_per_s_with_hits(self) -> Estimate | None:
        """Return the rate of one GPU with the prompt tokens that are read from a cache; None where none are."""
        hits = self.point.cache_hit_rate
        return self.tokens_per_s_per_gpu.times(1 / (1 - hits)) if self.phase == "prefill" and 0 < hits < 1 else None


def predict(case: Case, evidence: Evidence, worst: Imbalance | None = None, *, with_spans: bool = False) -> Prediction:
    """Return what `case` does; `evidence`, and how uneven GPUs are at worst, decide how wide its ranges are."""
    drifted = None if worst is None else saturated_rate(replace(case, imbalance=worst))
    turns = turns_at(case) if case.phase == "mixed" else None
    case = _as_engine(case)
    rate, step = _rate(case, with_spans=with_spans)
    rates = spread(rate, max(rate, unhindered_rate(case)), evidence, drifted)
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
        cache_read_bytes_per_s=_cache_reads(case, rate),
        cache_read_seconds=prompt_reading(case),
        tpot_seconds=latencies[0],
        tpot_99_seconds=latencies[1],
        imbalance=case.imbalance,
        binding=_binding(case),
        evidence=evidence,
        engine=case.engine.name,
    )


def saturated_rate(case: Case) -> float:
    """Return the tokens/s of one GPU at full use: what a search compares layouts by."""
    return _rate(_as_engine(case))[0]


def unhindered_rate(case: Case) -> float:
    """Return what the same kernels give with nothing between them and GPUs that are equally full."""
    return _rate(_without_overheads(_as_engine(case)))[0]


def token_step_seconds(case: Case, requests: float, kv_tokens: float, fullness: float = 1.0) -> float:
    """Return the seconds in which each of a group's `requests`, of `kv_tokens` each, gets one token.

    With drafts, a step gives it several. The group is the fullest of its unit; `fullness` is what the mean of all has
    of that, and what experts see. Their imbalance stays that of the case's own point.
    """
    point = replace(case.point, requests=requests, kv_tokens=kv_tokens)
    step = _tokens(_fuller(_as_engine(replace(case, point=point)), fullness))
    return step.seconds / case.point.accepted_tokens / case.engine.factor.get(case.phase, 1.0)


def prompt_step_seconds(
    case: Case, tokens: float, context: float, prompt_tokens: float, fullness: float = 1.0
) -> float:
    """Return the seconds of a step in which a group computes `tokens` of prompts.

    Each token reads `context` others on average, and `prompt_tokens` of each prompt are computed. `fullness` and the
    imbalance of experts are as in `token_step_seconds`.
    """
    case = _fuller(_as_engine(case), fullness)
    seconds: float = _prompts_of(case, tokens, context, prompt_tokens).seconds
    if case.phase == "prefill":
        of_node = fullness * tokens / case.unit.attention_tp * case.gpus_per_node
        seconds = max(seconds, reading(case.point, case.whole_kv_bytes_per_token, of_node))
    return seconds / case.engine.factor.get(case.phase, 1.0)


def turn_prompt_seconds(case: Case, load: float) -> float:
    """Return the seconds in which a mixed unit computes the prompts of a turn, where `load` pieces come in one.

    They lie in as many groups as there are of them.
    """
    return _turn_prompts(_as_engine(case), load) / case.engine.factor.get(case.phase, 1.0)


def turns_at(case: Case) -> SteadyTurns:
    """Return how a mixed unit divides its time with the point's requests in each group."""
    case = _as_engine(case)
    return _turns(case).times(1 / case.engine.factor.get(case.phase, 1.0))


def rate_of_turns(case: Case, turns: SteadyTurns) -> float:
    """Return the tokens/s of one GPU of a mixed unit that divides its time so."""
    prompts_per_s = turns.pieces_per_s / case.pieces_per_prompt
    return prompts_per_s * case.point.output_tokens / case.unit.num_gpus


def _fuller(case: Case, fullness: float) -> Case:
    """Return a case in which experts have less to do than the fullest attention group makes it seem."""
    imbalance = Imbalance(case.imbalance.gpus * fullness, case.imbalance.nodes * fullness)
    return replace(case, imbalance=imbalance)


def prompt_reading(case: Case) -> Seconds:
    """Return the time in which a prompt's cached KV is read, while nobody else on its node reads."""
    return reading(case.point, case.whole_kv_bytes_per_token, case.point.computed_tokens)


def _cache_reads(case: Case, rate: float) -> float:
    """Return the bytes/s that a node reads of cached KV, at the operating point's utilisation."""
    per_token = bytes_per_computed_token(case.point, case.whole_kv_bytes_per_token)
    if case.phase == "mixed":
        rate *= case.point.computed_tokens / case.point.output_tokens
    return rate * case.point.utilisation * case.gpus_per_node * per_token


def _step_reading(case: Case) -> Seconds:
    """Return the time in which a node reads what the prompts of one step of all its GPUs have cached."""
    of_node = case.point.step_tokens / case.unit.attention_tp * case.gpus_per_node
    return reading(case.point, case.whole_kv_bytes_per_token, of_node)


def _as_engine(case: Case) -> Case:
    """Put in what the engine adds to the plan's map and to the GPU's kernels."""
    engine, excess = case.engine, case.engine.imbalance.get(case.phase, 1.0)
    imbalance = Imbalance(case.imbalance.gpus * excess, case.imbalance.nodes * excess)
    machine = case.machine
    if engine.core_share is not None:
        machine = replace(machine, kernels=replace(machine.kernels, core_share=engine.core_share))
    return replace(case, imbalance=imbalance, machine=machine)


def _without_overheads(case: Case) -> Case:
    engine = replace(case.engine, overheads=NO_OVERHEADS, factor={})
    return replace(case, engine=engine, imbalance=Imbalance())


def _rate(case: Case, *, with_spans: bool = False) -> tuple[float, StepTime]:
    """Return the saturated tokens/s of one GPU, and the step that most of its time goes into."""
    factor = case.engine.factor.get(case.phase, 1.0)
    point, group = case.point, case.unit.attention_tp
    if case.phase == "prefill":
        step = _prompts(case, with_spans=with_spans)
        return factor * point.step_tokens / group / max(step.seconds, _step_reading(case)), step
    step = _tokens(case, with_spans=with_spans)
    if case.phase == "decode":
        return factor * point.requests * point.accepted_tokens / group / step.seconds, step
    return factor * rate_of_turns(case, _turns(case)), step


def _turns(case: Case) -> SteadyTurns:
    """Return a mixed unit's turns, of a case that is the engine's; its factor is left out."""
    point = case.point
    ended = case.num_groups * point.requests * point.accepted_tokens / point.output_tokens

    def token_seconds(share: float) -> float:
        seconds: float = _tokens(replace(case, point=replace(point, requests=share * point.requests))).seconds
        return seconds

    return steady_turns(
        ended * case.pieces_per_prompt, case.most_pieces, lambda load: _turn_prompts(case, load), token_seconds
    )


def _turn_prompts(case: Case, load: float) -> float:
    """Return the seconds of a turn's prompts.

    The fullest group sets the pace of attention, and the mean of all that of experts.
    """
    each = min(pieces_of_turn(load), case.most_pieces) / case.num_groups
    fullest = max(each, 1.0)
    whole = max(case.point.computed_tokens, 1.0)
    return _prompts_of(_fuller(case, each / fullest), fullest * case.piece, case.context, whole).seconds


def _tokens(case: Case, *, with_spans: bool = False) -> StepTime:
    point = case.point
    return decode_step(case.setup, point.requests, point.kv_tokens, point.draft_tokens, with_spans=with_spans)


def _prompts(case: Case, *, with_spans: bool = False) -> StepTime:
    whole = max(case.point.computed_tokens, 1.0)
    return _prompts_of(case, case.point.step_tokens, case.context, whole, with_spans=with_spans)


def _prompts_of(
    case: Case, tokens: float, context: float, prompt_tokens: float, *, with_spans: bool = False
) -> StepTime:
    with_drafts = case.point.draft_tokens > 0
    return prompt_step(case.setup, tokens, context, prompt_tokens, with_drafts=with_drafts, with_spans=with_spans)


def _decode_latencies(
    case: Case, step: Estimate, rates: Estimate, turns: SteadyTurns | None
) -> tuple[Estimate, Estimate]:
    """Return TPOT's mean, and that of one step in a hundred."""
    mean = rates.inverse(case.point.requests / case.unit.attention_tp)
    if turns is not None:
        mean = rates.inverse(rates.mid * turns.seconds_per_step / case.point.accepted_tokens)
    longer = case.point.kv_tokens * (1 + NORMAL_99 / sqrt(max(case.point.requests, 1.0)))
    slow = _tokens(replace(case, point=replace(case.point, kv_tokens=longer))).seconds
    slower = mean.times(slow / step.mid)
    if turns is not None and turns.has_prompts_in(RARE):
        slower = rates.inverse(rates.mid * turns.seconds / case.point.accepted_tokens)
    return mean, slower


def _prompt_latencies(
    case: Case, rates: Estimate, rate: float, turns: SteadyTurns | None
) -> tuple[Estimate, Estimate, float | None]:
    """Return TTFT's mean and 99th percentile, and the time in which a prompt's KV travels."""
    point, group = case.point, case.unit.attention_tp
    step = max(_prompts(case).seconds, _step_reading(case)) / case.engine.factor.get(case.phase, 1.0)
    wait, rarely = point.queued_steps * step, point.queued_steps_of(RARE) * step
    if turns is not None:
        step, wait, rarely = turns.seconds, turns.wait, turns.wait_of(RARE)
    slower, read, computing = rates.inverse(rate), prompt_reading(case), point.prompt_steps * step
    transfer = None
    if case.phase == "prefill" and case.machine.nic:
        num_bytes = Bytes(point.prompt_tokens * case.kv_bytes_per_token / group)
        transfer = float(moving(num_bytes, case.machine.nic))
    mean, slow = slower.times(computing + wait), slower.times(computing + max(wait, rarely))
    return mean.plus(read), slow.plus(read), transfer


def _binding(case: Case) -> Binding:
    """Return the resource that helps most; a machine's rates, what lies between kernels, or balance."""
    tried: dict[str, Callable[[], Case]] = {
        called: lambda field=field: replace(case, machine=case.machine.with_more(field, MORE))  # type: ignore[misc]
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
    )
    tried["launches and the host"] = lambda: replace(case, engine=replace(case.engine, overheads=less))
    even = Imbalance(*(1 + (each - 1) / MORE for each in (case.imbalance.gpus, case.imbalance.nodes)))
    tried["the balance of experts"] = lambda: replace(case, imbalance=even)
    rates = {called: _rate(make())[0] for called, make in tried.items()}
    best = max(rates, key=lambda called: rates[called])
    return Binding(best, rates[best] * case.point.utilisation)
