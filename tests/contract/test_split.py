"""The split rules: what the planner expects of GPUs is what the runtime's tokens do."""

import numpy as np
import pytest
import torch

from planner.expert_map import balance
from planner.expert_map.native import gpu_loads
from planner.expert_map.weigh import scale
from planner.facts.drawn import draw_loads
from runtime.model.moe import ReplicaTable
from tests.runtime.on_cpu import TORCH_OPS

NUM_RANKS, NODES = 8, ["a", "a", "a", "a", "b", "b", "b", "b"]
TOKENS = 4000  # of each rank, one choice each


@pytest.fixture(scope="module")
def loads():
    """One layer of 32 experts."""
    return draw_loads(1.01, 3, num_layers=1, num_experts=32)


def counts_of_ranks(slots, loads, nodes):
    """How many tokens each rank gets when every rank's choose experts as the loads say, in steps of 50."""
    share = np.array(loads) / sum(loads)
    got = torch.zeros(len(slots), dtype=torch.long)
    for rank in range(NUM_RANKS):
        table = ReplicaTable(list(slots), len(loads), rank, TORCH_OPS, nodes)
        experts = torch.from_numpy(np.random.default_rng(rank).choice(len(loads), (TOKENS, 1), p=share))
        for step in experts.split(50):
            got += table.choose(step).flatten().bincount(minlength=len(slots))
    return got.unflatten(0, (NUM_RANKS, -1)).sum(1).numpy()


@pytest.mark.parametrize("split", ["equal", "local_first"])
def test_the_runtime_loads_ranks_as_planned(loads, split):
    """Eight ranks on two nodes, 40 slots: each gets its planned share of 32,000 choices, within 4 %."""
    expert_map = balance(loads, 40, NUM_RANKS, num_nodes=2, split=split)
    slots = np.array(expert_map.physical_to_logical).reshape(1, NUM_RANKS, -1)
    planned = gpu_loads(scale(loads), slots, split, num_nodes=2)[0]
    got = counts_of_ranks(expert_map.physical_to_logical[0], loads[0], NODES if split == "local_first" else None)

    assert got.sum() == NUM_RANKS * TOKENS
    assert got / got.sum() == pytest.approx(planned / planned.sum(), rel=0.04)
    assert planned.max() / planned.mean() == pytest.approx(expert_map.max_over_mean[0], abs=1e-5)


def test_tokens_stay_near_where_they_can(loads):
    """Under local_first a choice leaves its node only for experts that the node does not hold."""
    expert_map = balance(loads, 40, NUM_RANKS, num_nodes=2, split="local_first")
    (slots,) = expert_map.physical_to_logical
    for rank in range(NUM_RANKS):
        chosen = (
            ReplicaTable(list(slots), 32, rank, TORCH_OPS, NODES).choose(torch.arange(32)[:, None]).flatten().tolist()
        )
        held_here = {expert for slot, expert in enumerate(slots) if NODES[slot // 5] == NODES[rank]}
        own = set(slots[rank * 5 : rank * 5 + 5])

        assert [slots[slot] for slot in chosen] == list(range(32))
        assert all(NODES[slot // 5] == NODES[rank] for expert, slot in enumerate(chosen) if expert in held_here)
        assert all(slot // 5 == rank for expert, slot in enumerate(chosen) if expert in own)
