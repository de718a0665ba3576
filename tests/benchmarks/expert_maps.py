"""Our expert maps against the published EPLB, in one run: python -m tests.benchmarks.expert_maps [PART...]

Parts: balance, moves, large, published; all of them without a word.

Loads: 58 layers of 256 experts, popularity from the density x^-alpha on [1, 256], 8 million token-expert pairs a layer,
multinomial, seeds 1 to 5; each figure is that of its worst seed. Times are process CPU; set OMP_NUM_THREADS=1 for one
thread. The reference is `eplb_reference.py`: lists and numpy numbers. The published code keeps torch scalars where it
keeps lists; where torch can be imported, `published` times the reference with such scalars too.

    worse      layers of all seeds in which our fullest GPU carries more than the reference's
    faster     CPU time of the reference / ours, the smallest of all seeds
    kind       what binds in most layers, of ours
    moves      share of slots whose expert changed on a drifted window (Gaussian copula), order inside a GPU ignored
"""

import math
import sys
import time
from collections import Counter

import numpy as np

from planner.expert_map import balance, prepare
from planner.expert_map.moves import count_moves
from tests.planner.expert_map import eplb_reference
from tests.planner.expert_map.eplb_reference import rebalance_experts

# name: slots, GPUs, nodes, groups
CONFIGS = {
    "EP32, 288": (288, 32, 1, 1),
    "EP32, 8 groups": (288, 32, 4, 8),
    "EP72, 288": (288, 72, 1, 1),
    "EP144, 288": (288, 144, 1, 1),
    "EP144, 432": (432, 144, 1, 1),
    "EP320, 320": (320, 320, 1, 1),
}
MOVED = {name: CONFIGS[name] for name in ("EP32, 8 groups", "EP72, 288", "EP144, 288", "EP144, 432")}
ALPHAS = (0.6, 1.01, 1.2)
SEEDS = range(1, 6)
RHOS = (0.95, 0.85)


def main(parts):
    """Print the tables that are asked for, all without a word."""
    prepare(with_previous=True)
    for part in parts or ("balance", "moves", "large", "published"):
        {"balance": balance_table, "moves": moves_table, "large": large, "published": published}[part]()
        print()


def balance_table():
    """One line for each configuration, alpha and balancer."""
    row = "{:14} {:>5} {:9} {:>7} {:>7} {:>7} {:>7} {:>6} {:>8} {:>7}"
    print(row.format("config", "alpha", "balancer", "mean", "worst", "bound", "kind", "worse", "ms", "faster"))
    for name, sizes in CONFIGS.items():
        for alpha in ALPHAS:
            for line in compare(alpha, *sizes):
                print(row.format(name, alpha, *line), flush=True)


def compare(alpha, num_slots, num_gpus, num_nodes, num_groups):
    """A line for the reference and for each effort; figures of the worst seed, each by itself."""
    runs = {"reference": [], "fast": [], "refined": []}
    kinds = Counter()
    for seed in SEEDS:
        loads = draw(alpha, seed)
        slots, reference_ms = timed(rebalance_experts, loads, num_slots, num_groups, num_nodes, num_gpus)
        reference = max_over_mean(loads, slots, num_gpus)
        runs["reference"].append((reference.mean(), reference.max(), 0.0, 0, reference_ms, 1.0))
        for effort in ("fast", "refined"):
            ours, ms = timed(balance, loads, num_slots, num_gpus, effort, num_nodes=num_nodes, num_groups=num_groups)
            reached = max_over_mean(loads, np.array(ours.physical_to_logical), num_gpus)
            num_worse = int((reached > reference + 1e-6).sum())
            figures = (reached.mean(), reached.max(), np.mean(ours.bound), num_worse, ms, reference_ms / ms)
            runs[effort].append(figures)
            kinds.update(ours.binding)
    for balancer, figures in runs.items():
        mean, worst, bound, _, ms, _ = np.max(figures, axis=0)
        num_worse, faster = sum(figure[3] for figure in figures), min(figure[5] for figure in figures)
        kind = "" if balancer == "reference" else kinds.most_common(1)[0][0]
        yield balancer, f"{mean:.4f}", f"{worst:.4f}", f"{bound:.4f}", kind[:7], num_worse, f"{ms:.1f}", f"{faster:.0f}"


def moves_table():
    """What a drifted window moves, at a balance no worse than the reference's on that window."""
    row = "{:14} {:>5} {:>5} {:>7} {:>9} {:>7} {:>6} {:>7} {:>9} {:>9} {:>8}"
    head = ("config", "alpha", "rho", "stale", "reference", "ours", "worse", "moves", "unchanged", "eplb anew", "ms")
    print(row.format(*head))
    for name, sizes in MOVED.items():
        for rho in RHOS:
            for alpha in ALPHAS:
                print(row.format(name, alpha, rho, *moves(alpha, rho, *sizes)), flush=True)


