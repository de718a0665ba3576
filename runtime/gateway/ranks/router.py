"""Choose the ranks for a request: one computes its prompt, one its tokens. The balancers are pure functions.

    ranks of all ready units -> prefill or mixed: all of them       -> the balancer's choice -> first
                             -> decode or mixed: those with room    -> the balancer's choice -> rest

The policy is one of three balancers:
    BALANCED         prompts where they are computed soonest, answers where ranks stay equal and little is sent
    LEAST_REQUESTS   takes the rank with the fewest requests; a baseline
    ROUND_ROBIN      takes ranks in turn, whatever they have to do; a baseline

For a prompt, BALANCED takes the rank with the least

    time = queue + missing
    queue      what the rank has to compute of other prompts, without what it computes of this prompt's beginning
    missing    what is left of this prompt behind the blocks that the rank holds

The unit is the time of one prompt token (`Work.prompt_time`). It is the same at all ranks of a phase, which run on
equal GPUs, so its seconds cancel and nobody has to measure them. A conversation comes back to its rank. Many prompts
with one beginning stay at one rank until their queue takes longer than computing the beginning elsewhere. Prompts that
begin alike and come together go to one rank: there the queue is their own beginning, which every other rank would have
to compute as well.

Worked example, without attention: a prompt of 4,000 tokens begins with 3,200 that rank A holds. A, with 16,000 tokens
in line, takes 16,000 + 800; B, with 8,000, takes 8,000 + 4,000 and gets it.

A mixed rank also makes tokens, and its time has one more term: its tokens of KV, each as long as a prompt token.

For an answer, BALANCED compares KV and requests of decode ranks. Rank r has x[r, q] of quantity q, and m[q] is the mean
over ranks with the request. The squared spread of both quantities together is the mean over r of

    sum over q of (x[r, q] / m[q] - 1)^2

A request that adds w[q] to rank r adds 2 w[q] x[r, q] / m[q]^2 to the spread, plus terms that do not depend on r. So
the spread grows least at the rank with the least sum over q of w[q] x[r, q] / m[q]^2. For a request with much KV, KV
decides; for a small one, the count. No weights need setting.

A token of the prompt that would have to be sent to a rank counts like SENT_TOKEN tokens of KV that are there. So a
conversation comes back to the rank that has its earlier turns, unless another rank has less KV by more than sending
them counts. Only blocks that have arrived count: no prompt skips those that are on their way.

Worked example, with equal numbers of requests: a prompt of 4,000 tokens begins with 3,200 that rank A has. A, with
100,000 tokens of KV, counts 100,000 + 4 x 800; B, with 90,000, counts 90,000 + 4 x 4,000, so A gets it.

Equally good ranks take turns. The order of the list does not matter, and no rank gets a request that it has no room
for. This module imports no torch and keeps no state: `stacks` may import it, and its simulator does.

Sources: DeepSeek open-infra-index, day 6 (what to equalise). R. Panigrahy et al., "Heuristics for Vector Bin Packing",
2011 (several quantities by the product of demand and load). vLLM's `DPLBAsyncMPClient` and SGLang's `DPBudget` choose
the least of one number: requests, those that wait counted four times, or tokens. NVIDIA Dynamo's KV router chooses the
least of blocks to compute plus blocks held for running requests, with equal weights (docs, "Router Design").
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from runtime.gateway.ranks.rank_load import (
    NO_WORK,
    NOTHING_HELD,
    HeldPrefix,
    Phase,
    RankLimits,
    RankLoad,
    RequestSize,
    Work,
    sum_works,
)
from runtime.protocol.counting import attention_pairs

__all__ = [
    "NOTHING_HELD",
    "NO_WORK",
    "FindHeld",
    "HeldPrefix",
    "Policy",
    "RankLimits",
    "RankLoad",
    "RankPair",
    "RequestSize",
    "Work",
    "choose_embedding_rank",
    "choose_ranks",
    "embedding_room",
    "find_nothing",
    "least_prompt_tokens",
    "num_ranks",
    "num_requests",
    "pick",
    "room",
]

# What a token costs the decode rank that is sent it, over what it costs the unit to keep it for an answer. The KV of a
# token of DeepSeek-V3 takes 40 us of CPU where NIXL writes it, and 160 where it is sent (docs/performance.md). Kept, it
# makes each step 38 ns longer (assumed), or an answer's 343 steps 13 us. So this is 3 to 12.
SENT_TOKEN = 4  # assumed: of these, the lower, because CPU time beside the steps holds nobody up


class Policy(Enum):
    """The way to choose among ranks that have room."""

    BALANCED = "balanced"
    LEAST_REQUESTS = "least_requests"
    ROUND_ROBIN = "round_robin"


@dataclass(frozen=True)
class RankPair:
    """The rank for a request's first token, and the rank for its other tokens."""

    first: RankLoad
    rest: RankLoad


