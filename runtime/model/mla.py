"""Multi-head latent attention: the cache holds one latent vector of a token, not keys and values of every head.

    c, k_rope = down(x)             latent: c [L] compressed KV, k_rope [P] the rotary key that all heads share
    k, v = up(c)                    keys [H, N] and values [H, U] of a token, from its latent
    score = (q_nope . k + q_rope . k_rope) / sqrt(N + P)      times YaRN's factor, if the model was stretched

There are two equal forms. Prefill expands keys and values once for many queries. Decode absorbs `up` into the query and
the output (q_nope . W_uk c == (W_uk^T q_nope) . c), so that it reads only the latents.

The query is compressed too (V3, V2) or not (V2-Lite, whose q_lora_rank is null).

Source: DeepSeek-V2 (arXiv 2405.04434) section 2.1 and appendix B; DeepSeek-V3 `inference/model.py`, class MLA.
"""

import torch
from torch import Tensor, nn

from runtime.kernels.backend import Backend
from runtime.kv.cache import LayerPages
from runtime.model.config import ModelConfig
from runtime.model.forward_batch import ForwardBatch
from runtime.model.layers import RmsNorm, linear

__all__ = ["LatentAttention", "Queries"]

# those of chunks [T, H, N + P], and those of decoding requests [B, H, C] in the space of the latents; None if none
Queries = tuple[Tensor | None, Tensor | None]

LATENT_NORM_EPS = 1e-6  # as in all published code; `rms_norm_eps` does not apply


