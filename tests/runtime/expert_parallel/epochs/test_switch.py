"""A unit switches from map to map while it answers, and nobody who reads an answer can tell."""

import json
import random

import pytest
import torch

from runtime.errors import EpochError, RuntimeFailure
from runtime.expert_parallel.epochs.document import first_standing
from runtime.expert_parallel.epochs.switch import Proposal, Switch
from runtime.expert_parallel.group import SoloGroup
from runtime.model.engine import Engine, EngineConfig
from tests.runtime.identical_ranks import NUM_EXPERTS, expert_map, ids_and_logprobs, wishes
from tests.runtime.one_rank import tell_alone
from tests.runtime.random_checkpoints import V3, write_checkpoint
from tests.runtime.rank_processes import run_ranks
from tests.runtime.switching_ranks import Job, epoch_document, unit_launch

PROMPT_LENGTHS = [62, 3, 130]
NUM_SWITCHES = 5
FAULTS = {"2": "document", "3": "arrival", "4": "staging"}  # switch, counted from 1 -> where rank 1 has a wrong byte
REDUNDANT = 8


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    config = V3 | {"max_position_embeddings": 256}
    assert config["n_routed_experts"] == NUM_EXPERTS
    return write_checkpoint(tmp_path_factory.mktemp("switching") / "checkpoint", config)


@pytest.mark.parametrize(("size", "dtype"), [(2, "bfloat16"), (4, "float32"), (2, "float8_e4m3fn")])
def test_answers_are_the_same_whatever_moves(size, dtype, checkpoint, free_port, tmp_path):
    """Answers have the bits of a unit that never switched, and moved slots have computed rows of them.

    One byte is wrong of a document, of an expert that arrives, and of one in staging that has been compared: each time
    the unit goes back to the epoch before, and the next switch goes through.
    """
    draw = random.Random(0)
    prompts = [[draw.randrange(V3["vocab_size"]) for _ in range(length)] for length in PROMPT_LENGTHS]
    alone = Engine(EngineConfig(checkpoint, expert_map(0, 0), getattr(torch, dtype), True), SoloGroup())
    expected = {wish.id: [ids_and_logprobs(tell_alone(alone, SoloGroup(), wish))] for wish in wishes(prompts)}
    initial, *maps = (expert_map(REDUNDANT, seed) for seed in range(1 + NUM_SWITCHES))
    Job(dtype, prompts, [[*range(len(prompts))]] * size, initial, maps, FAULTS).write(tmp_path)
    run_ranks("switching_ranks.py", size, free_port(), checkpoint, tmp_path)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(size)]
    endings = ranks[0]["endings"]

    assert all(rank["answers"] == json.loads(json.dumps(expected)) for rank in ranks)
    assert [ending["number"] for ending in endings] == [1, 1, 1, 1, 2]
    assert ["reason" in ending for ending in endings] == [False, True, True, True, False]
    assert [rank["totals"]["num_undone"] for rank in ranks] == [3] * size
    assert all(ending["moves"] > 0 for ending in endings[2:])  # rounds had taken effect
    assert all(min(rank["rows"][0], rank["rows"][-1]) > 0 for rank in ranks)
    assert all(rank["totals"]["num_bytes"] > 0 for rank in ranks)


class HeldExperts:
    """A layer with an expert in each slot, as a rank holds it."""

    def __init__(self, num_slots):
        self.slots = [torch.full((4,), float(slot)) for slot in range(num_slots)]

    def expert_tensors(self, slot):
        return {"weight": self.slots[slot]}

    def follow(self, physical_to_logical):
        pass


def test_a_unit_decides_one_epoch_at_a_time():
    """A second document for the same epoch is refused while the first one is decided, and undoes nothing."""
    slots, endings = [[*range(NUM_EXPERTS)]], []
    launch = unit_launch(1, slots)
    switch = Switch(launch, SoloGroup(), [HeldExperts(NUM_EXPERTS)], first_standing(launch))
    documents = [epoch_document(launch, switch.standing, [order]) for order in (slots[0], slots[0][::-1])]
    switch.propose(Proposal(documents[0], endings.append))
    with pytest.raises(EpochError, match="already on its way from epoch 0 to the next one"):
        switch.propose(Proposal(documents[1], endings.append))
    while not endings:
        switch.turn(*switch.votes())
    with pytest.raises(EpochError, match="the unit is in epoch 1, and this is not the next"):
        switch.propose(Proposal(documents[1], endings.append))
    switch.propose(Proposal(epoch_document(launch, switch.standing, slots), endings.append))
    while len(endings) < 2:
        switch.turn(*switch.votes())

    assert [(ending.number, ending.reason) for ending in endings] == [(1, None), (2, None)]
    assert switch.totals.num_undone == 0


def test_the_map_of_an_epoch_is_that_of_its_document():
    """A rank's slots keep their order, but the map that it shows is the document's, so that its digest is known."""
    slots, endings = [[*range(NUM_EXPERTS)]], []
    launch = unit_launch(1, slots)
    switch = Switch(launch, SoloGroup(), [HeldExperts(NUM_EXPERTS)], first_standing(launch))
    switch.propose(Proposal(epoch_document(launch, switch.standing, [slots[0][::-1]]), endings.append))
    while not endings:
        switch.turn(*switch.votes())

    assert switch.standing.physical_to_logical == [slots[0][::-1]]
    assert switch.slots == slots


def test_a_unit_with_a_wrong_slot_ends():
    """A slot that no longer holds what was loaded is found at the end of the next switch, and the unit starts again."""
    layer, endings = HeldExperts(NUM_EXPERTS), []
    slots = [[*range(NUM_EXPERTS)]]
    launch = unit_launch(1, slots)
    switch = Switch(launch, SoloGroup(), [layer], first_standing(launch))

    def switch_once():
        switch.propose(Proposal(epoch_document(launch, switch.standing, slots), endings.append))
        number = len(endings)
        while len(endings) == number:
            switch.turn(*switch.votes())

    switch_once()
    layer.slots[3][1] += 1
    with pytest.raises(RuntimeFailure, match="nor back to epoch 1: slot 3 of MoE layer 0 does not hold expert 3"):
        switch_once()

    assert [ending.number for ending in endings] == [1]
