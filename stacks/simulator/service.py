"""What the units of a plan can do, as the simulations see it: seconds of steps, room for requests, mean lengths.

Every figure comes from the plan's own prediction. A `Level` says which end of its range is played: `low` is the
slowest that the evidence allows, `high` the fastest.

    prompts     one attention group computes `step_tokens` of prompts in `step_seconds`
    tokens      one attention group gives each of its n requests a token in `seconds(n)`; a step, with drafts, gives
                each `tokens_per_step`

Mixed units do both in turn (`turns.py`). Counts are of one attention group, of which a unit has `dp_size`.
"""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from planner.estimate.performance import PhaseOutlook
from planner.estimate.throughput.predict import Case, prompt_step_seconds, token_step_seconds, turn_prompt_seconds
from planner.facts.terms import Phase
from planner.plan.estimated import Estimated
from planner.problems.errors import InfeasibleError, SpecError
from planner.problems.finding import Finding
from planner.spec.check import ResolvedSpec
from planner.spec.traffic import TrafficSpec
from stacks.simulator.turns import Turns

__all__ = [
    "LEVELS",
    "Level",
    "PromptSide",
    "RequestMeans",
    "Service",
    "TokenSide",
    "case_of_outlook",
    "require_speeds",
    "require_traffic",
    "service_of",
    "slower",
]

Level = Literal["low", "mid", "high"]
LEVELS: tuple[Level, ...] = ("low", "mid", "high")
SIDES: tuple[Phase, Phase] = ("prefill", "decode")
LEAST = 1.000001  # requests that a table ends at, where KV has not even room for one
LEAST_LOAD = 1e-4  # of the most pieces that a turn takes: below it the table of turns is a line to 0
GRID = 25  # points of a table of step times, of which each is 0.3 ms to compute


@dataclass(frozen=True)
class RequestMeans:
    """The mean request of the traffic, in tokens."""

    prompt: float
    computed: float  # of the prompt, that no cache has
    output: float
    kv: float  # that it holds on average while tokens are made


@dataclass(frozen=True)
class PromptSide:
    """The phase that computes prompts."""

    phase: Phase
    groups_per_unit: int
    step_tokens: float
    step_seconds: float
    steps_per_prompt: int


@dataclass(frozen=True)
class TokenSide:
    """The phase that makes tokens."""

    phase: Phase
    groups_per_unit: int
    requests: tuple[float, ...]  # ascending, from 1 to `max_requests`
    token_seconds: tuple[float, ...]  # for a token of each of so many; ascending too
    max_requests: float  # that limits and KV have room for at the mean length
    max_admitted: float  # with those that wait: the gateway answers more with 429
    kv_room: float  # tokens
    tokens_per_step: float = 1.0  # of a request: more with drafts

    def seconds(self, requests: float) -> float:
        """Return the seconds in which each of that many requests gets a token."""
        above = min(max(bisect_left(self.requests, requests), 1), len(self.requests) - 1)
        low, high = self.requests[above - 1], self.requests[above]
        part = min(max((requests - low) / (high - low), 0.0), 1.0)
        return self.token_seconds[above - 1] + part * (self.token_seconds[above] - self.token_seconds[above - 1])

    def step_seconds(self, requests: float) -> float:
        """Return the seconds of a whole step with that many requests.

        Below one request it is the mean of steps of which most have none.
        """
        return min(requests, 1.0) * self.tokens_per_step * self.seconds(requests)


@dataclass(frozen=True)
class Service:
    """Both sides of a deployment, and what it is asked."""

    prompts: PromptSide
    tokens: TokenSide
    request: RequestMeans
    turns: Turns | None  # of mixed units, which do both
    input_tokens: float  # of a day
    cache_hit_rate: float

    @property
    def requests_per_day(self) -> float:
        """Return how many requests a day has."""
        return self.input_tokens / self.request.prompt


def require_traffic(spec: ResolvedSpec) -> None:
    """Raise SpecError where `spec` does not say what a day asks."""
    if spec.written.traffic is None:
        rule, reason = "R401 is required by tidemill simulate", "a simulation plays the traffic of a day"
        fix = "write traffic: {input_tokens: ..., output_tokens: ...}, with the tokens of a day"
        raise SpecError([spec.locate(Finding("traffic", None, rule, reason, fix))])


