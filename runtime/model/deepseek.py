"""The whole model: embedding, layers (attention, then dense MLP or mixture of experts), norm, head.

A rank holds one part of it. Attention and everything dense is the same on every rank (data parallel, each rank with its
own requests); of the routed experts, each rank holds those in its slots. A parameter has its tensor's name in the
checkpoint. Only the stacked local experts differ, and `weights.py` knows them.

It keeps no state between steps: the KV cache is its caller's.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from runtime.expert_parallel.dispatcher import PlainRows, TokenDispatcher
from runtime.expert_parallel.expert_load import ExpertLoad
from runtime.expert_parallel.factory import new_dispatcher
from runtime.expert_parallel.group import Group
from runtime.expert_parallel.overlap import OVERLAPS, Flow, Overlap, Pause
from runtime.kernels.backend import Backend
from runtime.kernels.fp8 import E4M3
from runtime.kv.cache import LatentCache, LayerPages
from runtime.model.config import ModelConfig
from runtime.model.forward_batch import Chunk, ForwardBatch, cut
from runtime.model.fp8 import Fp8Experts, Fp8Linear, Fp8Rows, round_scales_up
from runtime.model.layers import Embedding, GatedMlp, Linear, RmsNorm, linear
from runtime.model.mla import LatentAttention
from runtime.model.moe import Gate, LocalExperts, MixtureOfExperts, ReplicaTable
from runtime.model.rope import RotaryTable
from runtime.trace import span

__all__ = ["DeepseekV3", "Layer", "PhysicalToLogical"]

PhysicalToLogical = list[list[int]]  # [num_moe_layers][num_physical_experts]; slots are numbered rank by rank


class DeepseekV3(nn.Module):
    """One rank's part of the model. Parameters are empty until `weights.load` fills them."""

    def __init__(
        self,
        config: ModelConfig,
        expert_map: PhysicalToLogical,
        group: Group,
        backend: Backend,
        overlap: Overlap = OVERLAPS["none"],
        nodes: Sequence[str] | None = None,
        max_step_tokens: int | None = None,
    ) -> None:
        """Build the model.

        `nodes` has the node of each rank, for tokens that prefer near replicas (`ReplicaTable`). `max_step_tokens` is
        the most tokens of any rank in a step if no step has prompts; with it, a device need not wait for sizes.

        Raises RuntimeFailure if `backend` is deterministic and the unit's dispatcher is not.
        """
        super().__init__()
        self.config, self.backend, self.batching = config, backend, backend.batching
        self.overlap, self.nodes = overlap, nodes
        experts = torch.tensor(expert_map, device=backend.device)
        self.load = ExpertLoad(experts.chunk(group.size, 1)[group.rank], group.size)
        self.dispatcher = self._dispatcher(group, max_step_tokens)
        self.rotary = RotaryTable(
            config.qk_rope_head_dim, config.max_position_embeddings, config.rope_theta, config.yarn, backend.device
        )
        unquantized, ops = backend.unquantized_dtype, backend.ops
        self.model = nn.Module()
        self.model.embed_tokens = Embedding(config.vocab_size, config.hidden_size, unquantized, backend.device)
        self.model.layers = nn.ModuleList(
            Layer(layer, config, backend, self._feed_forward(layer, expert_map, group.rank))
            for layer in range(config.num_hidden_layers)
        )
        self.model.norm = RmsNorm(config.hidden_size, config.rms_norm_eps, unquantized, ops)
        if config.tie_word_embeddings:
            self.lm_head = Linear(self.model.embed_tokens.weight, ops)
        else:
            self.lm_head = linear(config.hidden_size, config.vocab_size, unquantized, ops)
        if config.power_of_two_scales:
            round_scales_up(self)

    def forward(self, prefilling: Sequence[Chunk], decoding: Sequence[Chunk], cache: LatentCache) -> Tensor:
        """Compute a step. Return the hidden states [T, D] of its tokens, chunk by chunk; T may be 0.

        The tokens' latents are written to `cache`.
        """
        steps = self._micro_batches(prefilling, decoding)
        return self._run(steps, lambda step: self._hidden_states(step, cache, step))

    def next_logits(self, prefilling: Sequence[Chunk], decoding: Sequence[Chunk], cache: LatentCache) -> Tensor:
        """Compute a step as `forward` does. Return the logits after the last token of each chunk, [chunks, vocab]."""
        return self.logits_of_step(self._micro_batches(prefilling, decoding), cache)

    def logits_of_step(self, micro_batches: list[ForwardBatch], cache: LatentCache) -> Tensor:
        """Compute a step with the tensors of these micro-batches. Return its logits, [answering tokens, vocab]."""
        return self._run(micro_batches, lambda step: self._next_logits(step, cache))

    def last_hidden_states(self, prefilling: Sequence[Chunk], decoding: Sequence[Chunk], cache: LatentCache) -> Tensor:
        """Compute a step as `forward` does. Return the hidden states of the last token of each chunk, [chunks, D]."""
        steps = self._micro_batches(prefilling, decoding)
        return self._run(steps, lambda step: self._hidden_states(step, cache, step.select_answering()))

    def apply_final_norm(self, x_TD: Tensor) -> Tensor:
        """Return hidden states after the final norm, as the head reads them: [T, D] in FP32."""
        return self.batching.rows(self.model.norm, x_TD).float()

    def logits(self, x_TD: Tensor) -> Tensor:
        """Return the logits of hidden states, [T, vocab] in FP32."""
        return self.batching.rows(self._head, x_TD)

    def begin_step(self, micro_batches: list[ForwardBatch]) -> None:
        """Let the ranks agree how to dispatch in this step. Every rank must call this before its first dispatch."""
        self.dispatcher.begin_step(max(len(step.token_ids_T) for step in micro_batches))

    def moe_layers(self) -> list[MixtureOfExperts]:
        """Return the layers that have experts, in order."""
        return [layer.mlp for layer in self.model.layers if isinstance(layer.mlp, MixtureOfExperts)]

    def row_functions(self) -> list[tuple[Callable[[Tensor], Any], int, torch.dtype]]:
        """Return (function, row size, dtype) of one module of each type and shape that computes rows independently.

        Each output row of such a module depends on one input row. `check_machine` tries them for batch invariance.
        """
        functions: dict[Any, tuple[Callable[[Tensor], Any], int, torch.dtype]] = {}
        for module in self.modules():
            if function := _row_function(module):
                parameters = list(module.parameters())
                shapes = (type(module), *(parameter.shape for parameter in parameters))
                functions[shapes] = function, parameters[0].shape[-1], self.backend.unquantized_dtype
        return list(functions.values())

    def _run(self, micro_batches: list[ForwardBatch], flow: Callable[[ForwardBatch], Flow[Tensor]]) -> Tensor:
        """Run the micro-batches' flows in turns, and return their results, concatenated along the tokens."""
        self.begin_step(micro_batches)
        return torch.cat(self.overlap.run([flow(step) for step in micro_batches]))

    def _micro_batches(self, prefilling: Sequence[Chunk], decoding: Sequence[Chunk]) -> list[ForwardBatch]:
        steps = []
        for share in self.overlap.shares(_num_tokens(prefilling) + _num_tokens(decoding)):
            prompts, prefilling = cut(prefilling, share)
            requests, decoding = cut(decoding, share - _num_tokens(prompts))
            steps.append(ForwardBatch(prompts, requests, self.backend.device))
        return steps

    def _next_logits(self, step: ForwardBatch, cache: LatentCache) -> Flow[Tensor]:
        """Return the flow that computes the logits of the step's tokens.

        The head of one micro-batch hides the last exchange of the other micro-batch.
        """
        x_TD = yield from self._hidden_states(step, cache, step.select_answering())
        with span("head"):
            return self.logits(x_TD)

    def _hidden_states(self, step: ForwardBatch, cache: LatentCache, answering: ForwardBatch) -> Flow[Tensor]:
        """Return the flow that computes the hidden states of the tokens `answering`.

        The last layer computes only latents of the other tokens, because nothing reads their hidden states.
        """
        cos, sin = self.rotary.lookup(step.positions_T)
        x_TD = self.model.embed_tokens(step.token_ids_T)
        for layer, pages in zip(self.model.layers, cache.layers, strict=True):
            is_last = layer is self.model.layers[-1]
            x_TD = yield from layer(x_TD, cos, sin, step, answering if is_last else step, pages)
        return x_TD

    def _head(self, x_TD: Tensor) -> Tensor:
        return self.lm_head(self.model.norm(x_TD)).float()

    def _dispatcher(self, group: Group, max_step_tokens: int | None) -> TokenDispatcher:
        config, backend = self.config, self.backend
        capacity = None if max_step_tokens is None else max(self.overlap.shares(max_step_tokens))
        is_fp8 = backend.dtype == E4M3
        fp8_rows = Fp8Rows(config.hidden_size, config.power_of_two_scales, backend.ops)
        row_format = fp8_rows if is_fp8 else PlainRows(backend.dtype)
        x_1D = torch.zeros(1, config.hidden_size, dtype=backend.unquantized_dtype, device=backend.device)
        slots_per_rank = self.load.rows.shape[1]
        return new_dispatcher(group, slots_per_rank, config.num_experts_per_tok, row_format, x_1D, backend, capacity)

    def _feed_forward(self, layer: int, expert_map: PhysicalToLogical, rank: int) -> nn.Module:
        config, backend = self.config, self.backend
        moe_layer = layer - config.first_k_dense_replace
        if moe_layer < 0:
            return GatedMlp(config.hidden_size, config.intermediate_size, backend.dtype, backend.ops)
        replicas = ReplicaTable(expert_map[moe_layer], config.n_routed_experts, rank, backend.ops, self.nodes)
        return MixtureOfExperts(config, backend, moe_layer, replicas, self.dispatcher, self.load)


