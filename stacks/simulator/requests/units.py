"""The units of a simulated service, rank by rank: which requests wait, are computed, or get tokens.

Ranks of a unit step together. Here a rank is an attention group, which owns its requests.

    PromptUnit   each rank computes its prompts in their order, up to `step_tokens` a step
    TokenUnit    each rank's requests get tokens, step by step, while their KV has room; others wait in their order

A token unit is not simulated step by step: while the same requests run, all steps take equally long, so it jumps from
one change to the next. Its clock counts the tokens that each request has got: one a step, or more with drafts.
"""

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import ceil

from runtime.gateway.ranks.router import NO_WORK, RankLimits, RankLoad, Work
from runtime.protocol.counting import attention_pairs
from stacks.simulator.requests.step_times import StepTable

__all__ = ["Job", "PromptUnit", "Rank", "TokenUnit"]

MAX_TOKENS = 200.0  # tokens by which KV grows before the time of a step is looked up again
SLACK = 1e-6  # tokens: tolerance for rounded sums


@dataclass(eq=False)
class Job:
    """A simulated request, from its arrival at the gateway to its last token."""

    at: float
    prompt: int
    output: int
    hits: int  # tokens of the prompt found in a cache
    prompt_rank: "Rank"
    token_rank: "Rank"
    kv_counted: int  # tokens of KV that the gateway counted for it
    waits: bool  # whether it found no room at its decode rank
    computed: int = 0  # tokens of its prompt computed so far, with hits
    reported: int = 0  # of those, the tokens that the gateway knows of
    first_token: float = 0.0
    done: float = 0.0

    @property
    def kv(self) -> int:
        """The tokens of KV that the request holds when it ends."""
        return self.prompt + self.output


@dataclass(eq=False)
class Rank:
    """One simulated attention group with its requests, and the load that the gateway attributes to it."""

    load: RankLoad
    prompts: deque[Job] = field(default_factory=deque)  # requests whose prompt is not finished
    queue: deque[Job] = field(default_factory=deque)  # requests that wait for room to get tokens
    running: int = 0
    reserved: int = 0  # tokens of KV that the running requests need at their ends
    kv: float = 0.0  # tokens of KV in use when the unit's clock was `as_of`

    def change(self, work: Work, num_waiting: int = 0) -> None:
        """Add `work` (negative to subtract) and `num_waiting` requests to the load that the gateway counts here."""
        old = self.load
        self.load = RankLoad(old.unit, old.rank, old.phase, old.work + work, old.limits, old.num_waiting + num_waiting)

    @property
    def limits(self) -> RankLimits:
        """The rank's limits, as the gateway knows them."""
        return self.load.limits


class PromptUnit:
    """A simulated unit that computes prompts, a step at a time."""

    def __init__(self, ranks: list[Rank], table: StepTable, step_tokens: int) -> None:
        self.ranks = ranks
        self._table, self._step_tokens = table, step_tokens
        self._busy: set[Rank] = set()
        self._step_jobs: list[tuple[Job, int]] = []

    @property
    def is_stepping(self) -> bool:
        """Whether the unit is computing a step."""
        return bool(self._step_jobs)

    @property
    def waiting(self) -> int:
        """The number of prompts that are not finished."""
        return sum(len(rank.prompts) for rank in self._busy)

    def add(self, job: Job) -> None:
        """Queue a request's prompt at its rank."""
        job.computed = job.reported = job.hits
        job.prompt_rank.prompts.append(job)
        self._busy.add(job.prompt_rank)

    def begin(self) -> float:
        """Begin a step of prompts. Return the seconds that it takes; 0 if no prompt waits."""
        taken = [self._take_prompts(rank) for rank in sorted(self._busy, key=lambda rank: rank.load.key)]
        if not taken:
            return 0.0
        most = max(tokens for tokens, _ in taken)
        mean = sum(tokens for tokens, _ in taken) / len(self.ranks)
        return self._table.seconds_at(most, max(pairs for _, pairs in taken) / most, mean / most)

    def end(self) -> list[Job]:
        """End the step. Return the requests whose prompts are now computed."""
        finished = []
        for job, tokens in self._step_jobs:
            rank = job.prompt_rank
            job.computed += tokens
            rank.change(Work(0, job.reported - job.computed, -attention_pairs(job.reported, job.computed), 0))
            job.reported = job.computed
            if job.computed == job.prompt:
                rank.prompts.popleft()
                finished.append(job)
                if not rank.prompts:
                    self._busy.discard(rank)
        self._step_jobs = []
        return finished

    def _take_prompts(self, rank: Rank) -> tuple[int, int]:
        """Add to this step the prompt tokens that one rank computes in it.

        Return (number of tokens, number of query-key pairs).
        """
        left, pairs = self._step_tokens, 0
        for job in rank.prompts:
            tokens = min(left, job.prompt - job.computed)
            self._step_jobs.append((job, tokens))
            pairs += attention_pairs(job.computed, job.computed + tokens)
            left -= tokens
            if not left:
                break
        return self._step_tokens - left, pairs


