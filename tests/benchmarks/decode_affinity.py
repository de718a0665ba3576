"""What the choice of decode ranks does to KV that need not be sent, and to balance, on an hour of conversations.

    python -m tests.benchmarks.decode_affinity TRACE

TRACE is Mooncake's `FAST25-release/traces/conversation_trace.jsonl` (kvcache-ai/Mooncake). Exit 1 on a missed goal.
It takes a minute of CPU and measures no time but the model's, so that any machine gives its figures.

The gateway's side is the real one: router, ledger and index. Decode ranks are a model: each has a cache of pages that
forgets the least recently used, and keeps the prompts that came there. A prompt is offered when it is sent to prefill,
arrives when it would be computed on a rank of its own, and its answer gets a token each `TOKEN_EVERY_S`. Prompts are
long and few for so many ranks, so the spread is large with any choice.

    affinity     the gateway's choice
    blind        the same formula without the index: the least spread
    not sent     tokens of prompts that the decode rank has when they are offered
    slowest      of the ranks' steps, over their mean: the unit waits for it, by the constants of `balancers_model.py`
"""

import heapq
import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from runtime.gateway.ranks.prefix_index import PrefixIndex
from runtime.gateway.ranks.rank_connection import Rank
from runtime.gateway.ranks.rank_load import RankLimits, RequestSize
from runtime.gateway.ranks.router import Policy, find_nothing, pick
from runtime.gateway.ranks.sent_prompts import find_held
from runtime.protocol.counting import PAGE_TOKENS, attention_pairs
from runtime.protocol.messages import Hello, Token
from stacks.simulator.requests.trace import read_trace
from tests.benchmarks.balancers import spread
from tests.benchmarks.balancers_model import KV_S, PAIR_S, REQUEST_S, STEP_S, TOKEN_S
from tests.benchmarks.goals import Goals
from tests.benchmarks.prefix_affinity import CACHE_TOKENS, name_pages

NUM_RANKS, TOKEN_EVERY_S, MEAN_ANSWER = 16, 0.05, 343  # the trace's mean
LOOK_EVERY_S = 10.0
NO_LIMITS = RankLimits(10**6, 10**12, 0)
CHOICES = ("affinity", "blind", Policy.LEAST_REQUESTS, Policy.ROUND_ROBIN)


@dataclass(eq=False)
class Answer:
    """A prompt and the length of its answer, with its pages' names."""

    name: str
    at: float
    num_tokens: int
    num_new: int
    pages: list


@dataclass
class Decoding:
    """A decode rank: what it has of requests, and its cache's pages in the order of their last use."""

    num_pages: int
    num_requests: int = 0
    kv_tokens: int = 0
    pages: OrderedDict = field(default_factory=OrderedDict)

    def num_found(self, pages):
        """How many of these first pages it has."""
        return next((number for number, page in enumerate(pages) if page not in self.pages), len(pages))

    def use(self, pages):
        """Note the use of pages, the last one first, and give up those without room."""
        for page in reversed(pages):
            self.pages[page] = None
            self.pages.move_to_end(page)
        while len(self.pages) > self.num_pages:
            self.pages.popitem(last=False)

    @property
    def step_s(self):
        return STEP_S + self.num_requests * REQUEST_S + self.kv_tokens * KV_S


