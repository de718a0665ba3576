"""One rank's engine: a loaded model and the two steps it can take, prefill and decode.

Everything above this (requests, queues, sockets) speaks of requests; everything below of tensors. A step is a
collective of the unit: all its ranks take the same kind of step at the same time, with their own requests or none.

It does not schedule: `prefill.py` and `decode.py` choose what a step works on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from runtime import weights
from runtime.errors import CheckpointError
from runtime.kv_cache import LatentCache
from runtime.model.batching import Alone, Together, check_machine
from runtime.model.config import ModelConfig, read_model_config
from runtime.model.deepseek import DecodeBatch, DeepseekV3, PhysicalToLogical
from runtime.overlap import OVERLAPS
from runtime.parallel import Group

__all__ = ["Engine", "Running"]


@dataclass
class Running:
    """A request in decode: `last_token` stands at `position` and is the next step's input."""

    last_token: int
    position: int
    cache_slot: int


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
    ) -> None:
        """Load what this rank holds. Raises CheckpointError, or RuntimeFailure where `deterministic` is impossible."""
        self.config = read_model_config(folder)
        self.dtype = dtype
        _check_expert_map(expert_map, self.config)
        self.model = DeepseekV3(
            self.config, expert_map, group, dtype, Alone() if deterministic else Together(), OVERLAPS[overlap]
        )
        self.tensor_names = weights.load(self.model, folder, progress)
        if deterministic:
            torch.set_num_threads(1)
            check_machine(self.model.row_wise())

    @property
    def token_shape(self) -> tuple[int, int]:
        """Of one token's latent KV: (num_layers, latent_dim)."""
        return self.config.num_hidden_layers, self.config.latent_dim

    def new_cache(self, max_requests: int, max_request_tokens: int) -> LatentCache:
        """An empty KV cache for `decode`."""
        return LatentCache(self.config, max_requests, max_request_tokens, self.dtype)

    @torch.inference_mode()
    def prefill(self, prompts: list[list[int]]) -> tuple[Tensor, list[Tensor]]:
        """Each prompt's last logits [prompts, vocab], and its latents [num_layers, tokens, C]."""
        x_TD, latents = self.model.prefill(prompts)
        lengths = torch.tensor([len(prompt) for prompt in prompts], dtype=torch.long)
        logits = self.model.logits(x_TD[lengths.cumsum(0) - 1])
        return logits, list(latents.split(lengths.tolist(), 1))

    @torch.inference_mode()
    def prompt_logits(self, prompts: list[list[int]]) -> list[Tensor]:
        """Logits at every position of each prompt, [tokens, vocab]; for comparing with other implementations."""
        x_TD, _ = self.model.prefill(prompts)
        return list(self.model.logits(x_TD).split([len(prompt) for prompt in prompts]))

    @torch.inference_mode()
    def decode(self, running: list[Running], cache: LatentCache) -> Tensor:
        """The logits that follow each running request's last token: [requests, vocab]."""
        batch = DecodeBatch(
            torch.tensor([request.last_token for request in running], dtype=torch.long),
            torch.tensor([request.position for request in running], dtype=torch.long),
            torch.tensor([request.cache_slot for request in running], dtype=torch.long),
        )
        return self.model.logits(self.model.decode(batch, cache))


def _check_expert_map(expert_map: PhysicalToLogical, config: ModelConfig) -> None:
    if len(expert_map) != config.num_moe_layers:
        raise CheckpointError(
            f"the expert map has {len(expert_map)} MoE layers, the checkpoint {config.num_moe_layers}"
        )
    if any(set(layer) != set(range(config.n_routed_experts)) for layer in expert_map):
        raise CheckpointError(f"the expert map is not one of the checkpoint's {config.n_routed_experts} experts")
