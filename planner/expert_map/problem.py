"""The balancing problem that an expert map solves: loads of one or more windows of time, sizes and constraints.

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
from planner.expert_map.types import Domains, Effort, Policy, Sizes
from planner.expert_map.weigh import Floats, Ints, scale
from planner.facts.loads import Loads
from planner.facts.terms import SplitRule

BITS = 40  # size of a window's total load, so that sums over windows stay exact
ROUNDING = 1e-9


@dataclass(frozen=True)
class Problem:
    """What to balance: loads as whole numbers, `[W, L, E]`, sizes, and constraints.

    All windows of a layer have the same total load.
    """

    loads_WLE: Floats
    sizes: Sizes
    effort: Effort = "refined"
    policy: Policy = "auto"
    quantile: float | None = None  # over windows, of the max over mean to lower; None: balance the windows' mean
    domains: Domains = ()
    split: SplitRule = "equal"

    @cached_property
    def counted_loads(self) -> Floats:
        """The loads to balance, `[W, L, E]`: all windows' or, without a `quantile`, only the mean of all windows."""
        return self.mean_loads[None] if self.quantile is None else self.loads_WLE

    @property
    def num_counted(self) -> int:
        """The number of windows that count: the most even ones up to the quantile. The other windows are ignored."""
        return 1 if self.quantile is None else ceil(self.quantile * len(self.loads_WLE) - ROUNDING)

    @property
    def is_plain(self) -> bool:
        """Whether there is only one window to balance, an equal split over replicas, and no failure domain."""
        return len(self.counted_loads) == 1 and not self.domains and self.split == "equal"

    @property
    def gpus_hold_all_experts(self) -> bool:
        """Whether every GPU has a slot for every expert, so there is nothing to search."""
        return self.sizes.slots_per_gpu >= int(self.loads_WLE.shape[2])

    @cached_property
    def mean_loads(self) -> Floats:
        """The sum of the loads of all windows, `[L, E]`, which stands for their mean."""
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
        """Return max over mean in each window of `loads_WLE`, `[W, L]`; 1.0 without load."""
        each = [native.gpu_loads(loads_LE, slots_LGS, self.split, self.sizes.num_nodes) for loads_LE in loads_WLE]
        gpu_loads_WLG = np.stack(each)
        mean_WL = gpu_loads_WLG.mean(axis=2)
        ratios_WL: Floats = np.divide(gpu_loads_WLG.max(axis=2), mean_WL, out=np.ones_like(mean_WL), where=mean_WL > 0)
        return ratios_WL


def scale_windows(windows: Sequence[Loads] | Sequence[Floats]) -> Floats:
    """Return loads as whole numbers, `[W, L, E]`. Of several windows, each sums to 2^40 per layer, less rounding."""
    scaled_WLE = np.stack([scale(each) for each in windows])
    if len(windows) == 1:
        return scaled_WLE
    totals_WL = scaled_WLE.sum(axis=2, keepdims=True)
    found: Floats = np.floor(scaled_WLE / np.where(totals_WL > 0, totals_WL, 1.0) * 2.0**BITS)
    return found
