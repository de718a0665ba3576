"""The central promise: however the experts are spread, the text is the same, and it is what transformers computes.

transformers is asked along our own outputs: its logits at every position of prompt + output, in one pass a prompt. As
long as our token is its best one, its own greedy text is ours, by induction; the first difference ends the comparison.
"""

import json

import numpy as np
import pytest
import torch
from transformers import DeepseekV3ForCausalLM

from tests.runtime.closeness import LOGITS_TOLERANCE, count_excuses, relative_error, transformers_choices

MAX_TOKENS = 64
MAX_EXCUSES = 2
LAYOUTS = [(ep, expert_map) for ep in (1, 2, 4) for expert_map in ("contiguous", "redundant")]


@pytest.fixture(scope="module")
def runs(prompts, generate, redundant_map, tmp_path_factory):
    """(EP size, "contiguous" or "redundant") -> (greedy outputs of the real command, the .npz with its logits)."""
    folder = tmp_path_factory.mktemp("logits")
    flags = ("--max-tokens", MAX_TOKENS, "--dtype", "float32")

    def run(ep, name):
        path = folder / f"{ep}-{name}.npz"
        expert_map = redundant_map if name == "redundant" else None
        return generate(prompts, *flags, "--ep", ep, "--logits", path, expert_map=expert_map), path

    return {layout: run(*layout) for layout in LAYOUTS}


@pytest.fixture(scope="module")
def outputs(runs):
    """Layout -> greedy outputs."""
    return {layout: outputs for layout, (outputs, _) in runs.items()}


@pytest.fixture(scope="module")
def transformers_model(demo):
    return DeepseekV3ForCausalLM.from_pretrained(demo, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def transformers_logits(prompts, outputs, transformers_model):
    """Of each prompt and its output at EP1: [tokens, vocab]."""
    reference = outputs[1, "contiguous"]
    with torch.inference_mode():
        return [
            transformers_model(torch.tensor([prompt + output])).logits[0]
            for prompt, output in zip(prompts, reference, strict=True)
        ]


def test_there_are_fifty_prompts(prompts):
    """Fifty, all different."""
    assert len(prompts) == len(set(map(tuple, prompts))) == 50


def test_outputs_end_with_eos_or_at_the_limit(demo, outputs):
    """An output is 64 tokens without end of text, or shorter and ends with it."""
    eos = json.loads((demo / "config.json").read_text())["eos_token_id"]

    for output in outputs[1, "contiguous"]:
        assert eos not in output[:-1]
        assert len(output) == MAX_TOKENS or output[-1] == eos


def test_outputs_are_worth_comparing(outputs):
    """The model neither repeats one text for every prompt nor falls silent."""
    reference = outputs[1, "contiguous"]

    assert len(set(map(tuple, reference))) == 50
    assert sum(map(len, reference)) > 50 * MAX_TOKENS / 2


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_text_does_not_depend_on_the_layout(prompts, outputs, transformers_logits, layout):
    """Any EP size, with or without redundant experts, gives the outputs of EP1 with each expert once."""
    excuses = count_excuses(prompts, outputs[1, "contiguous"], outputs[layout], transformers_logits)

    assert excuses <= MAX_EXCUSES


def test_text_is_transformers_text(prompts, outputs, transformers_logits):
    """At every position of every output, our token is transformers' most likely one."""
    ours = outputs[1, "contiguous"]
    theirs = transformers_choices(prompts, ours, transformers_logits)

    assert count_excuses(prompts, ours, theirs, transformers_logits) <= MAX_EXCUSES


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_logits_are_transformers_logits(prompts, runs, transformers_logits, layout):
    """--logits writes, for every position of every prompt, transformers' logits to 1e-4 of the largest."""
    with np.load(runs[layout][1], allow_pickle=False) as arrays:
        ours = [torch.from_numpy(arrays[str(number)]) for number in range(len(prompts))]
    worst = max(
        relative_error(mine, theirs[: len(prompt)])
        for prompt, mine, theirs in zip(prompts, ours, transformers_logits, strict=True)
    )
    print(f"largest relative logit error of {layout}: {worst:.1e}")

    assert worst < LOGITS_TOLERANCE
