"""The capacity of a plan's units, for the simulation by flows: seconds of steps, room for requests, mean lengths.

Every figure comes from the plan's own prediction, at one `Level` of its range.

    prompts     one attention group computes `step_tokens` of prompts in `step_seconds`
    tokens      one attention group makes a token for each of its n requests in `seconds(n)`; with drafts, one step
                makes `tokens_per_step` for each

Mixed units do both in turn (`turns.py`). Counts are of one attention group, of which a unit has `dp_size`.
"""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate

from planner.compiler import Compiled
from planner.estimate.performance import PhaseOutlook
from planner.estimate.throughput.predict import Case, prompt_step_seconds, token_step_seconds, turn_prompt_seconds
from planner.facts.terms import Phase
from planner.spec.traffic import TrafficSpec
from stacks.simulator.flows.turns import Turns
from stacks.simulator.speed import Level, known_case, slowdown

__all__ = ["PromptSide", "RequestMeans", "Service", "TokenSide", "build_service"]

SIDES: tuple[Phase, Phase] = ("prefill", "decode")
MIN_REQUESTS = 1.000001  # the end of a table of requests, if KV has not even room for one
LEAST_LOAD = 1e-4  # the table's lowest load over a full turn's: below it, pieces fall in a line to 0
GRID = 25  # points of a table of step times; each takes 0.3 ms to compute


@dataclass(frozen=True)
class RequestMeans:
    """The mean lengths of the traffic's requests, in tokens."""

    prompt: float
    computed: float  # prompt tokens that no cache has
    output: float
    kv: float  # tokens of KV that it holds on average while it gets tokens


@dataclass(frozen=True)
class PromptSide:
    """The speed of the phase that computes prompts."""

    phase: Phase
    groups_per_unit: int
    step_tokens: float
    step_seconds: float
    steps_per_prompt: int


@dataclass(frozen=True)
class TokenSide:
    """The speed and capacity of the phase that makes tokens."""

    phase: Phase
    groups_per_unit: int
    requests: tuple[float, ...]  # numbers of requests, ascending from 1 to `max_requests`
    token_seconds: tuple[float, ...]  # seconds per token with each of these numbers; ascending too
    max_requests: float  # requests of mean length that get tokens at once
    max_admitted: float  # requests that get tokens or wait: the gateway answers more with 429
    kv_room: float  # tokens of KV that fit into a group's memory
    tokens_per_step: float = 1.0  # tokens that a request gets in a step: more than 1 with drafts

    def seconds(self, requests: float) -> float:
        """Return the seconds per token while a group has `requests` requests, interpolated in the table."""
        above = min(max(bisect_left(self.requests, requests), 1), len(self.requests) - 1)
        low, high = self.requests[above - 1], self.requests[above]
        part = min(max((requests - low) / (high - low), 0.0), 1.0)
        return self.token_seconds[above - 1] + part * (self.token_seconds[above] - self.token_seconds[above - 1])

    def step_seconds(self, requests: float) -> float:
        """Return the seconds of a whole decode step while a group has `requests` requests.

        With fewer than one request on average, some steps have none and take no time: this is the mean over all
        steps.
        """
        return min(requests, 1.0) * self.tokens_per_step * self.seconds(requests)


@dataclass(frozen=True)
class Service:
    """The capacity of a deployment for prompts and for tokens, and the traffic that it gets."""

    prompts: PromptSide
    tokens: TokenSide
    request: RequestMeans
    turns: Turns | None  # how mixed units alternate prompts and tokens; None for separate phases
    input_tokens: float  # prompt tokens of a usual day
    cache_hit_rate: float

    @property
    def requests_per_day(self) -> float:
        """The number of requests of a typical day."""
        return self.input_tokens / self.request.prompt


def build_service(plan: Compiled, level: Level = "mid") -> Service:
    """Return the capacity of all units of `plan` at a level of its predicted speed.

    The plan must have traffic and speeds.
    """
    traffic = plan.spec.traffic
    assert traffic is not None
    outlooks = {each.phase: each for each in plan.speed}
    first, rest = (outlooks.get("mixed") or outlooks[phase] for phase in SIDES)
    request = _mean_request(traffic, known_case(first), known_case(rest))
    return Service(
        prompts=_prompt_side(plan, first, level, request),
        tokens=_token_side(plan, rest, level, request),
        request=request,
        turns=_turns(first, level) if first.phase == "mixed" else None,
        input_tokens=traffic.input_tokens,
        cache_hit_rate=traffic.cache_hit_rate,
    )


def _mean_request(traffic: TrafficSpec, prompts: Case, tokens: Case) -> RequestMeans:
    """Return the mean request.

    The lengths of prompt and KV are those of the operating point; cache hits and output length are those of the
    traffic.
    """
    prompt = prompts.point.prompt_tokens
    output = traffic.output_tokens / (traffic.input_tokens / prompt)
    return RequestMeans(prompt, prompt * (1 - traffic.cache_hit_rate), output, tokens.point.kv_tokens)


def _prompt_side(plan: Compiled, outlook: PhaseOutlook, level: Level, request: RequestMeans) -> PromptSide:
    case = known_case(outlook)
    layout = next(each for each in plan.layouts if each.phase == outlook.phase)
    context = request.prompt - request.computed / 2
    seconds = prompt_step_seconds(case, case.point.step_tokens, context, max(request.computed, 1.0))
    return PromptSide(
        phase=outlook.phase,
        groups_per_unit=layout.dp_size,
        step_tokens=case.point.step_tokens,
        step_seconds=seconds * slowdown(outlook, level),
        steps_per_prompt=max(1, -int(-request.computed // case.point.step_tokens)),
    )


def _turns(outlook: PhaseOutlook, level: Level) -> Turns:
    case, factor = known_case(outlook), slowdown(outlook, level)
    loads = [case.most_pieces * LEAST_LOAD ** (1 - each / (GRID - 1)) for each in range(GRID)]
    seconds = [factor * turn_prompt_seconds(case, each) for each in loads]
    return Turns(case.pieces_per_prompt, tuple(loads), tuple(accumulate(seconds, max)))


def _token_side(plan: Compiled, outlook: PhaseOutlook, level: Level, request: RequestMeans) -> TokenSide:
    case = known_case(outlook)
    layout = next(each for each in plan.layouts if each.phase == outlook.phase)
    section = plan.spec.phase(outlook.phase)
    limit = float(section.max_requests)
    room = next((float(each.kv_tokens) for each in plan.memory if each.phase == outlook.phase), limit * request.kv)
    most = max(MIN_REQUESTS, min(limit, room / request.kv))
    requests = [most ** (each / (GRID - 1)) for each in range(GRID)]
    factor = slowdown(outlook, level)
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
