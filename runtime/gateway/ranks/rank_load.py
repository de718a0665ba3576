"""The load of a request and of a rank, in the quantities that the balancers in `router.py` compare.

    num_requests      requests; in decode, the tokens that the rank dispatches in a step
    prompt_tokens     prompt tokens not computed yet; in prefill, the tokens that the rank has to dispatch
    attention_pairs   pairs of a query and a key in attention for these tokens, in one head of one layer
    kv_tokens         tokens of latent KV in whole pages, including those that requests are expected to add

A prompt of n tokens forms n (n + 1) / 2 pairs, because each token attends to itself and to all tokens before it. A pair
costs 2 (N + P) + 2 U operations in each head of each layer (N + P: dimensions of a query, U: of a value). All ranks of
a phase compute the same model, so this factor is the same for all of them. Where pairs meet tokens in one sum, 14,811
pairs take as long as a token (PAIRS_PER_TOKEN).

A prompt whose first h tokens a rank holds leaves n - h tokens and n (n + 1) / 2 - h (h + 1) / 2 pairs to compute there.

It keeps no requests (`ledger.py` does) and chooses no rank (`router.py` does).

Source: DeepSeek open-infra-index, day 6: prefill balances core attention and input tokens over GPUs, decode KV use and
requests.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from runtime.protocol.counting import attention_pairs, round_up_to_page

__all__ = [
    "NOTHING_HELD",
    "NO_WORK",
    "PAIRS_PER_TOKEN",
    "HeldPrefix",
    "Phase",
    "RankLimits",
    "RankLoad",
    "RequestSize",
    "Work",
    "largest_size",
    "sum_works",
]

Phase = Literal["prefill", "decode", "mixed"]

# DeepSeek-V3's: 37e9 parameters for a token (arXiv 2412.19437), two operations each; 61 layers of 128 heads with
# N + P = 192 and U = 128 (its config.json). Assumed for all models: V2, V2-Lite and Kimi-K2 have 8,500 to 25,600.
PAIRS_PER_TOKEN = 2 * 37e9 / (61 * 128 * 2 * (192 + 128))


@dataclass(frozen=True)
class Work:
    """The work of one request at a rank, or of all of the rank's requests."""

    num_requests: int
    prompt_tokens: int
    attention_pairs: int
    kv_tokens: int

    @property
    def prompt_time(self) -> float:
        """The time to compute the prompts, in units of one token's time without attention."""
        return self.prompt_tokens + self.attention_pairs / PAIRS_PER_TOKEN

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.num_requests + other.num_requests,
            self.prompt_tokens + other.prompt_tokens,
            self.attention_pairs + other.attention_pairs,
            self.kv_tokens + other.kv_tokens,
        )

    def __sub__(self, other: "Work") -> "Work":
        return Work(
            self.num_requests - other.num_requests,
            self.prompt_tokens - other.prompt_tokens,
            self.attention_pairs - other.attention_pairs,
            self.kv_tokens - other.kv_tokens,
        )


NO_WORK = Work(0, 0, 0, 0)


def sum_works(works: Iterable[Work]) -> Work:
    """Return the sum of `works`. Unlike repeated `+`, it creates no intermediate results."""
    all_works = list(works)
    return Work(
        sum([work.num_requests for work in all_works]),
        sum([work.prompt_tokens for work in all_works]),
        sum([work.attention_pairs for work in all_works]),
        sum([work.kv_tokens for work in all_works]),
    )


@dataclass(frozen=True)
class RequestSize:
    """The size of a request: the tokens of its prompt, and the tokens it is expected to generate."""

    prompt_tokens: int
    new_tokens: int

    def work_at(self, phase: Phase, num_held: int = 0) -> Work:
        """Return the work of this request at a rank of `phase` that has its first `num_held` tokens in the cache.

        On prefill ranks, KV does not count: a request's KV leaves with its first token, and waiting requests have no
        KV.
        """
        kv_tokens = round_up_to_page(self.prompt_tokens + self.new_tokens)
        if phase == "decode":
            return Work(1, 0, 0, kv_tokens)
        pairs = attention_pairs(num_held, self.prompt_tokens)
        return Work(1, self.prompt_tokens - num_held, pairs, kv_tokens if phase == "mixed" else 0)


@dataclass(frozen=True)
class HeldPrefix:
    """The first `num_tokens` of a prompt, which a rank has in its cache.

    The rank is still computing the last `num_computing` of these tokens.
    """

    num_tokens: int
    num_computing: int = 0

    @property
    def num_ready(self) -> int:
        """The number of held tokens that are already computed."""
        return self.num_tokens - self.num_computing


NOTHING_HELD = HeldPrefix(0)


@dataclass(frozen=True)
class RankLimits:
    """The limits of one rank, from the launch file: KV and requests in its cache, and requests that may wait there."""

    max_requests: int
    kv_tokens: int
    max_queued_requests: int

    def fit(self, work: Work) -> bool:
        """Return whether `work` is within the rank's limits of requests and KV."""
        return work.num_requests <= self.max_requests and work.kv_tokens <= self.kv_tokens


@dataclass(frozen=True)
class RankLoad:
    """The load of a rank of a ready unit: its work and limits.

    `num_waiting` of its requests have found no room in its cache yet.
    """

    unit: str
    rank: int
    phase: Phase
    work: Work
    limits: RankLimits
    num_waiting: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """The rank's unit and number, which identify it."""
        return self.unit, self.rank

    def fits(self, work: Work) -> bool:
        """Return whether the rank's cache has room for another request of this work now."""
        # faster than `limits.fit(has + work)`, and it runs at every rank for every request
        has, limits = self.work, self.limits
        return (
            has.num_requests + work.num_requests <= limits.max_requests
            and has.kv_tokens + work.kv_tokens <= limits.kv_tokens
        )

    def takes(self, work: Work) -> bool:
        """Return whether the rank accepts a request of this work, to run or to wait."""
        return self.fits(work) or self.num_waiting < self.limits.max_queued_requests


def largest_size(sizes: Iterable[RequestSize]) -> RequestSize:
    """Return the longest prompt and the longest answer of `sizes`, as one size. `sizes` must not be empty."""
    together = list(sizes)
    return RequestSize(max(each.prompt_tokens for each in together), max(each.new_tokens for each in together))
