"""Multi-token prediction: one more layer, which drafts the token after next.

    main model   tokens 0 .. t      ->  hidden state h_t, next token t+1
    MTP          h_t and token t+1  ->  a draft of token t+2, which the main model could verify

    x_t = eh_proj([enorm(embed(token t+1)); hnorm(norm(h_t))])        norm: the main model's last
    logits = head(shared_head.norm(layer(x)))                          embedding and head are the main model's

The layer is a mixture of experts like the main model's, with a row of its own in the expert map and one layer of latent
cache of its own; in a checkpoint it is layer `num_hidden_layers`. `weights.load` fills it. It only drafts: nothing
verifies its drafts, and no phase uses it so far.

Source: DeepSeek-V3 (arXiv 2412.19437) section 2.2; DeepSeek-V3 README_WEIGHTS.md, "MTP Modules". They leave out the
order inside eh_proj (vLLM, `model_executor/models/deepseek_mtp.py`), and that h is normalised first (ROCm/ATOM#1764).
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from runtime.expert_parallel.expert_load import ExpertLoad
from runtime.expert_parallel.group import Group
from runtime.expert_parallel.overlap import OVERLAPS
from runtime.kv.cache import LayerPages
from runtime.model.deepseek import DeepseekV3, Layer
from runtime.model.forward_batch import Chunk, ForwardBatch
from runtime.model.fp8 import round_scales_up
from runtime.model.layers import RmsNorm, linear
from runtime.model.moe import MixtureOfExperts, ReplicaTable

__all__ = ["MultiTokenPrediction"]


class MultiTokenPrediction(nn.Module):
    """One rank's part of the MTP layer. Parameters are named as published, and empty until they are loaded."""

    def __init__(self, main: DeepseekV3, physical_to_logical: list[int], group: Group) -> None:
        """Build the layer. `physical_to_logical` is its expert map, over as many slots as the main model's."""
        super().__init__()
        config, backend = main.config, main.backend
        self._main = [main]  # in a list, because its parameters are not this module's
        slots = torch.tensor([physical_to_logical], device=backend.device)
        self.load = ExpertLoad(slots.chunk(group.size, 1)[group.rank], group.size)
        replicas = ReplicaTable(physical_to_logical, config.n_routed_experts, group.rank, backend.ops, main.nodes)
        experts = MixtureOfExperts(config, backend, 0, replicas, main.dispatcher, self.load)
        layer = Layer(config.num_hidden_layers, config, backend, experts)
        unquantized, ops = backend.unquantized_dtype, backend.ops
        norm = config.hidden_size, config.rms_norm_eps, unquantized, ops
        layer.enorm, layer.hnorm = RmsNorm(*norm), RmsNorm(*norm)
        layer.eh_proj = linear(2 * config.hidden_size, config.hidden_size, unquantized, ops)
        layer.shared_head = nn.Module()
        layer.shared_head.norm = RmsNorm(*norm)
        self.model = nn.Module()
        self.model.layers = nn.ModuleDict({str(config.num_hidden_layers): layer})
        if config.power_of_two_scales:
            round_scales_up(self)

    def forward(
        self, prefilling: Sequence[Chunk], decoding: Sequence[Chunk], hidden_TD: Tensor, pages: LayerPages
    ) -> Tensor:
        """Return the logits of the tokens after next, [T, vocab] in FP32. A collective of the unit, so T may be 0.

        `hidden_TD` are the main model's hidden states at some positions. At these positions the chunks have the tokens
        that follow. The latents of earlier positions are in `pages`.
        """
        (main,) = self._main
        step = ForwardBatch(prefilling, decoding, main.backend.device)
        main.begin_step([step])
        cos, sin = main.rotary.lookup(step.positions_T)
        x_TD = main.batching.rows(self._join, main.model.embed_tokens(step.token_ids_T), hidden_TD)
        (x_TD,) = OVERLAPS["none"].run([self._layer(x_TD, cos, sin, step, step, pages)])
        return main.batching.rows(self._head, x_TD)

    @property
    def _layer(self) -> Layer:
        (layer,) = self.model.layers.values()
        return layer

    def _join(self, embedded_TD: Tensor, hidden_TD: Tensor) -> Tensor:
        (main,) = self._main
        hidden_TD = self._layer.hnorm(main.model.norm(hidden_TD))
        return self._layer.eh_proj(torch.cat((self._layer.enorm(embedded_TD), hidden_TD), -1))

    def _head(self, x_TD: Tensor) -> Tensor:
        (main,) = self._main
        return main.lm_head(self._layer.shared_head.norm(x_TD)).float()
