"""Choose the ranks for a request: one computes its prompt, one its tokens. The balancers are pure functions.

    ranks of all ready units -> prefill or mixed: all of them       -> the balancer's choice -> first
                             -> decode or mixed: those with room    -> the balancer's choice -> rest

The policy is one of three balancers:
    BALANCED         keeps ranks equal in every quantity at once, see below
    LEAST_REQUESTS   takes the rank with the fewest requests; a baseline
    ROUND_ROBIN      takes ranks in turn, whatever they have to do; a baseline

BALANCED compares the quantities of `rank_load.py`: in prefill, attention and tokens still to be computed; in decode, KV
and requests; in mixed units, all four. Rank r has x[r, q] of quantity q, and m[q] is the mean over ranks. The squared
spread of all quantities together is the mean over r of

    sum over q of (x[r, q] / m[q] - 1)^2

A request that adds w[q] to rank r adds 2 w[q] x[r, q] / m[q]^2 to the spread, plus terms that do not depend on r. So
the spread grows least at the rank with the least sum over q of w[q] x[r, q] / m[q]^2. For a long prompt, attention
decides; for a short one, tokens; for a request with much KV, KV; for a small one, the count. No weights need setting.

Equally good ranks take turns. The order of the list does not matter, and no rank gets a request that it has no room
for. This module imports no torch and keeps no state: `stacks` may import it, and its simulator does.

Sources: DeepSeek open-infra-index, day 6 (what to equalise). R. Panigrahy et al., "Heuristics for Vector Bin Packing",
2011 (several quantities by the product of demand and load). vLLM's `DPLBAsyncMPClient` and SGLang's `DPBudget` choose
the least of one number: requests, those that wait counted four times, or tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from runtime.gateway.ranks.rank_load import NO_WORK, Phase, RankLimits, RankLoad, RequestSize, Work, sum_works

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
    """The rank of a request's first token, and the rank of the rest."""

    first: RankLoad
    rest: RankLoad


def choose_ranks(
    ranks: Sequence[RankLoad], size: RequestSize, turn: int, policy: Policy = Policy.BALANCED
) -> RankPair | None:
    """Return the rank for the first token and the rank for the rest, which is the same one in a mixed unit.

    `ranks` are those of all ready units. `turn` counts the calls, so that equal ranks take turns. The result is None if
    a phase has no ready unit or no rank has room.
    """
    first, rest = _split_by_role(ranks)
    rest_with_room = _ranks_with_room(rest, size)
    if not first or not rest_with_room:
        return None
    chosen = pick(rest_with_room, size.work_at(_common_phase(rest_with_room)), turn, policy)
    return RankPair(chosen if chosen.phase == "mixed" else pick(first, size.work_at("prefill"), turn, policy), chosen)


def choose_embedding_rank(
    ranks: Sequence[RankLoad], size: RequestSize, turn: int, policy: Policy = Policy.BALANCED
) -> RankLoad | None:
    """Return the rank for a prompt to embed; None if no unit that computes prompts is ready."""
    first, _ = _split_by_role(ranks)
    return pick(first, size.work_at(_common_phase(first)), turn, policy) if first else None


def room(ranks: Sequence[RankLoad], size: RequestSize) -> int | None:
    """Return how many more requests of at most this size the ranks take; None if no unit of a phase is ready.

    Only the room at the ranks for the rest counts, since they hold a request's latents to its end.
    """
    first, rest = _split_by_role(ranks)
    if not first or not rest:
        return None
    work = size.work_at(_common_phase(rest))
    return sum(_rank_room(load, work) for load in rest)


def embedding_room(ranks: Sequence[RankLoad]) -> int | None:
    """Return how many more prompts to embed the ranks take; None if no unit of a phase is ready."""
    first, rest = _split_by_role(ranks)
    if not first or not rest:
        return None
    return sum(
        max(load.limits.max_requests + load.limits.max_queued_requests - load.work.num_requests, 0) for load in first
    )


