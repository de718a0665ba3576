"""One rank's engine: a loaded model and its step, which computes chunks of prompts and decoding requests.

Code above the engine handles requests, queues and sockets; code below handles tensors. A step is a collective of the
unit: all its ranks take it at the same time, with their own requests or none.

It does not schedule: `serving/scheduler.py` chooses what a step works on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from runtime.errors import CheckpointError
from runtime.expert_parallel.group import Group
from runtime.expert_parallel.overlap import OVERLAPS
from runtime.kernels.backend import choose_backend
from runtime.kernels.batch_invariant import check_machine
from runtime.kernels.device import CPU, CudaRecorder
from runtime.kernels.fp8 import E4M3
from runtime.kernels.say import say_once
from runtime.kv.cache import LatentCache, PageTable
from runtime.kv.host_memory import HostMemory
from runtime.model import weights
from runtime.model.captured_steps import CapturedSteps
from runtime.model.config import ModelConfig, read_model_config
from runtime.model.deepseek import DeepseekV3, PhysicalToLogical
from runtime.model.forward_batch import Chunk
from runtime.protocol.counting import round_up_to_page

__all__ = ["Engine", "EngineConfig"]


@dataclass(frozen=True)
class EngineConfig:
    """The options of a rank's engine."""

    checkpoint: Path  # a folder
    expert_map: PhysicalToLogical
    dtype: torch.dtype  # of the matrices
    deterministic: bool = False
    overlap: str = "none"
    nodes: Sequence[str] | None = None  # each rank's node, for tokens that prefer near replicas; else None
    max_step_tokens: int | None = None  # the most tokens of any rank if no step has prompts; None: no limit
    device: torch.device = CPU  # where every tensor of the model is made


