"""Two forms of the all-to-all dispatch: one exchange for small steps, and no token twice to a node.

    low latency   messages of one size for every pair of ranks, the counts in front: nobody has to ask for sizes first.
                  It moves the most that could come, so it is for steps of few tokens: decode.
    by node       a token that several experts of one node want crosses to that node once, to the rank that has the
                  sender's place there (its relay), and is spread from there. For many tokens: prefill.

Both bring the rows in the order of `AllToAllDispatcher`, which they are but for the exchange; combine is its own: each
choice's output comes back, since the weighted sum is made at the token's rank in the order of the choices.

Worked example, by node: ranks 0, 1 on node A and 2, 3 on node B. A token of rank 1 wants slots on ranks 2, 2 and 3. Its
row goes to rank 3 with the three slots; rank 3 gives it to rank 2 twice and to itself once. One row crossed, not three.

Model: DeepEP's low-latency and normal kernels (github.com/deepseek-ai/DeepEP).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from runtime.dispatch import AllToAllDispatcher, LocalDispatcher, RowFormat, TokenDispatcher
from runtime.dispatch_shared import SharedDispatcher
from runtime.parallel import Group

__all__ = ["LowLatencyDispatcher", "NodeDispatcher", "new_dispatcher"]

MAX_MESSAGE_BYTES = 64 * 1024  # assumed: beyond, moving what is not there costs more than asking what is
COUNT_BYTES = 8  # torch.int64
SLOT_BYTES = 4  # torch.int32


def new_dispatcher(
    group: Group, slots_per_rank: int, row_format: RowFormat, row_bytes: int, result_bytes: int, most_pairs: int
) -> TokenDispatcher:
    """The form for this unit. `most_pairs`: what a rank has for another at most in a small step; 0: none is small."""
    if group.size == 1:
        return LocalDispatcher(slots_per_rank, row_format)
    num_nodes = len(set(group.nodes))
    normal = (NodeDispatcher if 1 < num_nodes < group.size else AllToAllDispatcher)(group, slots_per_rank, row_format)
    if num_nodes == 1:
        return SharedDispatcher(normal, row_bytes, result_bytes)
    if 0 < most_pairs * row_bytes <= MAX_MESSAGE_BYTES:
        return LowLatencyDispatcher(normal, most_pairs)
    return normal


class LowLatencyDispatcher(AllToAllDispatcher):
    """One exchange: each rank sends each other the counts of its slots and room for `most_pairs` rows.

    A step in which some rank has more is dispatched by `normal`; one vote a step says which it is.
    """

    def __init__(self, normal: AllToAllDispatcher, most_pairs: int) -> None:
        super().__init__(normal.group, normal.slots_per_rank, normal.row_format)
        self.traffic = normal.traffic
        self._normal = normal
        self._most_pairs = most_pairs
        self._is_small = False

    def begin_step(self, num_pairs: int) -> None:
        """Agree on whether the step is small."""
        self._is_small = not self.group.any(num_pairs > self._most_pairs)

    def exchange(
        self, bytes_TB: Tensor, slots_TK: Tensor, pair_order: Tensor, sizes_sent: Tensor
    ) -> Callable[[], tuple[Tensor, Tensor]]:
        """Counts and rows in one message."""
        if not self._is_small:
            return self._normal.exchange(bytes_TB, slots_TK, pair_order, sizes_sent)
        counts = sizes_sent.view(torch.uint8)
        message_bytes = counts.shape[1] + self._most_pairs * bytes_TB.shape[1]
        messages = bytes_TB.new_zeros(self.group.size, message_bytes)
        messages[:, : counts.shape[1]] = counts
        rows = bytes_TB[pair_order // slots_TK.shape[1]]
        self._room(messages, bytes_TB.shape[1])[self._is_taken(sizes_sent)] = rows

        def at_once() -> tuple[Tensor, Tensor]:
            one_message_each = [1] * self.group.size
            arrived = self.give(messages, one_message_each, one_message_each)
            sizes = arrived[:, : counts.shape[1]].contiguous().view(torch.int64)
            return sizes, self._room(arrived, bytes_TB.shape[1])[self._is_taken(sizes)]

        return at_once

    def _room(self, messages: Tensor, row_bytes: int) -> Tensor:
        """The rows' part of the messages, [ranks, most_pairs, row_bytes]: the same memory."""
        return messages[:, self.slots_per_rank * COUNT_BYTES :].unflatten(1, (self._most_pairs, row_bytes))

    def _is_taken(self, sizes: Tensor) -> Tensor:
        """[ranks, most_pairs]."""
        return torch.arange(self._most_pairs) < sizes.sum(1, keepdim=True)


