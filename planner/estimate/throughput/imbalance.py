"""Predict the fullest GPU's load over the mean in one step, for the expert map of a plan.

    expected    the map's own imbalance, for its loads and split rule (`max_over_mean`)
    drift       experts' popularity changed since the loads were measured
    sampling    the token-expert pairs of one step are a small sample

A GPU's pairs in one step are assumed normal around the expected number, with the variance of drift and sampling. The
expected maximum over all GPUs is

    E[max] = integral of 1 - product over GPUs of P(pairs <= x) dx

`facts/drawn.py` models the drift: the most popular experts drift least, since popularity is bounded. Replicas of an
expert drift together, but they are on different GPUs. The drift of drawn.py is calibrated to a measurement: in an
iteration, the fullest of 32 ranks has 0.109 more than the mean, and all of this excess is taken as drift. In the same
table, a rank gets 1,024 pairs on average, with a standard deviation of 52.0. Sampling alone would give 32.0, so at most
this share of drawn.py's drift is real:

    sqrt(1 - (32.0 / 52.0)^2) = 0.788

The measured map was made from the same iterations in which it was measured, so the real share is unknown: anything from
none (if tokens of a step choose alike) to 0.788. 0.471 is assumed, about a third of the possible variance. This value
was chosen after looking at DeepSeek's decode, so that row is weak evidence for it (docs/design/predictions.md). The low
end of a prediction's range takes 0.788.

A node's load is the sum of its GPUs' loads. It matters for NICs if a dispatch sends a token once to each node.

Source: NVIDIA/TensorRT-LLM 1d263f15 docs/source/blogs/tech_blog/blog4_Scaling_Expert_Parallelism_in_TensorRT-LLM.md,
table 1; examples/wide_ep/ep_load_balancer/README.md 2a595f81 (which iterations).
"""

from collections.abc import Sequence
from functools import cache
from math import log, pi, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING

from planner.estimate.throughput.stages import Imbalance
from planner.expert_map import ExpertMap
from planner.facts.drawn import MAX_POPULARITY, WINDOW_CORRELATION

if TYPE_CHECKING:
    from planner.expert_map.weigh import Floats, Ints

POINTS = 64
DEVIATIONS = 5.0
WINDOW_DRIFT = sqrt(2 * (1 - WINDOW_CORRELATION))  # standard deviation of the change of drawn.py's normal variables
MEAN_PAIRS, DEVIATION_PAIRS = 1024, 52.0  # pairs of a rank in an iteration
MAX_DRIFT_SHARE = sqrt(1 - MEAN_PAIRS / DEVIATION_PAIRS**2)
DRIFT_SHARE = sqrt(1 / 2) * 2 / 3  # assumed: see the module's docstring


def imbalance_of(
    expert_map: ExpertMap,
    loads: Sequence[Sequence[float]],
    num_gpus: int,
    num_domains: int,
    pairs_per_gpu: float,
    *,
    num_nodes: int,
    drift_share: float = DRIFT_SHARE,
) -> Imbalance:
    """Return the expected max/mean load of GPUs and of NVLink domains in a step, averaged over MoE layers.

    `expert_map` is of one unit of `num_gpus` GPUs on `num_nodes` nodes, in `num_domains` NVLink domains. The split rule
    of the map determines the load of each replica. A GPU receives `pairs_per_gpu` token-expert pairs in a step on
    average. `drift_share` is the share of drawn.py's drift that is taken as real.
    """
    import numpy as np  # `validate` must not wait for it

    loads_LE = np.array(loads, dtype=np.float64)
    shares_LG, variance_LG = _gpu_loads(expert_map, loads_LE, num_gpus, num_nodes, drift_share)
    means_L1 = np.maximum(shares_LG.mean(axis=1, keepdims=True), 1e-12)
    shares_LG = shares_LG / means_L1
    deviation_LG = np.sqrt(variance_LG / means_L1**2 + shares_LG / max(pairs_per_gpu, 1.0))
    shares_LN = shares_LG.reshape(len(shares_LG), num_domains, -1).mean(axis=2)
    return Imbalance(float(_expected_maximum(shares_LG, deviation_LG).mean()), float(shares_LN.max(axis=1).mean()))


