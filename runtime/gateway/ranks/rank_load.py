"""What a request costs a rank, and what a rank has: the quantities that the balancers in `router.py` compare.

    num_requests      requests; in decode each is one token a step, so that they are what the rank dispatches
    prompt_tokens     tokens of prompts that are not computed yet: what a prefill rank has to dispatch
    attention_pairs   pairs of a query and a key that core attention forms for these tokens, in one head of one layer
    kv_tokens         tokens of latent KV in whole pages, those included that a request is expected to add

A prompt of n tokens forms n (n + 1) / 2 pairs, because each token attends to itself and to all before it. A pair costs
2 (N + P) + 2 U operations in each head of each layer (N + P: a query's values, U: a value's). All ranks of a phase
compute the same model, so this factor is the same for all of them, and only pairs are compared.

It holds no rank's requests (`ledger.py` does) and chooses nobody.

Source: DeepSeek open-infra-index, day 6: prefill balances core attention and input tokens over GPUs, decode KV use and
requests.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from runtime.protocol.counting import attention_pairs, in_pages

__all__ = ["NO_WORK", "Phase", "RankLimits", "RankLoad", "RequestSize", "Work", "largest", "total"]

Phase = Literal["prefill", "decode", "mixed"]


@dataclass(frozen=True)
class Work:
    """The work of one request at a rank, or of all requests of a rank."""

    num_requests: int
    prompt_tokens: int
    attention_pairs: int
    kv_tokens: int

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


def total(works: Iterable[Work]) -> Work:
    """Return the sum of works, which is made once and not after each."""
    all_of_them = list(works)
    return Work(
        sum([work.num_requests for work in all_of_them]),
        sum([work.prompt_tokens for work in all_of_them]),
        sum([work.attention_pairs for work in all_of_them]),
        sum([work.kv_tokens for work in all_of_them]),
    )


@dataclass(frozen=True)
class RequestSize:
    """The tokens of a request: of its prompt, and those that are expected to be generated."""

    prompt_tokens: int
    new_tokens: int

    def work_at(self, phase: Phase) -> Work:
        """Return the work of this request at a rank of `phase`.

        A prefill rank gives a prompt's KV away with its first token and keeps none for requests that wait, so KV is no
        load there.
        """
        held = in_pages(self.prompt_tokens + self.new_tokens)
        if phase == "decode":
            return Work(1, 0, 0, held)
        return Work(1, self.prompt_tokens, attention_pairs(0, self.prompt_tokens), held if phase == "mixed" else 0)


@dataclass(frozen=True)
class RankLimits:
    """The limits of one rank, as in the launch file: of its cache, and of the requests that may wait for it."""

    max_requests: int
    kv_tokens: int
    max_queued_requests: int

    def fit(self, work: Work) -> bool:
        """Return whether the cache takes all of this work."""
        return work.num_requests <= self.max_requests and work.kv_tokens <= self.kv_tokens


@dataclass(frozen=True)
class RankLoad:
    """A rank of a ready unit, and what it has.

    `num_waiting` of its requests found no room in its cache when they were given to it, and still wait.
    """

    unit: str
    rank: int
    phase: Phase
    work: Work
    limits: RankLimits
    num_waiting: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """The rank's identity."""
        return self.unit, self.rank

    def fits(self, work: Work) -> bool:
        """Return whether a request of this work would be in the cache at once, along with all that the rank has."""
        has, limits = self.work, self.limits  # not `limits.fit(has + work)`: every rank is asked, for every request
        return (
            has.num_requests + work.num_requests <= limits.max_requests
            and has.kv_tokens + work.kv_tokens <= limits.kv_tokens
        )

    def takes(self, work: Work) -> bool:
        """Return whether a request of this work may be given to the rank: it fits, or it may wait there."""
        return self.fits(work) or self.num_waiting < self.limits.max_queued_requests


def largest(sizes: Iterable[RequestSize]) -> RequestSize:
    """Return a size that none of `sizes`, of which there is one, is larger than in any part."""
    together = list(sizes)
    return RequestSize(max(each.prompt_tokens for each in together), max(each.new_tokens for each in together))
