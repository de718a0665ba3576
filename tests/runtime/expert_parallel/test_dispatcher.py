"""Every (token, choice) pair reaches its slot and comes back to its place, on one rank and between real processes."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.expert_parallel.dispatcher import SLOT_BYTES, AllToAllDispatcher, LocalDispatcher, PlainRows
from runtime.expert_parallel.factory import new_dispatcher, new_group
from runtime.expert_parallel.hierarchical import NodeDispatcher
from runtime.expert_parallel.masked import MaskedDispatcher
from runtime.expert_parallel.shared_memory.dispatcher import SharedDispatcher
from runtime.kernels.backend import choose_backend
from runtime.model.moe import ReplicaTable
from tests.runtime.dispatch_ranks import HIDDEN, ROW_BYTES, TOP_K, node_layouts
from tests.runtime.on_cpu import TORCH_OPS, backend
from tests.runtime.rank_processes import run_ranks

SLOTS_PER_RANK = 3
TRAVELLING_BYTES = TOP_K * SLOT_BYTES + ROW_BYTES
# form -> exchanges of a dispatch and its combine: sizes are one, rows one or, by relays, two; results one; in common
# memory, the word that everybody has written is one
EXCHANGES = {
    "all_to_all": [2, 1],
    "each_alone": [2, 1],
    "by_node": [3, 1],
    "by_uneven_node": [3, 1],
    "masked": [2, 1],
    "shared": [1, 1],
    "shared_wide": [1, 1],
    "not_shared": [2, 1],
}
FORMS = list(EXCHANGES)

# tokens of each rank, one line a round
ROUNDS = {
    2: [(0, 0), (4, 6), (0, 3), (5, 0), (0, 0), (1, 1), (40, 2)],
    4: [(0, 0, 0, 0), (4, 6, 1, 3), (0, 3, 0, 0), (0, 0, 0, 0), (9, 0, 0, 9), (1, 1, 1, 1), (30, 2, 17, 0)],
}


def scale_by_slot(dispatcher, x, slots, weights):
    """Run experts through `dispatcher` that multiply each row by its slot's number plus one."""
    dispatched = dispatcher.dispatch(x, slots, weights).wait()
    counts, rows = dispatched.rows.counts_M, dispatched.rows.rows_RD
    slot_of_row = torch.arange(len(counts)).repeat_interleave(counts)
    return dispatcher.combine(rows * (slot_of_row[:, None] + 1), dispatched).wait(), dispatched


def collect_pair_results(combined):
    """Return the result of each (token, choice) pair, [T, K, D]."""
    return combined.rows_RD[combined.row_of_pair_TK]


def local(num_slots):
    """Return the reference dispatcher."""
    return LocalDispatcher(num_slots, PlainRows(torch.float32), TORCH_OPS)


@given(num_tokens=st.integers(0, 12), top_k=st.integers(1, 4), num_slots=st.integers(1, 9), seed=st.integers(0, 999))
def test_local_dispatch_equals_a_loop(num_tokens, top_k, num_slots, seed):
    """Rows are grouped by slot, counted, and come back in the order of the pairs."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_tokens, HIDDEN, generator=generator)
    slots = torch.randint(num_slots, (num_tokens, top_k), generator=generator)
    weights = torch.rand(num_tokens, top_k, generator=generator)
    combined, dispatched = scale_by_slot(local(num_slots), x, slots, weights)
    pairs = [(token, slot) for token, choices in enumerate(slots.tolist()) for slot in choices]
    by_slot = [x[token] for wanted in range(num_slots) for token, slot in pairs if slot == wanted]

    assert dispatched.rows.counts_M.tolist() == [
        sum(slot == wanted for _, slot in pairs) for wanted in range(num_slots)
    ]
    assert torch.equal(dispatched.rows.rows_RD, torch.stack(by_slot) if pairs else x.new_empty(0, HIDDEN))
    results = collect_pair_results(combined)
    assert results.flatten(0, 1).tolist() == [(x[token] * (slot + 1)).tolist() for token, slot in pairs]
    torch.testing.assert_close(combined.sum(), (results * weights[..., None]).sum(1))


@pytest.fixture(scope="module", params=sorted(ROUNDS), ids="EP{}".format)
def exchange(request, tmp_path_factory, free_port):
    """Return the inputs and each rank's results of all rounds, from real processes over gloo."""
    size = request.param
    folder = tmp_path_factory.mktemp("dispatch")
    inputs = draw_inputs(size)
    np.savez(folder / "input.npz", **{name: value.numpy() for name, value in inputs.items()})
    run_ranks("dispatch_ranks.py", size, free_port(), SLOTS_PER_RANK, folder)
    return size, inputs, [np.load(folder / f"{rank}.npz", allow_pickle=False) for rank in range(size)]