class Layer(nn.Module):
    """Attention, then dense MLP or mixture of experts. Each follows a norm and is added to its input."""

    def __init__(self, index: int, config: ModelConfig, backend: Backend, feed_forward: nn.Module) -> None:
        super().__init__()
        self.index, self.batching = index, backend.batching
        self.span = partial(span, layer=index)
        norm = config.hidden_size, config.rms_norm_eps, backend.unquantized_dtype, backend.ops
        self.input_layernorm = RmsNorm(*norm)
        self.self_attn = LatentAttention(config, backend)
        self.post_attention_layernorm = RmsNorm(*norm)
        self.mlp = feed_forward

    def forward(
        self, x_TD: Tensor, cos: Tensor, sin: Tensor, step: ForwardBatch, answering: ForwardBatch, pages: LayerPages
    ) -> Flow[Tensor]:
        """Map [T, D] to the hidden states of the `answering` tokens, which are all or some.

        The latents of all tokens are written to `pages`.
        """
        x_TD = yield from self._attention(x_TD, cos, sin, step, answering, pages)
        return (yield from self._feed_forward(x_TD))

    def _attention(
        self, x_TD: Tensor, cos: Tensor, sin: Tensor, step: ForwardBatch, answering: ForwardBatch, pages: LayerPages
    ) -> Flow[Tensor]:
        """Run attention as a flow of its own.

        The flow frees the queries when it ends, because they must be gone while experts compute.
        """
        with self.span("attention 1"):
            normed_TD = self.batching.rows(self.input_layernorm, x_TD)
            latent_TC = self.self_attn.latent(normed_TD, cos, sin)
            pages.write(step.slot_mapping_T, latent_TC)
            step.give_latents(self.index, latent_TC)
            if answering is not step:
                x_TD, normed_TD, cos, sin = (rows[step.answering_A] for rows in (x_TD, normed_TD, cos, sin))
            queries = self.self_attn.begin(normed_TD, cos, sin, answering)
        yield Pause.HALF_ATTENDED
        with self.span("attention 2"):
            return x_TD + self.self_attn.finish(queries, answering, pages)

    def _feed_forward(self, x_TD: Tensor) -> Flow[Tensor]:
        normed_TD = self.batching.rows(self.post_attention_layernorm, x_TD)
        if isinstance(self.mlp, MixtureOfExperts):
            return x_TD + (yield from self.mlp(normed_TD))
        with self.span("mlp"):
            return x_TD + self.batching.rows(self.mlp, normed_TD)


def _num_tokens(chunks: Sequence[Chunk]) -> int:
    return sum(len(chunk.token_ids) for chunk in chunks)


def _row_function(module: nn.Module) -> Callable[[Tensor], Any] | None:
    """Return the function by which the module computes rows independently; None if it does not.

    For these modules the last dimension of the first parameter is the size of a row, which `row_functions` needs.
    """
    match module:
        case Linear() | Fp8Linear() | RmsNorm() | GatedMlp() | Gate():
            return module
        case LocalExperts():
            return partial(module.expert, 0)
        case Fp8Experts():
            return module.first_expert
        case LatentAttention():
            return module.decode_without_cache
    return None
