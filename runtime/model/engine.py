"""One rank's engine: a loaded model and the step that it takes, of prompts' chunks and of requests that decode.

Everything above this (requests, queues, sockets) speaks of requests; everything below of tensors. A step is a
collective of the unit: all its ranks take it at the same time, with their own requests or none.

It does not schedule: `serving/scheduler.py` chooses what a step works on.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from runtime.errors import CheckpointError
from runtime.expert_parallel.group import Group
from runtime.expert_parallel.overlap import OVERLAPS
from runtime.kernels.batch_invariant import Batched, BatchInvariant, check_machine
from runtime.kernels.cpu import kernels as cpu_kernels
from runtime.kernels.precision import unquantized_dtype
from runtime.kv.cache import PAGE_TOKENS, LatentCache, num_pages
from runtime.model import weights
from runtime.model.config import ModelConfig, read_model_config
from runtime.model.deepseek import DeepseekV3, PhysicalToLogical
from runtime.model.forward_batch import Chunk

__all__ = ["Engine"]


class Engine:
    """A rank's model, ready to step."""

    def __init__(
        self,
        folder: Path,
        expert_map: PhysicalToLogical,
        group: Group,
        dtype: torch.dtype,
        progress: Callable[[int, int], None] = lambda done, total: None,
        deterministic: bool = False,
        overlap: str = "none",
        nodes: Sequence[str] | None = None,
        small_step_tokens: int = 0,
    ) -> None:
        """Load what this rank holds. Raises CheckpointError, or RuntimeFailure where `deterministic` is impossible.

        Steps of up to `small_step_tokens` a rank are worth dispatching at low latency; 0: there are none.
        """
        self.config = read_model_config(folder)
        self.dtype = dtype
        _check_expert_map(expert_map, self.config)
        self.model = DeepseekV3(
            self.config,
            expert_map,
            group,
            dtype,
            BatchInvariant() if deterministic else Batched(),
            OVERLAPS[overlap],
            nodes,
            small_step_tokens,
        )
        self.tensor_names = weights.load(self.model, folder, progress)
        if deterministic:
            torch.set_num_threads(1)
            check_machine(self.model.row_wise())
        elif cpu_kernels.suits(self.model.lm_head.weight):
            cpu_kernels.prepare()

    @property
    def token_shape(self) -> tuple[int, int]:
        """Of one token's latent KV: (num_layers, latent_dim)."""
        return self.config.num_hidden_layers, self.config.latent_dim

    def new_cache(self, num_tokens: int) -> LatentCache:
        """An empty KV cache with room for at least so many tokens."""
        return LatentCache(self.config, num_tokens, unquantized_dtype(self.dtype))

    @torch.inference_mode()
    def step(self, prefilling: Sequence[Chunk], decoding: Sequence[Chunk], cache: LatentCache) -> Tensor:
        """The logits after the last token of each chunk, then of each decoding request: [chunks + requests, vocab].

        The tokens' latents are in `cache` afterwards.
        """
        return self.model.next_logits(prefilling, decoding, cache)

    @torch.inference_mode()
    def prefill(self, prompts: list[list[int]]) -> tuple[Tensor, list[Tensor]]:
        """Each whole prompt's last logits [prompts, vocab], and its latents [num_layers, tokens, C]."""
        chunks, cache = self._whole(prompts)
        return self.step(chunks, [], cache), [cache.swap_out(chunk.table, chunk.end) for chunk in chunks]

    @torch.inference_mode()
    def prompt_logits(self, prompts: list[list[int]]) -> list[Tensor]:
        """Logits at every position of each prompt, [tokens, vocab]; for comparing with other implementations."""
        chunks, cache = self._whole(prompts)
        return list(self.model.logits(self.model(chunks, [], cache)).split([chunk.end for chunk in chunks]))

    def _whole(self, prompts: list[list[int]]) -> tuple[list[Chunk], LatentCache]:
        """Each prompt as one chunk, in a cache of just their size."""
        cache = self.new_cache(sum(num_pages(len(prompt)) * PAGE_TOKENS for prompt in prompts))
        chunks = [Chunk(prompt, 0, []) for prompt in prompts]
        for chunk in chunks:
            cache.allocate(chunk.table, chunk.end)
        return chunks, cache


def _check_expert_map(expert_map: PhysicalToLogical, config: ModelConfig) -> None:
    if len(expert_map) != config.num_moe_layers:
        raise CheckpointError(
            f"the expert map has {len(expert_map)} MoE layers, the checkpoint {config.num_moe_layers}"
        )
    if any(set(layer) != set(range(config.n_routed_experts)) for layer in expert_map):
        raise CheckpointError(f"the expert map is not one of the checkpoint's {config.n_routed_experts} experts")