FindHeld = Callable[[Sequence[RankLoad]], Sequence[HeldPrefix]]


def find_nothing(ranks: Sequence[RankLoad]) -> Sequence[HeldPrefix]:
    """Return an empty HeldPrefix for each rank, as if no rank had any of the prompt in its cache."""
    return [NOTHING_HELD] * len(ranks)


def choose_ranks(
    ranks: Sequence[RankLoad],
    size: RequestSize,
    turn: int,
    policy: Policy = Policy.BALANCED,
    find_held: FindHeld = find_nothing,
) -> RankPair | None:
    """Return the rank for a request's first token and the rank for its later tokens.

    In a mixed unit both are the same. `ranks` are those of all ready units. `turn` counts the calls, so that equal
    ranks take turns. `find_held` returns for each of the ranks given to it how much of the prompt the rank has in its
    cache. If no rank for later tokens has room now, one at which the request may wait is chosen. The result is None if
    there is none either, or if a phase has no ready unit.
    """
    first, rest = _split_by_role(ranks)
    rest_with_room = _ranks_with_room(rest, size)
    if not first or not rest_with_room:
        return None
    chosen = pick(rest_with_room, size, turn, policy, find_held)
    return RankPair(chosen if chosen.phase == "mixed" else pick(first, size, turn, policy, find_held), chosen)


def choose_embedding_rank(
    ranks: Sequence[RankLoad], size: RequestSize, turn: int, policy: Policy = Policy.BALANCED
) -> RankLoad | None:
    """Return the rank that computes a prompt to embed: a prefill rank or a mixed one.

    Return None if prefill or decode has no ready unit, although an embedding needs no decode: an incomplete deployment
    answers nothing.
    """
    first, _ = _split_by_role(ranks)
    return pick(first, size, turn, policy) if first else None


def room(ranks: Sequence[RankLoad], size: RequestSize) -> int | None:
    """Return how many more requests of at most this size the ranks take; None if a phase has no ready unit.

    Only the room at the ranks for the later tokens counts, since they hold a request's KV to its end.
    """
    first, rest = _split_by_role(ranks)
    if not first or not rest:
        return None
    work = size.work_at(_common_phase(rest))
    return sum(_rank_room(load, work) for load in rest)


def embedding_room(ranks: Sequence[RankLoad]) -> int | None:
    """Return how many more prompts to embed the ranks take; None if a phase has no ready unit."""
    first, rest = _split_by_role(ranks)
    if not first or not rest:
        return None
    return sum(
        max(load.limits.max_requests + load.limits.max_queued_requests - load.work.num_requests, 0) for load in first
    )


def num_requests(ranks: Sequence[RankLoad]) -> int:
    """Return the number of requests at these ranks. A request that goes on to decode counts only at its decode rank."""
    _, rest = _split_by_role(ranks)
    return sum(load.work.num_requests for load in rest)


def num_ranks(ranks: Sequence[RankLoad]) -> tuple[int, int]:
    """Return how many ranks compute prompts, and how many keep requests to their end."""
    first, rest = _split_by_role(ranks)
    return len(first), len(rest)


def least_prompt_tokens(ranks: Sequence[RankLoad]) -> int | None:
    """Return the fewest prompt tokens that a rank has left to compute; None if a phase has no ready unit."""
    first, rest = _split_by_role(ranks)
    return min(load.work.prompt_tokens for load in first) if first and rest else None


