"""How the tokens of a step are computed: all together, or so that none of them notices the others.

A matmul kernel is chosen by its shape, and another kernel adds in another order. Computed together, a token's bits thus
depend on how many tokens are beside it, and at a near tie its text does. In deterministic mode every kernel sees one
shape, whatever the step holds:

    rows        projections, norms, experts, gate, head: tiles of TILE_ROWS rows, the last filled up with zeros
    chunks      attention in prefill: the queries of TILE_POSITIONS positions, over the keys up to the last of these
    requests    attention in decode: each request alone, over its own length

A query's tile starts at a multiple of TILE_POSITIONS of its request, wherever a chunk starts or ends, so that its shape
tells the position and not the chunking. What of a tile belongs to another chunk is zeros; its keys are masked.

Each tile and each request is a fresh copy, so that its address does not choose the kernel either, and a rank computes
on one thread, since kernels share sums out by threads. What is left is that a row's place in its tile must not matter.
No library promises that, so `check_machine` asks the very kernels before a rank serves.

Worked example: 5 tokens in prefill are one tile, 40 are three (16, 16, 8 and 8 rows of zeros), and an expert that got
2 rows of them computes one tile; each row comes out, bit for bit, as it does alone.

Bits are equal on one kind of machine with one version of torch, not between kinds.

Source of the idea: Thinking Machines, "Defeating Nondeterminism in LLM Inference" (2025).
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.errors import RuntimeFailure

__all__ = ["TILE_ROWS", "BatchInvariant", "Batched", "Batching", "check_machine", "own"]

TILE_ROWS = 16
TILE_POSITIONS = 64


class Batching(Protocol):
    """The two forms compute the same up to rounding; `Batched` is the fast one."""

    is_batched: bool  # how many rows there are may decide by what kernel they are computed

    def rows(self, function: Callable[..., Any], *rows: Tensor) -> Any:
        """`function` of tensors with a row for each token, [T, ...] each; it returns one such tensor or several."""

    def chunk(self, attend: Callable[..., Tensor], q_THQ: Tensor, kv_SHX: Tensor, k_rope_SP: Tensor) -> Tensor:
        """`attend(q_THQ, kv_SHX, k_rope_SP)`: [T, ...]; the queries are of the last T of S positions, from 0 on."""

    def requests(self, attend: Callable[..., Tensor], q_BHC: Tensor, latent_BSC: Tensor, lengths_B: Tensor) -> Tensor:
        """`attend(q_BHC, latent_BSC, lengths_B)`: [B, ...]."""


class Batched:
    """One call for all."""

    is_batched = True

    def rows(self, function: Callable[..., Any], *rows: Tensor) -> Any:
        """All rows at once."""
        return function(*rows)

    def chunk(self, attend: Callable[..., Tensor], q_THQ: Tensor, kv_SHX: Tensor, k_rope_SP: Tensor) -> Tensor:
        """All queries at once."""
        return attend(q_THQ, kv_SHX, k_rope_SP)

    def requests(self, attend: Callable[..., Tensor], q_BHC: Tensor, latent_BSC: Tensor, lengths_B: Tensor) -> Tensor:
        """All requests at once, padded to the longest."""
        return attend(q_BHC, latent_BSC, lengths_B)


class BatchInvariant:
    """Deterministic: a row's bits depend on that row, a request's on that request."""

    is_batched = False

    def rows(self, function: Callable[..., Any], *rows: Tensor) -> Any:
        """Tile by tile; no rows are one tile of zeros, of which none comes back."""
        num_rows = len(rows[0])
        starts = range(0, max(num_rows, 1), TILE_ROWS)
        tiles = [function(*(_tile(tensor, start) for tensor in rows)) for start in starts]
        if isinstance(tiles[0], Tensor):
            return torch.cat(tiles)[:num_rows]
        return tuple(torch.cat(parts)[:num_rows] for parts in zip(*tiles, strict=True))

    def chunk(self, attend: Callable[..., Tensor], q_THQ: Tensor, kv_SHX: Tensor, k_rope_SP: Tensor) -> Tensor:
        """Tile by tile, as positions lie and not as the chunk does."""
        start, end = len(kv_SHX) - len(q_THQ), len(kv_SHX)
        before, after = start % TILE_POSITIONS, -end % TILE_POSITIONS
        q, kv = _with_zeros(q_THQ, before, after), _with_zeros(kv_SHX, 0, after)
        k_rope = _with_zeros(k_rope_SP, 0, after)
        ends = range(start - before + TILE_POSITIONS, end + after + 1, TILE_POSITIONS)
        tiles = [
            attend(tile, kv[:seen], k_rope[:seen]) for tile, seen in zip(q.split(TILE_POSITIONS), ends, strict=True)
        ]
        return torch.cat(tiles)[before : before + len(q_THQ)]

    def requests(self, attend: Callable[..., Tensor], q_BHC: Tensor, latent_BSC: Tensor, lengths_B: Tensor) -> Tensor:
        """Request by request."""
        contexts = [
            attend(own(q_BHC[b : b + 1]), own(latent_BSC[b : b + 1, :length]), lengths_B[b : b + 1])
            for b, length in enumerate(lengths_B.tolist())
        ]
        return torch.cat(contexts) if contexts else attend(q_BHC, latent_BSC, lengths_B)


@torch.inference_mode()
def check_machine(functions: list[tuple[Callable[[Tensor], Any], int, torch.dtype]]) -> None:
    """Ask each row-wise function, given with its row's size and type, whether a row's place in a tile matters.

    A tile of equal rows must become equal rows. Raises RuntimeFailure.
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


def _tile(rows: Tensor, start: int) -> Tensor:
    """The rows from `start`, as many as a tile has, in memory of their own."""
    tile = rows[start : start + TILE_ROWS]
    missing = TILE_ROWS - len(tile)
    return _with_zeros(tile, 0, missing) if missing else own(tile)


def _with_zeros(rows: Tensor, before: int, after: int) -> Tensor:
    """Rows of zeros around `rows`."""
    return F.pad(rows, (*(0, 0) * (rows.dim() - 1), before, after))


def own(x: Tensor) -> Tensor:
    """A copy whose address and strides tell nothing of what lay around `x`."""
    return x.clone(memory_format=torch.contiguous_format)
