"""Every (token, choice) pair reaches its slot and comes back in its place, on one rank or over real processes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.dispatch import AllToAllDispatcher, LocalDispatcher, PlainRows
from runtime.dispatch_forms import (
    COUNT_BYTES,
    MAX_MESSAGE_BYTES,
    SLOT_BYTES,
    LowLatencyDispatcher,
    NodeDispatcher,
    new_dispatcher,
)
from runtime.dispatch_shared import SharedDispatcher
from runtime.model.moe import ReplicaTable
from runtime.parallel import new_group
from tests.runtime.dispatch_ranks import HIDDEN, ROW_BYTES, SMALL_STEP_PAIRS, node_layouts
from tests.runtime.rank_processes import run_ranks

SLOTS_PER_RANK, TOP_K = 3, 3
FORMS = ["all_to_all", "by_node", "by_uneven_node", "low_latency", "shared", "shared_wide", "not_shared"]

# tokens of each rank, one line a round
ROUNDS = {
    2: [(0, 0), (4, 6), (0, 3), (5, 0), (0, 0), (1, 1), (40, 2)],
    4: [(0, 0, 0, 0), (4, 6, 1, 3), (0, 3, 0, 0), (0, 0, 0, 0), (9, 0, 0, 9), (1, 1, 1, 1), (30, 2, 17, 0)],
}


def scaled_by_slot(dispatcher, x, slots):
    """What the ranks' "experts" compute, through `dispatcher`: each row times its slot's number plus one."""
    dispatched = dispatcher.dispatch(x, slots).wait()
    slot_of_row = torch.arange(len(dispatched.counts)).repeat_interleave(torch.tensor(dispatched.counts))
    combined = dispatcher.combine(dispatched.rows_RD * (slot_of_row[:, None] + 1), dispatched).wait()
    return combined.rows_RD[combined.places], dispatched


@settings(max_examples=100, deadline=None)
@given(num_tokens=st.integers(0, 12), top_k=st.integers(1, 4), num_slots=st.integers(1, 9), seed=st.integers(0, 999))
def test_local_dispatch_equals_a_loop(num_tokens, top_k, num_slots, seed):
    """Rows are grouped by slot, counted, and come back in the order of the pairs."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_tokens, HIDDEN, generator=generator)
    slots = torch.randint(num_slots, (num_tokens, top_k), generator=generator)
    combined, dispatched = scaled_by_slot(LocalDispatcher(num_slots, PlainRows(torch.float32)), x, slots)
    pairs = [(token, slot) for token, choices in enumerate(slots.tolist()) for slot in choices]
    by_slot = [x[token] for wanted in range(num_slots) for token, slot in pairs if slot == wanted]

    assert dispatched.counts == [sum(slot == wanted for _, slot in pairs) for wanted in range(num_slots)]
    assert torch.equal(dispatched.rows_RD, torch.stack(by_slot) if pairs else x.new_empty(0, HIDDEN))
    assert combined.tolist() == [(x[token] * (slot + 1)).tolist() for token, slot in pairs]


@pytest.fixture(scope="module", params=sorted(ROUNDS), ids="EP{}".format)
def exchange(request, tmp_path_factory, free_port):
    """(inputs, each rank's results) of all rounds, computed by real processes over gloo."""
    size = request.param
    folder = tmp_path_factory.mktemp("dispatch")
    inputs = draw_inputs(size)
    np.savez(folder / "input.npz", **{name: value.numpy() for name, value in inputs.items()})
    run_ranks("dispatch_ranks.py", size, free_port(), SLOTS_PER_RANK, folder)
    return size, inputs, [np.load(folder / f"{rank}.npz", allow_pickle=False) for rank in range(size)]


def draw_inputs(size):
    """Random slots in most rounds; in the last, everybody wants rank 1's first slot."""
    generator = torch.Generator().manual_seed(size)
    inputs = {}
    for number, counts in enumerate(ROUNDS[size]):
        for rank, count in enumerate(counts):
            slots = torch.randint(size * SLOTS_PER_RANK, (count, TOP_K), generator=generator)
            is_last = number == len(ROUNDS[size]) - 1
            inputs[f"x_{number}_{rank}"] = torch.randn(count, HIDDEN, generator=generator)
            inputs[f"slots_{number}_{rank}"] = torch.full_like(slots, SLOTS_PER_RANK) if is_last else slots
    return inputs


