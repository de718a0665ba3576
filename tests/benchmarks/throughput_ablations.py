"""What single measures are worth in the model, beside what SGLang published of them.

    python -m tests.benchmarks.throughput_ablations

Nothing is fitted to these. Source: github.com/lm-sys/lm-sys.github.io 2db4e404 blog/2025-05-05-large-scale-ep.md. Two
batches: -27 % at 32 tokens a GPU, nothing below a threshold between 64 and 128, +25.5 % at 256. Balancing experts: 1.49
in prefill, 2.54 in decode. Loads are drawn as for plans.
"""

import sys
from dataclasses import replace
from types import SimpleNamespace

from planner.estimate.throughput.imbalance import imbalance_of
from planner.estimate.throughput.predict import saturated_rate
from planner.expert_map import balance
from planner.facts.drawn import draw_loads
from tests.benchmarks.goals import Goals
from tests.benchmarks.throughput_rows import SGLANG_DECODE, SGLANG_REAL, V3, service_decode, unit

LOADS = draw_loads(1.01, 0, V3.num_moe_layers, V3.num_routed_experts, V3.num_expert_groups)
IN_ORDER = SimpleNamespace(physical_to_logical=[list(range(V3.num_routed_experts))] * V3.num_moe_layers)


def two_batches(requests):
    """Return what two micro-batches are worth in SGLang's decode."""
    row = replace(SGLANG_DECODE, point=replace(SGLANG_DECODE.point, requests=requests))
    return saturated_rate(row.case()) / saturated_rate(replace(row, overlap="none").case())


def balancing(row, num_gpus, num_even, pairs):
    """Return what the balanced map of `row` is worth against experts in order on `num_even` GPUs."""
    made = imbalance_of(balanced(row, num_gpus), LOADS, num_gpus, num_gpus // 8, pairs, num_nodes=num_gpus // 8)
    in_order = imbalance_of(IN_ORDER, LOADS, num_even, num_even // 8, pairs, num_nodes=num_even // 8)
    return rate(row, made) / rate(row, in_order)


def one_more_slot():
    """Return what a third slot on each GPU is worth to DeepSeek's decode unit."""
    rows = {slots: service_decode(88, None) for slots in (2, 3)}
    maps = {slots: balance(LOADS, 144 * slots, 144, num_nodes=18) for slots in rows}
    made = {slots: imbalance_of(each, LOADS, 144, 18, 88 * 8, num_nodes=18) for slots, each in maps.items()}
    rates = {slots: rate(replace(row, unit=unit(144, slots)), made[slots]) for slots, row in rows.items()}
    return rates[3] / rates[2]


def balanced(row, num_gpus):
    return balance(LOADS, row.unit.slots_per_gpu * num_gpus, num_gpus, num_nodes=num_gpus // 8)


def rate(row, imbalance):
    return saturated_rate(replace(row, imbalance=imbalance).case())


def main():
    goals = Goals()
    for requests, published in ((32, 0.73), (256, 1.255)):
        goals.check(f"two batches at {requests}, off by", abs(two_batches(requests) / published - 1), "<=", 0.1)
    goals.check("two batches at 64", two_batches(64), "<", 1)
    goals.check("two batches at 128", two_batches(128), ">=", 1)
    decode, prefill = balancing(SGLANG_DECODE, 72, 64, 256 * 8), balancing(SGLANG_REAL, 32, 32, 16_384 * 8)
    goals.check("balancing in decode (published 2.54), off by", abs(decode / 2.54 - 1), "<=", 0.1)
    goals.check("balancing in prefill (published 1.49)", prefill, ">=", 1.3)
    goals.check("one more slot at EP144", one_more_slot(), ">=", 1)
    return goals.report()


if __name__ == "__main__":
    sys.exit(main())
