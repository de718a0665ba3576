"""Prefill and decode units as a model in steps, to compare balancers on more ranks than a machine has.

All ranks of a unit step together, so a step takes as long as its slowest rank needs:

    prefill    STEP_S + max over ranks of (tokens x TOKEN_S + attention pairs x PAIR_S), at most STEP_TOKENS a rank
    decode     STEP_S + max over ranks of (requests x REQUEST_S + KV tokens x KV_S)

Requests come at random times (Poisson). The gateway knows what ranks have. KV moves in no time, and caches are large
enough: whether what is given out fits is the matter of `tests/runtime/gateway/ranks/test_router.py`.

Sources: in DeepSeek-V3 a token costs 2 x 37e9 operations (arXiv 2412.19437) and a pair 61 layers x 128 heads x
2 x (192 + 128) (its config.json), hence PAIR_S. TOKEN_S, the fixed part and what decode takes are assumed; the latter
such that 88 requests with 4,989 tokens of KV each, the mean that DeepSeek published, take 50 ms, in equal parts.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field
from itertools import count

from runtime.gateway.ranks.router import RankLimits, RankLoad, RequestSize, Work, choose_ranks
from runtime.protocol.counting import attention_pairs

STEP_TOKENS = 4096
TOKEN_S = 1 / 8000
PAIR_S = TOKEN_S * 61 * 128 * 2 * (192 + 128) / (2 * 37e9)
STEP_S = 0.05 / 3
REQUEST_S, KV_S = STEP_S / 88, STEP_S / (88 * 4989)
LIMITS = RankLimits(max_requests=10**6, kv_tokens=10**12, max_queued_requests=0)
SAMPLED_STEPS = 10  # of decode, from one look at KV to the next


@dataclass(eq=False)
class Request:
    """What is asked and when, and when its first and its last token came."""

    came_at: float
    prompt_tokens: int
    answer_tokens: int
    num_computed: int = 0
    first_at: float | None = None
    last_at: float | None = None


@dataclass
class PrefillRank:
    """Prompts in line, what is left of them, and what was computed so far."""

    line: deque = field(default_factory=deque)
    left: Work = field(default_factory=lambda: Work(0, 0, 0, 0))
    num_tokens: int = 0
    num_pairs: int = 0

    def step(self):
        """Compute up to STEP_TOKENS tokens: (seconds, the requests whose prompts are done, the work)."""
        room, seconds, done, work = STEP_TOKENS, 0.0, [], Work(0, 0, 0, 0)
        while self.line and room:
            request = self.line[0]
            begin = request.num_computed
            request.num_computed = end = min(begin + room, request.prompt_tokens)
            pairs = attention_pairs(begin, end)
            seconds += (end - begin) * TOKEN_S + pairs * PAIR_S
            work += Work(0, end - begin, pairs, 0)
            room -= end - begin
            if end == request.prompt_tokens:
                done.append(self.line.popleft())
        self.num_tokens += work.prompt_tokens
        self.num_pairs += work.attention_pairs
        return seconds, done, work + Work(len(done), 0, 0, 0)


@dataclass
class DecodeRank:
    """Requests that decode, by the step that is their last, and all that were given to it."""

    given: Work = field(default_factory=lambda: Work(0, 0, 0, 0))
    running: list = field(default_factory=list)  # a heap of (last step, number, request)
    kv_tokens: int = 0


@dataclass
class Look:
    """KV and requests of each decode rank at one time."""

    at: float
    kv_tokens: list
    num_requests: list


class Model:
    """Units of `per_unit` prefill ranks and one of `num_decode` ranks, under one policy."""

    def __init__(self, policy, num_prefill, num_decode, per_unit):
        self._policy, self._per_unit = policy, per_unit
        self.prefill = [PrefillRank() for _ in range(num_prefill)]
        self.decode = [DecodeRank() for _ in range(num_decode)]
        self.looks: list[Look] = []
        self._is_stepping = [False] * (num_prefill // per_unit)
        self._chosen: dict = {}  # request -> its decode rank, and its work there
        self._mean_answer = 200.0
        self._numbers, self._turns, self._num_steps = count(), count(), 0
        self._events: list = []

    def run(self, requests):
        """Answer all requests, and look at ranks as long as they come. Return the seconds that it took."""
        for request in requests:
            self._at(request.came_at, self._arrive, request)
        self._at(0.0, self._decode_step, requests[-1].came_at)
        now, num_left = 0.0, len(requests)
        while num_left:
            now, _, happen, arguments = heapq.heappop(self._events)
            num_left -= happen(now, *arguments) or 0
        return now

    def _at(self, when, happen, *arguments):
        heapq.heappush(self._events, (when, next(self._numbers), happen, arguments))

    def _arrive(self, now, request):
        size = RequestSize(request.prompt_tokens, int(self._mean_answer))
        chosen = choose_ranks(self._loads(), size, next(self._turns), self._policy)
        prefill, decode = self.prefill[chosen.first.rank], self.decode[chosen.rest.rank]
        prefill.left += size.work_at("prefill")
        decode.given += size.work_at("decode")
        prefill.line.append(request)
        self._chosen[request] = decode, size.work_at("decode")
        unit = chosen.first.rank // self._per_unit
        if not self._is_stepping[unit]:
            self._prefill_step(now, unit)

    def _loads(self):
        prefill = [RankLoad("p", n, "prefill", rank.left, LIMITS) for n, rank in enumerate(self.prefill)]
        return prefill + [RankLoad("d", n, "decode", rank.given, LIMITS) for n, rank in enumerate(self.decode)]

    def _prefill_step(self, now, unit):
        ranks = self.prefill[unit * self._per_unit : (unit + 1) * self._per_unit]
        steps = [rank.step() for rank in ranks]
        slowest_s = max(seconds for seconds, _, _ in steps)
        self._is_stepping[unit] = slowest_s > 0
        if slowest_s:
            self._at(now + STEP_S + slowest_s, self._prefill_done, unit, list(zip(ranks, steps, strict=True)))

    def _prefill_done(self, now, unit, steps):
        num_ended = 0
        for rank, (_, done, work) in steps:
            rank.left -= work
            for request in done:
                request.first_at = now
                num_ended += self._hand_over(now, request)
        self._prefill_step(now, unit)
        return num_ended

    def _hand_over(self, now, request):
        """Let the request decode; return 1 if it has its whole answer already."""
        decode, work = self._chosen[request]
        if request.answer_tokens == 1:
            request.last_at = now
            decode.given -= work
            return 1
        heapq.heappush(decode.running, (self._num_steps + request.answer_tokens - 1, next(self._numbers), request))
        decode.kv_tokens += request.prompt_tokens
        return 0

    def _decode_step(self, now, looks_until):
        if now <= looks_until and self._num_steps % SAMPLED_STEPS == 0:
            kv, requests = zip(*((rank.kv_tokens, len(rank.running)) for rank in self.decode), strict=True)
            self.looks.append(Look(now, kv, requests))
        self._num_steps += 1
        slowest_s = max(len(rank.running) * REQUEST_S + rank.kv_tokens * KV_S for rank in self.decode)
        self._at(now + STEP_S + slowest_s, self._decode_done, looks_until)

    def _decode_done(self, now, looks_until):
        num_ended = 0
        for rank in self.decode:
            rank.kv_tokens += len(rank.running)
            while rank.running and rank.running[0][0] <= self._num_steps:
                self._end(now, rank, heapq.heappop(rank.running)[2])
                num_ended += 1
        self._decode_step(now, looks_until)
        return num_ended

    def _end(self, now, rank, request):
        request.last_at = now
        rank.kv_tokens -= request.prompt_tokens + request.answer_tokens - 1
        rank.given -= self._chosen[request][1]
        self._mean_answer += 0.02 * (request.answer_tokens - self._mean_answer)
