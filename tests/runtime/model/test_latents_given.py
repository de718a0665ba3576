"""A chunk's sink gets the latents that lie in the cache, of every layer and bit for bit."""

import pytest
import torch

from runtime.expert_parallel.group import SoloGroup
from runtime.expert_parallel.overlap import OVERLAPS
from runtime.model.engine import Engine, EngineConfig
from runtime.model.forward_batch import Chunk
from tests.runtime.random_checkpoints import V3, write_checkpoint

LENGTHS = [5, 12]
NUM_LAYERS = V3["num_hidden_layers"]


class Sink:
    """A sink that keeps views to the end, so that it notices a later write."""

    def __init__(self):
        self.layers = [[] for _ in range(NUM_LAYERS)]

    def __call__(self, layer, start, latent_TC):
        assert start == sum(map(len, self.layers[layer]))
        self.layers[layer].append(latent_TC)

    def latents(self):
        return torch.stack([torch.cat(parts) for parts in self.layers])


@pytest.mark.parametrize("overlap", ["none", "dual_batch"])
@pytest.mark.parametrize(("dtype", "deterministic"), [(torch.float32, True), (torch.bfloat16, False)])
def test_a_sink_gets_what_the_cache_holds(tmp_path, dtype, deterministic, overlap):
    """Two prompts' sinks get the cache's latents, across chunks, steps and micro-batches."""
    checkpoint = write_checkpoint(tmp_path, V3)
    slots = [list(range(V3["n_routed_experts"]))] * (NUM_LAYERS - V3["first_k_dense_replace"])
    engine = Engine(EngineConfig(checkpoint, slots, dtype, deterministic), SoloGroup())
    engine.model.overlap = OVERLAPS[overlap]
    cache, sinks = engine.new_cache(256), [Sink(), Sink()]
    tables = [[] for _ in range(3)]
    for table in tables:
        cache.allocate(table, 12)
    for cut in (lambda length: (0, length // 2), lambda length: (length // 2, length)):
        chunks = []
        for table, sink, length in zip(tables, (sinks[0], None, sinks[1]), (LENGTHS[0], 7, LENGTHS[1]), strict=True):
            start, end = cut(length)
            chunks.append(Chunk(list(range(start, end)), start, table, sink=sink))
        engine.step(chunks, [], cache)

    for sink, table, length in zip(sinks, (tables[0], tables[2]), LENGTHS, strict=True):
        assert torch.equal(sink.latents(), cache.copy_to_host(table, length))
