"""The two queues of a day, each over one short time step: prompts that wait for steps, requests that wait for tokens.

**Prompts.** Steps come to an attention group at random and take equally long. x is how many are there, mu how many it
could take in a second, rho the share of its time that it works. A steady queue of that kind (M/D/1) has

    x = rho + rho^2 / (2 (1 - rho)),   so   rho(x) = x + 1 - sqrt(x^2 + 1)

and one that is not steady is followed by taking each moment for a steady one of its x (the pointwise stationary fluid
flow approximation): dx/dt = arrivals - mu rho(x). So luck of the draw and a backlog are one equation, and a minute of
full load costs what it costs, where a steady queue would never end.

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
    """Return the share of its time that a group works with `steps` there."""
    return steps + 1 - sqrt(steps * steps + 1)


def steady_steps(busy: float) -> float:
    """Return the steps that are there on average at a steady share of work below 1."""
    return busy + busy * busy / (2 * (1 - busy))


def next_steps(steps: float, arrivals: float, rate: float, seconds: float) -> float:
    """Return the steps of a group after `seconds`, with so many arrivals a second and a `rate` of mu.

    Solves x + a rho(x) = c + a for a = seconds x mu and c = steps + seconds x arrivals - a: a quadratic equation.
    """
    a = seconds * rate
    c = steps + seconds * arrivals - a
    return max(0.0, ((1 + a) * c + a * sqrt(c * c + 1 + 2 * a)) / (1 + 2 * a))


def next_requests(side: TokenSide, requests: float, arrivals: float, output: float, seconds: float) -> float:
    """Return the requests of a group after `seconds`; each ends after `output` tokens on average.

    `seconds` may be shorter than the clock's where the group makes tokens for a share of it only.
    """
    target, per_end = requests + seconds * arrivals, seconds / output
    numbers, steps = side.requests, side.token_seconds

    def target_at(place: int) -> float:
        """Return the requests there must be now, or come, for that entry of the table to be left at the end."""
        return numbers[place] * (1 + per_end / steps[place])

    above = bisect_left(range(len(numbers)), target, key=target_at)
    if above == len(numbers):  # all that fit get tokens, and the others wait
        return target - per_end * numbers[-1] / steps[-1]
    if above == 0:  # below one request, tokens come as slowly as to one
        return target * numbers[0] / target_at(0)
    low, high = target_at(above - 1), target_at(above)
    return numbers[above - 1] + (target - low) / (high - low) * (numbers[above] - numbers[above - 1])
