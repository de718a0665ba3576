"""The tables of operations for a CPU: torch, or compiled loops (`kernels.py`) where they are faster.

    CpuOps        any type and number of threads: torch, with the number of an expert's rows rounded up for oneDNN
    RowLoopOps    BF16 on one thread: loops that compute each row alone; deterministic mode uses only these
    LoopOps       the same, and loops for matmuls of few rows, whose rounding depends on the number of rows

A table is made for one type and one thread count, so its loops check sizes only. The figures are of an EPYC core with
AVX-512 (November 2026).

Not every core has instructions for BF16. Without them oneDNN widens each number as it multiplies, at a fifth of FP32's
rate. On such cores the tables widen whole matrices first and multiply in FP32: 3.9 times oneDNN's rate for 512 rows,
2.5 for 32 and 1.9 for 16 (measured on a core with AVX-512, with oneDNN's BF16 instructions switched off). The sums are
the same, rounded once.
"""

import os
import platform
from collections.abc import Callable
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from runtime.kernels.cpu import kernels
from runtime.kernels.ops import Ops
from runtime.kernels.precision import unquantized_dtype
from runtime.kernels.say import say_once

__all__ = ["CpuOps", "LoopOps", "RowLoopOps", "cpu_ops"]

CPU = torch.device("cpu")
ROWS_STEP = 16  # the number of an expert's rows is rounded up to a multiple of it: 8 more on average
# Up to this many rows the loops were faster than oneDNN. A projection starts oneDNN once. Experts start it once each,
# and their limit is the average of an expert.
MAX_ROWS = 4
MAX_ROWS_OF_AN_EXPERT = 16
MIN_ROWS_OF_A_GATE = 64  # from here on oneDNN's BF16 was faster than FP32
# Up to so many scores in a step the loop was faster than torch's copies and oneDNN's matmuls, with latents of 96
# numbers
MAX_SCORES = 2**14
# oneDNN's setting that limits instructions, and its values that include BF16's. Source: oneDNN, "CPU Dispatcher
# Control".
MAX_ISA = "ONEDNN_MAX_CPU_ISA"
ISAS_WITH_BF16 = ("BF16", "FP16", "AMX", "AVX10", "DEFAULT", "ALL")


def cpu_ops(dtype: torch.dtype, deterministic: bool) -> Ops:
    """Return the operations for a model whose matrices are `dtype`, for torch's present number of threads."""
    is_bf16 = unquantized_dtype(dtype) == torch.bfloat16
    widens = is_bf16 and not _multiplies_bf16()
    if widens:
        say_once(
            "this core has no instructions for BF16: matrices are widened and multiplied in FP32. Precision fp32 "
            "computes prompts about a tenth faster here, decodes more slowly, and takes twice the memory"
        )
    if not is_bf16 or torch.get_num_threads() > 1:
        return CpuOps(widens)
    return RowLoopOps(widens) if deterministic else LoopOps(widens)


