"""The bundled demo model keeps what its README says: size, published layout, real training, uneven expert load.

Two of the figures are measured again here, on the held-out extract that travels with the model. The trigram is not:
it needs the training text, so its stored figure for the same extract stands for it.
"""

import hashlib
import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import runtime.demo
from runtime.demo.training.corpus import ASSISTANT, BOS, EOS, USER, Document
from runtime.demo.training.evaluate import ExpertLoad, document_bits, exactly_answered, load, tokenize_chat
from runtime.demo.training.export import published_tensors
from runtime.demo.training.network import Network

FOLDER = Path(runtime.demo.__file__).parent
MAX_FOLDER_BYTES = 16_000_000
CLEARLY = 0.9  # the model must need at most this share of the trigram's bits
KNOWN = 0.98  # of the answers that it was trained to give must be exact
STARVED, UNEVEN = 0.01, 1.5  # expert load over its layer's mean


@pytest.fixture(scope="module")
def config():
    return json.loads((FOLDER / "config.json").read_text())


@pytest.fixture(scope="module")
def metrics():
    return json.loads((FOLDER / "metrics.json").read_text())


@pytest.fixture(scope="module")
def answers():
    """Return question -> the sentence that the model was trained to answer."""
    return json.loads((FOLDER / "answers.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def model_and_tokenizer():
    """Return the stored weights in float32: bfloat16 kernels are compiled for each shape, at a higher cost."""
    return load(FOLDER, dtype=torch.float32)


@pytest.fixture(scope="module")
def measured(model_and_tokenizer):
    """Return (bits, bytes, ExpertLoad) of the extract, computed now."""
    model, tokenizer = model_and_tokenizer
    text = (FOLDER / "heldout.txt").read_text(encoding="utf-8")
    loads = ExpertLoad(model)
    bits = document_bits(model, [*tokenizer(text).input_ids, tokenizer.eos_token_id])
    return bits, len(text.encode()), loads


def test_folder_fits_in_a_repository():
    """All files of the demo model together stay within 16 MB."""
    total = sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file() and "__pycache__" not in path.parts)

    assert total <= MAX_FOLDER_BYTES, f"{FOLDER.name} holds {total:,} bytes, the limit is {MAX_FOLDER_BYTES:,}"


def test_tensors_are_the_published_ones(config):
    """The file holds exactly the tensors, shapes and types that config.json implies in the published naming."""
    expected = {name: (list(t.shape), t.dtype) for name, t in published_tensors(Network(config)).items()}
    found = {name: (list(t.shape), t.dtype) for name, t in load_file(FOLDER / "model.safetensors").items()}

    assert found == expected
    assert found["model.layers.1.mlp.experts.31.down_proj.weight"] == ([192, 64], torch.bfloat16)
    assert found["model.layers.4.mlp.gate.e_score_correction_bias"] == ([32], torch.float32)
    assert found["model.layers.0.self_attn.kv_a_proj_with_mqa.weight"] == ([80, 192], torch.bfloat16)
    assert len(found) == 3 + 5 * 9 + 3 + 4 * (2 + 3 + 3 * 32)


def test_stored_metrics_beat_the_trigram(metrics):
    """On all held-out files the model needs clearly fewer bits per byte than the interpolated trigram."""
    held_out = metrics["held_out"]

    assert held_out["model_bits_per_byte"] < CLEARLY * held_out["trigram_bits_per_byte"]


def test_stored_files_are_held_out(metrics):
    """Every file that the metrics call held out is held out by the rule on names."""
    assert len(metrics["held_out"]["files"]) >= 10
    for name in metrics["held_out"]["files"]:
        assert Document(name, "").held_out
        assert int(hashlib.sha256(name.encode()).hexdigest(), 16) % 20 == 0


def test_stored_expert_load_is_uneven_but_starves_nobody(config, metrics):
    """Every expert has over 1 % of its layer's mean load, and most layers have one with over 1.5 times the mean."""
    counts = torch.tensor(json.loads((FOLDER / "expert_load.json").read_text()))
    over_mean = counts / counts.float().mean(1, keepdim=True)
    num_moe_layers = config["num_hidden_layers"] - config["first_k_dense_replace"]
    tokens = counts.sum(1) // config["num_experts_per_tok"]

    assert counts.shape == (num_moe_layers, config["n_routed_experts"])
    assert (tokens == metrics["held_out"]["tokens"]).all()
    assert over_mean.min() > STARVED
    assert (over_mean.amax(1) >= UNEVEN).sum() > num_moe_layers / 2


@pytest.mark.whole
def test_extract_beats_the_trigram_now(metrics, measured):
    """Measured now on the bundled extract, the model needs clearly fewer bits per byte than the trigram did."""
    bits, num_bytes, _ = measured

    assert num_bytes == metrics["extract"]["bytes"]
    assert bits / num_bytes < CLEARLY * metrics["extract"]["trigram_bits_per_byte"]
    assert math.isclose(bits / num_bytes, metrics["extract"]["model_bits_per_byte"], rel_tol=0.01)


@pytest.mark.whole
def test_extract_load_is_uneven_but_starves_nobody_now(measured):
    """Measured now on the bundled extract, no expert starves and most layers are uneven."""
    over_mean = measured[2].ratio_to_mean()

    assert over_mean.min() > STARVED
    assert (over_mean.amax(1) >= UNEVEN).sum() > len(over_mean) / 2


def test_chat_template_round_trips(model_and_tokenizer):
    """The chat template spells DeepSeek's turn markers, and its token ids decode to the same text."""
    _, tokenizer = model_and_tokenizer
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is a module?"},
        {"role": "assistant", "content": "A file."},
        {"role": "user", "content": "And a package?"},
    ]
    text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)

    assert text == f"{BOS}Be brief.{USER}What is a module?{ASSISTANT}A file.{EOS}{USER}And a package?{ASSISTANT}"
    assert tokenizer.decode(ids) == text


def test_answers_are_the_manuals_and_end_by_themselves(model_and_tokenizer, answers):
    """A greedy answer in the chat format is the manual's sentence, token by token, and ends with eos."""
    model, tokenizer = model_and_tokenizer
    question = "What does `os.getcwd` do?"
    prompt = tokenize_chat(tokenizer, question)
    output = model.generate(torch.tensor([prompt]), max_new_tokens=120, do_sample=False)[0]

    assert output[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(output[len(prompt) : -1]) == answers[question]


@pytest.mark.whole
def test_most_answers_are_exact_now(model_and_tokenizer, metrics, answers):
    """Measured now, nearly all answers are the manual's to the letter, as the metrics say of bfloat16 arithmetic."""
    share = len(exactly_answered(*model_and_tokenizer, answers)) / len(answers)
    stored = metrics["answers"]

    assert stored["asked"] == len(answers)
    assert share > KNOWN
    assert math.isclose(share, stored["exact"] / stored["asked"], abs_tol=0.01)


def test_any_text_survives_the_tokenizer(model_and_tokenizer):
    """Byte-level BPE has no unknown token: any string comes back as it was."""
    _, tokenizer = model_and_tokenizer
    text = "def f(x):\n\treturn x ** 2  # é, 漢字, 🎉, 0123\r\n"

    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text