class TokenUnit:
    """A simulated unit that makes tokens for requests whose prompts are computed."""

    def __init__(self, ranks: list[Rank], table: StepTable, tokens_per_step: float) -> None:
        self.ranks = ranks
        self._table, self._tokens_per_step = table, tokens_per_step
        self._tokens, self._clock_time = 0.0, 0.0  # the clock: tokens, and the time at which it was read
        self._token_s = 0.0
        self._pause_s = 0.0  # in mixed units: seconds of a step of prompts before each step of tokens
        self._ends: list[tuple[float, int, Job]] = []
        self._order = count()
        self._active: dict[Rank, int] = {}  # rank -> its number of requests that get tokens

    @property
    def running(self) -> int:
        """The number of requests that get tokens."""
        return len(self._ends)

    @property
    def waiting(self) -> int:
        """The number of requests that wait for room to get tokens."""
        return sum(len(rank.queue) for rank in self.ranks)

    @property
    def token_seconds(self) -> float:
        """The mean seconds between two tokens of a request at the present load, pauses for prompts included."""
        return self._token_s + self._pause_s

    @property
    def step_seconds(self) -> float:
        """The seconds from one decode step to the next.

        A step makes several tokens of a request if drafts are accepted.
        """
        return self._tokens_per_step * self.token_seconds

    def advance(self, now: float) -> None:
        """Advance the unit's clock to the time `now`, and add the tokens and KV made since its last time."""
        if self.token_seconds:
            tokens = (now - self._clock_time) / self.token_seconds
            self._tokens += tokens
            for rank, requests in self._active.items():
                rank.kv += tokens * requests
        self._clock_time = now

    def pause(self, now: float, seconds: float) -> None:
        """Lengthen each decode step from the time `now` on by `seconds`, which a mixed unit spends on prompts."""
        self.advance(now)
        self._pause_s = seconds / self._tokens_per_step

    def add(self, now: float, job: Job) -> None:
        """Queue a request at its rank. If the rank has room, the request gets tokens from the next step on."""
        self.advance(now)
        job.token_rank.queue.append(job)
        self._start_queued(job.token_rank)

    def end(self, now: float) -> list[Job]:
        """Remove the requests that have their last token by the time `now`, and return them."""
        self.advance(now)
        done = []
        while self._ends and self._ends[0][0] <= self._tokens + SLACK:
            job = heappop(self._ends)[2]
            job.done = now
            done.append(job)
            self._leave(job)
        for rank in dict.fromkeys(job.token_rank for job in done):
            self._start_queued(rank)
        return done

    def next_change(self, now: float) -> float | None:
        """Look the step time up, and return the time of the next change: a request's end, or the next look-up.

        None if no request gets tokens.
        """
        if not self._ends:
            self._token_s = 0.0
            return None
        self._token_s = self._seconds_per_token()
        return now + max(min(self._ends[0][0] - self._tokens, MAX_TOKENS), 0.0) * self.token_seconds

    def _start_queued(self, rank: Rank) -> None:
        """Let queued requests of a rank get tokens, oldest first, as long as the rank has room."""
        while rank.queue:
            job = rank.queue[0]
            if rank.running >= rank.limits.max_requests or rank.reserved + job.kv > rank.limits.kv_tokens:
                return
            rank.queue.popleft()
            if job.waits:
                job.waits = False
                rank.change(NO_WORK, -1)
            rank.running += 1
            rank.reserved += job.kv
            rank.kv += job.prompt
            self._active[rank] = rank.running
            heappush(self._ends, (ceil(self._tokens - SLACK) + max(job.output - 1, 0), next(self._order), job))

    def _leave(self, job: Job) -> None:
        rank = job.token_rank
        rank.running -= 1
        rank.reserved -= job.kv
        rank.kv = max(rank.kv - job.kv, 0.0) if rank.running else 0.0
        if rank.running:
            self._active[rank] = rank.running
        else:
            del self._active[rank]

    def _seconds_per_token(self) -> float:
        """Return the seconds per token with the present requests, without pauses for prompts."""
        most, kv = max(self._active.values()), max(rank.kv for rank in self._active)
        return self._table.seconds_at(most, kv / most, self.running / len(self.ranks) / most)
