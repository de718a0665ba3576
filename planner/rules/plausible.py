"""Warn of numbers far outside the range of known ones: most were written in another unit.

A table has the bounds of each field. Numbers outside them are not errors, since a GPU or a market may be unusual.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from planner.facts.catalog import GPUS
from planner.problems.finding import Finding
from planner.rules.rule import Candidate, Rule
from planner.spec.resolved import ResolvedSpec

PRICED = ("input_hit", "input_miss", "output")
MARGIN = 10.0  # assumed: a GPU is at most this much faster or slower than all in the catalog


@dataclass(frozen=True)
class Bounds:
    """The plausible range of the numbers in one field."""

    path: str  # `*` stands for each item of a list
    least: float
    most: float
    rule: str  # message for a number outside the range
    reason: str


def _catalog_bounds(field: str) -> Bounds:
    known = [value for gpu in GPUS.values() if (value := getattr(gpu, field))]
    rule = f"is far from the {min(known):,g} to {max(known):,g} TFLOPS of known GPUs"
    return Bounds(f"cluster.gpu.{field}", min(known) / MARGIN, max(known) * MARGIN, rule, "it is in TFLOPS")


LEAST_PRICE = 1e-4  # US dollars; assumed: a hundredth of the cheapest tokens on sale

PRICE = f"is less than {LEAST_PRICE:g}, a hundredth of what tokens cost", "it is the price of a million tokens"

ALL_BOUNDS = (
    *(_catalog_bounds(field) for field in ("fp8_tflops", "bf16_tflops")),
    *(Bounds(f"cost.prices.{field}", LEAST_PRICE, inf, *PRICE) for field in PRICED),
)


def numbers_are_plausible(c: Candidate) -> Iterator[Finding]:
    """Warn once of each number outside its field's bounds."""
    spec = c.resolved
    data, reported = spec.written.model_dump(include={"cluster", "cost"}), set()
    for bounds in (*ALL_BOUNDS, *_relative_bounds(spec)):
        for path, value in _numbers_at(data, bounds.path):
            if value and not bounds.least <= value <= bounds.most and path not in reported:
                reported.add(path)
                fix = "correct it, unless it is right"
                yield Finding(path, value, f"W112 {bounds.rule}", bounds.reason, fix)


def _relative_bounds(spec: ResolvedSpec) -> Iterator[Bounds]:
    """Yield bounds that follow from other fields: FP8 no slower than BF16, and no more GPUs on a node than usual."""
    bf16 = spec.gpu.bf16_tflops
    if bf16:
        rule = f"is less than bf16_tflops ({bf16:,g})"
        yield Bounds("cluster.gpu.fp8_tflops", bf16, inf, rule, "GPUs with FP8 matmuls are faster in FP8")
    for _, name, gpu in spec.named_gpus():
        usual = gpu.node_gpus if gpu.nvlink_leaves_node else gpu.nvlink_domain
        if usual is not None:
            rule = f"is more than the {usual} GPUs that nodes with {name} have"
            yield Bounds(
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


RULES = (Rule("W112", "laid out", numbers_are_plausible),)
