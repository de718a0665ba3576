"""What single measures are worth in the model, beside what SGLang published of them.

    python -m tests.benchmarks.throughput_ablations

Nothing is fitted to these. Source: github.com/lm-sys/lm-sys.github.io 2db4e404 blog/2025-05-05-large-scale-ep.md. Two
batches: -27 % at 32 tokens a GPU, nothing below a threshold between 64 and 128, +25.5 % at 256. Balancing experts: 1.49
in prefill, 2.54 in decode. Overlap, a third slot and near replicas first are of DeepSeek's units: nobody published what
they are worth there, so that only their sign is a goal. Loads are drawn as for plans.
"""

import sys
from dataclasses import replace
from types import SimpleNamespace

from planner.estimate.throughput.copies import remote_share
from planner.estimate.throughput.imbalance import imbalance_of
from planner.estimate.throughput.predict import saturated_rate
from planner.estimate.throughput.stages import Imbalance
from planner.expert_map import balance
from planner.facts.drawn import draw_loads
from tests.benchmarks.goals import Goals
from tests.benchmarks.throughput_rows import (
    PROFILE_DECODE,
    PROFILE_PREFILL,
    SGLANG_DECODE,
    SGLANG_REAL,
    V3,
    service_decode,
    unit,
)

LOADS = draw_loads(1.01, 0, V3.num_moe_layers, V3.num_routed_experts, V3.num_expert_groups)
IN_ORDER = SimpleNamespace(physical_to_logical=[list(range(V3.num_routed_experts))] * V3.num_moe_layers, split="equal")


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


def without_overlap(row):
    """Return what overlap is worth at a published point of DeepSeek's."""
    return saturated_rate(row.case()) / saturated_rate(replace(row, overlap="none").case())


def near_first(row, num_gpus, slots, pairs):
    """Return what it is worth that tokens take a replica on their own node first, with a map made for it."""
    nodes, rates = num_gpus // 8, {}
    for split in ("equal", "local_first"):
        made = balance(LOADS, num_gpus * slots, num_gpus, num_nodes=nodes, split=split)
        away = remote_share(made, LOADS, nodes)
        there = replace(row, unit=replace(unit(num_gpus, slots), remote_share=away))
        rates[split] = rate(there, imbalance_of(made, LOADS, num_gpus, nodes, pairs, num_nodes=nodes))
    return rates["local_first"] / rates["equal"]


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
    goals.check("dual batch, prefill EP32", without_overlap(PROFILE_PREFILL), ">=", 1.1)
    goals.check("five stages, decode EP128", without_overlap(PROFILE_DECODE), ">=", 1.1)
    near = near_first(service_decode(88, Imbalance()), 144, 3, 88 * 8)
    goals.check("near replicas first, decode EP144 with 3 slots", near, ">=", 1)
    return goals.report()


if __name__ == "__main__":
    sys.exit(main())