class Engine:
    """A rank's model, ready to step."""

    def __init__(
        self,
        config: EngineConfig,
        group: Group,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Load this rank's part of the model.

        Raises CheckpointError if it cannot be read, or RuntimeFailure if `deterministic` is impossible here.
        """
        if config.deterministic:
            torch.set_num_threads(1)  # before the backend is chosen, because the choice depends on it
        self.checkpoint = config.checkpoint
        self.config = read_model_config(config.checkpoint)
        _check_expert_map(config.expert_map, self.config)
        self.backend = choose_backend(config.device, config.dtype, config.deterministic)
        if config.dtype == E4M3:
            self.backend.ops.check_scales(self.config.power_of_two_scales)
        overlap = OVERLAPS[config.overlap]
        self.model = DeepseekV3(
            self.config, config.expert_map, group, self.backend, overlap, config.nodes, config.max_step_tokens
        )
        self._rank = group.rank
        self._only_decodes = config.max_step_tokens is not None
        self._captured: CapturedSteps | None = None
        self.loaded = weights.load(self.model, config.checkpoint, progress)
        self.backend.ops.prepare()
        if config.deterministic:
            check_machine(self.model.row_functions())

    @property
    def token_shape(self) -> tuple[int, int]:
        """The shape of one token's latent KV: (num_layers, latent_dim)."""
        return self.config.num_hidden_layers, self.config.latent_dim

    def new_cache(self, num_tokens: int, memory: HostMemory | None = None, host_bytes: int = 0) -> LatentCache:
        """Return an empty KV cache with room for at least `num_tokens` tokens.

        `memory` is the ledger of the rank's host memory, of which cached blocks may take `host_bytes`.
        """
        dtype, ops = self.backend.unquantized_dtype, self.backend.ops
        return LatentCache(*self.token_shape, num_tokens, dtype, ops.device, ops.link, memory, host_bytes)

    @torch.inference_mode()
    def capture_steps(self, cache: LatentCache, max_requests: int, max_request_tokens: int) -> None:
        """Record the steps of a unit that only decodes, if its device can replay them. A collective of the unit."""
        device = self.backend.device
        if device.type != "cuda" or not self._only_decodes:
            return
        try:
            recorder = CudaRecorder(device)
            self._captured = CapturedSteps(self.model, cache, recorder, max_requests, max_request_tokens)
        except RuntimeError as error:  # raised by torch for operations that it cannot capture
            say_once(f"steps cannot be captured ({str(error).splitlines()[0]}): kernels are launched one by one")
        self.model.load.clear()

    @torch.inference_mode()
    def warm_up(self, cache: LatentCache, max_request_tokens: int, max_batch_tokens: int) -> None:
        """Compute prompts before requests come, if kernels are compiled at first use. A collective of the unit.

        A rank that compiles delays its peers, and DeepEP's kernels give up after 100 s. So all ranks compile at once,
        for prompts of many sizes, because DeepGEMM uses other tiles for other numbers of rows. A size in between may
        still need a new kernel, but not all kernels of a step. A unit whose largest step does not fit fails here,
        before it serves.

        Source of the 100 s: github.com/deepseek-ai/DeepEP dd758caf csrc/kernels/legacy/compiled.cuh.
        """
        if not self.backend.ops.compiles_in_steps:
            return
        table: PageTable = []
        cache.allocate(table, max_request_tokens)
        generator = torch.Generator().manual_seed(self._rank)
        ids = torch.randint(self.config.vocab_size, (max_request_tokens,), generator=generator)
        for prefilling, decoding in _warm_up_steps(table, ids.tolist(), max_batch_tokens):
            self.step(prefilling, decoding, cache)
        cache.free(table)
        self.model.load.clear()

    @torch.inference_mode()
    def step(self, prefilling: Sequence[Chunk], decoding: Sequence[Chunk], cache: LatentCache) -> Tensor:
        """Compute a step. Return the logits after each chunk's last token, then of each decoding request.

        They are [chunks + requests, vocab]. The tokens' latents are in `cache` afterwards.
        """
        if self._captured is not None and not prefilling:
            return self._captured.next_logits(decoding)
        return self.model.next_logits(prefilling, decoding, cache)

    @torch.inference_mode()
    def step_to_embed(
        self, prefilling: Sequence[Chunk], decoding: Sequence[Chunk], cache: LatentCache
    ) -> tuple[Tensor, Tensor]:
        """Compute a step. Return its logits, and the hidden states behind them in FP32.

        The hidden states are [chunks + requests, hidden_size]. For other ranks this is a step like any other.
        """
        x_TD = self.model.last_hidden_states(prefilling, decoding, cache)
        return self.model.logits(x_TD), self.model.apply_final_norm(x_TD)

    @torch.inference_mode()
    def prefill(self, prompts: list[list[int]]) -> tuple[Tensor, list[Tensor]]:
        """Return the logits after each prompt, [prompts, vocab], and each prompt's latents [num_layers, tokens, C]."""
        chunks, cache = self._whole_prompts(prompts)
        return self.step(chunks, [], cache), [cache.copy_to_host(chunk.table, chunk.end) for chunk in chunks]

    @torch.inference_mode()
    def prompt_logits(self, prompts: list[list[int]]) -> list[Tensor]:
        """Return logits at every position of each prompt, [tokens, vocab], to compare with other implementations."""
        chunks, cache = self._whole_prompts(prompts)
        return list(self.model.logits(self.model(chunks, [], cache)).split([chunk.end for chunk in chunks]))

    def _whole_prompts(self, prompts: list[list[int]]) -> tuple[list[Chunk], LatentCache]:
        """Return each prompt as one chunk, and a cache with just enough room for them."""
        cache = self.new_cache(sum(round_up_to_page(len(prompt)) for prompt in prompts))
        chunks = [Chunk(prompt, 0, []) for prompt in prompts]
        for chunk in chunks:
            cache.allocate(chunk.table, chunk.end)
        return chunks, cache


def _warm_up_steps(
    table: PageTable, ids: list[int], max_batch_tokens: int
) -> Iterator[tuple[list[Chunk], list[Chunk]]]:
    """Yield (prefilling, decoding) of each step: the largest, then prompts of the most tokens, halved down to one.

    The largest step is the end of the longest request, beside a decoding request. It comes first, so that the allocator
    reuses its memory for the others. All requests share their pages, since the contents are never read. `ids` are the
    tokens of the longest request. They are random and differ on each rank, because an expert with many times the mean
    of rows would not fit.
    """
    max_request_tokens = len(ids)
    start = max(max_request_tokens - max_batch_tokens, 1) if max_request_tokens > 1 else 0
    yield [Chunk(ids[start:], start, table)], [Chunk(ids[:1], 0, table)]
    size = max_batch_tokens
    while size:
        whole, rest = divmod(size, max_request_tokens)
        lengths = [*[max_request_tokens] * whole, *[rest] * (rest > 0)]
        yield [Chunk(ids[:length], 0, table) for length in lengths], []
        size //= 2


def _check_expert_map(expert_map: PhysicalToLogical, config: ModelConfig) -> None:
    if len(expert_map) != config.num_moe_layers:
        raise CheckpointError(
            f"the expert map has {len(expert_map)} MoE layers, the checkpoint {config.num_moe_layers}"
        )
    if any(set(layer) != set(range(config.n_routed_experts)) for layer in expert_map):
        raise CheckpointError(f"the expert map is not one of the checkpoint's {config.n_routed_experts} experts")
