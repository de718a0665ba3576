"""In deterministic mode a request's greedy tokens are the same, whatever serves it and beside whom.

And their logprobs, to the last bit, so that no difference hides behind a token that is the best one by far.

EP 1, 2, 4 and 8; another expert map and other replicas each time, whose tokens are shared out by either split; on one
node or two, in every form of dispatch; with and without overlap; as two units or as one; prompts whole and in chunks;
with and without preemption; in any order and company; in FP32, BF16 and FP8.
"""

import json
import random

import pytest

from runtime.expert_parallel.group import SoloGroup
from runtime.model.engine import Engine, EngineConfig
from tests.runtime.identical_ranks import LAYOUTS, NUM_EXPERTS, expert_map, ids_and_logprobs, wishes
from tests.runtime.one_rank import tell_alone
from tests.runtime.random_checkpoints import V3, write_checkpoint
from tests.runtime.rank_processes import run_ranks

PROMPT_LENGTHS = [62, 3, 130, 64, 126, 63, 60, 58, 80, 64, 61, 100, 59, 1, 62, 127]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    config = V3 | {"max_position_embeddings": 256}
    assert config["n_routed_experts"] == NUM_EXPERTS
    return write_checkpoint(tmp_path_factory.mktemp("identical") / "checkpoint", config)


@pytest.fixture(scope="module")
def prompts():
    draw = random.Random(0)
    return [[draw.randrange(V3["vocab_size"]) for _ in range(length)] for length in PROMPT_LENGTHS]


@pytest.fixture(scope="module")
def lone_answers(checkpoint, prompts):
    """Return dtype -> {prompt number: its answer alone, on one rank, with the plainest map}."""

    def answers(dtype):
        engine = Engine(EngineConfig(checkpoint, expert_map(0, seed=0), dtype, deterministic=True), SoloGroup())
        return {wish.id: ids_and_logprobs(tell_alone(engine, SoloGroup(), wish)) for wish in wishes(prompts)}

    return {dtype: answers(dtype) for dtype in {layout.dtype for layout in LAYOUTS.values()}}


@pytest.mark.parametrize("size", [*(pytest.param(size, marks=pytest.mark.whole) for size in (1, 2, 8)), 4])
def test_greedy_tokens_are_those_of_the_request_alone(size, checkpoint, prompts, lone_answers, free_port, tmp_path):
    """At each EP size and layout the tokens are those of the request alone, even after preemptions."""
    (tmp_path / "prompts.json").write_text(json.dumps(prompts))
    run_ranks("identical_ranks.py", size, free_port(), checkpoint, tmp_path)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(size)]

    for name, layout in LAYOUTS.items():
        tokens = {number: ids for rank in ranks for number, ids in rank[name]["tokens"].items()}
        preemptions = sum(rank[name]["preemptions"] for rank in ranks)
        assert tokens == dict(list(lone_answers[layout.dtype].items())[: layout.num_prompts]), name
        assert (preemptions > 0) == ("preemption" in name), name


def test_the_texts_are_not_all_alike(lone_answers):
    """Prompts have different answers, so the equality above means something."""
    for answers in lone_answers.values():
        ids = [tuple(token_id for token_id, _ in answer) for answer in answers.values()]
        assert len(set(ids)) > len(ids) / 2
        assert max(len(set(answer)) for answer in ids) > 3
