"""Latencies of a played day: how many requests waited how long, from the curves of the queues.

A prompt's wait has two parts: the backlog D, which is the same for all prompts of a minute, and a random wait E, which
each prompt draws for itself:

    TTFT = D + E + computing,   P(E > t) = rho exp(-(t - shortest) / longer)   from `shortest` on

where E is the wait of the plan's steady queue (`planner/estimate/throughput/queue.py`). rho is the least of the share
of time that groups work, the share that arrivals ask for, and `MAX_RANDOM`: a longer queue is part of D. A mixed unit
computes all waiting prompts at once, so E is the rest of the turn under way, uniformly distributed:

    P(E > t) = busy (1 - t / turn)         as `SteadyTurns.wait_exceeded_by` in `planner/estimate/throughput/turns.py`
    has it

An answer's time per token is that of its minute: over hundreds of steps, random differences even out.

A minute in which no request is answered has NaN as latency, and a day without any answer has None.
"""

from dataclasses import dataclass, replace

import numpy as np

from planner.estimate.throughput.queue import wait_distribution
from planner.spec.operating_point import SloSpec
from stacks.simulator.flows.curves import Curve, Curves
from stacks.simulator.flows.service import Service

__all__ = ["QUANTILES", "Latencies", "Waits", "compute_latencies", "mean_tpot", "mean_ttft", "prompt_waits"]

QUANTILES = (0.5, 0.9, 0.99)
MAX_RANDOM = 0.95  # assumed: at more, a steady queue takes longer to form than one minute
HALVINGS = 60


@dataclass(frozen=True)
class Waits:
    """The distribution of TTFT in each minute, `[minutes]`: at least `least` seconds, plus a random wait."""

    least: Curve
    waiting: Curve  # share of the prompts that have a random wait
    shortest: Curve  # seconds: the shortest random wait
    longer: Curve  # seconds beyond the shortest, on average
    is_even: bool = False  # whether the wait is uniformly distributed up to twice `longer`, as in mixed units

    @property
    def random_wait(self) -> Curve:
        """The mean random wait of each minute's prompts, in seconds, `[minutes]`."""
        return np.asarray(self.waiting * (self.shortest + self.longer))

    @property
    def mean(self) -> Curve:
        """The mean TTFT of each minute, in seconds, `[minutes]`."""
        return np.asarray(self.least + self.random_wait)

    def share_within(self, seconds: float | Curve) -> Curve:
        """Return the share of each minute's prompts whose first token comes within `seconds`, `[minutes]`."""
        left = seconds - self.least
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            further = np.maximum(left - self.shortest, 0) / self.longer
            beyond = np.maximum(1 - further / 2, 0.0) if self.is_even else np.exp(-further)
            later = np.where(self.longer > 0, self.waiting * beyond, 0.0)
        return np.where(left >= 0, 1 - later, 0.0)


@dataclass(frozen=True)
class Latencies:
    """A day's latencies over all requests, in seconds.

    A figure is None if no request was answered, or if the SLO does not name it.
    """

    ttft_mean: float | None  # over all answered requests: the figure that `slo.ttft_ms` is about
    ttft: tuple[float | None, ...]  # at `QUANTILES`
    tpot: tuple[float | None, ...]
    ttft_kept: float | None  # share of all requests whose TTFT is within the SLO; a refused request's is not
    tpot_kept: float | None  # share of the tokens made while TPOT is within the SLO


def prompt_waits(service: Service, curves: Curves) -> Waits:
    """Return the distribution of TTFT in each minute of `curves`."""
    seconds = curves.prompt_seconds
    computing = service.prompts.steps_per_prompt * seconds
    if service.turns is not None:
        waits = Waits(computing, curves.prompt_busy, np.zeros_like(seconds), seconds / 2, is_even=True)
    else:
        rho = np.minimum(np.minimum(curves.prompt_busy, curves.prompt_load), MAX_RANDOM)
        found = [wait_distribution(each) for each in rho.tolist()]
        shortest, longer = np.array([each.shortest for each in found]), np.array([each.longer for each in found])
        waits = Waits(computing, rho, shortest * seconds, longer * seconds)
    return replace(waits, least=np.maximum(curves.prompt_wait - waits.random_wait, 0.0) + computing)


def mean_ttft(service: Service, curves: Curves) -> Curve:
    """Return the mean TTFT of each minute in seconds, `[minutes]`; NaN if no prompt is admitted or computed."""
    mean = prompt_waits(service, curves).mean
    return np.where((curves.asked > curves.refused) & np.isfinite(mean), mean, np.nan)


def mean_tpot(curves: Curves) -> Curve:
    """Return the mean TPOT of each minute in seconds, `[minutes]`; NaN if no token is made."""
    return np.where(curves.tokens > 0, curves.tpot, np.nan)


def compute_latencies(service: Service, curves: Curves, slo: SloSpec) -> Latencies:
    """Return a day's latencies in seconds, and the shares of requests and of tokens that meet `slo`."""
    waits = prompt_waits(service, curves)
    came, admitted = curves.asked.sum(), curves.asked - curves.refused
    answered, is_met = admitted.sum(), admitted > 0  # a minute without units admits no request
    ttft_kept = tpot_kept = None
    if slo.ttft_ms is not None:
        ttft_kept = float((waits.share_within(slo.ttft_ms / 1e3) * admitted).sum() / came) if came else None
    if slo.tpot_ms is not None:
        made = curves.tokens.sum()
        tpot_kept = float(curves.tokens[curves.tpot <= slo.tpot_ms / 1e3].sum() / made) if made else None
    return Latencies(
        ttft_mean=float((waits.mean[is_met] * admitted[is_met]).sum() / answered) if answered else None,
        ttft=tuple(_ttft_quantile(waits, admitted, each) for each in QUANTILES),
        tpot=tuple(_weighted_quantile(curves.tpot, curves.tokens, each) for each in QUANTILES),
        ttft_kept=ttft_kept,
        tpot_kept=tpot_kept,
    )


def _ttft_quantile(waits: Waits, weights: Curve, quantile: float) -> float | None:
    """Return the TTFT in seconds at `quantile` of all requests, found by bisection; None without requests.

    `weights` is the number of admitted requests of each minute, `[minutes]`.
    """
    total = weights.sum()
    if not total:
        return None
    longest = waits.least + waits.shortest + 100 * waits.longer
    low, high = 0.0, float(np.max(np.where(np.isfinite(waits.mean), longest, 0.0)))
    if (waits.share_within(high) * weights).sum() < quantile * total:
        return float("inf")
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if (waits.share_within(middle) * weights).sum() < quantile * total:
            low = middle
        else:
            high = middle
    return high


def _weighted_quantile(values: Curve, weights: Curve, quantile: float) -> float | None:
    """Return the least value such that values up to it have the share `quantile` of all weight; None without weight."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    if not reached[-1]:
        return None
    place = int(np.searchsorted(reached, quantile * reached[-1]))
    return float(values[order][min(place, len(values) - 1)])