def draw_inputs(size):
    """Draw random slots, in the last round rank 1's first slot for every token."""
    generator = torch.Generator().manual_seed(size)
    inputs = {}
    for number, counts in enumerate(ROUNDS[size]):
        for rank, count in enumerate(counts):
            slots = torch.randint(size * SLOTS_PER_RANK, (count, TOP_K), generator=generator)
            is_last = number == len(ROUNDS[size]) - 1
            inputs[f"x_{number}_{rank}"] = torch.randn(count, HIDDEN, generator=generator)
            inputs[f"slots_{number}_{rank}"] = torch.full_like(slots, SLOTS_PER_RANK) if is_last else slots
            inputs[f"weights_{number}_{rank}"] = torch.rand(count, TOP_K, generator=generator)
    return inputs


@pytest.mark.parametrize("form", FORMS)
def test_every_form_equals_local(exchange, form):
    """Every rank gets the rows that it would compute with all slots at home, bit for bit."""
    size, inputs, results = exchange

    for number in range(len(ROUNDS[size])):
        for rank in range(size):
            step = [inputs[f"{name}_{number}_{rank}"] for name in ("x", "slots", "weights")]
            expected, _ = scale_by_slot(local(size * SLOTS_PER_RANK), *step)
            assert torch.equal(
                torch.from_numpy(results[rank][f"{form}_combined_{number}"]), collect_pair_results(expected)
            )
            if form != "shared_wide":  # whose results are in FP64
                assert torch.equal(torch.from_numpy(results[rank][f"{form}_sums_{number}"]), expected.sum())


