"""How full the fullest GPU of a layout is that nobody has balanced yet: search asks it of a thousand layouts.

An expert map takes a tenth of a second to find; its quality is known before. Replicas are given one by one to the
expert whose replicas are hottest, so with m redundant slots the hottest replica carries the m-th largest of load / k,
over all experts and k = 1, 2, ... (counted from 0). The GPU that has it is no emptier than that replica and the
smallest experts beside it: the bound that our maps reach (`expert_map/bound.py`). All other GPUs are taken as equally
full, and the node of the hottest as full as it: no map spreads the hottest GPUs over nodes. Drift and a step's luck
come on top as in `estimate/throughput/imbalance.py`: the hottest GPU meets the fullest of the others, all normal around
their means.

The plan predicts with the map itself: its figure and this one differ by 3 % at most. That holds under each split rule:
where replicas are near some tokens, a map is made for it, and comes as near the same bound.
"""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from math import erf, exp, pi, sqrt
from statistics import fmean
from typing import TYPE_CHECKING, Protocol

from planner.estimate.throughput.imbalance import drift, fullest_of
from planner.estimate.throughput.stages import Imbalance

if TYPE_CHECKING:
    from planner.expert_map.weigh import Floats

__all__ = ["Balance", "BestBalance", "ReplicaBalance"]

EVEN = 1.0 + 1e-6
MAX_REPLICAS = 64  # of an expert; beyond it no replica is hot


class Balance(Protocol):
    """What says how full GPUs are."""

    def of(self, num_slots: int, num_gpus: int, num_nodes: int, pairs_per_gpu: float) -> Imbalance:
        """Return the fullest over the mean in a step in which a GPU receives `pairs_per_gpu` on average."""


class BestBalance:
    """What no number of slots up to `most_slots` is balanced better than: replicas do not bind, and drift is least."""

    def __init__(self, balance: "ReplicaBalance", most_slots: int) -> None:
        self.balance, self.most_slots = balance, most_slots

    def of(self, num_slots: int, num_gpus: int, num_nodes: int, pairs_per_gpu: float) -> Imbalance:
        """Return a lower bound of `ReplicaBalance.of`, whatever `num_slots` and `num_nodes` are."""
        del num_slots, num_nodes
        return self.balance.best(self.most_slots, num_gpus, pairs_per_gpu)