@pytest.mark.parametrize("form", FORMS)
def test_every_form_equals_local(exchange, form):
    """Every rank gets back, row for row and bit for bit, what it would compute with all slots at home."""
    size, inputs, results = exchange

    for number in range(len(ROUNDS[size])):
        for rank in range(size):
            x, slots = inputs[f"x_{number}_{rank}"], inputs[f"slots_{number}_{rank}"]
            expected, _ = scaled_by_slot(LocalDispatcher(size * SLOTS_PER_RANK, PlainRows(torch.float32)), x, slots)
            assert torch.equal(torch.from_numpy(results[rank][f"{form}_combined_{number}"]), expected)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_brings_the_same_rows_in_the_same_order(exchange, form):
    """Slot by slot, sources in order, so that what experts compute together does not depend on the form."""
    size, _, results = exchange

    for number in range(len(ROUNDS[size])):
        for rank in range(size):
            rows = results[rank][f"{form}_rows_{number}"]
            assert np.array_equal(rows, results[rank][f"all_to_all_rows_{number}"])


@pytest.mark.parametrize("form", FORMS)
def test_every_form_counts_what_each_slot_got(exchange, form):
    """The ranks' counts, one after another, are how often each slot was chosen on all ranks together."""
    size, inputs, results = exchange

    for number in range(len(ROUNDS[size])):
        chosen = torch.cat([inputs[f"slots_{number}_{rank}"].flatten() for rank in range(size)])
        counted = [count for rank in range(size) for count in results[rank][f"{form}_counts_{number}"].tolist()]
        assert counted == chosen.bincount(minlength=size * SLOTS_PER_RANK).tolist()


def test_bytes_sent_are_the_rows_for_others(exchange):
    """A rank's counter grows by exactly the rows whose slot lives elsewhere, times a row's bytes."""
    size, inputs, results = exchange

    for rank in range(size):
        expected = 0
        for number in range(len(ROUNDS[size])):
            ranks_chosen = inputs[f"slots_{number}_{rank}"] // SLOTS_PER_RANK
            expected += int((ranks_chosen != rank).sum()) * ROW_BYTES
            assert results[rank][f"all_to_all_bytes_{number}"] == expected
        assert expected > 0