@pytest.mark.parametrize("form", FORMS)
def test_every_form_brings_the_same_rows_in_the_same_order(exchange, form):
    """Every form brings the same rows in the same order: by slot, then by source, then by token."""
    size, inputs, results = exchange

    for number in range(len(ROUNDS[size])):
        sources = [(inputs[f"x_{number}_{rank}"], inputs[f"slots_{number}_{rank}"]) for rank in range(size)]
        for rank in range(size):
            rows = results[rank][f"{form}_rows_{number}"]
            own_slots = range(rank * SLOTS_PER_RANK, (rank + 1) * SLOTS_PER_RANK)
            expected = [
                x[pair // TOP_K].tolist()
                for wanted in own_slots
                for x, slots in sources
                for pair, slot in enumerate(slots.flatten().tolist())
                if slot == wanted
            ]
            assert rows.tolist() == expected


@pytest.mark.parametrize("form", FORMS)
def test_every_form_counts_what_each_slot_got(exchange, form):
    """The ranks' counts together are the number of times that each slot was chosen."""
    size, inputs, results = exchange

    for number in range(len(ROUNDS[size])):
        chosen = torch.cat([inputs[f"slots_{number}_{rank}"].flatten() for rank in range(size)])
        counted = [count for rank in range(size) for count in results[rank][f"{form}_counts_{number}"].tolist()]
        assert counted == chosen.bincount(minlength=size * SLOTS_PER_RANK).tolist()


@pytest.mark.parametrize("form", FORMS)
def test_sizes_are_exchanged_once(exchange, form):
    """Dispatch exchanges sizes once, and combine none."""
    size, _, results = exchange

    for number in range(len(ROUNDS[size])):
        for rank in range(size):
            assert results[rank][f"{form}_exchanges_{number}"].tolist() == EXCHANGES[form]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_says_how_many_pairs_each_rank_got(exchange, form):
    """Every form reports the pairs that this rank's tokens sent to each rank."""
    size, inputs, results = exchange

    for number in range(len(ROUNDS[size])):
        for rank in range(size):
            chosen = inputs[f"slots_{number}_{rank}"].flatten() // SLOTS_PER_RANK
            assert results[rank][f"{form}_sent_{number}"].tolist() == chosen.bincount(minlength=size).tolist()


def count_crossings(inputs, number, rank, place_of_rank):
    """Count how often a rank's tokens go to another place, once for each token and place."""
    places = torch.tensor(place_of_rank)
    chosen = places[inputs[f"slots_{number}_{rank}"] // SLOTS_PER_RANK].tolist()
    return sum(len(set(places_chosen) - {place_of_rank[rank]}) for places_chosen in chosen)


@pytest.mark.parametrize("form", ["all_to_all", "each_alone"])
def test_a_token_goes_to_a_rank_once(exchange, form):
    """A token's row goes to each rank once, with its slots, however many of its choices are there."""
    size, inputs, results = exchange
    num_pairs = 0
    for rank in range(size):
        rows = 0
        for number in range(len(ROUNDS[size])):
            rows += count_crossings(inputs, number, rank, range(size))
            num_pairs += int((inputs[f"slots_{number}_{rank}"] // SLOTS_PER_RANK != rank).sum())
            assert results[rank][f"{form}_bytes_{number}"] == rows * TRAVELLING_BYTES
            if form == "each_alone":
                assert results[rank][f"{form}_node_bytes_{number}"] == rows * TRAVELLING_BYTES
        assert 0 < rows < num_pairs


@pytest.mark.parametrize("form", ["by_node", "by_uneven_node"])
def test_a_token_crosses_to_a_node_once(exchange, form):
    """Between nodes a token's row goes once to each node."""
    size, inputs, results = exchange
    nodes, last = node_layouts(size)[form], len(ROUNDS[size]) - 1
    rows = [sum(count_crossings(inputs, number, rank, nodes) for number in range(last + 1)) for rank in range(size)]

    assert [results[rank][f"{form}_node_bytes_{last}"] for rank in range(size)] == [
        number * TRAVELLING_BYTES for number in rows
    ]
    if form == "by_node" and size > 2:  # the layout of which all_to_all was counted too
        to_ranks = sum(int(results[rank][f"all_to_all_node_bytes_{last}"]) for rank in range(size))
        assert sum(rows) * TRAVELLING_BYTES < to_ranks


@pytest.mark.parametrize(
    ("nodes", "form"),
    [
        ((0,), LocalDispatcher),
        ((0, 0), SharedDispatcher),
        ((0, 1), AllToAllDispatcher),
        ((0, 0, 1, 1), NodeDispatcher),
    ],
)
def test_the_form_fits_the_unit(nodes, form):
    """EP1 has no exchange, a CPU node shares memory, and several nodes exchange by node where that saves rows."""
    group, rows = new_group(0, len(nodes), nodes), PlainRows(torch.float32)
    dispatcher = new_dispatcher(group, SLOTS_PER_RANK, TOP_K, rows, torch.zeros(1, HIDDEN), backend())

    assert type(dispatcher) is form


@pytest.mark.parametrize(("device", "capacity"), [("cuda", 8), ("cuda", None), ("cpu", 8)])
def test_only_a_device_that_decodes_has_room_in_every_slot(device, capacity):
    """Only a unit that decodes on a device gets the masked exchange."""
    group, chosen = new_group(0, 2, (0, 1)), choose_backend(torch.device(device), torch.float32, deterministic=False)
    rows = PlainRows(torch.float32)
    dispatcher = new_dispatcher(group, SLOTS_PER_RANK, TOP_K, rows, torch.zeros(1, HIDDEN), chosen, capacity)

    assert isinstance(dispatcher, MaskedDispatcher) == (device == "cuda" and capacity is not None)


@st.composite
def expert_maps(draw):
    """Draw (physical_to_logical of one layer, number of logical experts); every expert has a slot."""
    experts = draw(st.integers(1, 8))
    redundant = draw(st.lists(st.integers(0, experts - 1), max_size=6))
    return draw(st.permutations([*range(experts), *redundant])), experts


@given(drawn=expert_maps(), num_tokens=st.integers(0, 20), rank=st.integers(0, 3), seed=st.integers(0, 999))
def test_every_chosen_slot_holds_the_chosen_expert(drawn, num_tokens, rank, seed):
    """Every replica that a token gets is one of the expert that the gate chose."""
    expert_map, num_experts = drawn
    generator = torch.Generator().manual_seed(seed)
    experts = torch.randint(num_experts, (num_tokens, 3), generator=generator)
    slots = ReplicaTable(expert_map, num_experts, rank, TORCH_OPS).choose(experts)

    assert slots.shape == experts.shape
    assert torch.equal(torch.tensor(expert_map)[slots], experts)


@given(drawn=expert_maps(), steps=st.lists(st.integers(0, 9), min_size=1, max_size=12), rank=st.integers(0, 3))
def test_replicas_share_an_experts_tokens_equally(drawn, steps, rank):
    """When all tokens choose one expert, its replicas differ by one token at most over any steps."""
    expert_map, num_experts = drawn
    expert = expert_map[0]
    table = ReplicaTable(expert_map, num_experts, rank, TORCH_OPS)
    chosen = torch.cat([table.choose(torch.full((tokens, 1), expert)).flatten() for tokens in steps])
    counts = [int((chosen == slot).sum()) for slot, held in enumerate(expert_map) if held == expert]

    assert sum(counts) == sum(steps)
    assert max(counts) - min(counts) <= 1


def test_every_replica_gets_tokens_under_random_choices():
    """1,000 random tokens reach every slot, and replicas of one expert roughly equally."""
    expert_map = [0, 1, 2, 3, 4, 5, 6, 7, 1, 1, 6]
    experts = torch.rand(1000, 8, generator=torch.Generator().manual_seed(1)).topk(2).indices
    slots = ReplicaTable(expert_map, 8, 0, TORCH_OPS).choose(experts)
    counts = slots.flatten().bincount(minlength=len(expert_map)).tolist()

    assert min(counts) > 0
    for expert in (1, 6):
        replicas = [counts[slot] for slot, held in enumerate(expert_map) if held == expert]
        assert max(replicas) < 1.5 * min(replicas)


def test_one_token_steps_reach_every_replica():
    """A request that decodes alone, one token a step, still uses all replicas in turn."""
    table = ReplicaTable([0, 1, 0, 0], 2, 0, TORCH_OPS)
    chosen = {table.choose(torch.tensor([[0]])).item() for _ in range(6)}

    assert chosen == {0, 2, 3}


@given(drawn=expert_maps(), seed=st.integers(0, 999), rank=st.integers(0, 3))
def test_a_table_follows_another_map_in_its_own_memory(drawn, seed, rank):
    """After `update` a table chooses as a new one does for that map, and its tensors are where they were."""
    expert_map, num_experts = drawn
    other = random.Random(seed).sample(expert_map, len(expert_map))
    table, fresh = (ReplicaTable(each, num_experts, rank, TORCH_OPS) for each in (expert_map, other))
    memory = [tensor.data_ptr() for tensor in vars(table).values() if isinstance(tensor, torch.Tensor)]
    table.update(other)
    experts = torch.arange(num_experts)[:, None]

    assert [table.choose(experts).tolist() for _ in range(3)] == [fresh.choose(experts).tolist() for _ in range(3)]
    assert memory == [tensor.data_ptr() for tensor in vars(table).values() if isinstance(tensor, torch.Tensor)]