class ReplicaBalance:
    """The loads of a model's experts `[num_moe_layers][num_experts]`, ready to be asked for any number of slots."""

    def __init__(self, loads: Sequence[Sequence[float]]) -> None:
        self.loads = loads
        self.of = lru_cache(maxsize=None)(self._of)
        self.best = lru_cache(maxsize=None)(self._best)
        self.counts = lru_cache(maxsize=None)(self._counts)
        self.drifts = lru_cache(maxsize=None)(self._drifts)
        self.hottest = lru_cache(maxsize=None)(self._hottest_gpus)

    def _of(self, num_slots: int, num_gpus: int, num_nodes: int, pairs_per_gpu: float) -> Imbalance:
        """Return the fullest over the mean in a step in which a GPU receives `pairs_per_gpu` on average."""
        hottest, drifts = self.hottest(num_slots, num_gpus), self.drifts(num_slots)
        alike = self._num_hot(num_slots, num_gpus, pairs_per_gpu) if self.bound(num_slots, num_gpus) > EVEN else None
        return _imbalance(hottest, drifts, num_gpus, num_nodes, pairs_per_gpu, alike)

    def _best(self, most_slots: int, num_gpus: int, pairs_per_gpu: float) -> Imbalance:
        """Return what of so many slots would be the balance, if replicas did not bind."""
        drifts = self.drifts(most_slots)
        return _imbalance([1.0] * len(drifts), drifts, num_gpus, 1, pairs_per_gpu, None)

    def bound(self, num_slots: int, num_gpus: int) -> float:
        """Return the mean over layers of what no map of so many slots on so many GPUs is below."""
        return fmean(self.hottest(num_slots, num_gpus))

    @cached_property
    def _shares(self) -> "Floats":
        """Each expert's share of its layer's load `[num_moe_layers, num_experts]`, the largest first.

        Shares are equal in a layer of which no load was counted.
        """
        import numpy as np  # a plan without a search must not wait for it

        loads_LE = np.array(self.loads, dtype=np.float64)
        total_L = loads_LE.sum(axis=1, keepdims=True)
        even_LE = np.full_like(loads_LE, 1 / loads_LE.shape[1])
        shares_LE: Floats = np.divide(loads_LE, total_L, out=even_LE, where=total_L > 0)
        return -np.sort(-shares_LE, axis=1)

    @cached_property
    def _variances(self) -> "Floats":
        """Each expert's variance from one window to the next, in the same places, as a share of the layer squared."""
        variances: Floats = (self._shares * drift(self._shares)) ** 2
        return variances

    @cached_property
    def _replicas(self) -> "Floats":
        """The load of the hottest replica after m redundant slots `[num_moe_layers, m]`, as shares of the layer's."""
        import numpy as np  # as above

        parts = self._shares[:, :, None] / np.arange(1, MAX_REPLICAS + 1)
        hottest: Floats = -np.sort(-parts.reshape(len(parts), -1), axis=1)
        return hottest

    def _drifts(self, num_slots: int) -> list[float]:
        """Return each layer's variance summed over slots, whose replicas share their expert's."""
        found: list[float] = (self._variances / self.counts(num_slots)).sum(axis=1).tolist()
        return found

    def _num_hot(self, num_slots: int, num_gpus: int, pairs_per_gpu: float) -> list[int]:
        """Return how many replicas of each layer are as hot as the hottest, within a deviation of a GPU."""
        import numpy as np  # as above

        counts_LE = self.counts(num_slots)
        deviation_L = np.sqrt(np.array(self.drifts(num_slots)) * num_gpus + 1 / max(pairs_per_gpu, 1.0))
        least_L = self._hottest_replica(num_slots) - deviation_L / num_gpus
        found: list[int] = (counts_LE * (self._shares / counts_LE >= least_L[:, None])).sum(axis=1).tolist()
        return found

    def _counts(self, num_slots: int) -> "Floats":
        """Return the replicas of each expert `[num_moe_layers, num_experts]`."""
        import numpy as np  # as above

        found: Floats = np.maximum(np.ceil(self._shares / self._hottest_replica(num_slots)[:, None] - 1e-9), 1)
        return found

    def _hottest_gpus(self, num_slots: int, num_gpus: int) -> list[float]:
        """Return the share of the GPU with the hottest replica over the mean, at least 1, layer by layer."""
        import numpy as np  # as above

        beside = num_slots // num_gpus - 1
        smallest_L = self._shares[:, -beside:].sum(axis=1) if beside else 0.0
        found: list[float] = np.maximum((self._hottest_replica(num_slots) + smallest_L) * num_gpus, 1.0).tolist()
        return found

    def _hottest_replica(self, num_slots: int) -> "Floats":
        redundant = num_slots - self._shares.shape[1]
        last = self._replicas.shape[1] - 1
        found: Floats = self._replicas[:, min(redundant, last)]
        return found


def _imbalance(
    hottest: Sequence[float],
    drifts: Sequence[float],
    num_gpus: int,
    num_nodes: int,
    pairs_per_gpu: float,
    num_hot: Sequence[int] | None,
) -> Imbalance:
    """Return the mean over layers; drift is spread over all GPUs alike. `num_hot` GPUs of each are like the hottest."""
    if num_gpus == 1:
        return Imbalance()
    luck, fullest = 1 / max(pairs_per_gpu, 1.0), fullest_of(num_gpus)
    deviations = [sqrt(variance * num_gpus + luck) for variance in drifts]
    lifted = [fullest_of(min(max(number, 1), num_gpus)) for number in num_hot or [1] * len(drifts)]
    gpus = fmean(
        [
            _larger(hot + lift * deviation, deviation, fullest)
            for hot, lift, deviation in zip(hottest, lifted, deviations, strict=True)
        ]
    )
    return Imbalance(gpus, fmean(hottest) if num_nodes > 1 else 1.0)


def _larger(hot: float, deviation: float, quantile: float) -> float:
    """Return the mean of the larger of the hottest GPU, normal around `hot`, and the fullest of the others."""
    others = 1 + quantile * deviation
    z = (hot - others) / deviation
    below = (1 + erf(z / sqrt(2))) / 2
    return others + (hot - others) * below + deviation * exp(-z * z / 2) / sqrt(2 * pi)
