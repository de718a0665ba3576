"""Windows of drawn loads, one after the other: the copula by which `facts/drawn.py` is calibrated, as counts."""

import random

from numpy.random import default_rng

from planner.facts.drawn import WINDOW_CORRELATION, _alphas, _correlated_normals, _loads, _mix, _uniform

NUM_PAIRS = 8_000_000  # token-expert pairs of a layer in a window


def draw_windows(
    alpha,
    seed,
    num_layers,
    num_experts,
    num_groups,
    num_windows,
    window_correlation=WINDOW_CORRELATION,
    num_pairs=NUM_PAIRS,
):
    """Return the counts of so many windows, each `num_pairs` a layer; the same for the same arguments and numpy."""
    generator, counter = random.Random(seed), default_rng(seed)
    alphas = _alphas(generator, alpha, num_layers)
    normals = _correlated_normals(generator, num_layers, num_experts, num_groups)
    windows = []
    for _ in range(num_windows):
        expected = _loads(alphas, _uniform(normals))
        shares = [[load / sum(row) for load in row] for row in expected]
        windows.append(tuple(tuple(counter.multinomial(num_pairs, row).tolist()) for row in shares))
        fresh = _correlated_normals(generator, num_layers, num_experts, num_groups)
        normals = [_mix(window_correlation, *rows) for rows in zip(normals, fresh, strict=True)]
    return tuple(windows)
