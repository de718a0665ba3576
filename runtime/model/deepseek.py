"""The whole model: embedding, layers (attention, then dense MLP or mixture of experts), norm, head.

One rank's part of it: attention and everything dense is the same on every rank (data parallel, each rank with its own
requests); of the routed experts a rank holds its slots. Modules are named so that a parameter's name is its tensor's
name in the checkpoint; only the stacked local experts differ, and `weights.py` knows them.

It keeps no state between steps: the KV cache is its caller's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from runtime.dispatch import AllToAllDispatcher, LocalDispatcher, PlainRows, RowFormat, TokenDispatcher
from runtime.expert_load import ExpertLoad
from runtime.kv_cache import LatentCache
from runtime.model.batching import Batching
from runtime.model.config import ModelConfig
from runtime.model.layers import GatedMlp, RmsNorm, linear
from runtime.model.mla import LatentAttention
from runtime.model.moe import Gate, LocalExperts, MixtureOfExperts, ReplicaTable
from runtime.model.rope import RotaryTable
from runtime.overlap import OVERLAPS, Flow, Overlap, Pause
from runtime.parallel import Group

__all__ = ["DecodeBatch", "DeepseekV3", "PhysicalToLogical"]

PhysicalToLogical = list[list[int]]  # [num_moe_layers][num_physical_experts]; slots are numbered rank by rank


@dataclass(frozen=True)
class DecodeBatch:
    """One new token for each running request: its id and position, and its slot in the KV cache; [B] each."""

    token_ids: Tensor
    positions: Tensor
    cache_slots: Tensor

    def __getitem__(self, part: slice) -> "DecodeBatch":
        return DecodeBatch(self.token_ids[part], self.positions[part], self.cache_slots[part])


class DeepseekV3(nn.Module):
    """One rank's part of the model. Parameters are empty until `weights.load` fills them."""

    def __init__(
        self,
        config: ModelConfig,
        expert_map: PhysicalToLogical,
        group: Group,
        dtype: torch.dtype,
        batching: Batching,
        overlap: Overlap = OVERLAPS["none"],
    ) -> None:
        super().__init__()
        self.config, self.batching, self.overlap = config, batching, overlap
        self.load = ExpertLoad(torch.tensor(expert_map).chunk(group.size, 1)[group.rank])
        self.dispatcher = _dispatcher(group, self.load.rows.shape[1], PlainRows(dtype))
        self.rotary = RotaryTable(
            config.qk_rope_head_dim, config.max_position_embeddings, config.rope_theta, config.yarn
        )
        self.model = nn.Module()
        self.model.embed_tokens = nn.utils.skip_init(nn.Embedding, config.vocab_size, config.hidden_size, dtype=dtype)
        self.model.layers = nn.ModuleList(
            _Layer(config, dtype, self._feed_forward(layer, expert_map, group.rank, dtype), batching)
            for layer in range(config.num_hidden_layers)
        )
        self.model.norm = RmsNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.lm_head = linear(config.hidden_size, config.vocab_size, dtype)

    def prefill(self, prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Whole prompts from position 0: hidden states [T, D] and latents [num_layers, T, C]. No prompts: T is 0."""
        parts = self.overlap.split([len(prompt) for prompt in prompts])
        results = self.overlap.run([self._prefill(prompts[part]) for part in parts])
        return torch.cat([x_TD for x_TD, _ in results]), torch.cat([latents for _, latents in results], 1)

    def decode(self, batch: DecodeBatch, cache: LatentCache) -> Tensor:
        """One token a request: hidden states [B, D]; the new tokens' latents are written to `cache`. B may be 0."""
        parts = self.overlap.split([1] * len(batch.token_ids))
        return torch.cat(self.overlap.run([self._decode(batch[part], cache) for part in parts]))

    def _prefill(self, prompts: list[list[int]]) -> Flow[tuple[Tensor, Tensor]]:
        lengths = [len(prompt) for prompt in prompts]
        token_ids_T = torch.tensor([token for prompt in prompts for token in prompt], dtype=torch.long)
        positions_T = torch.cat([torch.arange(length) for length in [0, *lengths]])
        cos, sin = self.rotary.at(positions_T)
        x_TD, latents = self.model.embed_tokens(token_ids_T), []
        for layer in self.model.layers:
            x_TD, latent_TC = yield from layer.prefill(x_TD, cos, sin, lengths)
            latents.append(latent_TC)
        return x_TD, torch.stack(latents)

    def _decode(self, batch: DecodeBatch, cache: LatentCache) -> Flow[Tensor]:
        cos, sin = self.rotary.at(batch.positions)
        x_BD = self.model.embed_tokens(batch.token_ids)
        for index, layer in enumerate(self.model.layers):
            x_BD = yield from layer.decode(x_BD, cos, sin, batch, cache, index)
        return x_BD

    def logits(self, x_TD: Tensor) -> Tensor:
        """[T, vocab] in FP32."""
        return self.batching.rows(self._head, x_TD)

    def row_wise(self) -> list[tuple[Callable[[Tensor], Any], int, torch.dtype]]:
        """What `batching` computes in rows, one of each shape: (function, size of a row, its type)."""
        functions: dict[Any, tuple[Callable[[Tensor], Any], int, torch.dtype]] = {}
        for module in self.modules():
            if function := _row_function(module):
                parameters = list(module.parameters())
                shapes = (type(module), *(parameter.shape for parameter in parameters))
                functions[shapes] = function, parameters[0].shape[-1], parameters[0].dtype
        return list(functions.values())

    def _head(self, x_TD: Tensor) -> Tensor:
        return self.lm_head(self.model.norm(x_TD)).float()

    def _feed_forward(self, layer: int, expert_map: PhysicalToLogical, rank: int, dtype: torch.dtype) -> nn.Module:
        config = self.config
        moe_layer = layer - config.first_k_dense_replace
        if moe_layer < 0:
            return GatedMlp(config.hidden_size, config.intermediate_size, dtype)
        replicas = ReplicaTable(expert_map[moe_layer], config.n_routed_experts)
        return MixtureOfExperts(config, dtype, moe_layer, replicas, self.dispatcher, self.load, rank, self.batching)


class _Layer(nn.Module):
    def __init__(self, config: ModelConfig, dtype: torch.dtype, feed_forward: nn.Module, batching: Batching) -> None:
        super().__init__()
        self.batching = batching
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.self_attn = LatentAttention(config, dtype, batching)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.mlp = feed_forward

    def prefill(self, x_TD: Tensor, cos: Tensor, sin: Tensor, lengths: list[int]) -> Flow[tuple[Tensor, Tensor]]:
        normed_TD = self.batching.rows(self.input_layernorm, x_TD)
        attended_TD, latent_TC = self.self_attn.prefill(normed_TD, cos, sin, lengths)
        return (yield from self._feed_forward(x_TD + attended_TD)), latent_TC

    def decode(
        self, x_BD: Tensor, cos: Tensor, sin: Tensor, batch: DecodeBatch, cache: LatentCache, layer: int
    ) -> Flow[Tensor]:
        normed_BD = self.batching.rows(self.input_layernorm, x_BD)
        cache.append(layer, batch.cache_slots, batch.positions, self.self_attn.latent(normed_BD, cos, sin))
        q_BHC = self.self_attn.absorbed_query(normed_BD, cos, sin)
        yield Pause.HALF_ATTENDED
        lengths_B = batch.positions + 1
        attended_BD = self.self_attn.decode(q_BHC, cache.read(layer, batch.cache_slots, lengths_B), lengths_B)
        return (yield from self._feed_forward(x_BD + attended_BD))

    def _feed_forward(self, x_TD: Tensor) -> Flow[Tensor]:
        normed_TD = self.batching.rows(self.post_attention_layernorm, x_TD)
        if isinstance(self.mlp, MixtureOfExperts):
            return x_TD + (yield from self.mlp(normed_TD))
        return x_TD + self.batching.rows(self.mlp, normed_TD)


def _row_function(module: nn.Module) -> Callable[[Tensor], Any] | None:
    """What the module does to rows, if that is what it does; its first parameter's last dimension is a row's size."""
    match module:
        case nn.Linear() | RmsNorm() | GatedMlp() | Gate():
            return module
        case LocalExperts():
            return partial(module.expert, 0)
        case LatentAttention():
            return module.without_cache
    return None


def _dispatcher(group: Group, slots_per_rank: int, row_format: RowFormat) -> TokenDispatcher:
    if group.size == 1:
        return LocalDispatcher(slots_per_rank, row_format)
    return AllToAllDispatcher(group, slots_per_rank, row_format)