def moves(alpha, rho, num_slots, num_gpus, num_nodes, num_groups):
    """One line: the mean of the seeds, layers worse added up."""
    lines = []
    for seed in SEEDS:
        old, new = drift(alpha, rho, seed)
        sizes = (num_slots, num_groups, num_nodes, num_gpus)
        anew = [rebalance_experts(loads, *sizes) for loads in (old, new)]
        ours = {"num_nodes": num_nodes, "num_groups": num_groups}
        before = balance(old, num_slots, num_gpus, **ours).physical_to_logical
        renewed, ms = timed(balance, new, num_slots, num_gpus, previous=before, **ours)
        kept = balance(old, num_slots, num_gpus, previous=before, **ours)
        reached, reference = (
            max_over_mean(new, np.array(each), num_gpus) for each in (renewed.physical_to_logical, anew[1])
        )
        per_gpu = [each.reshape(len(each), num_gpus, -1) for each in anew]
        lines.append(
            (
                max_over_mean(new, np.array(before), num_gpus).mean(),
                reference.mean(),
                reached.mean(),
                (reached > reference + 1e-6).sum(),
                renewed.moved_slots / np.size(anew[0]),
                kept.moved_slots,
                count_moves(per_gpu[1], per_gpu[0], 256) / np.size(anew[0]),
                ms,
            )
        )
    stale, reference, reached, _, share, unchanged, anew_share, ms = np.mean(lines, axis=0)
    figures = (f"{stale:.3f}", f"{reference:.4f}", f"{reached:.4f}", sum(line[3] for line in lines))
    return *figures, f"{share:.3f}", f"{unchanged:.0f}", f"{anew_share:.3f}", f"{ms:.0f}"


def large():
    """The largest layout: 61 layers x 512 experts on 1,024 GPUs."""
    loads = draw(1.01, 1, num_layers=61, num_experts=512)
    for effort in ("fast", "refined"):
        ours, ms = timed(balance, loads, 2048, 1024, effort)
        print(
            f"61 x 512 experts, 2,048 slots, 1,024 GPUs: {effort} {ms:.0f} ms, mean {np.mean(ours.max_over_mean):.4f}"
        )


def published():
    """The reference with torch scalars, as published, beside ours; nothing without torch."""
    try:
        import torch
    except ImportError:
        print("torch is not installed: the published code's own times are not measured")
        return
    torch.set_num_threads(1)
    loads = draw(1.01, 1)
    eplb_reference.number = torch.tensor
    for name, (num_slots, num_gpus, num_nodes, num_groups) in CONFIGS.items():
        _, reference_ms = timed(rebalance_experts, loads, num_slots, num_groups, num_nodes, num_gpus)
        _, ms = timed(balance, loads, num_slots, num_gpus, "fast", num_nodes=num_nodes, num_groups=num_groups)
        print(
            f"{name:14} torch scalars {reference_ms:7.0f} ms, fast {ms:6.1f} ms, {reference_ms / ms:5.0f} times faster"
        )


def draw(alpha, seed, num_layers=58, num_experts=256):
    """Loads `[num_layers, num_experts]`."""
    generator = np.random.default_rng(seed)
    return _count(generator, alpha, generator.random((num_layers, num_experts)))


def drift(alpha, rho, seed, num_layers=58, num_experts=256):
    """Two windows whose popularities are correlated by a Gaussian copula."""
    generator = np.random.default_rng(seed)
    first, fresh = generator.standard_normal((2, num_layers, num_experts))
    second = rho * first + math.sqrt(1 - rho**2) * fresh
    cumulated = np.vectorize(lambda z: math.erfc(-z / math.sqrt(2)) / 2)
    return [_count(generator, alpha, cumulated(each)) for each in (first, second)]


def _count(generator, alpha, uniform, num_pairs=8_000_000):
    """Multinomial counts of experts whose popularity is the quantile `uniform` of the density x^-alpha on [1, 256]."""
    exponent = 1 - alpha
    popularity = (1 + uniform * (256**exponent - 1)) ** (1 / exponent)
    shares = popularity / popularity.sum(axis=1, keepdims=True)
    return np.stack([generator.multinomial(num_pairs, row) for row in shares])


def timed(call, *arguments, **options):
    """What `call` returns, and the CPU milliseconds it took."""
    start = time.process_time()
    result = call(*arguments, **options)
    return result, 1e3 * (time.process_time() - start)


def max_over_mean(loads, slots, num_gpus):
    """Load of the fullest GPU / mean, `[layers]`, for `slots` `[layers, num_slots]`."""
    layers = np.arange(len(loads))[:, None]
    counts = np.stack([np.bincount(row, minlength=loads.shape[1]) for row in slots])
    carried = (loads / counts)[layers, slots].reshape(len(loads), num_gpus, -1).sum(axis=2)
    return carried.max(axis=1) / carried.mean(axis=1)


if __name__ == "__main__":
    main(sys.argv[1:])
