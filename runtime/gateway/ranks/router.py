"""Choose the ranks for a request: one computes its prompt, one its tokens. The balancers are here, as pure functions.

    ranks of all ready units -> prefill or mixed: all of them       -> the balancer's choice -> first
                             -> decode or mixed: those with room    -> the balancer's choice -> rest

Three balancers, which is the policy:
    BALANCED         keeps ranks equal in every quantity at once, see below
    LEAST_REQUESTS   the fewest requests; what there was before, and a baseline
    ROUND_ROBIN      in turn, whatever ranks have; a baseline

BALANCED compares the quantities of `rank_load.py`: in prefill the attention and the tokens that are still to be
computed, in decode KV and requests, in mixed units all four. With x[r, q] of quantity q at rank r and m[q] its mean
over ranks, the squared spread of all quantities together is the mean over r of

    sum over q of (x[r, q] / m[q] - 1)^2

A request that adds w[q] to rank r adds 2 w[q] x[r, q] / m[q]^2 to that, plus what does not depend on r, so the rank
with the least sum over q of w[q] x[r, q] / m[q]^2 keeps the spread least. A long prompt thus goes by attention, a short
one by tokens; a request with much KV goes by KV, a small one by the count. No weight is to be set.

Ranks that are equally good take turns. Nothing depends on the order of the list, and nobody gets a request that has no
room for it. This module imports no torch and keeps no state: `stacks` may import it, and its simulator does.

Sources: DeepSeek open-infra-index, day 6 (what to equalise). R. Panigrahy et al., "Heuristics for Vector Bin Packing",
2011 (several quantities by the product of demand and load). vLLM's `DPLBAsyncMPClient` and SGLang's `DPBudget` choose
the least of one number: requests, those that wait counted four times, or tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from runtime.gateway.ranks.rank_load import NO_WORK, Phase, RankLimits, RankLoad, RequestSize, Work, total

__all__ = [
    "NO_WORK",
    "Policy",
    "RankLimits",
    "RankLoad",
    "RankPair",
    "RequestSize",
    "Work",
    "choose_embedding_rank",
    "choose_ranks",
    "embedding_room",
    "least_prompt_tokens",
    "num_ranks",
    "num_requests",
    "pick",
    "room",
]


class Policy(Enum):
    """The way to choose among ranks that have room."""

    BALANCED = "balanced"
    LEAST_REQUESTS = "least_requests"
    ROUND_ROBIN = "round_robin"


@dataclass(frozen=True)
class RankPair:
    """The ranks that one request's first token, and its other tokens, come from."""

    first: RankLoad
    rest: RankLoad


def choose_ranks(
    ranks: Sequence[RankLoad], size: RequestSize, turn: int, policy: Policy = Policy.BALANCED
) -> RankPair | None:
    """Return the rank for the prompt and the rank for the other tokens: the same one in a mixed unit.

    `ranks` are those of all ready units; `turn` is how often this was asked before. None if a phase has no ready unit
    or no rank takes the request.
    """
    first, rest = _split_by_role(ranks)
    to_stay = _ranks_with_room(rest, size)
    if not first or not to_stay:
        return None
    chosen = pick(to_stay, size.work_at(_common_phase(to_stay)), turn, policy)
    return RankPair(chosen if chosen.phase == "mixed" else pick(first, size.work_at("prefill"), turn, policy), chosen)


def choose_embedding_rank(
    ranks: Sequence[RankLoad], size: RequestSize, turn: int, policy: Policy = Policy.BALANCED
) -> RankLoad | None:
    """Return the rank for a prompt that only wants its embedding; None if no unit that computes prompts is ready."""
    first, _ = _split_by_role(ranks)
    return pick(first, size.work_at(_common_phase(first)), turn, policy) if first else None


def room(ranks: Sequence[RankLoad], size: RequestSize) -> int | None:
    """Return how many more requests of at most this size the ranks take; None if no unit of a phase is ready.

    The rank that a request stays with counts: it has its latents in memory while the request waits.
    """
    first, rest = _split_by_role(ranks)
    if not first or not rest:
        return None
    work = size.work_at(_common_phase(rest))
    return sum(_rank_room(load, work) for load in rest)


