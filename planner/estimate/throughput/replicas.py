"""Estimate the max/mean load of a layout's GPUs without making its expert map: a search asks for a thousand layouts.

Finding an expert map takes a tenth of a second, but its quality can be computed before. Replicas go one by one to the
expert with the hottest replicas, so with m redundant slots the hottest replica carries the m-th largest of load / k,
over all experts and k = 1, 2, ... (counted from 0). Its GPU carries at least this replica and the smallest experts
beside it: the planner's maps reach this lower bound (`expert_map/bound.py`). All other GPUs are assumed equally full,
and the node of the hottest GPU as full as that GPU, because no map spreads the hottest GPUs over nodes. Drift and
sampling are added as in `estimate/throughput/imbalance.py`. The result is the expected maximum of the hottest GPU's
load and the fullest other GPU's load.

The plan's prediction uses the map itself, and differs by 3 % at most, under each split rule: maps for rules that prefer
near replicas come as close to the same bound.
"""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from math import erf, exp, pi, sqrt
from statistics import fmean
from typing import TYPE_CHECKING, Protocol

from planner.estimate.throughput.imbalance import drift, expected_maximum
from planner.estimate.throughput.stages import Imbalance

if TYPE_CHECKING:
    from planner.expert_map.weigh import Floats

EVEN = 1.0 + 1e-6  # max/mean loads up to this count as balanced
MAX_REPLICAS = 64  # of an expert; with more, none of its replicas is hot


class Balance(Protocol):
    """An estimator of the max/mean load of a layout's GPUs and nodes."""

    def estimate(self, num_slots: int, num_gpus: int, num_nodes: int, pairs_per_gpu: float) -> Imbalance:
        """Return the expected max/mean loads of a unit in a step with `pairs_per_gpu` token-expert pairs per GPU."""


class BestBalance:
    """An estimator of the lowest max/mean loads that any number of slots up to `most_slots` can reach.

    Replicas are assumed to balance any load, with the least drift.
    """

    def __init__(self, balance: "ReplicaBalance", most_slots: int) -> None:
        self.balance, self.most_slots = balance, most_slots

    def estimate(self, num_slots: int, num_gpus: int, num_nodes: int, pairs_per_gpu: float) -> Imbalance:
        """Return max/mean loads no higher than `ReplicaBalance.estimate` gives with up to `most_slots` slots.

        `num_slots` and `num_nodes` are ignored, so the bound holds for any.
        """
        del num_slots, num_nodes
        return self.balance.best(self.most_slots, num_gpus, pairs_per_gpu)