class Model:
    """Answers at ranks, chosen by one gateway."""

    def __init__(self, choice, cache_tokens):
        self._policy = choice if isinstance(choice, Policy) else Policy.BALANCED
        self._follows_index, self._turns = choice == "affinity", count()
        self.index = PrefixIndex(cache_tokens // PAGE_TOKENS)
        transport = SimpleNamespace(get_write_buffer_size=lambda: 0)
        writer = SimpleNamespace(write=lambda data: None, transport=transport)
        self._known = [
            Rank(Hello("d", "decode", number, NUM_RANKS, "", 1, "", "", "", 1), writer, NO_LIMITS, self.index)
            for number in range(NUM_RANKS)
        ]
        self.ranks = [Decoding(cache_tokens // PAGE_TOKENS) for _ in range(NUM_RANKS)]
        self.num_found_tokens = self.num_expected_tokens = 0
        self.looks = []
        self._events, self._numbers = [], count()

    def run(self, answers):
        """Give all answers; look at the ranks until the last one comes."""
        for answer in answers:
            self._at(answer.at, self._offer, answer)
        for number in range(int(answers[-1].at / LOOK_EVERY_S)):
            self._at((number + 1) * LOOK_EVERY_S, self._look)
        while self._events:
            now, _, happen, arguments = heapq.heappop(self._events)
            happen(now, *arguments)

    def _at(self, when, happen, *arguments):
        heapq.heappush(self._events, (when, next(self._numbers), happen, arguments))

    def _offer(self, now, answer):
        number, names = self._choose(answer)
        rank = self.ranks[number]
        num_found = rank.num_found(answer.pages[: (answer.num_tokens - 1) // PAGE_TOKENS])
        rank.use(answer.pages[:num_found])
        self.num_found_tokens += num_found * PAGE_TOKENS
        size = RequestSize(answer.num_tokens, MEAN_ANSWER)
        self.num_expected_tokens += self._known[number].subscribe(answer.name, size, lambda *_: None, names)
        prompt_s = STEP_S + answer.num_tokens * TOKEN_S + attention_pairs(0, answer.num_tokens) * PAIR_S
        self._at(now + prompt_s, self._arrive, answer, number)

    def _choose(self, answer):
        """The number of a rank, and the names by which the gateway remembers the prompt there."""
        names = np.array(answer.pages, dtype=np.uint64)
        size = RequestSize(answer.num_tokens, MEAN_ANSWER)

        def find(loads):
            return find_held([self._known[load.rank].prompts for load in loads], names, answer.num_tokens)

        find_some = find if self._follows_index else find_nothing
        loads = [rank.load for rank in self._known]
        return pick(
            loads, size, next(self._turns), self._policy, find_some
        ).rank, names if self._follows_index else None

    def _arrive(self, now, answer, number):
        rank = self.ranks[number]
        rank.num_requests += 1
        rank.kv_tokens += answer.num_tokens
        rank.use(answer.pages)
        self._known[number].handle(Token(answer.name, 1, 0, None))
        self._at(now + answer.num_new * TOKEN_EVERY_S, self._end, answer, number)

    def _end(self, now, answer, number):
        rank = self.ranks[number]
        rank.num_requests -= 1
        rank.kv_tokens -= answer.num_tokens
        rank.use(answer.pages)
        self._known[number].unsubscribe(answer.name)

    def _look(self, now):
        steps_s = [rank.step_s for rank in self.ranks]
        kv_tokens = [rank.kv_tokens for rank in self.ranks]
        if any(kv_tokens):
            self.looks.append((spread(kv_tokens), max(steps_s) * NUM_RANKS / sum(steps_s)))


def main(path):
    """Play the hour with each choice, and hold the gateway's against the others."""
    goals = Goals()
    for cache_tokens in CACHE_TOKENS:
        print(f"{NUM_RANKS} ranks of {cache_tokens:,} tokens")
        print(f"{'':16}{'not sent':>10}{'spread of KV':>14}{'slowest':>9}{'found of expected':>19}")
        told = {choice: play(path, choice, cache_tokens) for choice in CHOICES}
        not_sent, slowest = told.pop("affinity")
        goals.check(
            f"{cache_tokens:,}: not sent, over the best of the others'",
            not_sent / max(each[0] for each in told.values()),
            ">=",
            2.0,
        )
        goals.check(f"{cache_tokens:,}: slowest step over blind's", slowest / told["blind"][1], "<=", 1.01)
        goals.check(
            f"{cache_tokens:,}: slowest step over least requests'",
            slowest / told[Policy.LEAST_REQUESTS][1],
            "<=",
            1.0,
        )
    return goals.report()


def play(path, choice, cache_tokens):
    """Print a line; return the share of tokens that was not sent, and the slowest step over the mean."""
    answers, model = read_answers(path), Model(choice, cache_tokens)
    model.run(answers)
    not_sent = model.num_found_tokens / sum(answer.num_tokens for answer in answers)
    kv_spread, slowest = np.mean(model.looks, axis=0)
    expected = model.num_expected_tokens
    print(
        f"{choice if isinstance(choice, str) else choice.value:16}{not_sent:10.1%}{kv_spread:14.3f}{slowest:9.3f}"
        + (f"{model.num_found_tokens / expected:19.1%}" if expected else "")
    )
    return not_sent, slowest


def read_answers(path):
    """The trace's requests."""
    return [
        Answer(str(number), each.at, each.prompt, each.output, name_pages(each.blocks)[: each.prompt // PAGE_TOKENS])
        for number, each in enumerate(read_trace(path))
    ]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
