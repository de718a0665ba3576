"""A model and a unit on GPUs against the same on a CPU."""

import pytest
import torch
import torch.multiprocessing as processes

from runtime.checkpoint import resolve
from runtime.expert_parallel.factory import new_group
from runtime.expert_parallel.group import SoloGroup
from runtime.expert_parallel.rendezvous import MeetingPoint
from runtime.kernels.device import use_device
from runtime.model.config import read_model_config
from runtime.model.engine import Engine, EngineConfig
from tests.runtime.closeness import off_by

ADDRESS = "127.0.0.1"
PROMPTS = [list(range(5, 300)), [7] * 40]


def engine(device, group, dtype, overlap="none"):
    folder = resolve("bundled:demo")
    config = read_model_config(folder)
    experts = [list(range(config.n_routed_experts))] * config.num_moe_layers
    return Engine(EngineConfig(folder, experts, dtype, overlap=overlap, device=device), group)


def test_a_model_on_a_gpu_says_what_it_says_on_a_cpu(device):
    """The demo model's logits in BF16, and its latents on their way through pinned memory."""
    logits, latents = engine(device, SoloGroup(), torch.bfloat16).prefill(PROMPTS)
    expected, expected_latents = engine(torch.device("cpu"), SoloGroup(), torch.bfloat16).prefill(PROMPTS)

    assert off_by(logits.cpu(), expected) < 0.02
    for found, wanted in zip(latents, expected_latents, strict=True):
        assert found.is_pinned()
        assert off_by(found.float(), wanted.float()) < 0.02


def rank_logits(rank, size, port, overlap, found):
    """One rank's prompts, by a unit whose rows travel over NCCL."""
    device = use_device("cuda", rank)
    group = new_group(rank, size, None, device)
    loaded = engine(device, group, torch.bfloat16, overlap)
    group.join(MeetingPoint(ADDRESS, port, rank == 0, ADDRESS))
    found[rank] = loaded.prefill(PROMPTS[rank : rank + 1])[0].cpu()
    group.any(False)


@pytest.mark.parametrize("overlap", ["none", "dual_batch"])
def test_ranks_that_exchange_rows_say_what_one_rank_says(device, overlap, free_port):
    """With overlap the exchanges run beside the other half's compute: a missing wait would show as other numbers."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    found = processes.get_context("spawn").Manager().dict()
    processes.spawn(rank_logits, (2, free_port(), overlap, found), nprocs=2)
    expected, _ = engine(device, SoloGroup(), torch.bfloat16).prefill(PROMPTS)

    for rank in range(2):
        assert off_by(found[rank][0], expected[rank].cpu()) < 0.02
