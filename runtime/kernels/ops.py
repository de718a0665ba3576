"""The reference table of a model's operations, in plain torch on any device.

Each kind of machine has a folder (`cpu/`, `gpu/`) with tables that override some operations. An override decides by the
sizes of its arguments when its own code is faster. `backend.py` chooses one table when a model is built. The model
calls its methods and knows nothing of kernels.

All tables agree up to rounding. A table for deterministic mode overrides only operations in which a row's bits do not
depend on other rows.

Only `read` brings values from a device to the host, which waits for them.

The package's docstring has the legend of the shape letters.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.kernels import fp8
from runtime.kernels.device import HostLink
from runtime.kernels.fp8 import ExpertCodes, Quantised

__all__ = ["GateRule", "Ops", "inverse_order", "private_copy"]

# Queries of a prompt are scored in blocks, each against the keys up to its end. That skips half of a causal square.
QUERY_BLOCK = 128


class GateRule(NamedTuple):
    """The rule by which a gate chooses and weighs experts.

    A group is judged by the sum of its `num_best` best scores.
    """

    is_softmax: bool  # otherwise each score is a sigmoid
    num_groups: int
    num_best: int
    topk_group: int
    top_k: int
    is_normalised: bool
    factor: float


class Ops:
    """The reference operations, on `device`, where every tensor of a model is made."""

    link = HostLink()  # between the device's memory and the host's
    row_alignment = 1  # `fp8_experts` and `masked_fp8_experts` need each slot to begin at a multiple of it
    compiles_in_steps = False  # whether kernels are compiled for a step's shapes, too late for `prepare`

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def prepare(self) -> None:
        """Load or compile the kernels for which the first step would otherwise wait."""

    def read(self, numbers: Tensor) -> Any:
        """Return integers as nested lists on the host. The host waits until the device has computed them."""
        return numbers.tolist()

    def check_scales(self, power_of_two: bool) -> None:
        """Raises RuntimeFailure if these operations cannot use the scales of an FP8 model.

        `power_of_two` says that the model's scales are powers of two.
        """

    # products

    def matmul(self, a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
        """Return a b, of two matrices or of two batches of them, rounded once."""
        return torch.matmul(a, b, out=out)

    def scores(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """Return scale x q k^T, for batches of matrices, rounded once."""
        return torch.baddbmm(q.new_empty(1), q, k.mT, beta=0, alpha=scale)

    # projections, norms, MLPs

    def linear(self, x_RD: Tensor, w_OD: Tensor) -> Tensor:
        """Return x w^T, [R, O]."""
        return self.matmul(x_RD, w_OD.mT)

    def rms_norm(self, x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        """Return x / sqrt(mean of x^2 + eps) * weight, [..., D], with the mean square in FP32."""
        return F.rms_norm(x, weight_D.shape, weight_D, eps)

    def silu_product(self, gate_RI: Tensor, up_RI: Tensor) -> Tensor:
        """Return silu(gate) * up, [R, I]; both may be parts of one tensor's rows."""
        return F.silu(gate_RI.contiguous()).mul_(up_RI)  # silu is twice as slow for rows with gaps

    def gated_mlp(self, x_RD: Tensor, gate_ID: Tensor, up_ID: Tensor, down_DI: Tensor) -> Tensor:
        """Return down(silu(gate x) * up x), [R, D]."""
        return self.linear(self.silu_product(self.linear(x_RD, gate_ID), self.linear(x_RD, up_ID)), down_DI)

    def quantise_rows(self, x_RD: Tensor, power_of_two: bool) -> Quantised:
        """Return each row's codes, and the scales of its groups, which are powers of two if `power_of_two`."""
        return fp8.quantise_rows(x_RD, power_of_two)

    def fp8_matmul(self, x: Quantised, w: Quantised, dtype: torch.dtype) -> Tensor:
        """Return x w^T of two FP8 tensors with scales, [R, O], accumulated in FP32 and rounded once, to `dtype`."""
        return fp8.matmul(x, w).to(dtype)

    # attention

    def rotate(self, x: Tensor, cos_TX: Tensor, sin_TX: Tensor, neighbours: bool) -> None:
        """Rotate pairs of numbers in place.

        With `neighbours` the pairs are (x[0], x[1]), (x[2], x[3]), ..., as in DeepSeek's checkpoints. Otherwise a pair
        takes one number from each half: (x[0], x[P / 2]), (x[1], x[P / 2 + 1]), ...

        `x` has tokens [T, P] or their heads [T, H, P]; cos and sin are [T, P / 2] in FP32. Each pair is multiplied as a
        complex number by cos + i sin, in one pass over memory instead of six.
        """
        over_heads = (slice(None), *(None,) * (x.dim() - 2))
        pairs = x.unflatten(-1, (-1, 2)) if neighbours else x.unflatten(-1, (2, -1)).mT
        in_fp32 = pairs.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        turned = torch.view_as_complex(in_fp32) * torch.complex(cos_TX[over_heads], sin_TX[over_heads])
        pairs.copy_(torch.view_as_real(turned))

    def attend_causally(
        self, q_THQ: Tensor, kv_SHX: Tensor, k_rope_SP: Tensor, value_size: int, scale: float
    ) -> Tensor:
        """Compute attention of the last T of a request's S tokens to themselves and all before: [T, H, U].

        `kv_SHX` has each head's key without its rotary part, then its value of `value_size` channels. Keys and values
        are copied, because their place in memory must not affect the result.
        """
        k_nope_HSN, v_HSU = kv_SHX.transpose(0, 1).split((kv_SHX.shape[-1] - value_size, value_size), -1)
        k_HSQ = torch.cat((k_nope_HSN, k_rope_SP.expand(len(k_nope_HSN), -1, -1)), -1)
        v_HSU = private_copy(v_HSU)
        before, contexts = len(kv_SHX) - len(q_THQ), []
        for start, q_block in zip(range(before, len(kv_SHX), QUERY_BLOCK), q_THQ.split(QUERY_BLOCK), strict=True):
            end = start + len(q_block)
            scores_HTS = self.scores(private_copy(q_block.transpose(0, 1)), k_HSQ[:, :end].contiguous(), scale)
            context_HTU = self.matmul(self.causal_softmax(scores_HTS), v_HSU[:, :end].contiguous())
            contexts.append(context_HTU.transpose(0, 1))
        return torch.cat(contexts)

    def causal_softmax(self, scores_HTS: Tensor) -> Tensor:
        """Return the softmax of the scores, [H, T, S], over the keys that each of the last T of S tokens sees.

        The scores are overwritten.
        """
        num_queries = scores_HTS.shape[1]
        later = scores_HTS.new_full((num_queries, num_queries), -torch.inf).triu_(1)
        scores_HTS[..., -num_queries:] += later
        return scores_HTS.softmax(-1)

    def absorb_query(self, q_BHQ: Tensor, up_XL: Tensor, rope: int, value_size: int) -> Tensor:
        """Map queries [B, H, N + P] by the key half of `kv_b_proj` (`up_XL`) into the latents' space: [B, H, L + P]."""
        q_nope_BHN, q_rope_BHP = q_BHQ.split((q_BHQ.shape[-1] - rope, rope), -1)
        w_k_HNL = up_XL.unflatten(0, (q_BHQ.shape[1], -1))[:, :-value_size]
        absorbed_HBL = self.matmul(q_nope_BHN.transpose(0, 1), w_k_HNL)
        return torch.cat((absorbed_HBL.transpose(0, 1), q_rope_BHP), -1)

    def attend(self, q_BHC: Tensor, latent_BSC: Tensor, lengths_B: Tensor, lora_rank: int, scale: float) -> Tensor:
        """Compute attention of each request's query to its first `lengths_B` latents: [B, H, L]; L is `lora_rank`."""
        beyond_BS = torch.arange(latent_BSC.shape[1], device=lengths_B.device) >= lengths_B[:, None]
        scores_BHS = self.scores(q_BHC, latent_BSC, scale).masked_fill_(beyond_BS[:, None], -torch.inf)
        return self.matmul(scores_BHS.softmax(-1), latent_BSC[..., :lora_rank])

    def attend_pages(
        self, q_BHC: Tensor, pages_JSC: Tensor, tables_BJ: Tensor, lengths_B: Tensor, lora_rank: int, scale: float
    ) -> Tensor:
        """Return attention as `attend` does, [B, H, L], with the latents in the pages of the cache."""
        return self.attend(q_BHC, self.read_pages(pages_JSC, tables_BJ), lengths_B, lora_rank, scale)

    def read_pages(self, pages_JSC: Tensor, tables_BJ: Tensor) -> Tensor:
        """Return a copy of all pages of each request, [B, positions, C], including positions that are not used."""
        num_requests, max_pages = tables_BJ.shape
        pages = pages_JSC.flatten(1).index_select(0, tables_BJ.flatten())
        return pages.view(num_requests, max_pages * pages_JSC.shape[1], pages_JSC.shape[2])

    def up_project_values(self, context_BHL: Tensor, up_XL: Tensor, value_size: int) -> Tensor:
        """Apply the value half of `kv_b_proj` (`up_XL`) to each head's latent context: [B, H x U]."""
        w_v_HUL = up_XL.unflatten(0, (context_BHL.shape[1], -1))[:, -value_size:]
        value_HBU = self.matmul(context_BHL.transpose(0, 1), w_v_HUL.mT)
        return value_HBU.transpose(0, 1).flatten(1)

    # the gate

    def gate_logits(self, x_TD: Tensor, w_ED: Tensor) -> Tensor:
        """Return x w^T, [T, E] in FP32."""
        return F.linear(x_TD.float(), w_ED.float())

    def choose_and_weigh(self, logits_TE: Tensor, bias_E: Tensor | None, rule: GateRule) -> tuple[Tensor, Tensor]:
        """Return each token's experts, best first, and their weights in FP32: both [T, K].

        The bias affects the choice, not the weights.
        """
        scores_TE = logits_TE.softmax(-1) if rule.is_softmax else logits_TE.sigmoid()
        eligible_TE = scores_TE if bias_E is None else scores_TE + bias_E
        experts_TK = self.choose_experts(eligible_TE, rule.num_groups, rule.num_best, rule.topk_group, rule.top_k)
        weights_TK = scores_TE.gather(1, experts_TK)
        if rule.is_normalised:
            weights_TK = weights_TK / (weights_TK.sum(-1, keepdim=True) + 1e-20)
        return experts_TK, weights_TK * rule.factor

    def replicas_in_turn(
        self, experts_TK: Tensor, slots_S: Tensor, first_E: Tensor, num_replicas_E: Tensor, turn: Tensor
    ) -> Tensor:
        """Return a slot for each choice, [T, K]. Token t takes replica (t + turn) modulo its expert's replicas.

        An expert's slots lie in `slots_S` one after another, from `first_E` on. `turn` is one number on the device.
        """
        turns_T1 = torch.arange(len(experts_TK), device=experts_TK.device)[:, None] + turn
        return slots_S.take(first_E.take(experts_TK) + turns_T1 % num_replicas_E.take(experts_TK))

    def choose_experts(self, scores_TE: Tensor, num_groups: int, num_best: int, topk_group: int, top_k: int) -> Tensor:
        """Return each token's `top_k` best experts in its `topk_group` best groups: [T, K], best first.

        A group is judged by its best expert's score or, under `noaux_tc`, by the sum of its two best: `num_best`.
        """
        grouped_TGX = scores_TE.unflatten(1, (num_groups, -1))
        worth_TG = grouped_TGX.topk(num_best, -1).values.sum(-1)
        eligible_TG = torch.zeros_like(worth_TG, dtype=torch.bool)
        eligible_TG.scatter_(1, worth_TG.topk(topk_group, -1).indices, True)
        eligible_TE = grouped_TGX.masked_fill(~eligible_TG[..., None], -torch.inf).flatten(1)
        return eligible_TE.topk(top_k, -1).indices

    # experts

    def sort_by_slot(self, slots_TK: Tensor, num_slots: int) -> tuple[Tensor, Tensor, Tensor]:
        """Sort (token, choice) pairs by slot, stably.

        Return how many pairs each slot has [M], the pair in each row [T x K], and the row of each pair [T x K].
        """
        slots = slots_TK.flatten()
        pair_of_row = slots.argsort(stable=True)
        counts_M = slots.new_zeros(num_slots).scatter_add_(0, slots, torch.ones_like(slots))
        return counts_M, pair_of_row, inverse_order(pair_of_row)

    def place_rows(self, slots_TK: Tensor, num_slots: int) -> tuple[Tensor, Tensor]:
        """Assign a row to each (token, choice) pair, slot after slot. A slot's pairs keep their order.

        A slot's first row is a multiple of `row_alignment`. Return the row of each pair [T, K], and each slot's number
        of pairs [M]. A pair with slot -1 is not here and gets row -1.
        """
        slots = slots_TK.flatten()
        slots = torch.where(slots < 0, num_slots, slots)  # an extra slot, for pairs that are not here
        counts, _, order = self.sort_by_slot(slots[:, None], num_slots + 1)
        aligned = -(-counts // self.row_alignment) * self.row_alignment
        moved = (aligned.cumsum(0) - aligned) - (counts.cumsum(0) - counts)
        place = (order.flatten() + moved[slots]).masked_fill(slots == num_slots, -1)
        return place.view(slots_TK.shape), counts[:num_slots]

    def spread_rows(self, x: Tensor | Quantised, place_TK: Tensor, num_rows: int) -> Tensor | Quantised:
        """Return `num_rows` rows, [num_rows, D], with each token copied to its rows.

        Rows that fill up a tile may have any content.
        """
        tokens_TK = torch.arange(len(place_TK), device=place_TK.device)[:, None].expand(place_TK.shape)
        places = torch.where(place_TK < 0, num_rows, place_TK).flatten()
        token_of_row = place_TK.new_zeros(num_rows + 1).scatter_(0, places, tokens_TK.flatten())[:num_rows]
        if not isinstance(x, Quantised):
            return x.index_select(0, token_of_row)
        codes = x.codes.view(torch.uint8).index_select(0, token_of_row)  # bytes are quick to copy
        return Quantised(codes.view(x.codes.dtype), x.scales.index_select(0, token_of_row))

    def add_rows(self, rows_RD: Tensor, place_TK: Tensor, weights_TK: Tensor) -> Tensor:
        """Return the weighted sum of each token's rows, [T, D]. A place of -1 means no row.

        For such a place the token's first row is read with weight 0, so that another token's NaN cannot spread.
        """
        if not len(rows_RD):
            return rows_RD.new_zeros(len(place_TK), rows_RD.shape[1])
        is_here_TK = place_TK >= 0
        first_T1 = place_TK.amax(1, keepdim=True).clamp_(min=0)
        weights_TK = weights_TK.masked_fill(~is_here_TK, 0)
        return self.weighted_sum(rows_RD, torch.where(is_here_TK, place_TK, first_T1), weights_TK)

    def expert(self, rows_RD: Tensor, gate_up_XD: Tensor, down_DI: Tensor, out: Tensor | None = None) -> Tensor:
        """Compute one expert's gated MLP, [R, D]. Gate and up are one matrix. `out` may be the rows themselves."""
        gate_RI, up_RI = self.matmul(rows_RD, gate_up_XD.mT).chunk(2, -1)
        return self.matmul(self.silu_product(gate_RI, up_RI), down_DI.mT, out)

    def experts(self, rows_RD: Tensor, counts: list[int], gate_up_MXD: Tensor, down_MDI: Tensor) -> Tensor:
        """Replace each slot's rows with its expert's results, and return all rows, [R, D].

        The rows lie slot after slot; slot i has `counts[i]` rows.
        """
        matrices = zip(rows_RD.split(counts), gate_up_MXD, down_MDI, strict=True)
        for rows, gate_up_XD, down_DI in matrices:
            rows.copy_(self.expert(rows, gate_up_XD, down_DI))
        return rows_RD

    def masked_experts(self, rows_MZD: Tensor, counts_M: Tensor, gate_up_MXD: Tensor, down_MDI: Tensor) -> Tensor:
        """Return the experts' results [M, Z, D] for the first `counts_M` of each slot's Z rows; 0 for other rows."""
        gate_MZI, up_MZI = self.matmul(rows_MZD, gate_up_MXD.mT).chunk(2, -1)
        hidden_XI = self.silu_product(gate_MZI.flatten(0, 1), up_MZI.flatten(0, 1))
        results_MZD = self.matmul(hidden_XI.unflatten(0, rows_MZD.shape[:2]), down_MDI.mT)
        is_empty_MZ = torch.arange(rows_MZD.shape[1], device=counts_M.device) >= counts_M[:, None]
        return results_MZD.masked_fill_(is_empty_MZ[..., None], 0)

    def fp8_expert(self, x: Quantised, experts: ExpertCodes, slot: int) -> Tensor:
        """Return the results of the expert in `slot` for the rows `x`, [R, D] in BF16."""
        weights = zip(experts.gate_up.codes[slot], experts.gate_up.scales[slot], strict=True)
        gate_RI, up_RI = (self.fp8_matmul(x, Quantised(*weight), torch.bfloat16) for weight in weights)
        product = self.quantise_rows(F.silu(gate_RI) * up_RI, experts.power_of_two)
        down = Quantised(experts.down.codes[slot], experts.down.scales[slot])
        return self.fp8_matmul(product, down, torch.bfloat16)

    def fp8_experts(self, x: Quantised, counts: list[int], counts_M: Tensor, experts: ExpertCodes) -> Tensor:
        """Return the FP8 experts' results, [R, D] in BF16, for rows in slot order.

        Slot i has `counts[i]` rows, of which the first `counts_M[i]` are real.
        """
        results_RD = torch.empty(x.codes.shape, dtype=torch.bfloat16, device=x.codes.device)
        parts = zip(*(rows.split(counts) for rows in (x.codes, x.scales, results_RD)), strict=True)
        for slot, (codes, scales, results) in enumerate(parts):
            if len(codes):
                results.copy_(self.fp8_expert(Quantised(codes, scales), experts, slot))
        return results_RD

    def masked_fp8_experts(self, x: Quantised, counts_M: Tensor, experts: ExpertCodes, expected_rows: int) -> Tensor:
        """Return the FP8 experts' results, [M, Z, D] in BF16, at least for the first `counts_M` of each slot's rows.

        Here all rows of a slot are computed, so that the host need not wait for the counts. A slot has
        `expected_rows` rows on average.
        """
        slots = zip(x.codes, x.scales, strict=True)
        return torch.stack([self.fp8_expert(Quantised(*rows), experts, slot) for slot, rows in enumerate(slots)])

    def weighted_sum(self, rows_RD: Tensor, row_of_pair_TK: Tensor, weights_TK: Tensor) -> Tensor:
        """Return the weighted sum of each token's rows, in the order of its choices: [T, D]. No row is copied."""
        weights_TK = weights_TK.to(rows_RD.dtype)
        return F.embedding_bag(row_of_pair_TK, rows_RD, per_sample_weights=weights_TK, mode="sum")


def private_copy(x: Tensor) -> Tensor:
    """Return a copy of `x`, whose address and strides do not depend on the address and strides of `x`."""
    return x.clone(memory_format=torch.contiguous_format)


def inverse_order(order: Tensor) -> Tensor:
    """Return the inverse of the permutation `order`: the position of each element."""
    positions = torch.empty_like(order)
    positions[order] = torch.arange(len(order), device=order.device)
    return positions
