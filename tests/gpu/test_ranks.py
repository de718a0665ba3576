"""A model and a unit on GPUs against the same on a CPU."""

import os
from unittest.mock import patch

import pytest
import torch
import torch.multiprocessing as processes

from runtime.checkpoint import resolve
from runtime.expert_parallel import deep_ep
from runtime.expert_parallel.factory import new_group
from runtime.expert_parallel.group import SoloGroup
from runtime.expert_parallel.overlap import OVERLAPS
from runtime.expert_parallel.rendezvous import MeetingPoint
from runtime.kernels.device import use_device
from runtime.model.config import read_model_config
from runtime.model.engine import Engine, EngineConfig
from runtime.model.forward_batch import Chunk
from tests.gpu.quarter_hour.one_gpu import SHARED, why_missing
from tests.ports import free_port
from tests.runtime.closeness import error_in_norm, median_row_error

ADDRESS = "127.0.0.1"
PROMPTS = [list(range(5, 300)), [7] * 40]


def engine(device, group, dtype, overlap="none", max_step_tokens=None):
    folder = resolve("bundled:demo")
    config = read_model_config(folder)
    experts = [list(range(config.n_routed_experts))] * config.num_moe_layers
    options = {"overlap": overlap, "device": device, "max_step_tokens": max_step_tokens}
    return Engine(EngineConfig(folder, experts, dtype, **options), group)


def test_a_model_on_a_gpu_says_what_it_says_on_a_cpu(device):
    """The demo model's logits in BF16, and its latents on their way through pinned memory."""
    prompts = [*PROMPTS, *([3 + 7 * place % 500 for place in range(length)] for length in (20, 50, 100, 150, 250))]
    logits, latents = engine(device, SoloGroup(), torch.bfloat16).prefill(prompts)
    expected, expected_latents = engine(torch.device("cpu"), SoloGroup(), torch.bfloat16).prefill(prompts)

    assert median_row_error(logits.cpu(), expected) < 0.02
    for found, wanted in zip(latents, expected_latents, strict=True):
        assert found.is_pinned()
        assert median_row_error(found.float(), wanted.float()) < 0.02


@torch.inference_mode()
def continued(loaded, num_steps):
    """Greedy tokens of the prompts, which begin together, and the logits of each step."""
    cache, tables = loaded.new_cache(4096), [[] for _ in PROMPTS]
    for prompt, table in zip(PROMPTS, tables, strict=True):
        cache.allocate(table, len(prompt) + num_steps)
    loaded.capture_steps(cache, len(PROMPTS), 512)
    chunks = [Chunk(prompt, 0, table) for prompt, table in zip(PROMPTS, tables, strict=True)]
    texts = [[token] for token in loaded.model.next_logits(chunks, [], cache).argmax(-1).tolist()]
    found = []
    for _ in range(num_steps - 1):
        lengths = [len(prompt) + len(text) for prompt, text in zip(PROMPTS, texts, strict=True)]
        ends = zip(texts, lengths, tables, strict=True)
        logits = loaded.step([], [Chunk(text[-1:], length - 1, table) for text, length, table in ends], cache)
        found.append(logits.clone())
        for text, token in zip(texts, logits.argmax(-1).tolist(), strict=True):
            text.append(token)
    return texts, found


@pytest.mark.parametrize("overlap", ["none", "five_stage"])
def test_recorded_steps_say_what_steps_say(device, overlap, monkeypatch):
    """Through a page's end: a replay reads what its inputs hold now, not what they held when it was recorded."""
    recorded = engine(device, SoloGroup(), torch.bfloat16, overlap, max_step_tokens=400)  # the prompts' too
    texts, found = continued(recorded, 70)
    assert recorded._captured is not None
    monkeypatch.setattr(Engine, "capture_steps", lambda *_: None)
    expected_texts, expected = continued(engine(device, SoloGroup(), torch.bfloat16, overlap), 70)

    assert [text[:8] for text in texts] == [text[:8] for text in expected_texts]
    for one, other in zip(found[:8], expected[:8], strict=True):
        assert error_in_norm(one, other) < 0.02


def test_a_warm_unit_says_what_a_cold_one_says(device):
    """What it computed beforehand leaves nothing behind in its cache's pages that a prompt could see."""
    warm, cold = (engine(device, SoloGroup(), torch.bfloat16) for _ in range(2))
    cache, prompt = warm.new_cache(1024), PROMPTS[0]
    warm.warm_up(cache, max_request_tokens=1000, max_batch_tokens=400)
    table = []
    cache.allocate(table, len(prompt))

    assert error_in_norm(warm.step([Chunk(prompt, 0, table)], [], cache), cold.prefill([prompt])[0]) < 0.02


def rank_logits(rank, size, port, found):
    """One rank's prompts under each overlap, by a unit whose rows travel over NCCL."""
    device = use_device("cuda", rank % torch.cuda.device_count())
    group = new_group(rank, size, None, device)
    with patch.object(deep_ep, "deep_ep_form", return_value=None):
        loaded = engine(device, group, torch.bfloat16)
    group.join(MeetingPoint(ADDRESS, port, rank == 0, ADDRESS))
    for name, overlap in OVERLAPS.items():
        loaded.model.overlap = overlap
        found[name, rank] = loaded.prefill(PROMPTS[rank : rank + 1])[0].cpu()
    group.any(False)


@pytest.fixture(scope="module")
def exchanged(device):
    """The logits of both ranks of a unit, which share a GPU where there is one."""
    shares = torch.cuda.device_count() < 2
    if shares and (why_not := why_missing("cuda")) is not None:
        pytest.skip(why_not)
    with (
        patch.dict(os.environ, SHARED | os.environ if shares else {}),
        processes.get_context("spawn").Manager() as manager,
    ):
        found = manager.dict()
        processes.spawn(rank_logits, (2, free_port(), found), nprocs=2)
        return dict(found)


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_ranks_that_exchange_rows_say_what_one_rank_says(device, overlap, exchanged):
    """With overlap the exchanges run beside the other half's compute: a missing wait would show as other numbers."""
    expected, _ = engine(device, SoloGroup(), torch.bfloat16).prefill(PROMPTS)

    for rank in range(2):
        assert error_in_norm(exchanged[overlap, rank][0], expected[rank].cpu()) < 0.02
