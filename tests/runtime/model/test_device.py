"""A model's tensors are made on its device, as fake tensors show: they refuse a mix of devices.

No GPU is needed. What asks a device for values (rows contiguous by expert) cannot run so; masked rows can. Lists of
fewer than two numbers cannot become tensors either, so each step here has prompts and two decoding requests.
"""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from runtime.expert_parallel.group import SoloGroup
from runtime.kernels.backend import choose_backend
from runtime.kernels.fp8 import E4M3
from runtime.kv.cache import LatentCache
from runtime.model.deepseek import DeepseekV3
from runtime.model.forward_batch import Chunk
from runtime.model.mtp import MultiTokenPrediction
from runtime.protocol.counting import PAGE_TOKENS
from tests.runtime.masked_dispatcher import use_masked_dispatch

CUDA = torch.device("cuda")
PROMPT = list(range(40))


def build_model(config, dtype):
    """Return a model with two replicas of the first experts, and an empty cache."""
    slots = [[*range(config.n_routed_experts), 0, 1]] * config.num_moe_layers
    backend = choose_backend(CUDA, dtype, deterministic=False)
    model = DeepseekV3(config, slots, SoloGroup(), backend)
    sizes = config.num_hidden_layers, config.latent_dim, 4 * PAGE_TOKENS
    return use_masked_dispatch(model, len(PROMPT) + 8), LatentCache(*sizes, backend.unquantized_dtype, CUDA)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, E4M3], ids=str)
def test_a_step_stays_on_the_models_device(small_config, dtype):
    """A step of prompts and decoding requests makes tensors on the model's device only."""
    with FakeTensorMode(), torch.inference_mode():
        model, cache = build_model(small_config, dtype)
        chunks = [Chunk(PROMPT[:30], 0, [0]), Chunk(PROMPT[30:35], 30, [1])]
        decoding = [Chunk([5], 70, [2, 3]), Chunk([7], 3, [0])]
        logits = model.next_logits(chunks, decoding, cache)
        tables = [model.load.rows, model.load.sent, *cache._pages, *model.rotary.lookup(torch.arange(3, device=CUDA))]

    assert logits.shape == (4, small_config.vocab_size)
    assert {tensor.device.type for tensor in (logits, *tables, *model.parameters())} == {"cuda"}


def test_a_draft_stays_on_the_models_device(small_config):
    """The MTP layer's tensors are on the main model's device."""
    with FakeTensorMode(), torch.inference_mode():
        model, cache = build_model(small_config, torch.bfloat16)
        mtp = MultiTokenPrediction(model, [*range(small_config.n_routed_experts), 0, 1], SoloGroup())
        decoding = [Chunk([5], 70, [2, 3]), Chunk([7], 3, [1])]
        hidden = model([Chunk(PROMPT[:-1], 0, [0])], decoding, cache)
        logits = mtp([Chunk(PROMPT[1:], 0, [0])], decoding, hidden, cache.layers[0])

    assert logits.shape == (len(PROMPT) + 1, small_config.vocab_size)
    assert {tensor.device.type for tensor in (logits, *mtp.parameters())} == {"cuda"}


def test_latents_travel_through_host_memory(small_config):
    """Latents of a handover come from host memory, and swapped-out ones go there."""
    with FakeTensorMode():
        _, cache = build_model(small_config, torch.float32)
        latents = torch.zeros(small_config.num_hidden_layers, 70, small_config.latent_dim)
        cache.swap_in([3, 1], latents)
        found = cache.copy_to_host([3, 1], 70)

    assert found.shape == latents.shape
    assert found.device.type == "cpu"