def pick(
    ranks: Sequence[RankLoad],
    size: RequestSize,
    turn: int,
    policy: Policy = Policy.BALANCED,
    find_held: FindHeld = find_nothing,
) -> RankLoad:
    """Return the best rank for a request. `ranks` is not empty and of one phase.

    Equally good ranks take turns: `turn` is the number of this call. `find_held` returns for each of the
    ranks given to it how much of the prompt the rank has in its cache.
    """
    costs = _costs(policy, ranks, size, find_held)
    lowest = min(costs)
    equals = sorted(
        (load for load, each_cost in zip(ranks, costs, strict=True) if each_cost == lowest), key=lambda load: load.key
    )
    return equals[turn % len(equals)]


def _split_by_role(ranks: Sequence[RankLoad]) -> tuple[list[RankLoad], list[RankLoad]]:
    """Return the ranks for prompts and first tokens, and the ranks for later tokens.

    A mixed rank does both for its requests.
    """
    prefill, decode, mixed = (
        [load for load in ranks if load.phase == phase] for phase in ("prefill", "decode", "mixed")
    )
    return (prefill, decode) if prefill and decode else (mixed, mixed)


def _ranks_with_room(ranks: Sequence[RankLoad], size: RequestSize) -> list[RankLoad]:
    """Return the ranks that have room for the request now.

    If no rank has room, return the ranks at which it may wait.
    """
    if not ranks:
        return []
    work = size.work_at(_common_phase(ranks))
    return [load for load in ranks if load.fits(work)] or [load for load in ranks if load.takes(work)]


def _common_phase(ranks: Sequence[RankLoad]) -> Phase:
    """Return the phase that all `ranks`, which have the same role, are in."""
    return ranks[0].phase


def _rank_room(load: RankLoad, work: Work) -> int:
    """Return how many more requests of this work the rank takes."""
    seats = load.limits.max_requests - load.work.num_requests
    if work.kv_tokens:
        seats = min(seats, (load.limits.kv_tokens - load.work.kv_tokens) // work.kv_tokens)
    return max(seats, 0) + max(load.limits.max_queued_requests - load.num_waiting, 0)


def _costs(policy: Policy, ranks: Sequence[RankLoad], size: RequestSize, find_held: FindHeld) -> list[float]:
    """Return the cost of each rank under the policy, `[num_ranks]`.

    The policy chooses the rank with the lowest cost.
    """
    match policy:
        case Policy.BALANCED if _common_phase(ranks) == "decode":
            growth = _spread_growth(sum_works(load.work for load in ranks), size.work_at("decode"))
            helds = find_held(ranks)
            return [
                growth(load.work, size.prompt_tokens - held.num_ready) for load, held in zip(ranks, helds, strict=True)
            ]
        case Policy.BALANCED:
            return [_prompt_time(load, size, held) for load, held in zip(ranks, find_held(ranks), strict=True)]
        case Policy.LEAST_REQUESTS:
            return [load.work.num_requests for load in ranks]
        case Policy.ROUND_ROBIN:
            return [0.0] * len(ranks)


def _prompt_time(load: RankLoad, size: RequestSize, held: HeldPrefix) -> float:
    """Return the time until a rank would have computed the prompt, in units of the time of one prompt token.

    The tokens in a mixed rank's KV add to the time, because such a rank also makes tokens.
    """
    computing = Work(0, held.num_computing, attention_pairs(held.num_ready, held.num_tokens), 0)
    queue = max(load.work.prompt_time - computing.prompt_time, 0.0)
    missing = size.work_at("prefill", held.num_tokens).prompt_time
    return queue + missing + load.work.kv_tokens  # assumed: KV weighs as in Dynamo


def _spread_growth(total: Work, work: Work) -> Callable[[Work, int], float]:
    """Return a function that rates how much less even the decode ranks' load would be if one of them got `work`.

    The function takes that rank's load and the number of tokens to send there. Its value is in proportion to the growth
    of the spread of requests and KV over the ranks, the load of all of which is `total`. A token to be sent counts
    like SENT_TOKEN tokens of KV.
    """
    after = total + work
    requests, kv = work.num_requests / after.num_requests**2, work.kv_tokens / after.kv_tokens**2
    return lambda load, missing: requests * load.num_requests + kv * (load.kv_tokens + SENT_TOKEN * missing)
