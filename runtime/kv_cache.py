"""One decode rank's latent KV: room for a fixed number of requests of a fixed length.

Ask, then act: `has_room()` before `take()`. A request's slot is its own from `take` to `free`. Pages come later; what
is here is the simplest cache whose capacity is known at start.
"""

import torch
from torch import Tensor

from runtime.model.config import ModelConfig

__all__ = ["LatentCache"]


class LatentCache:
    """`[num_layers, max_requests, max_request_tokens, latent_dim]`."""

    def __init__(self, config: ModelConfig, max_requests: int, max_request_tokens: int, dtype: torch.dtype) -> None:
        shape = (config.num_hidden_layers, max_requests, max_request_tokens, config.latent_dim)
        self._latents = torch.zeros(shape, dtype=dtype)
        self._free = list(range(max_requests))

    def has_room(self) -> bool:
        """One more request fits."""
        return bool(self._free)

    def take(self, prompt_latents: Tensor) -> int:
        """Give a request a slot that holds its prompt's latents `[num_layers, T, C]` from position 0."""
        slot = self._free.pop(0)
        self._latents[:, slot, : prompt_latents.shape[1]] = prompt_latents
        return slot

    def free(self, slot: int) -> None:
        """The request has ended."""
        self._free.append(slot)

    def append(self, layer: int, slots_B: Tensor, positions_B: Tensor, latent_BC: Tensor) -> None:
        """Write the latent of one token a request."""
        self._latents[layer, slots_B, positions_B] = latent_BC

    def read(self, layer: int, slots_B: Tensor, lengths_B: Tensor) -> Tensor:
        """The latents of these requests, up to the longest of them: [B, S, C]."""
        longest = int(lengths_B.max()) if len(lengths_B) else 0
        return self._latents[layer, slots_B, :longest]
