"""What one rank computes in one step: chunks of prompts, then the last token of each request that is being continued.

    tokens    a a a a a | b b b | c | d | e      T = 11: chunks of the prompts A and B, then C, D and E decode

All tokens go through a layer together; attention alone tells them apart. A chunk's queries see what earlier steps
cached of their request and each other, causally; a decoding request's one query sees its whole cache. Both kinds may be
absent: a rank steps with its unit even when it has nothing to do.

It holds tensors about the tokens, not their values: those flow through the model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.kv.cache import PageTable, slot_mapping

__all__ = ["Chunk", "ForwardBatch", "cut"]


@dataclass(frozen=True)
class Chunk:
    """Tokens of one request from position `start` on; `table` has pages for them and for all before them.

    In decode it is one token. Of a chunk that goes on in the next micro-batch nobody asks for logits.
    """

    token_ids: list[int]
    start: int
    table: PageTable
    goes_on: bool = False

    @property
    def end(self) -> int:
        """The position after its last token."""
        return self.start + len(self.token_ids)

    @property
    def last(self) -> "Chunk":
        """Its last token alone."""
        return Chunk(self.token_ids[-1:], self.end - 1, self.table)


def cut(chunks: Sequence[Chunk], num_tokens: int) -> tuple[list[Chunk], list[Chunk]]:
    """The first `num_tokens` tokens of the chunks, and the others; the chunk across the cut becomes two."""
    before, after = [], []
    for chunk in chunks:
        number = min(num_tokens, len(chunk.token_ids))
        if number == len(chunk.token_ids):
            before.append(chunk)
        elif number == 0:
            after.append(chunk)
        else:
            before.append(Chunk(chunk.token_ids[:number], chunk.start, chunk.table, goes_on=True))
            after.append(Chunk(chunk.token_ids[number:], chunk.start + number, chunk.table))
        num_tokens -= number
    return before, after


class ForwardBatch:
    """`prefilling` chunks in order, then `decoding` ones of one token each, as tensors."""

    def __init__(self, prefilling: Sequence[Chunk], decoding: Sequence[Chunk]) -> None:
        self._prefilling, self._decoding = prefilling, decoding
        chunks = [*prefilling, *decoding]
        self.token_ids_T = _integers(token for chunk in chunks for token in chunk.token_ids)
        self.positions_T = _integers(position for chunk in chunks for position in range(chunk.start, chunk.end))
        self.slot_mapping_T = _integers(
            place for chunk in chunks for place in slot_mapping(chunk.table, chunk.start, chunk.end)
        )
        self.ends_C = _integers(len(chunk.token_ids) for chunk in chunks).cumsum(0)[_ends(chunks)]
        self.lengths = [len(chunk.token_ids) for chunk in prefilling]
        self.sizes = sum(self.lengths), len(decoding)  # tokens of prompts, tokens of decoding requests
        self.contexts = [
            _integers(slot_mapping(chunk.table, 0, chunk.end)) for chunk in prefilling
        ]  # what a chunk sees
        self.tables_BP = _padded([chunk.table for chunk in decoding])
        self.lengths_B = _integers(chunk.end for chunk in decoding)

    def answering(self) -> "ForwardBatch":
        """Of the same requests, only the tokens whose logits are asked for: those at `ends_C` - 1."""
        if not self._prefilling:
            return self
        return ForwardBatch([chunk.last for chunk in self._prefilling if not chunk.goes_on], self._decoding)


def _ends(chunks: Sequence[Chunk]) -> Tensor:
    """[chunks], whether logits are asked for after it."""
    return torch.tensor([not chunk.goes_on for chunk in chunks], dtype=torch.bool)


def _integers(values: Iterable[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.long)


def _padded(tables: list[PageTable]) -> Tensor:
    """`[B, most pages]`; a shorter table ends with page 0, whose content nobody looks at."""
    most = max(map(len, tables), default=0)
    padded = [table + [0] * (most - len(table)) for table in tables]
    return torch.tensor(padded, dtype=torch.long).view(len(tables), most)
