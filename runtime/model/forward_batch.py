"""One step's work on one rank: chunks of prompts, then the last token of each decoding request.

    tokens    a a a a a | b b b | c | d | e      T = 11: chunks of the prompts A and B, then C, D and E decode

All tokens go through a layer together; only attention distinguishes them. A chunk's queries attend to the request's
cached tokens and, causally, to each other. A decoding request's one query attends to all its cached tokens. Both kinds
may be absent: a rank steps with its unit even when it has nothing to do.

The batch holds tensors about the tokens. Hidden states are not a part of it: they flow through the model.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

import msgspec
import torch
from torch import Tensor

from runtime.kv.cache import PageTable, slot_mapping

__all__ = ["Chunk", "FixedRequests", "ForwardBatch", "LatentSink", "cut"]

LatentSink = Callable[[int, int, Tensor], None]  # gets a layer, a position, and the latents [T, C] from there on


class Chunk(msgspec.Struct, frozen=True):
    """Tokens of one request from position `start` on. `table` has the pages of these tokens and of all before them.

    In decode a chunk is one token, and a step makes one for each request, so it is a msgspec struct, which takes a
    tenth of the time of a dataclass. A chunk that goes on in the next micro-batch needs no logits. `sink` gets each
    layer's latents of these tokens as soon as they are computed.
    """

    token_ids: list[int]
    start: int
    table: PageTable
    goes_on: bool = False
    sink: LatentSink | None = None

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.start + len(self.token_ids)

    @property
    def last(self) -> "Chunk":
        """A chunk of the last token alone."""
        return Chunk(self.token_ids[-1:], self.end - 1, self.table)


def cut(chunks: Sequence[Chunk], num_tokens: int) -> tuple[list[Chunk], list[Chunk]]:
    """Return the chunks of the first `num_tokens` tokens, and the rest. A chunk across the cut becomes two."""
    before, after = [], []
    for chunk in chunks:
        number = min(num_tokens, len(chunk.token_ids))
        if number == len(chunk.token_ids):
            before.append(chunk)
        elif number == 0:
            after.append(chunk)
        else:
            before.append(Chunk(chunk.token_ids[:number], chunk.start, chunk.table, goes_on=True, sink=chunk.sink))
            after.append(Chunk(chunk.token_ids[number:], chunk.start + number, chunk.table, sink=chunk.sink))
        num_tokens -= number
    return before, after


class ForwardBatch:
    """A step's requests as tensors on `device`: `prefilling` chunks, then `decoding` chunks of one token each."""

    def __init__(self, prefilling: Sequence[Chunk], decoding: Sequence[Chunk], device: torch.device) -> None:
        self._prefilling, self._decoding, self._device = prefilling, decoding, device
        chunks = [*prefilling, *decoding]
        self.token_ids_T = self._integers(token for chunk in chunks for token in chunk.token_ids)
        self.positions_T = self._integers(position for chunk in chunks for position in range(chunk.start, chunk.end))
        self.slot_mapping_T = self._integers(
            slot for chunk in chunks for slot in slot_mapping(chunk.table, chunk.start, chunk.end)
        )
        self.answering_A = self._integers(_last_tokens(chunks))
        self.lengths = [len(chunk.token_ids) for chunk in prefilling]
        self.sizes = sum(self.lengths), len(decoding)  # tokens of prompts, tokens of decoding requests
        self.contexts = [  # the cache's rows that a chunk attends to
            self._integers(slot_mapping(chunk.table, 0, chunk.end)) for chunk in prefilling
        ]
        self.tables_BJ = self._pad_tables([chunk.table for chunk in decoding])
        self.lengths_B = self._integers(chunk.end for chunk in decoding)

    def give_latents(self, layer: int, latent_TC: Tensor) -> None:
        """Pass a layer's latents to the chunks' sinks, as views that must not be written to."""
        first = 0
        for chunk, length in zip(self._prefilling, self.lengths, strict=True):
            if chunk.sink is not None:
                chunk.sink(layer, chunk.start, latent_TC[first : first + length])
            first += length

    def select_answering(self) -> "ForwardBatch":
        """Return the same requests with only the tokens whose logits are needed, at the indices `answering_A`."""
        if not self._prefilling:
            return self
        last = [chunk.last for chunk in self._prefilling if not chunk.goes_on]
        return ForwardBatch(last, self._decoding, self._device)

    def _integers(self, values: Iterable[int]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.long, device=self._device)

    def _pad_tables(self, tables: list[PageTable]) -> Tensor:
        """Return the tables as one tensor [B, J]. Shorter tables are filled up with page 0, which is not read."""
        max_pages = max(map(len, tables), default=0)
        pages = (page for table in tables for page in table + [0] * (max_pages - len(table)))
        return self._integers(pages).view(len(tables), max_pages)


class FixedRequests(ForwardBatch):
    """Decoding requests in fixed tensors, which each step fills with `request_numbers` and tables."""

    def __init__(self, numbers_4B: Tensor, tables_BJ: Tensor) -> None:
        self._prefilling = self._decoding = ()
        self.token_ids_T, self.positions_T, self.slot_mapping_T, self.lengths_B = numbers_4B
        self.answering_A = torch.arange(len(tables_BJ), device=tables_BJ.device)
        self.lengths, self.contexts = [], []
        self.sizes = 0, len(tables_BJ)
        self.tables_BJ = tables_BJ

    @staticmethod
    def request_numbers(decoding: Sequence[Chunk]) -> Tensor:
        """Return each request's last token, its position, its row of the cache, and how many tokens it has: [4, B]."""
        rows = [slot for chunk in decoding for slot in slot_mapping(chunk.table, chunk.start, chunk.end)]
        tokens = [chunk.token_ids[0] for chunk in decoding]
        starts, ends = [chunk.start for chunk in decoding], [chunk.end for chunk in decoding]
        return torch.tensor([tokens, starts, rows, ends], dtype=torch.long)


def _last_tokens(chunks: Sequence[Chunk]) -> Iterator[int]:
    """Yield the index of each chunk's last token in the batch. Chunks that need no logits are left out."""
    ends = accumulate(len(chunk.token_ids) for chunk in chunks)
    return (end - 1 for chunk, end in zip(chunks, ends, strict=True) if not chunk.goes_on)