def embedding_room(ranks: Sequence[RankLoad]) -> int | None:
    """Return how many more prompts may come that only want their embeddings; None if no unit of a phase is ready."""
    first, rest = _split_by_role(ranks)
    if not first or not rest:
        return None
    return sum(
        max(load.limits.max_requests + load.limits.max_queued_requests - load.work.num_requests, 0) for load in first
    )


def num_requests(ranks: Sequence[RankLoad]) -> int:
    """Return how many requests there are, each counted where it stays to its end."""
    _, rest = _split_by_role(ranks)
    return sum(load.work.num_requests for load in rest)


def num_ranks(ranks: Sequence[RankLoad]) -> tuple[int, int]:
    """Return how many ranks compute prompts, and with how many requests stay."""
    first, rest = _split_by_role(ranks)
    return len(first), len(rest)


def least_prompt_tokens(ranks: Sequence[RankLoad]) -> int | None:
    """Return what the rank has left to compute that has least; None if no unit of a phase is ready."""
    first, rest = _split_by_role(ranks)
    return min(load.work.prompt_tokens for load in first) if first and rest else None


def pick(ranks: Sequence[RankLoad], work: Work, turn: int, policy: Policy = Policy.BALANCED) -> RankLoad:
    """Return the rank of `ranks` for a request of this work. `ranks` is not empty; its order does not matter."""
    cost = _make_cost(policy, ranks, work)
    costs = [cost(load.work) for load in ranks]
    least = min(costs)
    equals = sorted((load for load, its in zip(ranks, costs, strict=True) if its == least), key=lambda load: load.key)
    return equals[turn % len(equals)]


def _split_by_role(ranks: Sequence[RankLoad]) -> tuple[list[RankLoad], list[RankLoad]]:
    """Return the ranks that can compute prompts, and those that can go on. A mixed rank is nobody's partner."""
    prefill, decode, mixed = (
        [load for load in ranks if load.phase == phase] for phase in ("prefill", "decode", "mixed")
    )
    return (prefill, decode) if prefill and decode else (mixed, mixed)


def _ranks_with_room(ranks: Sequence[RankLoad], size: RequestSize) -> list[RankLoad]:
    """Return the ranks where the request need not wait or, if there are none, those where it may."""
    if not ranks:
        return []
    work = size.work_at(_common_phase(ranks))
    return [load for load in ranks if load.fits(work)] or [load for load in ranks if load.takes(work)]


def _common_phase(ranks: Sequence[RankLoad]) -> Phase:
    """Return the phase of ranks that have one role: it is the same for all."""
    return ranks[0].phase


def _rank_room(load: RankLoad, work: Work) -> int:
    """Return how many requests of this work the rank takes, one after another."""
    seats = load.limits.max_requests - load.work.num_requests
    if work.kv_tokens:
        seats = min(seats, (load.limits.kv_tokens - load.work.kv_tokens) // work.kv_tokens)
    return max(seats, 0) + max(load.limits.max_queued_requests - load.num_waiting, 0)


def _make_cost(policy: Policy, ranks: Sequence[RankLoad], work: Work) -> Callable[[Work], float]:
    match policy:
        case Policy.BALANCED:
            return _spread_growth(total(load.work for load in ranks), work)
        case Policy.LEAST_REQUESTS:
            return lambda has: has.num_requests
        case Policy.ROUND_ROBIN:
            return lambda has: 0


def _spread_growth(all_work: Work, work: Work) -> Callable[[Work], float]:
    """Return what a request of `work` adds to the spread at a rank that has so much already, times a constant.

    The count of requests is no load of a prefill rank, which no KV tells from others.
    """

    def weight(adds: int, there_is: int) -> float:
        return adds / there_is**2 if there_is else 0.0

    requests = weight(work.num_requests, all_work.num_requests) if work.kv_tokens else 0.0
    tokens = weight(work.prompt_tokens, all_work.prompt_tokens)
    pairs = weight(work.attention_pairs, all_work.attention_pairs)
    kv = weight(work.kv_tokens, all_work.kv_tokens)
    return lambda has: (
        requests * has.num_requests + tokens * has.prompt_tokens + pairs * has.attention_pairs + kv * has.kv_tokens
    )