def require_speeds(spec: ResolvedSpec, plan: Estimated) -> None:
    """Raise InfeasibleError where nobody can say how fast a phase of `plan` is."""
    rule, fix = "R402 must have a predicted speed to be simulated", "plan it for GPUs whose rates are known"
    unknown = [
        spec.locate(Finding(each.phase, None, rule, str(each.why_not), fix))
        for each in plan.outlooks
        if each.case is None
    ]
    if unknown:
        raise InfeasibleError(unknown)


def service_of(plan: Estimated, level: Level = "mid") -> Service:
    """Return what `plan` can do; it has traffic, and its speeds are known."""
    traffic = plan.spec.traffic
    assert traffic is not None
    outlooks = {each.phase: each for each in plan.outlooks}
    first, rest = (outlooks.get("mixed") or outlooks[phase] for phase in SIDES)
    request = _means(traffic, case_of_outlook(first), case_of_outlook(rest))
    return Service(
        prompts=_prompt_side(plan, first, level, request),
        tokens=_token_side(plan, rest, level, request),
        request=request,
        turns=_turns(first, level) if first.phase == "mixed" else None,
        input_tokens=traffic.input_tokens,
        cache_hit_rate=traffic.cache_hit_rate,
    )


def case_of_outlook(outlook: PhaseOutlook) -> Case:
    """Return what was asked of a phase whose speed is known."""
    assert outlook.case is not None
    return outlook.case


def _means(traffic: TrafficSpec, prompts: Case, tokens: Case) -> RequestMeans:
    """Return the mean request: its prompt and KV are the operating point's, its hits and output the traffic's."""
    prompt = prompts.point.prompt_tokens
    output = traffic.output_tokens / (traffic.input_tokens / prompt)
    return RequestMeans(prompt, prompt * (1 - traffic.cache_hit_rate), output, tokens.point.kv_tokens)


def _prompt_side(plan: Estimated, outlook: PhaseOutlook, level: Level, request: RequestMeans) -> PromptSide:
    case = case_of_outlook(outlook)
    layout = next(each for each in plan.layouts if each.phase == outlook.phase)
    context = request.prompt - request.computed / 2
    seconds = prompt_step_seconds(case, case.point.step_tokens, context, max(request.computed, 1.0))
    return PromptSide(
        phase=outlook.phase,
        groups_per_unit=layout.dp_size,
        step_tokens=case.point.step_tokens,
        step_seconds=seconds * slower(outlook, level),
        steps_per_prompt=max(1, -int(-request.computed // case.point.step_tokens)),
    )


def _turns(outlook: PhaseOutlook, level: Level) -> Turns:
    case, factor = case_of_outlook(outlook), slower(outlook, level)
    loads = [case.most_pieces * LEAST_LOAD ** (1 - each / (GRID - 1)) for each in range(GRID)]
    seconds = [factor * turn_prompt_seconds(case, each) for each in loads]
    return Turns(case.pieces_per_prompt, tuple(loads), tuple(accumulate(seconds, max)))


def _token_side(plan: Estimated, outlook: PhaseOutlook, level: Level, request: RequestMeans) -> TokenSide:
    case = case_of_outlook(outlook)
    layout = next(each for each in plan.layouts if each.phase == outlook.phase)
    section = plan.spec.phase(outlook.phase)
    limit = float(section.max_requests)
    room = next((float(each.kv_tokens) for each in plan.memory if each.phase == outlook.phase), limit * request.kv)
    most = max(LEAST, min(limit, room / request.kv))
    requests = [most ** (each / (GRID - 1)) for each in range(GRID)]
    factor = slower(outlook, level)
    seconds = [factor * token_step_seconds(case, each, request.kv) for each in requests]
    return TokenSide(
        phase=outlook.phase,
        groups_per_unit=layout.dp_size,
        requests=tuple(requests),
        token_seconds=tuple(accumulate(seconds, max)),
        max_requests=most,
        max_admitted=limit + plan.spec.gateway.max_queued_requests,
        kv_room=room,
        tokens_per_step=case.point.accepted_tokens,
    )


def slower(outlook: PhaseOutlook, level: Level) -> float:
    """Return how many times as long a step takes at `level` as in the middle of its range."""
    assert outlook.prediction is not None
    rate = outlook.prediction.tokens_per_s_per_gpu
    return rate.mid / float(getattr(rate, level))