def _gpu_loads(
    expert_map: ExpertMap, loads_LE: "Floats", num_gpus: int, num_nodes: int, drift_share: float
) -> "tuple[Floats, Floats]":
    """Return each GPU's load under the map, and the variance of this load by drift, both `[L, G]`."""
    import numpy as np  # as above

    from planner.estimate.throughput.shares import replica_shares  # numpy, too

    slots_LGS = np.array(expert_map.physical_to_logical).reshape(len(loads_LE), num_gpus, -1)
    carried, variances = [], []
    for loads_E, drift_E, slots_GS in zip(loads_LE, drift(loads_LE, drift_share), slots_LGS, strict=True):
        parts_GE = replica_shares(expert_map.split, len(loads_E), slots_GS, num_nodes) * loads_E
        carried.append(parts_GE.sum(axis=1))
        variances.append(((parts_GE * drift_E) ** 2).sum(axis=1))
    return np.array(carried), np.array(variances)


def replicas_on_nodes(slots_LS: "Ints", num_nodes: int) -> "Floats":
    """Return how many replicas of each expert are on each node, `[num_moe_layers, num_experts, num_nodes]`."""
    import numpy as np  # as above

    found: Floats = np.zeros((len(slots_LS), int(slots_LS.max()) + 1, num_nodes))
    np.add.at(found, (np.arange(len(slots_LS))[:, None], slots_LS, _node_of_slot(slots_LS, num_nodes)), 1)
    return found


def drift(loads_LE: "Floats", drift_share: float = DRIFT_SHARE) -> "Floats":
    """Return the relative standard deviation of each expert's load from one window of traffic to the next, `[L, E]`.

    With popularity 256^u and u = P(z), d ln(popularity) / dz is ln 256 x the normal density at z.
    """
    import numpy as np  # as above

    most = np.maximum(loads_LE.max(axis=1, keepdims=True), 1e-12)
    u = 1 + np.log(np.maximum(loads_LE / most, 1 / MAX_POPULARITY)) / log(MAX_POPULARITY)
    found: Floats = log(MAX_POPULARITY) * np.interp(u, *_density_table()) * WINDOW_DRIFT * drift_share
    return found


@cache
def _density_table() -> "tuple[Floats, Floats]":
    """Return two arrays: probabilities, and the standard normal density at the quantile of each probability."""
    import numpy as np  # as above

    table = np.linspace(0.002, 0.998, 499)
    return table, np.array([NormalDist().pdf(NormalDist().inv_cdf(each)) for each in table.tolist()])


def sampling_imbalance(num_gpus: int, pairs_per_gpu: float) -> float:
    """Return the expected max/mean load of GPUs in a step if their loads differ only because the sample is small."""
    return float(1 + expected_maximum(num_gpus) / sqrt(max(pairs_per_gpu, 1.0))) if num_gpus > 1 else 1.0


@cache
def expected_maximum(num_gpus: int) -> float:
    """Return the expected maximum of `num_gpus` standard normal variables, by Blom's formula."""
    return NormalDist().inv_cdf((num_gpus - 0.375) / (num_gpus + 0.25))


def _node_of_slot(slots_LS: "Ints", num_nodes: int) -> "Ints":
    """Return the number of the node on which each slot is, `[num_slots]`."""
    import numpy as np  # as above

    found: Ints = np.arange(slots_LS.shape[1]) * num_nodes // slots_LS.shape[1]
    return found


def _expected_maximum(means_LG: "Floats", deviations_LG: "Floats") -> "Floats":
    """Return the expected maximum over GPUs of independent normal variables, `[L]`."""
    import numpy as np  # as above

    low = means_LG.max(axis=1)
    high = (means_LG + DEVIATIONS * deviations_LG).max(axis=1)
    low = np.maximum(low - DEVIATIONS * deviations_LG.max(axis=1), 0.0)
    width = (high - low) / POINTS
    total: Floats = low.copy()
    for point in range(POINTS):
        x = low + (point + 0.5) * width
        z = (x[:, None] - means_LG) / np.maximum(deviations_LG, 1e-9)
        total += (1 - _normal_cdf(z).prod(axis=1)) * width
    return total


def _normal_cdf(z: "Floats") -> "Floats":
    """Return P(a standard normal variable <= z) for each z, in the shape of `z`.

    Page's approximation is within 0.0003.
    """
    import numpy as np  # as above

    found: Floats = 1 / (1 + np.exp(-np.clip(sqrt(8 / pi) * z * (1 + 0.044715 * z**2), -40, 40)))
    return found
