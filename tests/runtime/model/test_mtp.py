"""The MTP layer drafts as float64 does, in prefill and token by token, and loads only its own slots' tensors."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from runtime.errors import CheckpointError
from runtime.expert_parallel.group import GlooGroup, SoloGroup
from runtime.kernels.fp8 import E4M3
from runtime.model import weights
from runtime.model.engine import Engine, EngineConfig
from runtime.model.forward_batch import Chunk
from runtime.model.mtp import MultiTokenPrediction
from runtime.protocol.counting import PAGE_TOKENS
from tests.runtime import mtp_reference as reference
from tests.runtime.on_cpu import new_cache
from tests.runtime.random_checkpoints import V3, write_checkpoint

CONFIG = V3 | {"num_nextn_predict_layers": 1}
EXPERTS = list(range(CONFIG["n_routed_experts"]))
TOKENS = [3, 14, 15, 92, 65, 35, 89, 79, 32]
PREFIX = f"model.layers.{CONFIG['num_hidden_layers']}."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a checkpoint of V3's shape with one MTP layer after its three."""
    return write_checkpoint(tmp_path_factory.mktemp("mtp") / "checkpoint", CONFIG)


def loaded(folder, dtype=torch.float32, group=None, layer_map=EXPERTS, deterministic=False):
    """Return the engine, its MTP layer, and the names that the layer has read."""
    group = group or SoloGroup()
    engine = Engine(EngineConfig(folder, [layer_map] * 2, dtype, deterministic), group)
    mtp = MultiTokenPrediction(engine.model, layer_map, group)
    return engine, mtp, weights.load(mtp, folder).tensor_names


def new_cache_table(engine, num_layers):
    """Return a cache of `num_layers` layers and a table for all tokens."""
    dtype = engine.backend.unquantized_dtype
    cache = new_cache(replace(engine.config, num_hidden_layers=num_layers), PAGE_TOKENS, dtype)
    table = []
    cache.allocate(table, len(TOKENS))
    return cache, table


@torch.inference_mode()
def hidden_states(engine):
    """Return the main model's hidden states at every position but the last, whose next token is unknown."""
    cache, table = new_cache_table(engine, CONFIG["num_hidden_layers"])
    return engine.model([Chunk(TOKENS[:-1], 0, table)], [], cache)


@torch.inference_mode()
def compute_drafts(engine, mtp):
    """Compute the drafts of all positions in one chunk."""
    cache, table = new_cache_table(engine, 1)
    return mtp([Chunk(TOKENS[1:], 0, table)], [], hidden_states(engine), cache.layers[0])


def test_drafts_are_the_float64_reference(folder):
    """Drafts equal the float64 reference to 1e-4 of each position's largest logit."""
    engine, mtp, _ = loaded(folder)
    expected = reference.draft_logits(
        CONFIG, load_file(folder / "model.safetensors"), TOKENS[1:], hidden_states(engine)
    )
    found = compute_drafts(engine, mtp).double()
    error = ((found - expected).abs().amax(-1) / expected.abs().amax(-1)).max().item()
    print(f"largest relative error: {error:.1e}")

    assert error < 1e-4


@torch.inference_mode()
def test_drafting_token_by_token_is_drafting_at_once(folder):
    """Drafts token by token equal drafts at once, through the layer's latent cache."""
    engine, mtp, _ = loaded(folder)
    hidden, (cache, table) = hidden_states(engine), new_cache_table(engine, 1)
    one_by_one = [
        mtp([], [Chunk([token], position, table)], hidden[position : position + 1], cache.layers[0])
        for position, token in enumerate(TOKENS[1:])
    ]

    torch.testing.assert_close(torch.cat(one_by_one), compute_drafts(engine, mtp), rtol=1e-4, atol=1e-4)


def test_drafts_depend_on_the_hidden_state_and_on_the_token(folder):
    """A draft depends on both the hidden state and the token."""
    engine, mtp, _ = loaded(folder)
    hidden, (cache, table) = hidden_states(engine)[:1], new_cache_table(engine, 1)
    with torch.inference_mode():
        one, other, third = (
            mtp([Chunk([token], 0, table)], [], h, cache.layers[0])
            for token, h in ((5, hidden), (6, hidden), (5, hidden.flip(-1)))
        )

    assert (one - other).abs().max() > 1e-3
    assert (one - third).abs().max() > 1e-3


def test_in_deterministic_mode_the_map_is_not_in_the_bits(folder):
    """In deterministic mode another expert map gives the same drafts, in FP32 and in FP8."""
    for dtype in (torch.float32, E4M3):
        expected, found = (
            compute_drafts(*loaded(folder, dtype, layer_map=layer_map, deterministic=True)[:2])
            for layer_map in (EXPERTS, [*reversed(EXPERTS), 3, 7])
        )

        assert torch.equal(found, expected)


def test_drafts_stay_near_as_the_main_models_tokens_do(folder):
    """Under `local_first` the MTP layer's tokens use the replicas on their rank."""
    group, layer_map = GlooGroup(1, 2), [*EXPERTS, *EXPERTS]
    engine = Engine(EngineConfig(folder, [layer_map] * 2, torch.float32, nodes=["a", "b"]), group)
    mtp = MultiTokenPrediction(engine.model, layer_map, group)
    experts = torch.tensor([[0], [0], [5], [5]])

    for layer in (engine.model.model.layers[1], mtp._layer):
        assert layer.mlp.replicas.choose(experts).flatten().tolist() == [16, 16, 21, 21]


def test_a_rank_reads_its_own_slots_of_the_mtp_layer(folder):
    """A rank reads neither the main model's tensors nor other ranks' experts."""
    _, mtp, names = loaded(folder, group=GlooGroup(1, 4))
    own = {name for name in names if ".mlp.experts." in name}

    assert all(name.startswith(PREFIX) for name in names)
    assert {int(name.removeprefix(f"{PREFIX}mlp.experts.").split(".")[0]) for name in own} == {4, 5, 6, 7}
    assert len(own) == 4 * 3
    assert f"{PREFIX}eh_proj.weight" in names
    assert {name for name, _ in mtp.named_parameters() if ".mlp.experts." not in name} == set(names) - own


def test_a_checkpoint_without_the_layer_is_refused(tmp_path):
    """A checkpoint without the MTP layer is refused, with its first missing tensor."""
    with pytest.raises(CheckpointError, match=rf"has no tensor {PREFIX}"):
        loaded(write_checkpoint(tmp_path / "checkpoint", V3))