class CpuOps(Ops):
    """Torch's operations on a CPU. If it `widens`, BF16 matrices are multiplied in FP32."""

    def __init__(self, widens: bool = False) -> None:
        super().__init__(CPU)
        self._widens = widens

    def matmul(self, a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
        """Return a b, in FP32 if the core has no BF16 instructions, then rounded to the type of `a`."""
        if not self._widens:
            return super().matmul(a, b, out)
        product = self._multiply_widened(torch.matmul, a, b)
        return product if out is None else out.copy_(product)

    def scores(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """Return scale x q k^T, in FP32 if the core has no BF16 instructions, then rounded to the type of `q`."""
        multiply = partial(super().scores, scale=scale)
        return self._multiply_widened(multiply, q, k) if self._widens else multiply(q, k)

    def _multiply_widened(self, multiply: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> Tensor:
        return multiply(a.float(), b.float()).to(a.dtype)

    def experts(self, rows_RD: Tensor, counts: list[int], gate_up_MXD: Tensor, down_MDI: Tensor) -> Tensor:
        """Compute each slot's rows with a few of the next slot's rows, which are restored afterwards.

        For every new number of rows oneDNN makes a kernel, which takes as long as computing 500 rows. So the number of
        rows should take few values.
        """
        for slot, (count, end) in enumerate(zip(counts, accumulate(counts), strict=True)):
            if count:
                rows = rows_RD[end - count : end + -count % ROWS_STEP]
                next_rows = rows[count:].clone()
                self.expert(rows, gate_up_MXD[slot], down_MDI[slot], out=rows)
                rows[count:] = next_rows
        return rows_RD


class RowLoopOps(CpuOps):
    """Compiled loops whose results for a row do not depend on other rows."""

    def prepare(self) -> None:
        """Load the compiled loops, or compile them."""
        kernels.prepare()

    def rms_norm(self, x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        """Normalise rows by a loop that reads and writes each row once."""
        return kernels.rms_norm(x, weight_D, eps)

    def silu_product(self, gate_RI: Tensor, up_RI: Tensor) -> Tensor:
        """Return silu(gate) * up, computed in FP32 and rounded once."""
        return kernels.silu_product(gate_RI, up_RI)

    def rotate(self, x: Tensor, cos_TX: Tensor, sin_TX: Tensor, neighbours: bool) -> None:
        """Rotate pairs in place, by a loop."""
        kernels.rotate(x, cos_TX, sin_TX, neighbours)

    def causal_softmax(self, scores_HTS: Tensor) -> Tensor:
        """Write the softmax of the scores over them, by a loop, and return it."""
        return kernels.causal_softmax(scores_HTS)

    def choose_experts(self, scores_TE: Tensor, num_groups: int, num_best: int, topk_group: int, top_k: int) -> Tensor:
        """Choose each token's experts in one pass over its scores."""
        return kernels.choose_experts(scores_TE, num_groups, num_best, topk_group, top_k)

    def sort_by_slot(self, slots_TK: Tensor, num_slots: int) -> tuple[Tensor, Tensor, Tensor]:
        """Sort (token, choice) pairs by slot, as `Ops.sort_by_slot` does, but by counting the pairs of each slot."""
        return kernels.sort_by_slot(slots_TK, num_slots)


class LoopOps(RowLoopOps):
    """All compiled loops, each for the sizes at which it is faster than torch."""

    def linear(self, x_RD: Tensor, w_OD: Tensor) -> Tensor:
        """Return x w^T.

        If there are few rows, a loop reads the matrix only once. Otherwise the base class multiplies.
        """
        if 0 < x_RD.shape[0] <= MAX_ROWS:
            return kernels.linear(x_RD, w_OD)
        return super().linear(x_RD, w_OD)

    def gated_mlp(self, x_RD: Tensor, gate_ID: Tensor, up_ID: Tensor, down_DI: Tensor) -> Tensor:
        """Compute the gated MLP in one call instead of five if there are few rows, or as the base class does."""
        if 0 < x_RD.shape[0] <= MAX_ROWS:
            return kernels.gated_mlp(x_RD, gate_ID, up_ID, down_DI)
        return super().gated_mlp(x_RD, gate_ID, up_ID, down_DI)

    def absorb_query(self, q_BHQ: Tensor, up_XL: Tensor, rope: int, value_size: int) -> Tensor:
        """Absorb the queries of all heads in one call if there are few requests, or as the base class does."""
        if 0 < q_BHQ.shape[0] <= MAX_ROWS:
            return kernels.absorb_query(q_BHQ, up_XL, rope, value_size)
        return super().absorb_query(q_BHQ, up_XL, rope, value_size)

    def attend_pages(
        self, q_BHC: Tensor, pages_JSC: Tensor, tables_BJ: Tensor, lengths_B: Tensor, lora_rank: int, scale: float
    ) -> Tensor:
        """Attend to the latents in place in their pages if heads and pages are few, or as the base class does."""
        if 0 < q_BHC.shape[1] * tables_BJ.numel() * pages_JSC.shape[1] <= MAX_SCORES:
            return kernels.attend(q_BHC, pages_JSC, tables_BJ, lengths_B, lora_rank, scale)
        return super().attend_pages(q_BHC, pages_JSC, tables_BJ, lengths_B, lora_rank, scale)

    def up_project_values(self, context_BHL: Tensor, up_XL: Tensor, value_size: int) -> Tensor:
        """Project the contexts of all heads in one call if there are few requests, or as the base class does."""
        if 0 < context_BHL.shape[0] <= MAX_ROWS:
            return kernels.up_project_values(context_BHL, up_XL, value_size)
        return super().up_project_values(context_BHL, up_XL, value_size)

    def gate_logits(self, x_TD: Tensor, w_ED: Tensor) -> Tensor:
        """Return x w^T, [T, E]: products of BF16 numbers, added in FP32."""
        if 0 < x_TD.shape[0] <= MAX_ROWS:
            return kernels.linear(x_TD, w_ED, torch.float32)
        if x_TD.shape[0] >= MIN_ROWS_OF_A_GATE:
            return kernels.wide_linear(x_TD, w_ED)
        return super().gate_logits(x_TD, w_ED)

    def experts(self, rows_RD: Tensor, counts: list[int], gate_up_MXD: Tensor, down_MDI: Tensor) -> Tensor:
        """Compute the experts of all slots in one call if slots have few rows each, or as the base class does."""
        if 0 < rows_RD.shape[0] <= MAX_ROWS_OF_AN_EXPERT * (len(counts) - counts.count(0)):
            kernels.experts_mlp(rows_RD, torch.tensor(counts), gate_up_MXD, down_MDI)
            return rows_RD
        return super().experts(rows_RD, counts, gate_up_MXD, down_MDI)

    def weighted_sum(self, rows_RD: Tensor, row_of_pair_TK: Tensor, weights_TK: Tensor) -> Tensor:
        """Add the results of few tokens in a loop, while caches hold them. For more tokens torch prefetches rows."""
        if weights_TK.shape[0] <= MAX_ROWS:
            return kernels.weighted_sum(rows_RD, row_of_pair_TK, weights_TK)
        return super().weighted_sum(rows_RD, row_of_pair_TK, weights_TK)


def _multiplies_bf16() -> bool:
    """Return whether oneDNN multiplies BF16 with this core's instructions.

    True on architectures other than x86_64, which were not measured.
    """
    if platform.machine() != "x86_64":
        return True
    highest = os.environ.get(MAX_ISA, "DEFAULT").upper()
    has_instructions = any(torch.cpu.get_capabilities()[name] for name in ("avx512_bf16", "amx_bf16"))
    return has_instructions and any(word in highest for word in ISAS_WITH_BF16)
