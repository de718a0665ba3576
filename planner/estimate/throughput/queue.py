"""How long a prompt waits for its turn: a queue whose server takes one step at a time (M/D/1), in steps.

    mean              u / (2 (1 - u)) at utilisation u                         Pollaczek and Khinchine
    P(wait > t)       falls as exp(-d t), where u (exp(d) - 1) = d             Cramér and Lundberg
    who waits at all  the share u: for `shortest` steps, and exponentially longer

The shortest wait is what gives the mean: some wait for less. The exact distribution is an alternating sum that loses
all its digits after some twenty steps. The wait of one prompt in a hundred is within 4 % of draws at a utilisation of
0.2, and within 1 % from 0.54 upwards.
"""

from dataclasses import dataclass
from math import exp, expm1, log

__all__ = ["Wait", "mean_wait", "utilisation_of", "wait_at"]

ITERATIONS = 50  # 12 at most are taken from a utilisation of 1e-6 upwards
CONVERGED = 1e-12


@dataclass(frozen=True)
class Wait:
    """P(wait > t) = waiting x exp(-(t - shortest) / longer) from `shortest` on; steps."""

    waiting: float  # the share that waits at all
    shortest: float
    longer: float  # on average

    def of_share(self, share: float) -> float:
        """Return the steps that such a share of all prompts waits for, or longer."""
        if share >= self.waiting:
            return 0.0
        return self.shortest + self.longer * log(self.waiting / share)


def mean_wait(utilisation: float) -> float:
    """Return the mean wait; none at 1 and above, where a queue has no mean."""
    return utilisation / (2 * (1 - utilisation)) if utilisation < 1 else 0.0


def utilisation_of(wait: float) -> float:
    """Return the utilisation at which the mean wait is `wait`."""
    return 2 * wait / (1 + 2 * wait)


def wait_at(utilisation: float) -> Wait:
    """Return the waits at a utilisation; nobody waits at none, and at 1 and above, where a queue has no mean."""
    if not 0 < utilisation < 1:
        return Wait(0.0, 0.0, 0.0)
    longer = 1 / _decay(utilisation)
    return Wait(utilisation, 1 / (2 * (1 - utilisation)) - longer, longer)


def _decay(utilisation: float) -> float:
    """Return the d > 0 of u (exp(d) - 1) = d, by Newton's method from above: d <= -2 ln u."""
    decay = -2 * log(utilisation)
    for _ in range(ITERATIONS):
        over = utilisation * expm1(decay) - decay
        step = over / (utilisation * exp(decay) - 1)
        decay -= step
        if step <= CONVERGED * decay:
            break
    return decay
