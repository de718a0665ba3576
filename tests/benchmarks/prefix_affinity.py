"""What the choice of prefill ranks does to prefix hits, TTFT and balance, on an hour of conversations.

    python -m tests.benchmarks.prefix_affinity TRACE

TRACE is Mooncake's `FAST25-release/traces/conversation_trace.jsonl` (kvcache-ai/Mooncake). Exit 1 on a missed goal.
It takes two minutes of CPU and measures no time but the model's, so that any machine gives its figures.

The gateway's side is the real one: router, ledger, index and corrections. Ranks are a model in steps, with the
constants of `balancers_model.py`: units of four ranks that step together, each with a cache of pages that forgets the
least recently used. A rank looks a prompt up in every step, and lets it wait for a page that an older one computes.
Ranks report their loads after each step. Decode ranks are left out.

    affinity     the gateway's choice
    blind        the same formula without the index: the least queue
    unlimited    what one endless cache of all ranks would hit
"""

import heapq
import random
import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from planner.facts.trace import BLOCK_TOKENS
from runtime.gateway.ranks.prefix_index import TENANT_SHIFT, PrefixIndex
from runtime.gateway.ranks.rank_connection import Rank
from runtime.gateway.ranks.rank_load import RankLimits, RequestSize
from runtime.gateway.ranks.router import Policy, find_nothing, pick
from runtime.gateway.ranks.sent_prompts import find_held
from runtime.protocol.counting import PAGE_TOKENS, attention_pairs
from runtime.protocol.messages import Hello, Load, PrefixHit, Token
from stacks.simulator.requests.trace import read_trace
from tests.benchmarks.balancers import max_over_mean, quantile, spread
from tests.benchmarks.balancers_model import PAIR_S, STEP_S, STEP_TOKENS, TOKEN_S
from tests.benchmarks.goals import Goals

NUM_RANKS, UNIT_RANKS = 24, 4
CACHE_TOKENS = (400_000, 1_600_000)  # of a rank: 28 GB in BF16, and as if host memory held three times as much more
PAGES_PER_BLOCK = BLOCK_TOKENS // PAGE_TOKENS
ONE_TENANT = (np.uint64(1) << TENANT_SHIFT) - np.uint64(1)  # the bits of a name that do not say whose it is
CHOICES = ("affinity", "blind", Policy.LEAST_REQUESTS, Policy.ROUND_ROBIN)


@dataclass(eq=False)
class Prompt:
    """A prompt, its pages' names, and what became of it."""

    name: str
    at: float
    num_tokens: int
    pages: list
    gateway: int = 0
    num_computed: int = 0
    num_hits: int = 0
    first_at: float = 0.0


