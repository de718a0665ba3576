"""Two ways to compute the tokens of a step: all together, or each bit for bit independent of the others.

A library chooses a matmul kernel by shape, and each kernel adds in its own order. So if tokens are computed together, a
token's bits depend on the number of other tokens and, at a near tie, so does its text. In deterministic mode every
kernel sees one shape, whatever is in the step:

    rows        projections, norms, experts, gate, head: tiles of TILE_ROWS rows, the last filled up with zeros
    chunks      attention in prefill: the queries of TILE_POSITIONS positions, over the keys up to the last of these
    requests    attention in decode: each request alone, over its own length

A query's tile starts at a multiple of TILE_POSITIONS of its request, so its shape depends on the position and not on
where chunks begin or end. Rows of a tile that belong to another chunk are zeros; keys of later positions are masked.

Each tile and each request is a fresh copy, so that its address does not affect the choice of kernel. A rank computes on
one thread, since kernels divide sums among threads. One condition is left: a row's position in its tile must not
matter. No library promises that, so `check_machine` tests the kernels before a rank serves.

Worked example: 5 tokens in prefill are one tile, 40 are three (16, 16, 8 and 8 rows of zeros), and an expert that got
2 rows of them computes one tile; each row comes out, bit for bit, as it does alone.

Bits are equal on one kind of machine with one version of torch, not between machines of different kinds.

Source of the idea: Thinking Machines, "Defeating Nondeterminism in LLM Inference" (2025).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.errors import RuntimeFailure
from runtime.kernels.fp8 import E4M3, ExpertCodes, Quantised
from runtime.kernels.ops import Ops, private_copy

__all__ = ["TILE_ROWS", "BatchInvariant", "Batched", "Batching", "check_machine"]

TILE_ROWS = 16
TILE_POSITIONS = 64


class Batching(Protocol):
    """The way in which a step's rows and requests are passed to operations.

    Both implementations agree up to rounding; `Batched` is the fast one.
    """

    is_invariant: bool  # a row's bits do not depend on how many rows are computed with it

    def rows(self, function: Callable[..., Any], *rows: Tensor) -> Any:
        """Return `function(*rows)`. Each tensor [T, ...], given or returned, has a row for each token."""

    def chunk(self, attend: Callable[..., Tensor], q_THQ: Tensor, kv_SHX: Tensor, k_rope_SP: Tensor) -> Tensor:
        """Return `attend` for the queries of the last T of a request's S positions: [T, ...]."""

    def attend_pages(
        self,
        ops: Ops,
        q_BHC: Tensor,
        pages_JSC: Tensor,
        tables_BJ: Tensor,
        lengths_B: Tensor,
        lora_rank: int,
        scale: float,
    ) -> Tensor:
        """Return attention [B, H, L] of each request to its first `lengths_B` latents, in the pages of its table."""

    def experts(self, ops: Ops, rows_RD: Tensor, counts: list[int], gate_up_MXD: Tensor, down_MDI: Tensor) -> Tensor:
        """Replace each slot's rows with its expert's results, and return all rows, [R, D].

        The rows lie slot after slot; slot i has `counts[i]` rows.
        """

    def masked_experts(
        self, ops: Ops, rows_MZD: Tensor, counts_M: Tensor, gate_up_MXD: Tensor, down_MDI: Tensor
    ) -> Tensor:
        """Return the experts' results [M, Z, D] for the first `counts_M` of each slot's Z rows."""

    def fp8_experts(self, ops: Ops, x: Quantised, counts: list[int], counts_M: Tensor, experts: ExpertCodes) -> Tensor:
        """Return the FP8 experts' results [R, D] for rows in slot order.

        Slot i has `counts[i]` rows, of which the first `counts_M[i]` are real.
        """

    def masked_fp8_experts(
        self, ops: Ops, x: Quantised, counts_M: Tensor, experts: ExpertCodes, expected_rows: int
    ) -> Tensor:
        """Return the FP8 experts' results [M, Z, D] for the first `counts_M` of each slot's Z rows.

        A slot has `expected_rows` rows on average.
        """


