"""How many experts a gate picks for a token, and with what probability the token then goes to each GPU or node.

A gate picks K of G groups of experts, any K equally likely, and a token's E experts in these groups. A place (a GPU or
a node) serves a share of each group's load. A picked group gets n of the token's E experts, in proportion to its load,
and at least one:

    n = max(E G / K x the group's share of the load, 1)

With q the share of a group's load that a place serves, a token goes there with probability

    1 - mean over all choices of K groups of the product of (1 - q)^n

where (1 - q)^n is interpolated linearly between whole n. Without groups (K = G = 1) that is 1 - (1 - q)^E, as for E
experts drawn independently.
"""

from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Gate:
    """How a gate chooses for one token. The default is DeepSeek-V3's: 8 experts, in at most half of the groups."""

    experts_per_token: int = 8
    groups_per_token: int | None = None  # the most groups with a token's experts; None: half of the groups
    # bytes of a token sent to a node; default: 7,168 values in FP8 with scales (DeepEP's normal dispatch)
    copy_bytes: int = 7392

    def groups_of_a_token(self, num_groups: int) -> int:
        """Return how many of `num_groups` groups a token's experts are in: at most one group per expert."""
        picked = max(round(num_groups / 2), 1) if self.groups_per_token is None else self.groups_per_token
        return min(picked, num_groups, self.experts_per_token)


AS_DEEPSEEK_V3 = Gate()


def reach_probability(served_LGP: "Floats", gate: Gate) -> "Floats":
    """Return the probability that a token goes to each place, a GPU or a node, `[L, P]`.

    `served_LGP` is the load of each group that each place serves, `[L, groups, P]`.
    """
    import numpy as np  # `validate` must not wait for it

    num_groups = served_LGP.shape[1]
    num_picked = gate.groups_of_a_token(num_groups)
    of_groups = served_LGP.sum(axis=2, keepdims=True)
    of_layers = of_groups.sum(axis=1, keepdims=True)
    share_of_load = np.divide(of_groups, of_layers, out=np.zeros_like(of_groups), where=of_layers > 0)
    pairs = np.maximum(gate.experts_per_token * num_groups / num_picked * share_of_load, 1)
    shares = np.divide(served_LGP, of_groups, out=np.zeros_like(served_LGP), where=of_groups > 0)
    misses = np.ones_like(served_LGP)  # probability that none of a token's experts in a picked group is at the place
    for pair in range(int(np.ceil(pairs.max()))):
        misses *= 1 - shares * np.clip(pairs - pair, 0, 1)
    found: Floats = 1 - _mean_product(misses, num_picked)
    return found


def _mean_product(factors: "Floats", num_picked: int) -> "Floats":
    """Return the mean over all choices of `num_picked` groups of the product of their factors, `[L, P]`.

    `factors` is `[L, groups, P]`.
    """
    import numpy as np  # as above

    num_layers, num_groups, num_places = factors.shape
    sums = np.zeros(
        (num_picked + 1, num_layers, num_places)
    )  # [k]: sum of the products over all choices of k groups up to here
    sums[0] = 1
    for group in range(num_groups):
        sums[1:] += factors[:, group] * sums[:-1]
    mean: Floats = sums[num_picked] / comb(num_groups, num_picked)
    return mean
