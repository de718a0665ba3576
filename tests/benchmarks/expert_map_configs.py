"""What benchmarks of expert maps go through: layouts with what is promised there, loads and seeds."""

import statistics
import time
from dataclasses import dataclass

from planner.expert_map import balance

ALPHAS = (0.6, 1.01, 1.2)
RHOS = (0.95, 0.85)
SEEDS = range(1, 6)
REPEATS = 3


@dataclass(frozen=True)
class Config:
    """Sizes, and what is promised there; triples are for alpha 0.6, 1.01 and 1.2, pairs for rho 0.95 and 0.85."""

    name: str
    num_slots: int
    num_gpus: int
    num_nodes: int = 1
    num_groups: int = 1
    mean: tuple[float, ...] | None = None  # max/mean, of layers
    worst: tuple[float, ...] | None = None  # max/mean
    or_gap: float = 0.0  # or the worst layer is so near its bound
    faster: float | None = None  # `fast`, than the reference
    refined_ms: float | None = None
    published_ms: tuple[float, float] | None = None
    moves: tuple[float, float] | None = None


CONFIGS = (
    Config("EP32, 288", 288, 32, mean=(1.001,) * 3, faster=20, refined_ms=20, published_ms=(870, 940)),
    Config(
        "EP32, 8 groups", 288, 32, 4, 8, mean=(1.01,) * 3, faster=20, refined_ms=20, published_ms=(300, 360),
        moves=(0.12, 0.15),
    ),
    Config(
        "EP72, 288", 288, 72, 9, mean=(1.005, 1.005, 1.015), worst=(1.04, 1.04, 1.06), or_gap=0.02, faster=100,
        refined_ms=200, published_ms=(1330, 1670), moves=(0.5, 0.55),
    ),
    Config("EP144, 288", 288, 144, 18, faster=100, refined_ms=50, published_ms=(1980, 2150), moves=(0.1, 0.15)),
    Config("EP144, 432", 432, 144, 18, mean=(1.01,) * 3, faster=100, refined_ms=50, moves=(0.3, 0.4)),
    Config("EP320, 320", 320, 320, 40),
)  # fmt: skip


def ours_for(config, loads, effort="refined", **options):
    """Our map."""
    nodes = {"num_nodes": config.num_nodes, "num_groups": config.num_groups}
    return balance(loads, config.num_slots, config.num_gpus, effort, **nodes, **options)


def timed(call, *arguments, **options):
    """What `call` returns, and the median of the CPU milliseconds that three calls took."""
    runs = [timed_once(call, *arguments, **options) for _ in range(REPEATS)]
    return runs[0][0], statistics.median(ms for _, ms in runs)


def timed_once(call, *arguments, **options):
    """What `call` returns, and the CPU milliseconds it took."""
    start = time.process_time()
    result = call(*arguments, **options)
    return result, 1e3 * (time.process_time() - start)
