"""What a map is searched for: loads of one or more windows, sizes, and everything that it has to keep to.

With several windows of load, what is made small, layer by layer, is max over mean in the worst window, or a quantile of
it over windows: of W windows the k-th lowest, k = ceil(quantile x W); the worst is quantile 1. A window's tokens count
as much as any other's, however many they are.
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

__all__ = ["Problem", "alike"]

BITS = 40  # of a window's total: sums over windows stay exact
ROUNDING = 1e-9


@dataclass(frozen=True)
class Problem:
    """Whole numbers of load, `[W, L, E]`, and how they are to be spread. Windows of a layer have the same total."""

    loads_WLE: Floats
    sizes: Sizes
    effort: Effort = "refined"
    policy: Policy = "auto"
    quantile: float | None = None  # over windows, that is made small; None: max over mean for their mean
    domains: Domains = ()
    split: SplitRule = "equal"

    @cached_property
    def counted(self) -> Floats:
        """The windows that the map is for: all, or only their mean."""
        return self.mean_loads[None] if self.quantile is None else self.loads_WLE

    @property
    def num_counted(self) -> int:
        """The number of windows that count: those in which a map is most even."""
        return 1 if self.quantile is None else ceil(self.quantile * len(self.loads_WLE) - ROUNDING)

    @property
    def is_plain(self) -> bool:
        """Whether any map goes: one window, equal shares, no failure domains."""
        return len(self.counted) == 1 and not self.domains and self.split == "equal"

    @property
    def holds_everything(self) -> bool:
        """Whether every GPU has a slot for every expert, so that there is nothing to search."""
        return self.sizes.slots_per_gpu >= int(self.loads_WLE.shape[2])

    @cached_property
    def mean_loads(self) -> Floats:
        """The loads of all windows together."""
        return scale(self.loads_WLE.sum(axis=0))

    @property
    def gpu_mean(self) -> Floats:
        """The mean load of a GPU in each layer, in any window that the map is for."""
        mean_L: Floats = self.counted.sum(axis=2).max(axis=0) / self.sizes.num_gpus
        return mean_L

    def ratio(self, slots_LGS: Ints) -> Floats:
        """Return what the map is for, `[L]`: max over mean in the worst window that counts."""
        ratio_L: Floats = np.sort(self.ratios(slots_LGS, self.counted), axis=0)[self.num_counted - 1]
        return ratio_L

    def ratios(self, slots_LGS: Ints, loads_WLE: Floats) -> Floats:
        """Return max over mean in each window, `[W, L]`; 1.0 without load."""
        each = [native.carried(loads_LE, slots_LGS, self.split, self.sizes.num_nodes) for loads_LE in loads_WLE]
        carried_WLG = np.stack(each)
        mean_WL = carried_WLG.mean(axis=2)
        ratios_WL: Floats = np.divide(carried_WLG.max(axis=2), mean_WL, out=np.ones_like(mean_WL), where=mean_WL > 0)
        return ratios_WL


def alike(windows: Sequence[Loads] | Sequence[Floats]) -> Floats:
    """Return whole numbers, `[W, L, E]`. Several windows of a layer add up to 2^40 each, less what is rounded down."""
    scaled_WLE = np.stack([scale(each) for each in windows])
    if len(windows) == 1:
        return scaled_WLE
    totals_WL = scaled_WLE.sum(axis=2, keepdims=True)
    found: Floats = np.floor(scaled_WLE / np.where(totals_WL > 0, totals_WL, 1.0) * 2.0**BITS)
    return found