class Batched:
    """The fast way: computes all rows in one call."""

    is_invariant = False

    def rows(self, function: Callable[..., Any], *rows: Tensor) -> Any:
        """Call the function with all rows at once."""
        return function(*rows)

    def chunk(self, attend: Callable[..., Tensor], q_THQ: Tensor, kv_SHX: Tensor, k_rope_SP: Tensor) -> Tensor:
        """Compute attention for all queries at once."""
        return attend(q_THQ, kv_SHX, k_rope_SP)

    def attend_pages(
        self,
        ops: Ops,
        q_BHC: Tensor,
        pages_JSC: Tensor,
        tables_BJ: Tensor,
        lengths_B: Tensor,
        lora_rank: int,
        scale: float,
    ) -> Tensor:
        """Compute attention for all requests in one call."""
        return ops.attend_pages(q_BHC, pages_JSC, tables_BJ, lengths_B, lora_rank, scale)

    def experts(self, ops: Ops, rows_RD: Tensor, counts: list[int], gate_up_MXD: Tensor, down_MDI: Tensor) -> Tensor:
        """Compute the experts of all slots in one call."""
        return ops.experts(rows_RD, counts, gate_up_MXD, down_MDI)

    def masked_experts(
        self, ops: Ops, rows_MZD: Tensor, counts_M: Tensor, gate_up_MXD: Tensor, down_MDI: Tensor
    ) -> Tensor:
        """Compute the experts of all slots in one call."""
        return ops.masked_experts(rows_MZD, counts_M, gate_up_MXD, down_MDI)

    def fp8_experts(self, ops: Ops, x: Quantised, counts: list[int], counts_M: Tensor, experts: ExpertCodes) -> Tensor:
        """Compute the experts of all slots in one call."""
        return ops.fp8_experts(x, counts, counts_M, experts)

    def masked_fp8_experts(
        self, ops: Ops, x: Quantised, counts_M: Tensor, experts: ExpertCodes, expected_rows: int
    ) -> Tensor:
        """Compute the experts of all slots in one call."""
        return ops.masked_fp8_experts(x, counts_M, experts, expected_rows)


