"""How long a unit takes to answer what it has begun: the drain of a unit that takes no more requests.

Lengths of answers are lognormal, given by their median and 99th percentile. A request that is found in flight is a long
one more often than not, because long ones are in flight for longer, and it is found anywhere in its answer alike. So
more than x tokens are left to it with the probability (the excess distribution of renewal theory)

    left(x) = E[(L - x)+] / E[L] = N(d + sigma) - x / E[L] x N(d),   d = (mu - ln x) / sigma

where N is the standard normal distribution, and E[L] = exp(mu + sigma^2 / 2). The drain is the x at which left(x) is
the share that may be unanswered, times the time of a token. The formula is that of Black and Scholes' call option.

Prefill units are done sooner: nothing but prompts is in flight there.
"""

from math import exp, inf, log
from statistics import NormalDist

__all__ = ["drain_s", "share_left"]

NORMAL = NormalDist()
Z_P99 = NORMAL.inv_cdf(0.99)


def drain_s(median: float, p99: float, answered: float, most_tokens: float, tpot_s: float) -> float:
    """Return the seconds in which a share `answered` of the requests in flight is answered.

    No answer has more than `most_tokens`, and a token takes `tpot_s`.
    """
    low, high = 0.0, float(most_tokens)
    if share_left(high, median, p99) > 1 - answered:
        return high * tpot_s
    while high - low > 0.5:
        middle = (low + high) / 2
        low, high = (middle, high) if share_left(middle, median, p99) > 1 - answered else (low, middle)
    return high * tpot_s


def share_left(tokens: float, median: float, p99: float) -> float:
    """Return the share of requests in flight that have more than `tokens` tokens left."""
    if tokens <= 0:
        return 1.0
    mu, sigma = log(median), log(p99 / median) / Z_P99
    mean = exp(mu + sigma**2 / 2)
    d = (mu - log(tokens)) / sigma if sigma else (inf if tokens < median else -inf)
    return _below(d + sigma) - tokens / mean * _below(d)


def _below(z: float) -> float:
    return NORMAL.cdf(z) if abs(z) != inf else float(z > 0)
