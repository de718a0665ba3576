"""A trace of requests, played over a plan's units one by one, with the gateway's own choice of ranks.

    trace -> runtime.gateway.ranks.router.choose_ranks -> PromptUnit -> KV travels -> TokenUnit -> done
                         |
                         '-- no rank takes it: refused with 429

The events are: a request comes, a step of prompts ends, KV arrives, a request gets its last token. All units of the
plan serve all the time: the simulation by flows plays days. The gateway knows each rank's load at every moment; the
real one hears of it a little later. It does not know how long an answer will be and, as the real one does, expects the
mean of those that have ended.

All units share one cache (`prefix_cache.py`). So all ranks hold the same of a prompt, and the gateway knows it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any

from planner.compiler import Compiled
from planner.facts.terms import Phase
from planner.facts.trace import TraceRequest
from runtime.gateway.ranks.answer_lengths import AnswerLengths
from runtime.gateway.ranks.router import (
    NO_WORK,
    HeldPrefix,
    Policy,
    RankLimits,
    RankLoad,
    RequestSize,
    Work,
    choose_ranks,
)
from stacks.simulator.requests.prefix_cache import planned_cache
from stacks.simulator.requests.step_times import PhaseSpeed, predicted_speeds
from stacks.simulator.requests.units import Job, PromptUnit, Rank, TokenUnit
from stacks.simulator.speed import Level

__all__ = ["Replay", "Sample", "replay"]

SAMPLES = 240  # points of each curve


@dataclass(frozen=True)
class Sample:
    """The queues and the use of KV at one moment of a replay."""

    at: float
    queued_prompts: int
    running: int
    waiting: int  # requests that wait for a place at a decode rank
    kv_used: float  # share in use of the token ranks' room for KV, on average
    kv_most: float  # share in use of the fullest rank's room for KV


@dataclass
class Replay:
    """The result of playing a trace: its requests as they were done or refused, and samples of the queues."""

    policy: Policy
    jobs: list[Job] = field(default_factory=list)  # in the order in which they were done
    refused: int = 0  # requests answered with 429
    too_long: int = 0  # requests answered with 400: longer than max_request_tokens
    samples: list[Sample] = field(default_factory=list)
    prompt_busy_s: float = 0.0  # summed over all units that compute prompts
    num_prompt_units: int = 0
    seconds: float = 0.0  # time at which the last request was done


@dataclass
class _Units:
    """The simulated units, and how long KV travels from prompt units to token units."""

    prompts: dict[str, PromptUnit] = field(default_factory=dict)
    tokens: dict[str, TokenUnit] = field(default_factory=dict)
    ranks_by_key: dict[tuple[str, int], Rank] = field(default_factory=dict)
    transfer_s_per_token: float = 0.0
    is_mixed: bool = False

    @property
    def ranks(self) -> Iterable[Rank]:
        """The ranks of all units, of both phases."""
        return self.ranks_by_key.values()


def replay(
    plan: Compiled,
    trace: Sequence[TraceRequest],
    policy: Policy = Policy.BALANCED,
    level: Level = "mid",
    on_progress: Callable[[float], None] = lambda _: None,
    speeds: Mapping[Phase, PhaseSpeed] | None = None,
) -> Replay:
    """Return the result of playing the requests of `trace`, which is ordered by time and not empty.

    `speeds` are measured speeds of the plan's phases; without them, the speeds predicted at `level` are used.
    """
    loop = _Loop(plan, trace, policy, predicted_speeds(plan, level) if speeds is None else speeds)
    loop.run(on_progress)
    return loop.result


class _Loop:
    """The queue of simulated events, and what each event does."""

    def __init__(
        self, plan: Compiled, trace: Sequence[TraceRequest], policy: Policy, speeds: Mapping[Phase, PhaseSpeed]
    ) -> None:
        self.result = Replay(policy)
        self._trace = trace
        self._units = _build_units(plan, speeds)
        self.result.num_prompt_units = len(self._units.prompts)
        self._answer_lengths, self._cache = AnswerLengths(), planned_cache(plan)
        self._max_request_tokens = min(plan.spec.phase(phase).max_request_tokens for phase in plan.spec.phases)
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()
        self._versions = dict.fromkeys(self._units.tokens, 0)  # token unit -> how often its next change was scheduled
        self._turn = 0

    def run(self, on_progress: Callable[[float], None]) -> None:
        """Simulate all events until the trace's last request is done.

        `on_progress` is called with the fraction done.
        """
        last = self._trace[-1].at or 1.0
        for number in range(SAMPLES):
            self._schedule((number + 1) * last / SAMPLES, self._sample)
        coming = 0
        while coming < len(self._trace) or self._events:
            if coming < len(self._trace) and (not self._events or self._trace[coming].at <= self._events[0][0]):
                self._arrive(self._trace[coming])
                coming += 1
                if coming % 256 == 0:
                    on_progress(coming / len(self._trace))
            else:
                now, _, act, arguments = heappop(self._events)
                act(now, *arguments)
        self.result.seconds = max((job.done for job in self.result.jobs), default=last)

    def _schedule(self, when: float, act: Callable[..., None], *arguments: Any) -> None:
        heappush(self._events, (when, next(self._order), act, arguments))

    def _arrive(self, request: TraceRequest) -> None:
        units = self._units
        if request.prompt + request.output > self._max_request_tokens:
            self.result.too_long += 1
            return
        size = RequestSize(
            request.prompt, self._answer_lengths.expect(max(self._max_request_tokens - request.prompt, 1))
        )
        self._turn += 1
        hits = self._cache.hits(request.blocks, request.prompt)
        loads = [rank.load for rank in units.ranks]
        chosen = choose_ranks(
            loads, size, self._turn, self.result.policy, lambda ranks: [HeldPrefix(hits)] * len(ranks)
        )
        if chosen is None:
            self.result.refused += 1
            return
        self._cache.keep(request.blocks)
        first, rest = units.ranks_by_key[chosen.first.key], units.ranks_by_key[chosen.rest.key]
        work = size.work_at(chosen.rest.phase, hits)
        waits = not chosen.rest.fits(work)
        rest.change(work, int(waits))
        if first is not rest:
            first.change(size.work_at(chosen.first.phase, hits))
        unit = units.prompts[chosen.first.unit]
        unit.add(Job(request.at, request.prompt, request.output, hits, first, rest, work.kv_tokens, waits))
        if not unit.is_stepping:
            self._begin_step(request.at, chosen.first.unit)

    def _begin_step(self, now: float, name: str) -> None:
        """Begin the next step of prompts of the unit `name`. In a mixed unit it delays the steps of tokens."""
        seconds = self._units.prompts[name].begin()
        turn = seconds
        if self._units.is_mixed:
            tokens = self._units.tokens[name]
            tokens.pause(now, seconds)
            self._schedule_change(now, name)
            turn = max(tokens.step_seconds, seconds)
        if seconds:
            self.result.prompt_busy_s += seconds
            self._schedule(now + turn, self._end_prompts, name)

    def _end_prompts(self, now: float, name: str) -> None:
        for job in self._units.prompts[name].end():
            job.first_token = now
            travel = 0.0
            if not self._units.is_mixed:
                job.prompt_rank.change(Work(-1, 0, 0, 0))
                travel = job.prompt * self._units.transfer_s_per_token
            self._schedule(now + travel, self._join, job)
        self._begin_step(now, name)

    def _join(self, now: float, job: Job) -> None:
        name = job.token_rank.load.unit
        self._units.tokens[name].add(now, job)
        self._schedule_change(now, name)

    def _schedule_change(self, now: float, name: str) -> None:
        """Schedule when a request of the `TokenUnit` `name` next ends or its step time is next looked up.

        The time that was scheduled before no longer counts. Schedule nothing if no request gets tokens.
        """
        self._versions[name] += 1
        when = self._units.tokens[name].next_change(now)
        if when is not None:
            self._schedule(when, self._end_tokens, name, self._versions[name])

    def _end_tokens(self, now: float, name: str, version: int) -> None:
        if version != self._versions[name]:
            return
        for job in self._units.tokens[name].end(now):
            job.token_rank.change(Work(-1, 0, 0, -job.kv_counted))
            self._answer_lengths.record(job.output)
            self.result.jobs.append(job)
        self._schedule_change(now, name)

    def _sample(self, now: float) -> None:
        units = self._units
        for unit in units.tokens.values():
            unit.advance(now)
        ranks = [rank for unit in units.tokens.values() for rank in unit.ranks]
        shares = [rank.kv / rank.limits.kv_tokens for rank in ranks]
        self.result.samples.append(
            Sample(
                at=now,
                queued_prompts=sum(unit.waiting for unit in units.prompts.values()),
                running=sum(unit.running for unit in units.tokens.values()),
                waiting=sum(unit.waiting for unit in units.tokens.values()),
                kv_used=sum(shares) / len(shares),
                kv_most=max(shares),
            )
        )


def _build_units(plan: Compiled, speeds: Mapping[Phase, PhaseSpeed]) -> _Units:
    """Return the units of `plan` with the given speeds. They have no requests yet."""
    found = _Units()
    for phase, speed in speeds.items():
        found.is_mixed |= phase == "mixed"
        found.transfer_s_per_token += speed.transfer_s_per_token
        for name in (each.name for each in plan.units if each.phase == phase):
            ranks = _build_ranks(plan, phase, name)
            found.ranks_by_key |= {rank.load.key: rank for rank in ranks}
            if speed.prompts is not None:
                found.prompts[name] = PromptUnit(ranks, speed.prompts, speed.step_tokens)
            if speed.tokens is not None:
                found.tokens[name] = TokenUnit(ranks, speed.tokens, speed.tokens_per_step)
    return found


def _build_ranks(plan: Compiled, phase: Phase, unit: str) -> list[Rank]:
    """Return a unit's ranks, one for each attention group. They have no requests yet."""
    section = plan.spec.phase(phase)
    unlimited = section.max_requests * section.max_request_tokens
    room = next((each.kv_tokens for each in plan.memory if each.phase == phase), unlimited)
    limits = RankLimits(section.max_requests, room, plan.spec.gateway.max_queued_requests)
    layout = next(each for each in plan.layouts if each.phase == phase)
    return [Rank(RankLoad(unit, number, phase, NO_WORK, limits)) for number in range(layout.dp_size)]
