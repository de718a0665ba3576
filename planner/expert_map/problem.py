"""The problem that a map solves: loads of one or more windows, sizes and constraints.

With several windows of load, the search lowers a quantile of max over mean over windows, layer by layer: of W windows
the k-th lowest, k = ceil(quantile x W). Quantile 1 is the worst window. All windows weigh the same, however many tokens
they have.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np

from planner.expert_map import native
from planner.expert_map.types import Domains, Effort, Policy, Sizes, SplitRule
from planner.expert_map.weigh import Floats, Ints, scale
from planner.facts.loads import Loads

__all__ = ["Problem", "scale_windows"]

BITS = 40  # of a window's total: sums over windows stay exact
ROUNDING = 1e-9


@dataclass(frozen=True)
class Problem:
    """Loads as whole numbers, `[W, L, E]`, sizes and constraints. A layer's windows have the same total."""

    loads_WLE: Floats
    sizes: Sizes
    effort: Effort = "refined"
    policy: Policy = "auto"
    quantile: float | None = None  # of max over mean over windows, to lower; None: max over mean of their mean
    domains: Domains = ()
    split: SplitRule = "equal"

    @cached_property
    def counted_loads(self) -> Floats:
        """The windows that count: all, or only their mean."""
        return self.mean_loads[None] if self.quantile is None else self.loads_WLE

    @property
    def num_counted(self) -> int:
        """The number of windows in which a map must be even: the worst others are ignored."""
        return 1 if self.quantile is None else ceil(self.quantile * len(self.loads_WLE) - ROUNDING)

    @property
    def is_plain(self) -> bool:
        """Whether there is one window, equal shares, and no failure domain."""
        return len(self.counted_loads) == 1 and not self.domains and self.split == "equal"

    @property
    def gpus_hold_all_experts(self) -> bool:
        """Whether every GPU has a slot for every expert, so there is nothing to search."""
        return self.sizes.slots_per_gpu >= int(self.loads_WLE.shape[2])

    @cached_property
    def mean_loads(self) -> Floats:
        """The loads of all windows together."""
        return scale(self.loads_WLE.sum(axis=0))

    @property
    def mean_gpu_load(self) -> Floats:
        """The mean load of a GPU in each layer, `[L]`; it is the same in every window."""
        mean_L: Floats = self.counted_loads.sum(axis=2).max(axis=0) / self.sizes.num_gpus
        return mean_L

    def ratio(self, slots_LGS: Ints) -> Floats:
        """Return max over mean in the worst of the `num_counted` most even windows, `[L]`."""
        ratio_L: Floats = np.sort(self.ratios(slots_LGS, self.counted_loads), axis=0)[self.num_counted - 1]
        return ratio_L

    def ratios(self, slots_LGS: Ints, loads_WLE: Floats) -> Floats:
        """Return max over mean in each window, `[W, L]`; 1.0 without load."""
        each = [native.gpu_loads(loads_LE, slots_LGS, self.split, self.sizes.num_nodes) for loads_LE in loads_WLE]
        gpu_loads_WLG = np.stack(each)
        mean_WL = gpu_loads_WLG.mean(axis=2)
        ratios_WL: Floats = np.divide(gpu_loads_WLG.max(axis=2), mean_WL, out=np.ones_like(mean_WL), where=mean_WL > 0)
        return ratios_WL


def scale_windows(windows: Sequence[Loads] | Sequence[Floats]) -> Floats:
    """Return loads as whole numbers, `[W, L, E]`. Each of several windows sums to 2^40 in a layer, less rounding."""
    scaled_WLE = np.stack([scale(each) for each in windows])
    if len(windows) == 1:
        return scaled_WLE
    totals_WL = scaled_WLE.sum(axis=2, keepdims=True)
    found: Floats = np.floor(scaled_WLE / np.where(totals_WL > 0, totals_WL, 1.0) * 2.0**BITS)
    return found
