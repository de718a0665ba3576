"""A decode balancer with foresight: it knows how long each answer will be.

Requests come when they come and stay where they are put, so KV is never quite even. Here a request begins to decode as
it comes, gets a token each `tpot_s`, and goes where the KV that it meets until its own end is least.
"""

from tests.benchmarks.balancers_model import Request

MOMENTS = 8  # of a request's own time at which it looks at a rank's KV
LOOK_S = 0.5


def kv_with_foresight(requests: list[Request], tpot_s: float, num_ranks: int, until_s: float) -> list[list[float]]:
    """Return each look at the KV tokens of all ranks, from a third of the time on, as the demo is looked at."""
    ranks, looks, coming = [[] for _ in range(num_ranks)], [], list(reversed(requests))
    for number in range(int(until_s / LOOK_S)):
        now = number * LOOK_S
        while coming and coming[-1].came_at <= now:
            request = coming.pop()
            min(ranks, key=lambda rank: met_kv(request, rank, tpot_s)).append(request)
        if now > until_s / 3:
            looks.append([kv_at(now, rank, tpot_s) for rank in ranks])
    return looks


def met_kv(request: Request, rank: list[Request], tpot_s: float) -> float:
    """Return the KV that others have at a rank while the request is there, weighed by its own."""
    moments = (place * request.answer_tokens / MOMENTS for place in range(MOMENTS))
    return sum((request.prompt_tokens + at) * kv_at(request.came_at + at * tpot_s, rank, tpot_s) for at in moments)


def kv_at(now: float, rank: list[Request], tpot_s: float) -> float:
    """Return the KV tokens of those that are there."""
    tokens = ((each.prompt_tokens, (now - each.came_at) / tpot_s, each.answer_tokens) for each in rank)
    return sum(prompt + made for prompt, made, answer in tokens if 0 <= made < answer)
