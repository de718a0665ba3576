"""The two queues of a day, each over one short time step: prompts that wait for steps, requests that wait for tokens.

**Prompts.** Steps come to an attention group at random times and take equally long. x is how many are present, mu how
many it can compute in a second, rho the share of time that it works. In a steady queue of this kind (M/D/1)

    x = rho + rho^2 / (2 (1 - rho)),   so   rho(x) = x + 1 - sqrt(x^2 + 1)

and a queue that changes is treated at each moment as the steady one with the same x (the pointwise stationary fluid
flow approximation): dx/dt = arrivals - mu rho(x). So random waits and a backlog are one equation, and a minute of full
load has a finite queue, where a steady one would be infinite.

**Tokens.** n requests of a group get a token every s(n) seconds, and end after L tokens on average, any of which may be
the last: dn/dt = arrivals - min(n, most) / (L s(min(n, most))). Those beyond `most` wait.

Both are solved for the end of a time step (implicit Euler), so no step is too long to be stable, and what comes in
either goes out or stays.

Sources: D. Tipper and M. Sundareshan, Numerical methods for modeling computer networks under nonstationary conditions,
IEEE JSAC 8(9), 1990; W.-P. Wang, D. Tipper, S. Banerjee, A simple approximation for modeling nonstationary queues,
INFOCOM 1996. The inverse for M/D/1 is derived from the Pollaczek-Khinchine formula.
"""

from bisect import bisect_left
from math import sqrt

from stacks.simulator.flows.service import TokenSide

__all__ = ["busy_share", "next_requests", "next_steps", "steady_steps"]


def busy_share(steps: float) -> float:
    """Return the share of time that an attention group is busy, rho(x), while `steps` steps of prompts wait or run."""
    return steps + 1 - sqrt(steps * steps + 1)


def steady_steps(busy: float) -> float:
    """Return x, the mean number of waiting and running steps in a steady queue that is `busy` (below 1) of the time."""
    return busy + busy * busy / (2 * (1 - busy))


def next_steps(steps: float, arrivals: float, rate: float, seconds: float) -> float:
    """Return the steps of prompts that wait or run at a group after `seconds`, from the present `steps`.

    `arrivals` and `rate` (mu) are in steps a second. The result x solves a quadratic equation, x + a rho(x) = c + a,
    with a = seconds x mu and c = steps + seconds x arrivals - a.
    """
    a = seconds * rate
    c = steps + seconds * arrivals - a
    return max(0.0, ((1 + a) * c + a * sqrt(c * c + 1 + 2 * a)) / (1 + 2 * a))


def next_requests(side: TokenSide, requests: float, arrivals: float, output: float, seconds: float) -> float:
    """Return how many requests a group of ranks has after it has made tokens for `seconds`.

    It has `requests` now, `arrivals` more come in a second, and each ends after `output` tokens. In a mixed unit
    `seconds` is only a part of the time step, since prompts take the rest.
    """
    target, per_end = requests + seconds * arrivals, seconds / output
    numbers, steps = side.requests, side.token_seconds

    def target_at(place: int) -> float:
        """Return how many present and arriving requests leave `numbers[place]` of them unfinished after `seconds`."""
        return numbers[place] * (1 + per_end / steps[place])

    above = bisect_left(range(len(numbers)), target, key=target_at)
    if above == len(numbers):  # all places are taken, and the other requests wait
        return target - per_end * numbers[-1] / steps[-1]
    if above == 0:  # below one request, tokens come as slowly as to one
        return target * numbers[0] / target_at(0)
    low, high = target_at(above - 1), target_at(above)
    return numbers[above - 1] + (target - low) / (high - low) * (numbers[above] - numbers[above - 1])