class ReplicaBalance:
    """An estimator of max/mean loads from experts' loads `[num_moe_layers][num_experts]`. Results are cached."""

    def __init__(self, loads: Sequence[Sequence[float]]) -> None:
        self.loads = loads
        self.estimate = lru_cache(maxsize=None)(self._estimate)
        self.best = lru_cache(maxsize=None)(self._best_imbalance)
        self.counts = lru_cache(maxsize=None)(self._replica_counts)
        self.drift_variances = lru_cache(maxsize=None)(self._drift_variances)
        self.hottest = lru_cache(maxsize=None)(self._hottest_gpus)

    def _estimate(self, num_slots: int, num_gpus: int, num_nodes: int, pairs_per_gpu: float) -> Imbalance:
        """Return the expected max/mean loads of a unit in a step with `pairs_per_gpu` token-expert pairs per GPU."""
        hottest, drifts = self.hottest(num_slots, num_gpus), self.drift_variances(num_slots)
        alike = self._num_hot(num_slots, num_gpus, pairs_per_gpu) if self.bound(num_slots, num_gpus) > EVEN else None
        return _imbalance(hottest, drifts, num_gpus, num_nodes, pairs_per_gpu, alike)

    def _best_imbalance(self, most_slots: int, num_gpus: int, pairs_per_gpu: float) -> Imbalance:
        """Return the max/mean loads with `most_slots` slots if replicas could balance any load."""
        drifts = self.drift_variances(most_slots)
        return _imbalance([1.0] * len(drifts), drifts, num_gpus, 1, pairs_per_gpu, None)

    def bound(self, num_slots: int, num_gpus: int) -> float:
        """Return the lowest max/mean GPU load that any expert map of these sizes can have, averaged over layers."""
        return fmean(self.hottest(num_slots, num_gpus))

    @cached_property
    def _shares(self) -> "Floats":
        """Return each expert's share of its layer's load `[num_moe_layers, num_experts]`, the largest first.

        Shares are equal in a layer without measured load.
        """
        import numpy as np  # a plan without a search must not wait for it

        loads_LE = np.array(self.loads, dtype=np.float64)
        total_L = loads_LE.sum(axis=1, keepdims=True)
        even_LE = np.full_like(loads_LE, 1 / loads_LE.shape[1])
        shares_LE: Floats = np.divide(loads_LE, total_L, out=even_LE, where=total_L > 0)
        return -np.sort(-shares_LE, axis=1)

    @cached_property
    def _variances(self) -> "Floats":
        """Return the variance of each share in `_shares` from one traffic window to the next.

        The result is `[num_moe_layers, num_experts]`.
        """
        variances: Floats = (self._shares * drift(self._shares)) ** 2
        return variances

    @cached_property
    def _hottest_shares(self) -> "Floats":
        """Return the hottest replica's share of its layer's load for 0, 1, 2, ... redundant slots.

        The result is `[num_moe_layers, num_experts x MAX_REPLICAS]`.
        """
        import numpy as np  # as above

        parts = self._shares[:, :, None] / np.arange(1, MAX_REPLICAS + 1)
        hottest: Floats = -np.sort(-parts.reshape(len(parts), -1), axis=1)
        return hottest

    def _drift_variances(self, num_slots: int) -> list[float]:
        """Return the variance that drifting loads give the slots of each layer, summed over slots, `[num_moe_layers]`.

        An expert of n slots adds 1/n of its own variance.
        """
        found: list[float] = (self._variances / self.counts(num_slots)).sum(axis=1).tolist()
        return found

    def _num_hot(self, num_slots: int, num_gpus: int, pairs_per_gpu: float) -> list[int]:
        """Return the number of hot replicas of each layer, `[num_moe_layers]`.

        A replica is hot if its load is within one standard deviation of the hottest replica's.
        """
        import numpy as np  # as above

        counts_LE = self.counts(num_slots)
        deviation_L = np.sqrt(np.array(self.drift_variances(num_slots)) * num_gpus + 1 / max(pairs_per_gpu, 1.0))
        least_L = self._hottest_replica(num_slots) - deviation_L / num_gpus
        found: list[int] = (counts_LE * (self._shares / counts_LE >= least_L[:, None])).sum(axis=1).tolist()
        return found

    def _replica_counts(self, num_slots: int) -> "Floats":
        """Return the number of replicas of each expert, `[num_moe_layers, num_experts]`."""
        import numpy as np  # as above

        found: Floats = np.maximum(np.ceil(self._shares / self._hottest_replica(num_slots)[:, None] - 1e-9), 1)
        return found

    def _hottest_gpus(self, num_slots: int, num_gpus: int) -> list[float]:
        """Return the load of the GPU with the hottest replica over the mean GPU's, `[num_moe_layers]`, at least 1."""
        import numpy as np  # as above

        beside = num_slots // num_gpus - 1
        smallest_L = self._shares[:, -beside:].sum(axis=1) if beside else 0.0
        found: list[float] = np.maximum((self._hottest_replica(num_slots) + smallest_L) * num_gpus, 1.0).tolist()
        return found

    def _hottest_replica(self, num_slots: int) -> "Floats":
        redundant = num_slots - self._shares.shape[1]
        last = self._hottest_shares.shape[1] - 1
        found: Floats = self._hottest_shares[:, min(redundant, last)]
        return found


def _imbalance(
    hottest: Sequence[float],
    drifts: Sequence[float],
    num_gpus: int,
    num_nodes: int,
    pairs_per_gpu: float,
    num_hot: Sequence[int] | None,
) -> Imbalance:
    """Return the expected max/mean loads of GPUs and nodes, averaged over layers.

    The sequences have one entry per layer: `hottest` the hottest GPU's load over the mean GPU's, `num_hot` the number
    of GPUs with that load (None: one GPU), `drifts` the variance that drifting traffic adds, summed over the layer's
    slots: each GPU gets an equal part. `pairs_per_gpu` is the mean number of (token, expert) pairs of a GPU.
    """
    if num_gpus == 1:
        return Imbalance()
    sampling, fullest = 1 / max(pairs_per_gpu, 1.0), expected_maximum(num_gpus)
    deviations = [sqrt(variance * num_gpus + sampling) for variance in drifts]
    lifted = [expected_maximum(min(max(number, 1), num_gpus)) for number in num_hot or [1] * len(drifts)]
    gpus = fmean(
        [
            _expected_larger(hot + lift * deviation, deviation, fullest)
            for hot, lift, deviation in zip(hottest, lifted, deviations, strict=True)
        ]
    )
    return Imbalance(gpus, fmean(hottest) if num_nodes > 1 else 1.0)


def _expected_larger(hot: float, deviation: float, quantile: float) -> float:
    """Return the expected maximum of the hottest GPU's load, normal around `hot`, and the fullest other GPU's load.

    The other GPU's load is taken as fixed, `quantile` standard deviations above the mean load of 1.
    """
    others = 1 + quantile * deviation
    z = (hot - others) / deviation
    below = (1 + erf(z / sqrt(2))) / 2
    return others + (hot - others) * below + deviation * exp(-z * z / 2) / sqrt(2 * pi)
