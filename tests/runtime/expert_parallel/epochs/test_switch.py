"""A unit switches from map to map while it answers, and nobody who reads an answer can tell."""

import json
import random

import pytest
import torch

from runtime.expert_parallel.group import SoloGroup
from runtime.model.engine import Engine, EngineConfig
from tests.runtime.identical_ranks import NUM_EXPERTS, expert_map, ids_and_logprobs, wishes
from tests.runtime.one_rank import tell_alone
from tests.runtime.random_checkpoints import V3, write_checkpoint
from tests.runtime.rank_processes import run_ranks

PROMPT_LENGTHS = [62, 3, 130]
NUM_SWITCHES = 3  # the second has a wrong byte in its document


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    config = V3 | {"max_position_embeddings": 256}
    assert config["n_routed_experts"] == NUM_EXPERTS
    return write_checkpoint(tmp_path_factory.mktemp("switching") / "checkpoint", config)


@pytest.mark.parametrize(("size", "dtype"), [(2, "bfloat16"), (4, "float32")])
def test_answers_are_the_same_whatever_moves(size, dtype, checkpoint, free_port, tmp_path):
    """Answers have the bits of a unit that never switched, and moved slots have computed rows of them.

    One rank gets a wrong byte of a document: its unit stays in the epoch before, and the next switch goes through.
    """
    draw = random.Random(0)
    prompts = [[draw.randrange(V3["vocab_size"]) for _ in range(length)] for length in PROMPT_LENGTHS]
    alone = Engine(EngineConfig(checkpoint, expert_map(0, 0), getattr(torch, dtype), True), SoloGroup())
    expected = {wish.id: [ids_and_logprobs(tell_alone(alone, SoloGroup(), wish))] for wish in wishes(prompts)}
    (tmp_path / "prompts.json").write_text(json.dumps(prompts))
    run_ranks("switching_ranks.py", size, free_port(), checkpoint, tmp_path, dtype, NUM_SWITCHES)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(size)]
    endings = ranks[0]["endings"]

    assert all(rank["answers"] == json.loads(json.dumps(expected)) for rank in ranks)
    assert [ending["number"] for ending in endings] == [1, 1, 2]
    assert ["reason" in ending for ending in endings] == [False, True, False]
    assert [rank["totals"]["num_undone"] for rank in ranks] == [1] * size
    assert all(min(rank["rows"]) > 0 for rank in ranks)
    assert all(rank["totals"]["num_bytes"] > 0 for rank in ranks)