@pytest.mark.parametrize("form", ["by_node", "by_uneven_node"])
def test_a_token_crosses_to_a_node_once(exchange, form):
    """Between nodes go the tokens that the other node wants, each once with its slots: fewer bytes than pairs."""
    size, inputs, results = exchange
    nodes = torch.tensor(node_layouts(size)[form])
    last = len(ROUNDS[size]) - 1
    total = 0
    for rank in range(size):
        crossing = 0
        for number in range(len(ROUNDS[size])):
            nodes_chosen = nodes[inputs[f"slots_{number}_{rank}"] // SLOTS_PER_RANK]
            crossing += sum(len(set(chosen.tolist()) - {int(nodes[rank])}) for chosen in nodes_chosen)
        assert results[rank][f"{form}_node_bytes_{last}"] == crossing * (ROW_BYTES + TOP_K * SLOT_BYTES)
        total += crossing * (ROW_BYTES + TOP_K * SLOT_BYTES)

    if form == "by_node":  # the layout of which all_to_all was counted too
        assert total < sum(results[rank][f"all_to_all_node_bytes_{last}"] for rank in range(size))


def test_small_steps_are_one_message_of_one_size(exchange):
    """While no rank has more than fits, each pair of ranks exchanges the counts and room for the most; then rows."""
    size, inputs, results = exchange
    message_bytes = SLOTS_PER_RANK * COUNT_BYTES + SMALL_STEP_PAIRS * ROW_BYTES
    was_large = False
    for rank in range(size):
        expected = 0
        for number, tokens in enumerate(ROUNDS[size]):
            if max(tokens) * TOP_K <= SMALL_STEP_PAIRS:
                expected += (size - 1) * message_bytes
            else:
                was_large = True
                expected += int((inputs[f"slots_{number}_{rank}"] // SLOTS_PER_RANK != rank).sum()) * ROW_BYTES
            assert results[rank][f"low_latency_bytes_{number}"] == expected

    assert was_large


@pytest.mark.parametrize(
    ("nodes", "most_pairs", "form"),
    [
        ((0,), 8, LocalDispatcher),
        ((0, 0), 0, SharedDispatcher),
        ((0, 0), 8, SharedDispatcher),
        ((0, 1), 0, AllToAllDispatcher),
        ((0, 0, 1, 1), 0, NodeDispatcher),
        ((0, 0, 1, 1), 8, LowLatencyDispatcher),
        ((0, 0, 1, 1), 9, NodeDispatcher),
    ],
)
def test_the_form_fits_the_unit(nodes, most_pairs, form):
    """No exchange at EP1, memory inside a node; else one message while it is short, and by node where it pays."""
    group, row_bytes = new_group(0, len(nodes), nodes), MAX_MESSAGE_BYTES // 8
    rows = PlainRows(torch.float32)
    dispatcher = new_dispatcher(group, SLOTS_PER_RANK, rows, row_bytes, row_bytes, most_pairs)

    assert type(dispatcher) is form


@st.composite
def expert_maps(draw):
    """(physical_to_logical of one layer, number of logical experts); every expert has a slot."""
    experts = draw(st.integers(1, 8))
    redundant = draw(st.lists(st.integers(0, experts - 1), max_size=6))
    return draw(st.permutations([*range(experts), *redundant])), experts


@given(drawn=expert_maps(), num_tokens=st.integers(0, 20), rank=st.integers(0, 3), seed=st.integers(0, 999))
def test_every_chosen_slot_holds_the_chosen_expert(drawn, num_tokens, rank, seed):
    """Whatever replica a token gets, it is one of the expert that the gate chose."""
    expert_map, num_experts = drawn
    generator = torch.Generator().manual_seed(seed)
    experts = torch.randint(num_experts, (num_tokens, 3), generator=generator)
    slots = ReplicaTable(expert_map, num_experts).choose(experts, rank)

    assert slots.shape == experts.shape
    assert torch.equal(torch.tensor(expert_map)[slots], experts)


@given(drawn=expert_maps(), steps=st.lists(st.integers(0, 9), min_size=1, max_size=12), rank=st.integers(0, 3))
def test_replicas_share_an_experts_tokens_equally(drawn, steps, rank):
    """When all tokens choose one expert, over any steps, no two of its replicas differ by more than one token."""
    expert_map, num_experts = drawn
    expert = expert_map[0]
    table = ReplicaTable(expert_map, num_experts)
    chosen = torch.cat([table.choose(torch.full((tokens, 1), expert), rank).flatten() for tokens in steps])
    counts = [int((chosen == slot).sum()) for slot, held in enumerate(expert_map) if held == expert]

    assert sum(counts) == sum(steps)
    assert max(counts) - min(counts) <= 1


def test_every_replica_gets_tokens_under_random_choices():
    """1,000 random tokens reach every slot, and replicas of one expert roughly equally."""
    expert_map = [0, 1, 2, 3, 4, 5, 6, 7, 1, 1, 6]
    experts = torch.rand(1000, 8, generator=torch.Generator().manual_seed(1)).topk(2).indices
    slots = ReplicaTable(expert_map, 8).choose(experts, rank=0)
    counts = slots.flatten().bincount(minlength=len(expert_map)).tolist()

    assert min(counts) > 0
    for expert in (1, 6):
        replicas = [counts[slot] for slot, held in enumerate(expert_map) if held == expert]
        assert max(replicas) < 1.5 * min(replicas)


def test_one_token_steps_reach_every_replica():
    """A request that decodes alone, one token a step, still uses all replicas in turn."""
    table = ReplicaTable([0, 1, 0, 0], 2)
    chosen = {table.choose(torch.tensor([[0]]), rank=0).item() for _ in range(6)}

    assert chosen == {0, 2, 3}