class NodeDispatcher(AllToAllDispatcher):
    """Rows go to a relay on each node that wants them, with the slots there; relays spread them."""

    def __init__(self, group: Group, slots_per_rank: int, row_format: RowFormat) -> None:
        super().__init__(group, slots_per_rank, row_format)
        self._node_of_slot = torch.tensor(group.nodes).repeat_interleave(slots_per_rank)
        self._relays = sorted({_relay(group, group.rank, node): node for node in set(group.nodes)}.items())
        own_node = group.nodes[group.rank]
        self._relay_of_source = [_relay(group, source, own_node) for source in range(group.size)]

    def exchange(
        self, bytes_TB: Tensor, slots_TK: Tensor, pair_order: Tensor, sizes_sent: Tensor
    ) -> Callable[[], tuple[Tensor, Tensor]]:
        """Sizes, then rows to relays, then rows to slots."""
        to_relays, relay_sizes = self._for_relays(bytes_TB, slots_TK)
        all_sizes_sent = torch.cat((sizes_sent, relay_sizes[:, None]), 1)

        def by_relays() -> tuple[Tensor, Tensor]:
            one_row_each = [1] * self.group.size
            all_sizes = self.group.all_to_all(all_sizes_sent, one_row_each, one_row_each)
            sizes, relayed = all_sizes[:, :-1], all_sizes[:, -1]
            at_relay = self.give(to_relays, relay_sizes.tolist(), relayed.tolist())
            to_slots, sent = self._for_slots(at_relay, relayed, slots_TK.shape[1])
            from_source = sizes.sum(1)
            received = torch.zeros(self.group.size, dtype=torch.long)
            received.index_add_(0, torch.tensor(self._relay_of_source), from_source)
            return sizes, self.give(to_slots, sent, received.tolist())[self._by_source(from_source)]

        return by_relays

    def _for_relays(self, bytes_TB: Tensor, slots_TK: Tensor) -> tuple[Tensor, Tensor]:
        """One row for each token and node that wants it: the slots there (-1: elsewhere), then the token's bytes.

        Also how many rows each rank gets.
        """
        sizes = torch.zeros(self.group.size, dtype=torch.long)
        rows = [bytes_TB.new_empty(0, slots_TK.shape[1] * SLOT_BYTES + bytes_TB.shape[1])]
        for relay, node in self._relays:
            slots_there = slots_TK.where(self._node_of_slot[slots_TK] == node, -1)
            tokens = (slots_there >= 0).any(1).nonzero()[:, 0]
            sizes[relay] = len(tokens)
            rows.append(torch.cat((slots_there[tokens].int().view(torch.uint8), bytes_TB[tokens]), 1))
        return torch.cat(rows), sizes

    def _for_slots(self, at_relay: Tensor, relayed: Tensor, top_k: int) -> tuple[Tensor, list[int]]:
        """A row for each slot that is wanted, by rank, then source, then slot; and how many each rank gets."""
        slots_RK = at_relay[:, : top_k * SLOT_BYTES].contiguous().view(torch.int32).long()
        row, choice = (slots_RK >= 0).nonzero(as_tuple=True)
        slots = slots_RK[row, choice]
        ranks = slots // self.slots_per_rank
        sources = torch.arange(self.group.size).repeat_interleave(relayed)[row]
        order = ((ranks * self.group.size + sources) * self.slots_per_rank + slots % self.slots_per_rank).argsort(
            stable=True
        )
        sent = ranks.bincount(minlength=self.group.size).tolist()
        return at_relay[row[order], top_k * SLOT_BYTES :], sent

    def _by_source(self, from_source: Tensor) -> Tensor:
        """Rows arrive by relay, then source: the order that puts sources first."""
        arrival = sorted(range(self.group.size), key=lambda source: (self._relay_of_source[source], source))
        return torch.tensor(arrival).repeat_interleave(from_source[arrival]).argsort(stable=True)


def _relay(group: Group, source: int, node: int) -> int:
    """The rank of `node` that has the place that `source` has in its own."""
    own = [rank for rank in range(group.size) if group.nodes[rank] == group.nodes[source]]
    there = [rank for rank in range(group.size) if group.nodes[rank] == node]
    return there[own.index(source) % len(there)]
