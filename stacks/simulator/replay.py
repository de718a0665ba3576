"""A trace of requests, played over a plan's units one by one, with the gateway's own choice of ranks.

    trace -> runtime.gateway.ranks.router.choose_ranks -> PromptUnit -> KV travels -> TokenUnit -> done
                         |
                         '-- no rank takes it: refused with 429

Discrete events: a request comes, a step of prompts ends, KV arrives, a request has its last token. All units of the
plan serve all the time: days are what the fluid simulation plays. The gateway knows what each rank has, at every
moment, where the real one hears it a little later; it does not know how long an answer will be, and expects the mean
of those that have ended, as the real one does.

Prompts hit the blocks that any earlier prompt of the trace had: the cache on disk is common and never full.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any

from planner.facts.terms import Phase
from planner.plan.estimated import Estimated
from runtime.gateway.ranks.answer_lengths import AnswerLengths
from runtime.gateway.ranks.router import NO_WORK, Policy, RankLimits, RankLoad, RequestSize, Work, choose_ranks
from stacks.simulator.hits import PrefixCache
from stacks.simulator.service import Level
from stacks.simulator.step_times import PhaseSpeed, predicted_speeds
from stacks.simulator.trace import TraceRequest
from stacks.simulator.units import Job, PromptUnit, Rank, TokenUnit

__all__ = ["Replay", "Sample", "replay"]

SAMPLES = 240  # of the curves


@dataclass(frozen=True)
class Sample:
    """A moment of a replay."""

    at: float
    queued_prompts: int
    running: int
    waiting: int  # for a place of decode
    kv_used: float  # share of the room of all ranks
    kv_most: float  # share of the room of the fullest


@dataclass
class Replay:
    """What became of a trace."""

    policy: Policy
    jobs: list[Job] = field(default_factory=list)  # in the order in which they were done
    refused: int = 0  # with 429
    too_long: int = 0  # with 400: longer than max_request_tokens
    samples: list[Sample] = field(default_factory=list)
    prompt_busy_s: float = 0.0  # of all units that compute prompts, together
    num_prompt_units: int = 0
    seconds: float = 0.0  # until the last request was done


@dataclass
class _Units:
    """All units, and the way from one kind to the other."""

    prompts: dict[str, PromptUnit] = field(default_factory=dict)
    tokens: dict[str, TokenUnit] = field(default_factory=dict)
    by_key: dict[tuple[str, int], Rank] = field(default_factory=dict)
    transfer_s_per_token: float = 0.0
    is_mixed: bool = False

    @property
    def ranks(self) -> Iterable[Rank]:
        """All ranks of all units."""
        return self.by_key.values()


def replay(
    plan: Estimated,
    trace: Sequence[TraceRequest],
    policy: Policy = Policy.BALANCED,
    level: Level = "mid",
    tell: Callable[[float], None] = lambda _: None,
    speeds: Mapping[Phase, PhaseSpeed] | None = None,
) -> Replay:
    """Return what becomes of the requests of `trace`, which are in the order of their times, at least one of them.

    `speeds` are those of the plan's phases, measured: without them they are predicted, at `level`.
    """
    loop = _Loop(plan, trace, policy, predicted_speeds(plan, level) if speeds is None else speeds)
    loop.run(tell)
    return loop.found


class _Loop:
    """The events, and what they do."""

    def __init__(
        self, plan: Estimated, trace: Sequence[TraceRequest], policy: Policy, speeds: Mapping[Phase, PhaseSpeed]
    ) -> None:
        self.found = Replay(policy)
        self._trace = trace
        self._units = _units_of(plan, speeds)
        self.found.num_prompt_units = len(self._units.prompts)
        self._expected, self._cache = AnswerLengths(), PrefixCache()
        self._longest = min(plan.spec.phase(phase).max_request_tokens for phase in plan.spec.phases)
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()
        self._asked = dict.fromkeys(self._units.tokens, 0)  # how often a token unit was asked when it changes
        self._turn = 0

    def run(self, tell: Callable[[float], None]) -> None:
        """Play the whole trace, and wait until all are done."""
        last = self._trace[-1].at or 1.0
        for number in range(SAMPLES):
            self._at((number + 1) * last / SAMPLES, self._sample)
        coming = 0
        while coming < len(self._trace) or self._events:
            if coming < len(self._trace) and (not self._events or self._trace[coming].at <= self._events[0][0]):
                self._arrive(self._trace[coming])
                coming += 1
                if coming % 256 == 0:
                    tell(coming / len(self._trace))
            else:
                now, _, act, given = heappop(self._events)
                act(now, *given)
        self.found.seconds = max((job.done for job in self.found.jobs), default=last)

    def _at(self, when: float, act: Callable[..., None], *given: Any) -> None:
        heappush(self._events, (when, next(self._order), act, given))

    def _arrive(self, request: TraceRequest) -> None:
        units = self._units
        if request.prompt + request.output > self._longest:
            self.found.too_long += 1
            return
        size = RequestSize(request.prompt, self._expected.expect(max(self._longest - request.prompt, 1)))
        self._turn += 1
        chosen = choose_ranks([rank.load for rank in units.ranks], size, self._turn, self.found.policy)
        if chosen is None:
            self.found.refused += 1
            return
        first, rest = units.by_key[chosen.first.key], units.by_key[chosen.rest.key]
        work = size.work_at(chosen.rest.phase)
        hits, waits = self._cache.hits(request.blocks, request.prompt), not chosen.rest.fits(work)
        rest.change(work, int(waits))
        if first is not rest:
            first.change(size.work_at(chosen.first.phase))
        unit = units.prompts[chosen.first.unit]
        unit.add(Job(request.at, request.prompt, request.output, hits, first, rest, work.kv_tokens, waits))
        if not unit.is_stepping:
            self._begin(request.at, chosen.first.unit)

    def _begin(self, now: float, name: str) -> None:
        """Begin a unit's next step of prompts; in mixed units, each step of tokens waits for it."""
        seconds = self._units.prompts[name].begin()
        turn = seconds
        if self._units.is_mixed:
            tokens = self._units.tokens[name]
            tokens.pause(now, seconds)
            self._ask(now, name)
            turn = max(tokens.turn_seconds, seconds)
        if seconds:
            self.found.prompt_busy_s += seconds
            self._at(now + turn, self._end_prompts, name)

    def _end_prompts(self, now: float, name: str) -> None:
        for job in self._units.prompts[name].end():
            job.first_token = now
            travel = 0.0
            if not self._units.is_mixed:
                job.prompt_rank.change(Work(-1, 0, 0, 0))
                travel = job.prompt * self._units.transfer_s_per_token
            self._at(now + travel, self._join, job)
        self._begin(now, name)

    def _join(self, now: float, job: Job) -> None:
        name = job.token_rank.load.unit
        self._units.tokens[name].add(now, job)
        self._ask(now, name)

    def _ask(self, now: float, name: str) -> None:
        """Let a token unit say when it changes next; what it said before is void."""
        self._asked[name] += 1
        when = self._units.tokens[name].next_change(now)
        if when is not None:
            self._at(when, self._end_tokens, name, self._asked[name])

    def _end_tokens(self, now: float, name: str, asked: int) -> None:
        if asked != self._asked[name]:
            return
        for job in self._units.tokens[name].end(now):
            job.token_rank.change(Work(-1, 0, 0, -job.kv_counted))
            self._expected.record(job.output)
            self.found.jobs.append(job)
        self._ask(now, name)

    def _sample(self, now: float) -> None:
        units = self._units
        for unit in units.tokens.values():
            unit.advance(now)
        ranks = [rank for unit in units.tokens.values() for rank in unit.ranks]
        shares = [rank.kv / rank.limits.kv_tokens for rank in ranks]
        self.found.samples.append(
            Sample(
                at=now,
                queued_prompts=sum(unit.waiting for unit in units.prompts.values()),
                running=sum(unit.running for unit in units.tokens.values()),
                waiting=sum(unit.waiting for unit in units.tokens.values()),
                kv_used=sum(shares) / len(shares),
                kv_most=max(shares),
            )
        )


