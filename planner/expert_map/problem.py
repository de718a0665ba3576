"""The balancing problem that an expert map solves: loads, sizes and constraints."""

from dataclasses import dataclass

import numpy as np

from planner.expert_map import native
from planner.expert_map.types import Domains, Effort, Policy, Sizes
from planner.expert_map.weigh import Floats, Ints
from planner.facts.terms import SplitRule


@dataclass(frozen=True)
class Problem:
    """What to balance: loads as whole numbers, `[L, E]`, sizes, and constraints."""

    loads_LE: Floats
    sizes: Sizes
    effort: Effort = "refined"
    policy: Policy = "auto"
    domains: Domains = ()
    split: SplitRule = "equal"

    @property
    def is_plain(self) -> bool:
        """Whether replicas share tokens equally, and there is no failure domain."""
        return not self.domains and self.split == "equal"

    @property
    def gpus_hold_all_experts(self) -> bool:
        """Whether every GPU has a slot for every expert, so there is nothing to search."""
        return self.sizes.slots_per_gpu >= int(self.loads_LE.shape[1])

    @property
    def mean_gpu_load(self) -> Floats:
        """The mean load of a GPU in each layer, `[L]`."""
        mean_L: Floats = self.loads_LE.sum(axis=1) / self.sizes.num_gpus
        return mean_L

    def ratio(self, slots_LGS: Ints) -> Floats:
        """Return max over mean, `[L]`; 1.0 without load."""
        gpu_loads_LG = native.gpu_loads(self.loads_LE, slots_LGS, self.split, self.sizes.num_nodes)
        mean_L = gpu_loads_LG.mean(axis=1)
        ratio_L: Floats = np.divide(gpu_loads_LG.max(axis=1), mean_L, out=np.ones_like(mean_L), where=mean_L > 0)
        return ratio_L
