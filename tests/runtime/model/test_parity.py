"""However the experts are spread, the text is the same, and it is transformers' text.

transformers is asked along our own outputs: its logits at every position of prompt + output, in one pass a prompt. As
long as our token is its best one, its own greedy text is ours, by induction; the first difference ends the comparison.
"""

import json
from functools import cache

import numpy as np
import pytest
import torch
from transformers import DeepseekV3ForCausalLM

from tests.runtime.closeness import LOGITS_TOLERANCE, count_undecided, relative_error, transformers_choices

MAX_TOKENS = 64
MAX_EXCUSES = 2
PLAIN, FARTHEST = (1, "contiguous"), (4, "redundant")  # layouts: (EP size, expert map)
BETWEEN = [(1, "redundant"), (2, "redundant")]  # without replicas, EP 2 and 4 are in test_identical_tokens.py
OTHERS = [FARTHEST, *(pytest.param(layout, marks=pytest.mark.whole) for layout in BETWEEN)]


@pytest.fixture(scope="module")
def run(prompts, generate, redundant_map, tmp_path_factory):
    """Return a function: layout -> (greedy outputs of the real command, its .npz of logits). Each layout runs once."""
    folder = tmp_path_factory.mktemp("logits")
    flags = ("--max-tokens", MAX_TOKENS, "--dtype", "float32")

    @cache
    def run(layout):
        ep, name = layout
        path = folder / f"{ep}-{name}.npz"
        expert_map = redundant_map if name == "redundant" else None
        return generate(prompts, *flags, "--ep", ep, "--logits", path, expert_map=expert_map), path

    return run


@pytest.fixture(scope="module")
def reference(run):
    """Return the greedy outputs of one rank that holds each expert once."""
    outputs, _ = run(PLAIN)
    return outputs


@pytest.fixture(scope="module")
def transformers_model(demo):
    return DeepseekV3ForCausalLM.from_pretrained(demo, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def transformers_logits(prompts, reference, transformers_model):
    """Return transformers' logits of each prompt and its output at EP1: [tokens, vocab]."""
    with torch.inference_mode():
        return [
            transformers_model(torch.tensor([prompt + output])).logits[0]
            for prompt, output in zip(prompts, reference, strict=True)
        ]


def test_there_are_fifty_prompts(prompts):
    """There are fifty different prompts."""
    assert len(prompts) == len(set(map(tuple, prompts))) == 50


def test_outputs_end_with_eos_or_at_the_limit(demo, reference):
    """An output has 64 tokens without end of text, or is shorter and ends with it."""
    eos = json.loads((demo / "config.json").read_text())["eos_token_id"]

    for output in reference:
        assert eos not in output[:-1]
        assert len(output) == MAX_TOKENS or output[-1] == eos


def test_outputs_are_worth_comparing(reference):
    """The model neither repeats one text for every prompt nor falls silent."""
    assert len(set(map(tuple, reference))) == 50
    assert sum(map(len, reference)) > 50 * MAX_TOKENS / 2


@pytest.mark.parametrize("layout", OTHERS, ids=str)
def test_text_does_not_depend_on_the_layout(prompts, run, reference, transformers_logits, layout):
    """Any EP size, with or without redundant experts, gives the outputs of EP1 with each expert once."""
    outputs, _ = run(layout)
    excuses = count_undecided(prompts, reference, outputs, transformers_logits)

    assert excuses <= MAX_EXCUSES


def test_text_is_transformers_text(prompts, reference, transformers_logits):
    """At every position of every output, our token is transformers' most likely one."""
    theirs = transformers_choices(prompts, reference, transformers_logits)

    assert count_undecided(prompts, reference, theirs, transformers_logits) <= MAX_EXCUSES


@pytest.mark.parametrize("layout", [PLAIN, *OTHERS], ids=str)
def test_logits_are_transformers_logits(prompts, run, transformers_logits, layout):
    """--logits writes transformers' logits for every position of every prompt, to 1e-4 of the largest."""
    _, path = run(layout)
    with np.load(path, allow_pickle=False) as arrays:
        ours = [torch.from_numpy(arrays[str(number)]) for number in range(len(prompts))]
    worst = max(
        relative_error(mine, theirs[: len(prompt)])
        for prompt, mine, theirs in zip(prompts, ours, transformers_logits, strict=True)
    )
    print(f"largest relative logit error of {layout}: {worst:.1e}")

    assert worst < LOGITS_TOLERANCE