def _units_of(plan: Estimated, speeds: Mapping[Phase, PhaseSpeed]) -> _Units:
    """Return the units of `plan`, empty."""
    found = _Units()
    for phase, speed in speeds.items():
        found.is_mixed |= phase == "mixed"
        found.transfer_s_per_token += speed.transfer_s_per_token
        for name in (each.name for each in plan.units if each.phase == phase):
            ranks = _ranks_of(plan, phase, name)
            found.by_key |= {rank.load.key: rank for rank in ranks}
            if speed.prompts is not None:
                found.prompts[name] = PromptUnit(ranks, speed.prompts, speed.step_tokens)
            if speed.tokens is not None:
                found.tokens[name] = TokenUnit(ranks, speed.tokens, speed.tokens_per_step)
    return found


def _ranks_of(plan: Estimated, phase: Phase, unit: str) -> list[Rank]:
    """Return the attention groups of a unit, which have nothing to do yet."""
    section = plan.spec.phase(phase)
    unlimited = section.max_requests * section.max_request_tokens
    room = next((each.kv_tokens for each in plan.memory if each.phase == phase), unlimited)
    limits = RankLimits(section.max_requests, room, plan.spec.gateway.max_queued_requests)
    layout = next(each for each in plan.layouts if each.phase == phase)
    return [Rank(RankLoad(unit, number, phase, NO_WORK, limits)) for number in range(layout.dp_size)]