def num_requests(ranks: Sequence[RankLoad]) -> int:
    """Return the number of requests, each counted at the rank where it stays to its end."""
    _, rest = _split_by_role(ranks)
    return sum(load.work.num_requests for load in rest)


def num_ranks(ranks: Sequence[RankLoad]) -> tuple[int, int]:
    """Return how many ranks compute prompts, and how many keep requests to their end."""
    first, rest = _split_by_role(ranks)
    return len(first), len(rest)


def least_prompt_tokens(ranks: Sequence[RankLoad]) -> int | None:
    """Return the fewest prompt tokens that a rank has left to compute; None if no unit of a phase is ready."""
    first, rest = _split_by_role(ranks)
    return min(load.work.prompt_tokens for load in first) if first and rest else None


def pick(ranks: Sequence[RankLoad], work: Work, turn: int, policy: Policy = Policy.BALANCED) -> RankLoad:
    """Return the best of `ranks` for a request of this work. `ranks` must not be empty; its order does not matter."""
    cost = _make_cost(policy, ranks, work)
    costs = [cost(load.work) for load in ranks]
    lowest = min(costs)
    equals = sorted(
        (load for load, each_cost in zip(ranks, costs, strict=True) if each_cost == lowest), key=lambda load: load.key
    )
    return equals[turn % len(equals)]


def _split_by_role(ranks: Sequence[RankLoad]) -> tuple[list[RankLoad], list[RankLoad]]:
    """Return the ranks for first tokens and those for the rest. A mixed rank is never paired with another rank."""
    prefill, decode, mixed = (
        [load for load in ranks if load.phase == phase] for phase in ("prefill", "decode", "mixed")
    )
    return (prefill, decode) if prefill and decode else (mixed, mixed)


def _ranks_with_room(ranks: Sequence[RankLoad], size: RequestSize) -> list[RankLoad]:
    """Return the ranks where the request need not wait or, if there are none, those where it may wait."""
    if not ranks:
        return []
    work = size.work_at(_common_phase(ranks))
    return [load for load in ranks if load.fits(work)] or [load for load in ranks if load.takes(work)]


def _common_phase(ranks: Sequence[RankLoad]) -> Phase:
    """Return the phase of ranks with one role, which is the same for all."""
    return ranks[0].phase


def _rank_room(load: RankLoad, work: Work) -> int:
    """Return how many more requests of this work the rank takes."""
    seats = load.limits.max_requests - load.work.num_requests
    if work.kv_tokens:
        seats = min(seats, (load.limits.kv_tokens - load.work.kv_tokens) // work.kv_tokens)
    return max(seats, 0) + max(load.limits.max_queued_requests - load.num_waiting, 0)


def _make_cost(policy: Policy, ranks: Sequence[RankLoad], work: Work) -> Callable[[Work], float]:
    match policy:
        case Policy.BALANCED:
            return _spread_growth(sum_works(load.work for load in ranks), work)
        case Policy.LEAST_REQUESTS:
            return lambda load: load.num_requests
        case Policy.ROUND_ROBIN:
            return lambda load: 0


def _spread_growth(total: Work, work: Work) -> Callable[[Work], float]:
    """Return a function from a rank's load to what a request of `work` adds to the spread there, times a constant.

    On a prefill rank the number of requests is no load. Such a rank shows by a request's work, which has no KV.
    """

    def weight(added: int, sum_over_ranks: int) -> float:
        return added / sum_over_ranks**2 if sum_over_ranks else 0.0

    requests = weight(work.num_requests, total.num_requests) if work.kv_tokens else 0.0
    tokens = weight(work.prompt_tokens, total.prompt_tokens)
    pairs = weight(work.attention_pairs, total.attention_pairs)
    kv = weight(work.kv_tokens, total.kv_tokens)
    return lambda load: (
        requests * load.num_requests + tokens * load.prompt_tokens + pairs * load.attention_pairs + kv * load.kv_tokens
    )