class LatentAttention(nn.Module):
    """The attention of one layer. Parameters are named as published."""

    def __init__(self, config: ModelConfig, backend: Backend) -> None:
        super().__init__()
        self.config, self.ops, self.batching = config, backend.ops, backend.batching
        ops, dtype, unquantized = backend.ops, backend.dtype, backend.unquantized_dtype
        heads, qk_dim = config.num_attention_heads, config.qk_nope_head_dim + config.qk_rope_head_dim
        if config.q_lora_rank is None:
            self.q_proj = linear(config.hidden_size, heads * qk_dim, dtype, ops)
        else:
            self.q_a_proj = linear(config.hidden_size, config.q_lora_rank, dtype, ops)
            self.q_a_layernorm = RmsNorm(config.q_lora_rank, LATENT_NORM_EPS, unquantized, ops)
            self.q_b_proj = linear(config.q_lora_rank, heads * qk_dim, dtype, ops)
        self.kv_a_proj_with_mqa = linear(config.hidden_size, config.latent_dim, dtype, ops)
        self.kv_a_layernorm = RmsNorm(config.kv_lora_rank, LATENT_NORM_EPS, unquantized, ops)
        kv_dim = heads * (config.qk_nope_head_dim + config.v_head_dim)
        self.kv_b_proj = linear(config.kv_lora_rank, kv_dim, unquantized, ops)  # absorbed, it is core attention
        self.o_proj = linear(heads * config.v_head_dim, config.hidden_size, dtype, ops)
        self.scale = qk_dim**-0.5 * (1.0 if config.yarn is None else config.yarn.softmax_factor)

    def begin(self, x_TD: Tensor, cos: Tensor, sin: Tensor, step: ForwardBatch) -> Queries:
        """Return the tokens' queries: the first half of attention.

        Before the second half, write their latents to the cache.
        """
        prefilling, decoding = zip(*(x.split(step.sizes) for x in (x_TD, cos, sin)), strict=True)
        expanded_THQ = self.batching.rows(self._query, *prefilling) if step.sizes[0] else None
        is_needed = step.sizes[1] or not step.sizes[0]  # a step without tokens counts as a decode step without requests
        return expanded_THQ, self.batching.rows(self._absorbed_query, *decoding) if is_needed else None

    def finish(self, queries: Queries, step: ForwardBatch, pages: LayerPages) -> Tensor:
        """Return the output of attention, [T, D]: each token attends to its request's cached latents and its own."""
        expanded_THQ, absorbed_BHC = queries
        parts = []
        if expanded_THQ is not None:
            parts.append(self._prefill(expanded_THQ, step, pages))
        if absorbed_BHC is not None:
            parts.append(self._decode(absorbed_BHC, step, pages))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def latent(self, x_TD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return these tokens' latents for the KV cache, [T, C]: compressed KV, then the rotated shared key."""
        return self.batching.rows(self._latent, x_TD, cos, sin)

    def decode_without_cache(self, x_TD: Tensor) -> Tensor:
        """Return decode's row-wise parts, computed at position 0: [T, D]. `check_machine` tries this function."""
        cos = torch.ones(len(x_TD), self.config.qk_rope_head_dim // 2, device=x_TD.device)
        q_THC = self._absorbed_query(x_TD, cos, torch.zeros_like(cos))
        return self._absorbed_output(q_THC[..., : self.config.kv_lora_rank])

    def _prefill(self, q_THQ: Tensor, step: ForwardBatch, pages: LayerPages) -> Tensor:
        """Return the output of attention for prompts, [T, D], chunk by chunk.

        Keys and values are expanded from the cache.
        """
        contexts = []
        for q, slots_S in zip(q_THQ.split(step.lengths), step.contexts, strict=True):
            latent_SC = pages.read(slots_S)
            kv_SHX = self.batching.rows(self._expand, latent_SC)
            contexts.append(
                self.batching.chunk(self._attend_causally, q, kv_SHX, latent_SC[:, self.config.kv_lora_rank :])
            )
        return self.batching.rows(self.o_proj, torch.cat(contexts).flatten(1))

    def _decode(self, q_BHC: Tensor, step: ForwardBatch, pages: LayerPages) -> Tensor:
        """Return the output of attention for one token of each request, [B, D], computed over the latents."""
        cached = pages.pages, step.tables_BJ, step.lengths_B
        context_BHL = self.batching.attend_pages(self.ops, q_BHC, *cached, self.config.kv_lora_rank, self.scale)
        return self.batching.rows(self._absorbed_output, context_BHL)

    def _latent(self, x_TD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        latent_TC = self.kv_a_proj_with_mqa(x_TD)
        c_TL = latent_TC[:, : self.config.kv_lora_rank]
        c_TL.copy_(self.kv_a_layernorm(c_TL))
        self.ops.rotate(latent_TC[:, self.config.kv_lora_rank :], cos, sin, self.config.rope_interleave)
        return latent_TC

    def _absorbed_query(self, x_BD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the query in the space of the latents, [B, H, C]."""
        q_BHQ = self._query(x_BD, cos, sin)
        sizes = self.config.qk_rope_head_dim, self.config.v_head_dim
        return self.ops.absorb_query(q_BHQ, self.kv_b_proj.weight, *sizes)

    def _absorbed_output(self, context_BHL: Tensor) -> Tensor:
        """Return the attention's output for the heads' contexts: [B, D]."""
        return self.o_proj(self.ops.up_project_values(context_BHL, self.kv_b_proj.weight, self.config.v_head_dim))

    def _query(self, x_TD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return queries [T, H, N + P], the last P rotated."""
        q_THQ = self._project_query(x_TD).unflatten(-1, (self.config.num_attention_heads, -1))
        self.ops.rotate(q_THQ[..., self.config.qk_nope_head_dim :], cos, sin, self.config.rope_interleave)
        return q_THQ

    def _project_query(self, x_TD: Tensor) -> Tensor:
        """Return queries [T, H x (N + P)]."""
        if self.config.q_lora_rank is None:
            return self.q_proj(x_TD)
        return self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x_TD)))

    def _expand(self, latent_TC: Tensor) -> Tensor:
        """Return keys, without their rotary part, and values from latents: [T, H, N + U]."""
        kv_TX = self.kv_b_proj(latent_TC[:, : self.config.kv_lora_rank])
        return kv_TX.unflatten(-1, (self.config.num_attention_heads, -1))

    def _attend_causally(self, q_THQ: Tensor, kv_SHX: Tensor, k_rope_SP: Tensor) -> Tensor:
        """Return attention for the last T of a request's S tokens to themselves and all before: [T, H, U]."""
        return self.ops.attend_causally(q_THQ, kv_SHX, k_rope_SP, self.config.v_head_dim, self.scale)
