"""Two forms of the all-to-all dispatch: one exchange for small steps, and no token twice to a node.

    low latency   messages of one size for every pair of ranks, the count in front: nobody has to ask for sizes first.
                  It moves the most that could come, so it is for steps of few tokens: decode.
    by node       a token that several ranks of one node want crosses to that node once, to the rank that has the
                  sender's place there (its relay), and is spread from there. For many tokens: prefill.

Both bring the rows in the order of `AllToAllDispatcher`, which they are but for the exchange; combine is its own: each
choice's output comes back, since the weighted sum is made at the token's rank in the order of the choices.

Worked example, by node: ranks 0, 1 on node A and 2, 3 on node B. A token of rank 1 wants slots on ranks 2, 2 and 3. Its
row goes to rank 3 with the three slots; rank 3 gives it to rank 2 and to itself, once each. One row crossed, not three.

Model: DeepEP's low-latency and normal kernels (github.com/deepseek-ai/DeepEP).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from runtime.expert_parallel.dispatcher import (
    SLOT_BYTES,
    AllToAllDispatcher,
    LocalDispatcher,
    RowFormat,
    TokenDispatcher,
)
from runtime.expert_parallel.group import Group
from runtime.expert_parallel.shared_memory.dispatcher import SharedDispatcher

__all__ = ["LowLatencyDispatcher", "NodeDispatcher", "new_dispatcher"]

MAX_MESSAGE_BYTES = 64 * 1024  # assumed: beyond, moving what is not there costs more than asking what is
COUNT_BYTES = 8  # torch.int64


def new_dispatcher(
    group: Group, slots_per_rank: int, top_k: int, row_format: RowFormat, x_1D: Tensor, max_small: int
) -> TokenDispatcher:
    """The form for this unit. `x_1D` is what a token's row is made of and what an expert makes of it.

    Dispatches of up to `max_small` tokens a rank are worth low latency; 0: there are none.
    """
    if group.size == 1:
        return LocalDispatcher(slots_per_rank, row_format)
    num_nodes, row_bytes = len(set(group.nodes)), row_format.encode(x_1D).shape[1]
    normal = (NodeDispatcher if 1 < num_nodes < group.size else AllToAllDispatcher)(group, slots_per_rank, row_format)
    if num_nodes == 1:
        return SharedDispatcher(normal, row_bytes, x_1D.nbytes, min(top_k, slots_per_rank))
    if 0 < max_small * (top_k * SLOT_BYTES + row_bytes) <= MAX_MESSAGE_BYTES:
        return LowLatencyDispatcher(normal, max_small)
    return normal


class LowLatencyDispatcher(AllToAllDispatcher):
    """One exchange: each rank sends each other how many rows there are, and room for the most.

    A step in which some rank has more is dispatched by `normal`; one vote a step says which it is.
    """

    def __init__(self, normal: AllToAllDispatcher, max_tokens: int) -> None:
        super().__init__(normal.group, normal.slots_per_rank, normal.row_format)
        self.traffic = normal.traffic
        self._normal = normal
        self._most_tokens = max_tokens
        self._is_small = False

    def begin_step(self, num_tokens: int) -> None:
        """Agree on whether the step is small."""
        self._is_small = not self.group.any(num_tokens > self._most_tokens)

    def exchange(self, rows_TX: Tensor, slots_TK: Tensor) -> Callable[[], tuple[Tensor, Tensor]]:
        """Count and rows in one message."""
        if not self._is_small:
            return self._normal.exchange(rows_TX, slots_TK)
        rows, sizes = self.for_each(rows_TX, self.among(slots_TK // self.slots_per_rank))
        row_bytes = rows.shape[1]
        messages = rows.new_zeros(self.group.size, COUNT_BYTES + self._most_tokens * row_bytes)
        messages[:, :COUNT_BYTES] = sizes[:, None].view(torch.uint8)
        self._room(messages, row_bytes)[self._is_taken(sizes)] = rows

        def at_once() -> tuple[Tensor, Tensor]:
            one_message_each = [1] * self.group.size
            arrived = self.give(messages, one_message_each, one_message_each)
            from_each = arrived[:, :COUNT_BYTES].contiguous().view(torch.int64)[:, 0]
            return from_each, self._room(arrived, row_bytes)[self._is_taken(from_each)]

        return at_once

    def _room(self, messages: Tensor, row_bytes: int) -> Tensor:
        """The rows' part of the messages, [ranks, max_tokens, row_bytes]: the same memory."""
        return messages[:, COUNT_BYTES:].unflatten(1, (self._most_tokens, row_bytes))

    def _is_taken(self, sizes: Tensor) -> Tensor:
        """[ranks, max_tokens]."""
        return torch.arange(self._most_tokens) < sizes[:, None]


class NodeDispatcher(AllToAllDispatcher):
    """A row goes to a relay on each node that it wants; relays give it to each rank there that it wants."""

    def __init__(self, group: Group, slots_per_rank: int, row_format: RowFormat) -> None:
        super().__init__(group, slots_per_rank, row_format)
        self._relay_of_rank = torch.tensor([_relay(group, group.rank, node) for node in group.nodes])
        own_node = group.nodes[group.rank]
        self._is_near_G = torch.tensor([node == own_node for node in group.nodes])
        relay_of_source = [_relay(group, source, own_node) for source in range(group.size)]
        self._relay_of_source = torch.tensor(relay_of_source)
        self._arrival = torch.tensor(sorted(range(group.size), key=lambda source: (relay_of_source[source], source)))

    def exchange(self, rows_TX: Tensor, slots_TK: Tensor) -> Callable[[], tuple[Tensor, Tensor]]:
        """Sizes, then rows to relays, then rows to ranks."""
        ranks_TK = slots_TK // self.slots_per_rank
        to_relays, to_each_relay = self.for_each(rows_TX, self.among(self._relay_of_rank[ranks_TK]))
        sizes_sent = torch.stack((self.among(ranks_TK).sum(0), to_each_relay), 1)

        def by_relays() -> tuple[Tensor, Tensor]:
            one_row_each = [1] * self.group.size
            from_each, relayed = self.group.all_to_all(sizes_sent, one_row_each, one_row_each).unbind(1)
            at_relay = self.give(to_relays, to_each_relay.tolist(), relayed.tolist())
            ranks_NK = self.slots_of(at_relay, slots_TK.shape[1]) // self.slots_per_rank
            to_ranks, to_each_rank = self.for_each(at_relay, self.among(ranks_NK) & self._is_near_G)
            from_relays = torch.zeros_like(from_each).index_add_(0, self._relay_of_source, from_each)
            rows = self.give(to_ranks, to_each_rank.tolist(), from_relays.tolist())
            return from_each, rows[self._by_source(from_each)]

        return by_relays

    def _by_source(self, from_each: Tensor) -> Tensor:
        """Rows arrive by relay, then source: the order that puts sources first."""
        return self._arrival.repeat_interleave(from_each[self._arrival]).argsort(stable=True)


def _relay(group: Group, source: int, node: int) -> int:
    """The rank of `node` that has the place that `source` has in its own."""
    own = [rank for rank in range(group.size) if group.nodes[rank] == group.nodes[source]]
    there = [rank for rank in range(group.size) if group.nodes[rank] == node]
    return there[own.index(source) % len(there)]