@dataclass
class Computing:
    """A prefill rank: its prompts in line, its cache's pages in the order of their last use, what it has computed."""

    cache_tokens: int
    line: list = field(default_factory=list)
    pages: OrderedDict = field(default_factory=OrderedDict)
    num_tokens: int = 0
    num_pairs: int = 0
    arrived: dict = field(default_factory=dict)  # gateway -> names since its last report

    def step(self):
        """Compute up to STEP_TOKENS tokens: (seconds, finished prompts)."""
        room, seconds, under_way, done = STEP_TOKENS, 0.0, set(), []
        for prompt in self.line:
            if not room:
                break
            self._reuse(prompt)
            number = prompt.num_computed // PAGE_TOKENS
            if number < len(prompt.pages):
                if prompt.pages[number] in under_way:
                    continue
                under_way.add(prompt.pages[number])
            start = prompt.num_computed
            prompt.num_computed = min(start + room, prompt.num_tokens)
            room -= prompt.num_computed - start
            seconds += self._count(start, prompt.num_computed)
            if prompt.num_computed == prompt.num_tokens:
                done.append(prompt)
        for prompt in self.line:
            self._keep(prompt.pages[: prompt.num_computed // PAGE_TOKENS] if prompt.num_computed else ())
        self.line = [prompt for prompt in self.line if prompt.num_computed < prompt.num_tokens]
        return seconds, done

    def load(self, gateway):
        """What the rank reports to a gateway."""
        left = [(prompt.num_computed, prompt.num_tokens) for prompt in self.line]
        tokens, pairs = sum(end - start for start, end in left), sum(attention_pairs(*each) for each in left)
        return Load(len(left), 0, tokens, pairs, 0, self.arrived.pop(gateway, []))

    def _reuse(self, prompt):
        last = (prompt.num_tokens - 1) // PAGE_TOKENS
        number = start = prompt.num_computed // PAGE_TOKENS
        while number < last and prompt.pages[number] in self.pages:
            number += 1
        if number > start:
            prompt.num_hits += number * PAGE_TOKENS - prompt.num_computed
            prompt.num_computed = number * PAGE_TOKENS

    def _keep(self, pages):
        """Note the use of pages, the last one first, and give up those without room."""
        for page in reversed(pages):
            self.pages[page] = None
            self.pages.move_to_end(page)
        while len(self.pages) * PAGE_TOKENS > self.cache_tokens:
            self.pages.popitem(last=False)

    def _count(self, start, end):
        pairs = attention_pairs(start, end)
        self.num_tokens += end - start
        self.num_pairs += pairs
        return (end - start) * TOKEN_S + pairs * PAIR_S


class Gateway:
    """One gateway: what it knows of the ranks, and its choice."""

    def __init__(self, choice, cache_tokens):
        self._choice, self._turns = choice, count()
        self.num_expected_tokens = 0
        self._index = PrefixIndex()
        transport = SimpleNamespace(get_write_buffer_size=lambda: 0)
        writer = SimpleNamespace(write=lambda data: None, transport=transport)
        limits = RankLimits(10**6, cache_tokens, 0)
        self.ranks = [
            Rank(Hello("p", "prefill", number, NUM_RANKS, "", 1, "", "", None, None), writer, limits, self._index)
            for number in range(NUM_RANKS)
        ]

    def send(self, prompt):
        """Send a prompt to a rank; return the rank's number."""
        names = np.array(prompt.pages, dtype=np.uint64) & ONE_TENANT
        size = RequestSize(prompt.num_tokens, 1)

        def find(loads):
            return find_held([self.ranks[load.rank].prompts for load in loads], names, size.prompt_tokens)

        policy = self._choice if isinstance(self._choice, Policy) else Policy.BALANCED
        find_some = find if self._choice == "affinity" else find_nothing
        chosen = pick([rank.load for rank in self.ranks], size, next(self._turns), policy, find_some).rank
        known = names if self._choice == "affinity" else None
        self.num_expected_tokens += self.ranks[chosen].subscribe(prompt.name, size, lambda *_: None, known)
        return chosen

    def finish(self, rank, prompt):
        """Hear of a prompt's first token."""
        if prompt.num_hits:
            self.ranks[rank].handle(PrefixHit(prompt.name, prompt.num_hits))
        self.ranks[rank].handle(Token(prompt.name, 0, 0, None))
        self.ranks[rank].unsubscribe(prompt.name)


class Model:
    """Prompts at ranks, chosen by gateways."""

    def __init__(self, choice, num_gateways, cache_tokens):
        self.gateways = [Gateway(choice, cache_tokens) for _ in range(num_gateways)]
        self.ranks = [Computing(cache_tokens) for _ in range(NUM_RANKS)]
        self.busy_s = 0.0
        self._stepping = [False] * (NUM_RANKS // UNIT_RANKS)
        self._events, self._numbers = [], count()

    def run(self, prompts):
        """Compute all prompts."""
        for prompt in prompts:
            self._at(prompt.at, self._arrive, prompt)
        while self._events:
            now, _, happen, arguments = heapq.heappop(self._events)
            happen(now, *arguments)

    def _at(self, when, happen, *arguments):
        heapq.heappush(self._events, (when, next(self._numbers), happen, arguments))

    def _arrive(self, now, prompt):
        number = self.gateways[prompt.gateway].send(prompt)
        self.ranks[number].line.append(prompt)
        self.ranks[number].arrived.setdefault(prompt.gateway, []).append(prompt.name)
        unit = number // UNIT_RANKS
        if not self._stepping[unit]:
            self._stepping[unit] = True
            self._at(now, self._step, unit)  # after all prompts that come at this moment

    def _step(self, now, unit):
        numbers = range(unit * UNIT_RANKS, (unit + 1) * UNIT_RANKS)
        self._stepping[unit] = any(self.ranks[number].line for number in numbers)
        if self._stepping[unit]:
            steps = {number: self.ranks[number].step() for number in numbers}
            slowest_s = STEP_S + max(seconds for seconds, _ in steps.values())
            self.busy_s += slowest_s
            self._at(now + slowest_s, self._finish, unit, [(number, done) for number, (_, done) in steps.items()])

    def _finish(self, now, unit, finished):
        for number, done in finished:
            for prompt in done:
                prompt.first_at = now
                self.gateways[prompt.gateway].finish(number, prompt)
            for place, gateway in enumerate(self.gateways):
                gateway.ranks[number].handle(self.ranks[number].load(place))
        self._step(now, unit)


def main(path):
    """Play the hour with each choice, and hold the gateway's against the others."""
    goals = Goals()
    for cache_tokens in CACHE_TOKENS:
        print(f"{NUM_RANKS} ranks of {cache_tokens:,} tokens    TTFT s                 computed tokens    found of")
        print(f"{'':24}{'hits':>7}{'p50':>8}{'p99':>8}{'busy':>8}{'spread':>9}{'max/mean':>10}{'expected':>11}")
        told = {choice: play(path, choice, 1, cache_tokens) for choice in CHOICES}
        for num_gateways in (2, 4):
            play(path, "affinity", num_gateways, cache_tokens)
        hits, p50, p99 = told.pop("affinity")
        others = list(told.values())
        goals.check(
            f"{cache_tokens:,}: hits over the best of the others'", hits / max(each[0] for each in others), ">=", 3.0
        )
        goals.check(
            f"{cache_tokens:,}: p50 TTFT over the best of the others'", p50 / min(each[1] for each in others), "<=", 1.0
        )
        goals.check(
            f"{cache_tokens:,}: p99 TTFT over the best of the others'", p99 / min(each[2] for each in others), "<=", 1.0
        )
    print(f"{'unlimited':24}{unlimited_hits(read_prompts(path, 1)):7.1%}")
    return goals.report()


def play(path, choice, num_gateways, cache_tokens):
    """Print a line; return hits, p50 and p99."""
    prompts, model = read_prompts(path, num_gateways), Model(choice, num_gateways, cache_tokens)
    model.run(prompts)
    ttft_s, num_hits = [prompt.first_at - prompt.at for prompt in prompts], sum(prompt.num_hits for prompt in prompts)
    hits = num_hits / sum(prompt.num_tokens for prompt in prompts)
    busy = model.busy_s / (NUM_RANKS // UNIT_RANKS) / max(prompt.first_at for prompt in prompts)
    computed = [rank.num_tokens * TOKEN_S + rank.num_pairs * PAIR_S for rank in model.ranks]
    expected = sum(gateway.num_expected_tokens for gateway in model.gateways)
    name = choice if isinstance(choice, str) else choice.value
    name += f", {num_gateways} gateways" if num_gateways > 1 else ""
    p50, p99 = quantile(ttft_s, 0.5), quantile(ttft_s, 0.99)
    print(
        f"{name:24}{hits:7.1%}{p50:8.2f}{p99:8.2f}{busy:8.1%}{spread(computed):9.3f}{max_over_mean(computed):10.3f}"
        + (f"{num_hits / expected:11.1%}" if expected else "")
    )
    return hits, p50, p99


def read_prompts(path, num_gateways):
    """The trace's prompts. Their gateways are drawn at random, as a load balancer that knows nothing would."""
    draw = random.Random(48)
    return [
        Prompt(
            str(number),
            each.at,
            each.prompt,
            name_pages(each.blocks)[: each.prompt // PAGE_TOKENS],
            draw.randrange(num_gateways),
        )
        for number, each in enumerate(read_trace(path))
    ]


def name_pages(blocks):
    """Names of 64 bits for the pages of a trace's blocks: SplitMix64 of their numbers."""
    pages = np.repeat(np.array(blocks, dtype=np.uint64) * np.uint64(PAGES_PER_BLOCK), PAGES_PER_BLOCK)
    pages += np.tile(np.arange(PAGES_PER_BLOCK, dtype=np.uint64), len(blocks))
    mixed = (pages + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return (mixed ^ (mixed >> np.uint64(31))).tolist()


def unlimited_hits(prompts):
    """The share of tokens whose page an earlier prompt had, and all pages before it."""
    seen, hits = set(), 0
    for prompt in prompts:
        last = (prompt.num_tokens - 1) // PAGE_TOKENS
        hits += PAGE_TOKENS * next((n for n, page in enumerate(prompt.pages[:last]) if page not in seen), last)
        seen.update(prompt.pages)
    return hits / sum(prompt.num_tokens for prompt in prompts)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
