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
from planner.expert_map import balance
from planner.facts.drawn import draw_loads
from planner.families import MODELS
from tests.benchmarks.goals import Goals
from tests.planner.accuracy import published
from tests.planner.accuracy.published import case_of

V3 = MODELS["deepseek-v3"]
SGLANG_DECODE, SGLANG_PREFILL, SERVICE = (
    case_of(each) for each in (published.SGLANG_DECODE, published.SGLANG_PREFILL, published.SERVICE_DECODE)
)
LOADS = draw_loads(1.01, 0, V3.num_moe_layers, V3.num_routed_experts, V3.num_expert_groups)
IN_ORDER = SimpleNamespace(physical_to_logical=[list(range(V3.num_routed_experts))] * V3.num_moe_layers, split="equal")


def two_batches(requests):
    """Return what two micro-batches are worth in SGLang's decode."""
    return without_overlap(replace(SGLANG_DECODE, point=replace(SGLANG_DECODE.point, requests=requests)))


def balancing(case, num_gpus, num_even, pairs):
    """Return what the balanced map of a unit is worth against experts in order on `num_even` GPUs."""
    made = imbalance_of(balanced(case, num_gpus), LOADS, num_gpus, num_gpus // 8, pairs, num_nodes=num_gpus // 8)
    in_order = imbalance_of(IN_ORDER, LOADS, num_even, num_even // 8, pairs, num_nodes=num_even // 8)
    return rate(case, made) / rate(case, in_order)


def one_more_slot():
    """Return what a third slot on each GPU is worth to DeepSeek's decode unit."""
    maps = {slots: balance(LOADS, 144 * slots, 144, num_nodes=18) for slots in (2, 3)}
    made = {slots: imbalance_of(each, LOADS, 144, 18, 88 * 8, num_nodes=18) for slots, each in maps.items()}
    rates = {slots: rate(with_slots(SERVICE, slots), each) for slots, each in made.items()}
    return rates[3] / rates[2]


def without_overlap(case):
    """Return what overlap is worth to a case."""
    return saturated_rate(case) / saturated_rate(replace(case, overlap="none"))


def near_first(case, num_gpus, slots, pairs):
    """Return what it is worth that tokens take a replica on their own node first, with a map made for it."""
    nodes, rates = num_gpus // 8, {}
    for split in ("equal", "local_first"):
        made = balance(LOADS, num_gpus * slots, num_gpus, num_nodes=nodes, split=split)
        away = remote_share(made, LOADS, nodes)
        there = with_slots(case, slots, remote_share=away)
        rates[split] = rate(there, imbalance_of(made, LOADS, num_gpus, nodes, pairs, num_nodes=nodes))
    return rates["local_first"] / rates["equal"]


def with_slots(case, slots, **changes):
    return replace(case, unit=replace(case.unit, slots_per_gpu=slots, **changes))


def balanced(case, num_gpus):
    return balance(LOADS, case.unit.slots_per_gpu * num_gpus, num_gpus, num_nodes=num_gpus // 8)


def rate(case, imbalance):
    return saturated_rate(replace(case, imbalance=imbalance))


def main():
    goals = Goals()
    goals.check("two batches at 32 (published 0.73)", two_batches(32), "<", 0.95)
    goals.check("two batches at 256 (published 1.255), off by", abs(two_batches(256) / 1.255 - 1), "<=", 0.1)
    goals.check("two batches at 64", two_batches(64), "<", 1)
    goals.check("two batches at 128", two_batches(128), ">=", 1)
    decode, prefill = balancing(SGLANG_DECODE, 72, 64, 256 * 8), balancing(SGLANG_PREFILL, 32, 32, 16_384 * 8)
    goals.check("balancing in decode (published 2.54), off by", abs(decode / 2.54 - 1), "<=", 0.15)
    goals.check("balancing in prefill (published 1.49)", prefill, ">=", 1.3)
    goals.check("one more slot at EP144", one_more_slot(), ">=", 1)
    goals.check("dual batch, prefill EP32", without_overlap(case_of(published.PREFILL)), ">=", 1.1)
    goals.check("five stages, decode EP128", without_overlap(case_of(published.DECODE)), ">=", 1.1)
    near = near_first(SERVICE, 144, 3, 88 * 8)
    goals.check("near replicas first, decode EP144 with 3 slots", near, ">=", 1)
    return goals.report()


if __name__ == "__main__":
    sys.exit(main())
