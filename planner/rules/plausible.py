"""Warnings about numbers that nothing known has, mostly because they were written in another unit.

A table has each field with its bounds. They stay warnings, because a GPU or a market may be unlike all others.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from planner.facts.catalog import GPUS
from planner.problems.finding import Finding
from planner.rules.rule import Candidate, Rule
from planner.spec.resolved import ResolvedSpec

__all__ = ["RULES"]

PRICED = ("input_hit", "input_miss", "output")
MARGIN = 10.0  # times the fastest, or as many times below the slowest of the catalog: assumed


@dataclass(frozen=True)
class Figure:
    """Bounds of the numbers of a field, as far as anybody knows."""

    path: str  # with a star for each item of a list
    least: float
    most: float
    rule: str  # what is said of a number that is not
    reason: str


def _of_catalog(field: str) -> Figure:
    known = [value for gpu in GPUS.values() if (value := getattr(gpu, field))]
    rule = f"is far from the {min(known):,g} to {max(known):,g} TFLOPS of known GPUs"
    return Figure(f"cluster.gpu.{field}", min(known) / MARGIN, max(known) * MARGIN, rule, "it is in TFLOPS")


LEAST_PRICE = 1e-4  # US dollars; assumed: a hundredth of the cheapest tokens that are sold
MOST_TIMES = 10.0  # assumed: no hour of a day is so much dearer

PRICE = f"is less than {LEAST_PRICE:g}, a hundredth of what tokens cost", "it is the price of a million tokens"
FACTOR = f"makes prices more than {MOST_TIMES:g} times as high", "it is a factor, where 1 leaves prices as they are"

FIGURES = (
    *(_of_catalog(field) for field in ("fp8_tflops", "bf16_tflops")),
    *(Figure(f"cost.prices.{field}", LEAST_PRICE, inf, *PRICE) for field in PRICED),
    Figure("cost.prices.hours.*.factor", 0, MOST_TIMES, *FACTOR),
)


def figures_are_plausible(c: Candidate) -> Iterator[Finding]:
    """Yield each number that is outside the bounds of its kind, once."""
    spec = c.resolved
    data, said = spec.written.model_dump(include={"cluster", "cost"}), set()
    for figure in (*FIGURES, *_of_one_another(spec)):
        for path, value in _numbers_at(data, figure.path):
            if value and not figure.least <= value <= figure.most and path not in said:
                said.add(path)
                fix = "correct it, unless it is right"
                yield Finding(path, value, f"W112 {figure.rule}", figure.reason, fix)


def _of_one_another(spec: ResolvedSpec) -> Iterator[Figure]:
    """Yield figures whose bounds are others of the spec: FP8 is as fast as BF16, and nodes are built with so many."""
    bf16 = spec.gpu.bf16_tflops
    if bf16:
        rule = f"is less than bf16_tflops ({bf16:,g})"
        yield Figure("cluster.gpu.fp8_tflops", bf16, inf, rule, "GPUs with FP8 matmuls are faster in FP8")
    for _, name, gpu in spec.named_gpus():
        usual = gpu.node_gpus if gpu.nvlink_leaves_node else gpu.nvlink_domain
        if usual is not None:
            rule = f"is more than the {usual} GPUs that nodes with {name} have"
            yield Figure(
                "cluster.gpus_per_node", 0, usual, rule, "the plan takes links between them as links of a node"
            )


def _numbers_at(data: Any, path: str, above: str = "") -> Iterator[tuple[str, float]]:
    key, _, rest = path.partition(".")
    if key == "*":
        below: Mapping[Any, Any] = dict(enumerate(data)) if isinstance(data, list) else {}
    else:
        below = {key: data.get(key)} if isinstance(data, dict) else {}
    for name, value in below.items():
        here = f"{above}.{name}".lstrip(".")
        if rest:
            yield from _numbers_at(value, rest, here)
        elif isinstance(value, int | float):
            yield here, value


RULES = (Rule("W112", "laid out", figures_are_plausible),)