class BatchInvariant:
    """Computes a row's bits from that row alone, and a request's bits from that request alone."""

    is_invariant = True

    def rows(self, function: Callable[..., Any], *rows: Tensor) -> Any:
        """Call the function tile by tile, so that each row's bits are independent of others.

        If there are no rows, compute one tile of zeros and return none of it.
        """
        num_rows = len(rows[0])
        starts = range(0, max(num_rows, 1), TILE_ROWS)
        tiles = [function(*(_copy_tile(tensor, start) for tensor in rows)) for start in starts]
        if isinstance(tiles[0], Tensor):
            return torch.cat(tiles)[:num_rows]
        return tuple(torch.cat(parts)[:num_rows] for parts in zip(*tiles, strict=True))

    def chunk(self, attend: Callable[..., Tensor], q_THQ: Tensor, kv_SHX: Tensor, k_rope_SP: Tensor) -> Tensor:
        """Compute attention tile by tile. Tiles begin at multiples of TILE_POSITIONS, wherever the chunk begins."""
        start, end = len(kv_SHX) - len(q_THQ), len(kv_SHX)
        before, after = start % TILE_POSITIONS, -end % TILE_POSITIONS
        q, kv = _pad_rows(q_THQ, before, after), _pad_rows(kv_SHX, 0, after)
        k_rope = _pad_rows(k_rope_SP, 0, after)
        ends = range(start - before + TILE_POSITIONS, end + after + 1, TILE_POSITIONS)
        tiles = [
            attend(tile, kv[:seen], k_rope[:seen]) for tile, seen in zip(q.split(TILE_POSITIONS), ends, strict=True)
        ]
        return torch.cat(tiles)[before : before + len(q_THQ)]

    def attend_pages(
        self,
        ops: Ops,
        q_BHC: Tensor,
        pages_JSC: Tensor,
        tables_BJ: Tensor,
        lengths_B: Tensor,
        lora_rank: int,
        scale: float,
    ) -> Tensor:
        """Compute attention request by request."""
        latent_BSC = ops.read_pages(pages_JSC, tables_BJ)
        contexts = [
            ops.attend(
                private_copy(q_BHC[b : b + 1]),
                private_copy(latent_BSC[b : b + 1, :length]),
                lengths_B[b : b + 1],
                lora_rank,
                scale,
            )
            for b, length in enumerate(lengths_B.tolist())
        ]
        return torch.cat(contexts) if contexts else ops.attend(q_BHC, latent_BSC, lengths_B, lora_rank, scale)

    def experts(self, ops: Ops, rows_RD: Tensor, counts: list[int], gate_up_MXD: Tensor, down_MDI: Tensor) -> Tensor:
        """Compute experts slot by slot and tile by tile."""
        for slot, rows in enumerate(rows_RD.split(counts)):
            if len(rows):
                rows.copy_(self.rows(partial(_expert, ops, gate_up_MXD[slot], down_MDI[slot]), rows))
        return rows_RD

    def masked_experts(
        self, ops: Ops, rows_MZD: Tensor, counts_M: Tensor, gate_up_MXD: Tensor, down_MDI: Tensor
    ) -> Tensor:
        """Compute experts slot by slot and tile by tile. Rows beyond a slot's count stay as they are."""
        for slot, count in enumerate(counts_M.tolist()):
            self.experts(ops, rows_MZD[slot, :count], [count], gate_up_MXD[slot:], down_MDI[slot:])
        return rows_MZD

    def fp8_experts(self, ops: Ops, x: Quantised, counts: list[int], counts_M: Tensor, experts: ExpertCodes) -> Tensor:
        """Compute experts slot by slot and tile by tile."""
        results_RD = x.codes.new_empty(x.codes.shape, dtype=torch.bfloat16)
        bytes_RD = x.codes.view(torch.uint8)  # torch can fill bytes up with zeros, but not FP8
        parts = zip(*(rows.split(counts) for rows in (bytes_RD, x.scales, results_RD)), strict=True)
        for slot, (codes, scales, results) in enumerate(parts):
            if len(codes):
                results.copy_(self.rows(partial(_fp8_expert, ops, experts, slot), codes, scales))
        return results_RD

    def masked_fp8_experts(
        self, ops: Ops, x: Quantised, counts_M: Tensor, experts: ExpertCodes, expected_rows: int
    ) -> Tensor:
        """Compute experts slot by slot and tile by tile, over all rows."""
        num_slots, num_rows = x.codes.shape[:2]
        rows = Quantised(x.codes.flatten(0, 1), x.scales.flatten(0, 1))
        results_RD = self.fp8_experts(ops, rows, [num_rows] * num_slots, counts_M, experts)
        return results_RD.unflatten(0, (num_slots, num_rows))


@torch.inference_mode()
def check_machine(functions: list[tuple[Callable[[Tensor], Any], int, torch.dtype]]) -> None:
    """Raises RuntimeFailure if a function's result depends on a row's position in its tile.

    `functions` are (function, size of a row, type). Each function must turn a tile of equal rows into equal rows.
    """
    generator = torch.Generator().manual_seed(0)
    for function, size, dtype in functions:
        tile = torch.randn(1, size, generator=generator).to(dtype).expand(TILE_ROWS, size).clone()
        results = function(tile)
        for result in (results,) if isinstance(results, Tensor) else results:
            if not torch.equal(result, result[:1].expand_as(result)):
                raise RuntimeFailure(
                    f"deterministic mode is not possible on this machine: its kernels treat the rows of a tile of"
                    f" {TILE_ROWS} x {size} in {str(dtype).removeprefix('torch.')} differently"
                )


def _expert(ops: Ops, gate_up_XD: Tensor, down_DI: Tensor, rows_RD: Tensor) -> Tensor:
    return ops.expert(rows_RD, gate_up_XD, down_DI)


def _fp8_expert(ops: Ops, experts: ExpertCodes, slot: int, bytes_RD: Tensor, scales_RF: Tensor) -> Tensor:
    return ops.fp8_expert(Quantised(bytes_RD.view(E4M3), scales_RF), experts, slot)


def _copy_tile(rows: Tensor, start: int) -> Tensor:
    """Return a copy of the tile of rows from `start` on."""
    tile = rows[start : start + TILE_ROWS]
    missing = TILE_ROWS - len(tile)
    return _pad_rows(tile, 0, missing) if missing else private_copy(tile)


def _pad_rows(rows: Tensor, before: int, after: int) -> Tensor:
    """Return `rows` with rows of zeros before and after."""
    return F.pad(rows, (*(0, 0) * (rows.dim() - 1), before, after))
