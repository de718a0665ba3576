"""The table of operations for a GPU: DeepSeek's kernels if they are installed and fit, else torch.

    FP8 matmuls        DeepGEMM: projections; experts' rows grouped slot after slot, or masked with room in every slot
    decode attention   FlashMLA over the pages of the cache; without it request by request, so that only one request's
                       latents are copied together at a time
    prompt attention   torch's scaled_dot_product_attention, which never stores the scores. If a chunk has tokens before
                       it, cuDNN attends to these and to the chunk separately, and the two results are merged
    the gate           tensor cores multiply BF16 and add in FP32
    quantising         Triton kernels (`quantise.py`), which make no copy of rows in FP32
    rotary, choosing   Triton kernels (`fused.py`) in place of several passes; also for the order of DeepEP's rows

Each operation decides by the sizes of its arguments whether a kernel fits. FP8 matmuls need channels in whole blocks of
128 and outputs in multiples of 8; FlashMLA needs DeepSeek-V3's latents of 576 channels. Before each call `contracts.py`
checks the arguments. The reference computes everything else, on the GPU.

Worked example, one MoE layer of EP144 decode: 2 slots with room for 9,216 rows each. The first masked matmul computes
gate and up of the rows that came, [2, 9216, 4096]. One kernel quantises silu(gate) x up. The second matmul computes the
results, [2, 9216, 7168].

We have run them on one H100 (`tests/gpu`), and on no GPU of another kind.

Sources: github.com/deepseek-ai/DeepGEMM 54e22612 tests/test_fp8_fp4.py and FlashMLA 9241ae3e
tests/test_flash_mla_dense_decoding.py, for the calls; torch.nn.attention.bias, causal_lower_right.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.utils.weak import WeakIdKeyDictionary

from runtime.errors import RuntimeFailure
from runtime.kernels.device import PinnedLink
from runtime.kernels.fp8 import BLOCK, ExpertCodes, Quantised
from runtime.kernels.gpu import contracts, fused, quantise
from runtime.kernels.gpu.packages import BLACKWELL, HOPPER, Packages
from runtime.kernels.ops import GateRule, Ops

__all__ = ["GpuOps", "merge_attention"]

OUTPUTS_STEP = 8  # BF16 outputs of a row in 16 bytes, as TMA stores them


class GpuOps(Ops):
    """Operations on `device`, by the kernels in `packages` where they fit."""

    compiles_in_steps = True  # DeepGEMM's and Triton's

    def __init__(self, device: torch.device, packages: Packages) -> None:
        super().__init__(device)
        self.packages = packages
        self.link = PinnedLink(device)
        if packages.deep_gemm is not None:
            self.row_alignment = int(packages.deep_gemm.get_mk_alignment_for_contiguous_layout())
        self._steps = WeakIdKeyDictionary()  # FlashMLA's arguments in a step, the same for all layers

    def check_scales(self, power_of_two: bool) -> None:
        """Raises RuntimeFailure if DeepGEMM would drop the mantissas of a model's scales on this GPU."""
        if self.packages.deep_gemm is not None and self.packages.arch == BLACKWELL and not power_of_two:
            raise RuntimeFailure(
                "this checkpoint's FP8 scales are not powers of two (its config.json has no scale_fmt: ue8m0), and on"
                " sm_100 DeepGEMM keeps their exponents alone; use GPUs of sm_90, or a checkpoint with such scales"
            )

    # projections

    def quantise_rows(self, x_RD: Tensor, power_of_two: bool) -> Quantised:
        """Quantise rows without a copy in FP32. The scales have the strides that DeepGEMM reads."""
        if not self._fits_gemm(x_RD.shape[-1]):
            return super().quantise_rows(x_RD, power_of_two)
        return self._quantise(x_RD, power_of_two)

    def fp8_matmul(self, x: Quantised, w: Quantised, dtype: torch.dtype) -> Tensor:
        """Multiply FP8 tensors with DeepGEMM, which rounds the result once, to BF16."""
        (outputs, channels), num_rows = w.codes.shape, len(x.codes)
        if dtype != torch.bfloat16 or not self._fits_gemm(channels, outputs):
            return super().fp8_matmul(x, w, dtype)
        result = torch.empty(num_rows, outputs, dtype=dtype, device=self.device)
        contracts.check_gemm(x, w, result)
        self.packages.deep_gemm.fp8_gemm_nt((x.codes, x.scales), (w.codes, w.scales), result)
        return result

    # attention

    def rotate(self, x: Tensor, cos_TX: Tensor, sin_TX: Tensor, neighbours: bool) -> None:
        """Rotate pairs in place, in one pass over memory."""
        if self._runs_triton(x) and x.stride(-1) == 1 and fused.are_powers_of_two(x.shape[-1]):
            fused.rotate(x, cos_TX, sin_TX, neighbours)
        else:
            super().rotate(x, cos_TX, sin_TX, neighbours)

    def attend_causally(
        self, q_THQ: Tensor, kv_SHX: Tensor, k_rope_SP: Tensor, value_size: int, scale: float
    ) -> Tensor:
        """Return causal attention of a chunk's queries, [T, H, U].

        cuDNN masks only squares, so attention to the chunk's own keys and to earlier keys is computed separately and
        merged. Without cuDNN torch uses its kernel for arbitrary masks, which is a quarter as fast
        (`docs/performance.md`).
        """
        before = len(kv_SHX) - len(q_THQ)
        heads = self._heads(q_THQ, kv_SHX[before:], k_rope_SP[before:], value_size)
        if not before:
            return self._masked_attention(*heads, scale)[0].transpose(0, 1)
        if not self._has_cudnn(*heads):
            heads = self._heads(q_THQ, kv_SHX, k_rope_SP, value_size)
            return self._masked_attention(*heads, scale)[0].transpose(0, 1)
        own = self._attention_part(*heads, scale, is_causal=True)
        # its keys take more memory than the second context, so the peak is no higher than for all keys at once
        del heads
        earlier = self._heads(q_THQ, kv_SHX[:before], k_rope_SP[:before], value_size)
        return merge_attention(*self._attention_part(*earlier, scale, is_causal=False), *own)[0].transpose(0, 1)

    def attend_pages(
        self, q_BHC: Tensor, pages_JSC: Tensor, tables_BJ: Tensor, lengths_B: Tensor, lora_rank: int, scale: float
    ) -> Tensor:
        """Return attention [B, H, L]. FlashMLA reads latents in their pages.

        Without FlashMLA, each request's latents are copied first.
        """
        if len(q_BHC) == 0:
            return q_BHC.new_empty(*q_BHC.shape[:2], lora_rank)
        if not self._fits_flash_mla(q_BHC, lora_rank):
            requests = zip(q_BHC.split(1), tables_BJ.split(1), lengths_B.split(1), strict=True)
            return torch.cat(
                [
                    self.attend(q, self.read_pages(pages_JSC, table), length, lora_rank, scale)
                    for q, table, length in requests
                ]
            )
        tables, lengths, schedule = self._step_metadata(tables_BJ, lengths_B)
        q_BSHC, pages_JSHC = q_BHC[:, None], pages_JSC[:, :, None]
        contracts.check_flash_mla(q_BSHC, pages_JSHC, tables, lengths, lora_rank)
        context_BSHL, _ = self.packages.flash_mla.flash_mla_with_kvcache(
            q_BSHC,
            pages_JSHC,
            tables,
            lengths,
            lora_rank,
            schedule,
            softmax_scale=scale,
            causal=False,
            use_legacy=True,  # dense decoding: sgl-flash-mla keeps it for sm_90, FlashMLA itself has dropped it
        )
        return context_BSHL[:, 0]

    def absorb_query(self, q_BHQ: Tensor, up_XL: Tensor, rope: int, value_size: int) -> Tensor:
        """Map queries into the latents' space, as the base class does.

        The products are written into rows that end with the rotary part: cuBLAS can leave gaps between rows.
        """
        q_nope_BHN, q_rope_BHP = q_BHQ.split((q_BHQ.shape[-1] - rope, rope), -1)
        w_k_HNL, lora_rank = up_XL.unflatten(0, (q_BHQ.shape[1], -1))[:, :-value_size], up_XL.shape[1]
        absorbed_BHC = q_BHQ.new_empty(*q_BHQ.shape[:2], lora_rank + rope)
        torch.bmm(q_nope_BHN.transpose(0, 1), w_k_HNL, out=absorbed_BHC[..., :lora_rank].transpose(0, 1))
        absorbed_BHC[..., lora_rank:] = q_rope_BHP
        return absorbed_BHC

    def up_project_values(self, context_BHL: Tensor, up_XL: Tensor, value_size: int) -> Tensor:
        """Project contexts to values, straight into rows that have a request's heads side by side."""
        num_requests, num_heads, _ = context_BHL.shape
        w_v_HUL = up_XL.unflatten(0, (num_heads, -1))[:, -value_size:]
        value_BHU = context_BHL.new_empty(num_requests, num_heads, value_size)
        torch.bmm(context_BHL.transpose(0, 1), w_v_HUL.mT, out=value_BHU.transpose(0, 1))
        return value_BHU.flatten(1)

    # the gate

    def gate_logits(self, x_TD: Tensor, w_ED: Tensor) -> Tensor:
        """Return the gate's logits, by multiplying BF16 and adding in FP32.

        Products of BF16 are exact in FP32, so nothing must be widened.
        """
        if x_TD.dtype == w_ED.dtype == torch.bfloat16:
            return self._matmul_fp32(x_TD, w_ED)
        return super().gate_logits(x_TD, w_ED)

    def choose_and_weigh(self, logits_TE: Tensor, bias_E: Tensor | None, rule: GateRule) -> tuple[Tensor, Tensor]:
        """Score, choose and weigh each token's experts in one kernel. Among equal scores the first expert wins."""
        group_size = logits_TE.shape[1] // rule.num_groups
        if self._runs_triton(logits_TE) and fused.are_powers_of_two(rule.num_groups, group_size):
            return fused.chosen_experts(logits_TE, bias_E, rule)
        return super().choose_and_weigh(logits_TE, bias_E, rule)

    def replicas_in_turn(
        self, experts_TK: Tensor, slots_S: Tensor, first_E: Tensor, num_replicas_E: Tensor, turn: Tensor
    ) -> Tensor:
        """Look up the slots of all choices in one kernel."""
        if self._runs_triton(experts_TK):
            return fused.replicas_in_turn(experts_TK, slots_S, first_E, num_replicas_E, turn)
        return super().replicas_in_turn(experts_TK, slots_S, first_E, num_replicas_E, turn)

    # experts

    def place_rows(self, slots_TK: Tensor, num_slots: int) -> tuple[Tensor, Tensor]:
        """Assign a row to each pair, by counting pairs in blocks instead of sorting them."""
        if self._runs_triton(slots_TK):
            return fused.placed_rows(slots_TK, num_slots, self.row_alignment)
        return super().place_rows(slots_TK, num_slots)

    def spread_rows(self, x: Tensor | Quantised, place_TK: Tensor, num_rows: int) -> Tensor | Quantised:
        """Copy tokens to their rows, reading each token once.

        Scales get the strides that DeepGEMM reads. Rows that fill up a tile stay unwritten.
        """
        codes = x.codes if isinstance(x, Quantised) else x
        if not self._runs_triton(codes) or codes.shape[1] * codes.element_size() % fused.WORD_BYTES:
            return super().spread_rows(x, place_TK, num_rows)
        rows = codes.new_empty(num_rows, codes.shape[1])
        if not isinstance(x, Quantised):
            none = torch.empty(0, 0, device=codes.device)
            fused.spread_rows(x.contiguous(), place_TK, rows, none, none)
            return rows
        by_columns = self.packages.arch == HOPPER
        scales = quantise.empty_scales((num_rows,), x.scales.shape[1], by_columns, codes.device)
        fused.spread_rows(codes.contiguous(), place_TK, rows, x.scales, scales)
        return Quantised(rows, scales)

    def add_rows(self, rows_RD: Tensor, place_TK: Tensor, weights_TK: Tensor) -> Tensor:
        """Return the weighted sum of each token's rows, reading each existing row once."""
        if self._runs_triton(rows_RD):
            return fused.sum_rows(rows_RD.contiguous(), place_TK, weights_TK.contiguous())
        return super().add_rows(rows_RD, place_TK, weights_TK)

    def fp8_experts(self, x: Quantised, counts: list[int], counts_M: Tensor, experts: ExpertCodes) -> Tensor:
        """Compute all slots' rows in two grouped matmuls if DeepGEMM can run the experts.

        If a slot does not fill whole tiles, rows are moved apart first.
        """
        if not self._can_use_deep_gemm_for_experts(experts):
            return super().fp8_experts(x, counts, counts_M, experts)
        aligned = [-(-count // self.row_alignment) * self.row_alignment for count in counts]
        aligned_M = -(-counts_M // self.row_alignment) * self.row_alignment
        slots = torch.arange(len(counts), dtype=torch.int32, device=self.device)
        slot_of_row_R = slots.repeat_interleave(aligned_M, output_size=sum(aligned))
        if aligned == counts:
            return self._grouped_experts(Quantised(_align_rows(x.codes), x.scales), slot_of_row_R, experts)
        place_R = self._aligned_places(counts_M, aligned_M, sum(counts))
        codes = x.codes.new_empty(sum(aligned), x.codes.shape[1]).view(torch.uint8)
        codes.index_copy_(0, place_R, x.codes.contiguous().view(torch.uint8))
        scales = x.scales.new_zeros(sum(aligned), x.scales.shape[1]).index_copy_(0, place_R, x.scales)
        apart = Quantised(codes.view(x.codes.dtype), scales)
        return self._grouped_experts(apart, slot_of_row_R, experts).index_select(0, place_R)

    def masked_fp8_experts(self, x: Quantised, counts_M: Tensor, experts: ExpertCodes, expected_rows: int) -> Tensor:
        """Compute the arrived rows of each slot in two masked matmuls. The results for other rows are meaningless."""
        if not self._can_use_deep_gemm_for_experts(experts):
            return super().masked_fp8_experts(x, counts_M, experts, expected_rows)
        counts_M, gate_up, down = counts_M.int(), _stack(experts.gate_up), experts.down
        x = Quantised(x.codes.contiguous(), x.scales)  # in dispatched rows, scales lie beside the codes
        gate_up_MZX = self._masked_matmul(x, gate_up, counts_M, expected_rows)
        product = self._quantise_gated(gate_up_MZX, experts.power_of_two, counts_M)
        del gate_up_MZX
        return self._masked_matmul(product, down, counts_M, expected_rows)

    def _grouped_experts(self, x: Quantised, slot_of_row_R: Tensor, experts: ExpertCodes) -> Tensor:
        gate_up_RX = self._grouped_matmul(x, _stack(experts.gate_up), slot_of_row_R)
        product = self._quantise_gated(gate_up_RX, experts.power_of_two)
        del gate_up_RX
        return self._grouped_matmul(product, experts.down, slot_of_row_R)

    def _grouped_matmul(self, x: Quantised, w: Quantised, slot_of_row_R: Tensor) -> Tensor:
        result = torch.empty(len(x.codes), w.codes.shape[1], dtype=torch.bfloat16, device=self.device)
        contracts.check_grouped_gemm(x, w, result, slot_of_row_R, self.row_alignment)
        self.packages.deep_gemm.m_grouped_fp8_gemm_nt_contiguous(
            (x.codes, x.scales), (w.codes, w.scales), result, slot_of_row_R
        )
        return result

    def _masked_matmul(self, x: Quantised, w: Quantised, counts_M: Tensor, expected_rows: int) -> Tensor:
        result = torch.empty(*x.codes.shape[:2], w.codes.shape[1], dtype=torch.bfloat16, device=self.device)
        contracts.check_masked_gemm(x, w, result, counts_M, expected_rows, self.row_alignment)
        self.packages.deep_gemm.m_grouped_fp8_fp4_gemm_nt_masked(
            (x.codes, x.scales), (w.codes, w.scales), result, counts_M, expected_rows
        )
        return result

    def _aligned_places(self, counts_M: Tensor, aligned_M: Tensor, num_rows: int) -> Tensor:
        """Return each row's new place, [R], where every slot begins at a multiple of the alignment."""
        moved_M = (aligned_M.cumsum(0) - aligned_M) - (counts_M.cumsum(0) - counts_M)
        moved_R = moved_M.repeat_interleave(counts_M, output_size=num_rows)
        return torch.arange(num_rows, device=self.device) + moved_R

    def _heads(
        self, q_THQ: Tensor, kv_SHX: Tensor, k_rope_SP: Tensor, value_size: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, whole keys and values in the form of torch's attention: [1, H, T or S, channels]."""
        k_nope_SHN, v_SHU = kv_SHX.split((kv_SHX.shape[-1] - value_size, value_size), -1)
        q, k, v = (x.transpose(0, 1)[None] for x in (q_THQ, self._join_keys(k_nope_SHN, k_rope_SP), v_SHU))
        return q, k, v

    def _join_keys(self, k_nope_SHN: Tensor, k_rope_SP: Tensor) -> Tensor:
        """Return whole keys [S, H, N + P]; all heads share the rotary part."""
        if self._runs_triton(k_nope_SHN) and fused.are_powers_of_two(k_nope_SHN.shape[-1], k_rope_SP.shape[-1]):
            return fused.joined_keys(k_nope_SHN, k_rope_SP)
        return torch.cat((k_nope_SHN, k_rope_SP[:, None].expand(-1, k_nope_SHN.shape[1], -1)), -1)

    # which kernel fits

    def _fits_gemm(self, channels: int, outputs: int = OUTPUTS_STEP) -> bool:
        return self.packages.deep_gemm is not None and channels % BLOCK == 0 and outputs % OUTPUTS_STEP == 0

    def _can_use_deep_gemm_for_experts(self, experts: ExpertCodes) -> bool:
        """Return whether DeepGEMM can run these experts.

        Gate and up share a matrix, so no scale block may span both.
        """
        _, hidden, intermediate = experts.down.codes.shape
        return self._fits_gemm(hidden, intermediate) and self._fits_gemm(intermediate, hidden)

    def _fits_flash_mla(self, q_BHC: Tensor, lora_rank: int) -> bool:
        fits = (q_BHC.shape[-1], lora_rank, q_BHC.dtype) == (contracts.LATENT, contracts.LATENT_VALUE, torch.bfloat16)
        return fits and self.packages.flash_mla is not None and self.packages.arch == HOPPER

    # replaced by tests without a GPU

    def _runs_triton(self, x: Tensor) -> bool:
        return x.is_cuda

    def _quantise(self, x_RD: Tensor, power_of_two: bool) -> Quantised:
        return quantise.rows(x_RD, power_of_two, by_columns=self.packages.arch == HOPPER)

    def _quantise_gated(self, gate_up: Tensor, power_of_two: bool, counts_M: Tensor | None = None) -> Quantised:
        """Return the codes of silu(gate) x up, for rows [R, 2 I] or masked ones [M, Z, 2 I]."""
        return quantise.gated_rows(gate_up, power_of_two, self.packages.arch == HOPPER, counts_M)

    def _matmul_fp32(self, x_TD: Tensor, w_ED: Tensor) -> Tensor:
        return torch.mm(x_TD, w_ED.mT, out_dtype=torch.float32)

    def _masked_attention(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        mask = causal_lower_right(q.shape[2], k.shape[2])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)

    def _has_cudnn(self, q: Tensor, k: Tensor, v: Tensor) -> bool:
        """Return whether cuDNN can compute attention for these queries, keys and values on their device."""
        parameters = torch.backends.cuda.SDPAParams(q, k, v, None, 0.0, False, False)
        return q.is_cuda and torch.backends.cuda.can_use_cudnn_attention(parameters)

    def _attention_part(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, *, is_causal: bool
    ) -> tuple[Tensor, Tensor]:
        """Return attention to the keys `k`, [1, H, T, U], and the log of the sum of exponentials, [1, H, T, 1]."""
        context, log_sums, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
            q, k, v, None, True, 0.0, is_causal, False, scale=scale
        )
        return context, log_sums

    def _step_metadata(self, tables_BJ: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor, object]:
        """Return tables, lengths and FlashMLA's schedule.

        All three are made in a step's first layer, and reused in the other layers.
        """
        if lengths_B not in self._steps:
            schedule, _ = self.packages.flash_mla.get_mla_metadata()
            self._steps[lengths_B] = tables_BJ.int(), lengths_B.int(), schedule
        return self._steps[lengths_B]


def merge_attention(first: Tensor, first_log_sums: Tensor, second: Tensor, second_log_sums: Tensor) -> Tensor:
    """Merge attention to two sets of keys, [..., U], into the memory of the second. The first is overwritten.

    Each part's weight is its share of the sum of all exponentials (arXiv 2501.01005, section 2.2). Each part is rounded
    to BF16 after it is weighted. To add the weighted difference of the parts to one part would lose more in rounding,
    because the difference can be far larger than the result.
    """
    share_of_first = torch.sigmoid(first_log_sums - second_log_sums)
    share_of_second = torch.sigmoid(second_log_sums - first_log_sums)
    return second.mul_(share_of_second).add_(first.mul_(share_of_first))


def _align_rows(codes_RD: Tensor) -> Tensor:
    """Return codes whose rows TMA can read.

    With scales between them, rows may begin at any byte. `Tensor.contiguous` would not do: it leaves a single row where
    it is, and copies rows that TMA can read.
    """
    if codes_RD.stride(0) % contracts.TMA_BYTES == 0:
        return codes_RD
    return codes_RD.clone(memory_format=torch.contiguous_format)


def _stack(gate_up: Quantised) -> Quantised:
    """Return gate and up as one matrix for each slot: [M, 2, I, D] as [M, 2 I, D], in the same memory."""
    return Quantised(gate_up.codes.flatten(1, 2), gate_up.scales.flatten(1, 2))
