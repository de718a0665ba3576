"""Compute how long prompts wait for prefill: a queue whose server takes one step at a time (M/D/1).

Times are in steps, u is the utilisation:

    mean              u / (2 (1 - u))                                          Pollaczek and Khinchine
    P(wait > t)       falls as exp(-d t), where u (exp(d) - 1) = d             Cramér and Lundberg
    prompts           a share u of them waits, for `shortest` steps plus an exponential time

`shortest` is chosen so that the mean is right; some prompts really wait less. The exact distribution is an alternating
sum that loses all digits after some twenty steps. The 99th percentile is within 4 % of simulated draws at a utilisation
of 0.2, and within 1 % from 0.54 upwards.
"""

from dataclasses import dataclass
from math import exp, expm1, log

ITERATIONS = 50  # 12 suffice from a utilisation of 1e-6 upwards
CONVERGED = 1e-12


@dataclass(frozen=True)
class Wait:
    """The distribution of a prompt's wait in steps.

    P(wait > t) = waiting x exp(-(t - shortest) / longer), for t from `shortest` on.
    """

    waiting: float  # share of prompts that wait
    shortest: float
    longer: float  # mean of the exponential part

    def wait_exceeded_by(self, share: float) -> float:
        """Return the wait, in steps, that a `share` of all prompts reaches or exceeds; 0 if fewer prompts wait."""
        if share >= self.waiting:
            return 0.0
        return self.shortest + self.longer * log(self.waiting / share)


def mean_wait(utilisation: float) -> float:
    """Return the mean number of steps that a prompt waits.

    Return 0 at a utilisation of 1 and above, where no mean exists.
    """
    return utilisation / (2 * (1 - utilisation)) if utilisation < 1 else 0.0


def utilisation_at_wait(wait: float) -> float:
    """Return the utilisation at which the mean wait is `wait` steps."""
    return 2 * wait / (1 + 2 * wait)


def wait_distribution(utilisation: float) -> Wait:
    """Return the distribution of waits in steps. At a utilisation of 0, or of 1 and above, all waits are 0."""
    if not 0 < utilisation < 1:
        return Wait(0.0, 0.0, 0.0)
    longer = 1 / _decay_rate(utilisation)
    return Wait(utilisation, 1 / (2 * (1 - utilisation)) - longer, longer)


def _decay_rate(utilisation: float) -> float:
    """Return the rate d > 0 per step at which P(wait > t) decays at a utilisation u: u (exp(d) - 1) = d.

    Newton's method finds d from above, because d <= -2 ln u.
    """
    decay = -2 * log(utilisation)
    for _ in range(ITERATIONS):
        over = utilisation * expm1(decay) - decay
        step = over / (utilisation * exp(decay) - 1)
        decay -= step
        if step <= CONVERGED * decay:
            break
    return decay
