"""Random loads of experts, for planning without measurements and for tests.

The popularity of an expert has the density x^-alpha on [1, 256], as in published measurements of expert-parallel
imbalance. It is the quantile Phi(z) of that density, with a normal variable

    z = sqrt(c) x its group's variable + sqrt(1 - c) x its own            c: correlation inside a group

so the consecutive experts of a group are hot together. Each layer is drawn independently, with its own alpha around the
given one. From one window to the next, z drifts with correlation rho (Gaussian copula): an expert's popularity changes,
the distribution does not. Counts in a window are multinomial.

Calibration: TensorRT-LLM reports (max - mean) / mean load of ranks in an iteration of DeepSeek-R1 at EP32. It is 1.564
with experts in order, which determines c, and 0.109 with a map of 9 slots a rank made for other iterations. That
determines rho if all of it is drift, and none is random variation of a step.

Assumed: alpha 1.01 for R1 and the spread of alpha over layers, which are not published, and that both figures are for
the same data. The report's (max - mean) / mean of experts, 10.95, is not met: the density allows 4.6 at alpha 1.01.

Source: NVIDIA/TensorRT-LLM, docs/source/blogs/tech_blog/blog4_Scaling_Expert_Parallelism_in_TensorRT-LLM.md and
examples/wide_ep/ep_load_balancer/README.md.
"""

import random
from collections.abc import Sequence
from functools import lru_cache
from math import sqrt
from statistics import NormalDist

from planner.facts.loads import Loads

MAX_POPULARITY = 256.0  # relative to the least popular expert
TOKENS_OF_LEAST_POPULAR = 1000
GROUP_CORRELATION = 0.173  # calibrated, see above
WINDOW_CORRELATION = 0.9957  # calibrated, see above
ALPHA_SPREAD = 0.05  # assumed: standard deviation over layers
SMALLEST = 2.0**-53  # the smallest number above 0 that `random` returns

NORMAL = NormalDist()
Normals = list[list[float]]  # [layers][experts]


@lru_cache(maxsize=8)  # a plan, its search and its fixes need the same loads
def draw_loads(alpha: float, seed: int, num_layers: int, num_experts: int, num_groups: int = 1) -> Loads:
    """Draw the expected token count of each expert, `[num_layers][num_experts]`. The result is the same on any machine.

    With one group, experts are independent and all layers have the same alpha. With more, experts of a group are
    correlated, and each layer has its own alpha.
    """
    generator = random.Random(seed)  # noqa: S311 (its sequence is promised never to change, which numpy's is not)
    if num_groups == 1:
        uniform = [[generator.random() for _ in range(num_experts)] for _ in range(num_layers)]
        return _loads([alpha] * num_layers, uniform)
    alphas = _alphas(generator, alpha, num_layers)
    return _loads(alphas, _uniform(_correlated_normals(generator, num_layers, num_experts, num_groups)))


def popularity(uniform: float, alpha: float) -> float:
    """Return an expert's popularity for a `uniform` number: the quantile of the density x^-alpha on [1, 256]."""
    if alpha == 1:
        return float(MAX_POPULARITY**uniform)
    exponent = 1 - alpha
    return float((1 + uniform * (MAX_POPULARITY**exponent - 1)) ** (1 / exponent))


def _alphas(generator: random.Random, alpha: float, num_layers: int) -> list[float]:
    return [max(alpha + ALPHA_SPREAD * _normal(generator), 0.0) for _ in range(num_layers)]


def _correlated_normals(generator: random.Random, num_layers: int, num_experts: int, num_groups: int) -> Normals:
    """Return normal variables, `[layers][experts]`, correlated inside groups of consecutive experts."""
    layers = []
    for _ in range(num_layers):
        groups = [_normal(generator) for _ in range(num_groups)]
        of_groups = [groups[expert * num_groups // num_experts] for expert in range(num_experts)]
        layers.append(_mix(sqrt(GROUP_CORRELATION), of_groups, [_normal(generator) for _ in range(num_experts)]))
    return layers


def _mix(correlation: float, normals: Sequence[float], fresh: Sequence[float]) -> list[float]:
    """Return normal variables with `correlation` to `normals`, mixed from these and independent `fresh` ones."""
    rest = sqrt(1 - correlation**2)
    return [correlation * one + rest * other for one, other in zip(normals, fresh, strict=True)]


def _normal(generator: random.Random) -> float:
    return NORMAL.inv_cdf(max(generator.random(), SMALLEST))


def _uniform(normals: Normals) -> list[list[float]]:
    return [[NORMAL.cdf(each) for each in row] for row in normals]


def _loads(alphas: Sequence[float], uniform: Sequence[Sequence[float]]) -> Loads:
    return tuple(
        tuple(round(TOKENS_OF_LEAST_POPULAR * popularity(each, alpha)) for each in row)
        for alpha, row in zip(alphas, uniform, strict=True)
    )
