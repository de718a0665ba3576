"""Balance and time of our expert maps against the published EPLB, in one run: python -m tests.benchmarks.expert_maps

Loads: 58 layers of 256 experts, popularity from the density x^-alpha on [1, 256], 8 million token-expert pairs a layer,
multinomial, seeds 1 to 5; the worst seed is shown. Times are process CPU; set OMP_NUM_THREADS=1 for one thread.

    worse      layers of all seeds in which our fullest GPU carries more than the reference's
    faster     CPU time of the reference / ours
"""

import time

import numpy as np

from planner.expert_map import balance
from tests.planner.expert_map.eplb_reference import rebalance_experts

CONFIGS = {"EP32, 288": (288, 32), "EP72, 288": (288, 72), "EP144, 288": (288, 144), "EP144, 432": (432, 144)}
CONFIGS |= {"EP320, 320": (320, 320)}
ALPHAS = (0.6, 1.01, 1.2)
SEEDS = range(1, 6)
ROW = "{:11} {:>5} {:9} {:>7} {:>7} {:>7} {:>6} {:>8} {:>7}"


def main():
    """Print one line for each configuration, alpha and balancer."""
    print(ROW.format("config", "alpha", "balancer", "mean", "worst", "bound", "worse", "ms", "faster"))
    for name, (num_slots, num_gpus) in CONFIGS.items():
        for alpha in ALPHAS:
            for line in compare(alpha, num_slots, num_gpus):
                print(ROW.format(name, alpha, *line), flush=True)


def compare(alpha, num_slots, num_gpus):
    """A line for the reference and for each effort; figures of the worst seed, each by itself."""
    runs = {"reference": [], "fast": [], "refined": []}
    for seed in SEEDS:
        loads = draw(alpha, seed)
        slots, reference_ms = timed(lambda loads=loads: rebalance_experts(loads, num_slots, 1, 1, num_gpus))
        reference = max_over_mean(loads, slots, num_gpus)
        runs["reference"].append((reference.mean(), reference.max(), 0.0, 0, reference_ms, 1.0))
        for effort in ("fast", "refined"):
            rows = tuple(map(tuple, loads.tolist()))
            ours, ms = timed(lambda rows=rows, effort=effort: balance(rows, num_slots, num_gpus, effort))
            reached = max_over_mean(loads, np.array(ours.physical_to_logical), num_gpus)
            num_worse = int((reached > reference + 1e-6).sum())
            figures = (reached.mean(), reached.max(), np.mean(ours.bound), num_worse, ms, reference_ms / ms)
            runs[effort].append(figures)
    for balancer, figures in runs.items():
        mean, worst, bound, _, ms, _ = np.max(figures, axis=0)
        num_worse, faster = sum(figure[3] for figure in figures), min(figure[5] for figure in figures)
        yield balancer, f"{mean:.4f}", f"{worst:.4f}", f"{bound:.4f}", num_worse, f"{ms:.0f}", f"{faster:.0f}"


def draw(alpha, seed, num_layers=58, num_experts=256, num_pairs=8_000_000):
    """Loads `[num_layers, num_experts]`."""
    generator = np.random.default_rng(seed)
    exponent = 1 - alpha
    uniform = generator.random((num_layers, num_experts))
    popularity = (1 + uniform * (256**exponent - 1)) ** (1 / exponent)
    shares = popularity / popularity.sum(axis=1, keepdims=True)
    return np.stack([generator.multinomial(num_pairs, row) for row in shares])


def timed(call):
    """What `call` returns, and the CPU milliseconds it took."""
    start = time.process_time()
    result = call()
    return result, 1e3 * (time.process_time() - start)


def max_over_mean(loads, slots, num_gpus):
    """Load of the fullest GPU / mean, `[layers]`, for `slots` `[layers, num_slots]`."""
    layers = np.arange(len(loads))[:, None]
    counts = np.stack([np.bincount(row, minlength=loads.shape[1]) for row in slots])
    carried = (loads / counts)[layers, slots].reshape(len(loads), num_gpus, -1).sum(axis=2)
    return carried.max(axis=1) / carried.mean(axis=1)


if __name__ == "__main__":
    main()
