"""All-to-all dispatch that takes no token to a node twice.

A token that several ranks of one node want crosses to that node once, to the rank that stands there where the
sender stands in its own node (its relay), and is spread from there.

Rows come in the order of `AllToAllDispatcher`, which this is but for the exchange. Combine is the same: each choice's
output comes back, since the weighted sum is made at the token's rank in the order of the choices.

Worked example: ranks 0, 1 on node A and 2, 3 on node B. A token of rank 1 wants slots on ranks 2, 2 and 3. Its row goes
to rank 3 with the three slots; rank 3 gives it to rank 2 and to itself, once each. One row crossed, not three.

Model: DeepEP's normal kernels (github.com/deepseek-ai/DeepEP).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from runtime.expert_parallel.dispatcher import AllToAllDispatcher, RowFormat
from runtime.expert_parallel.group import Group
from runtime.kernels.ops import Ops

__all__ = ["NodeDispatcher"]


class NodeDispatcher(AllToAllDispatcher):
    """A row goes to a relay on each node that it wants; relays give it to each rank there that it wants."""

    def __init__(self, group: Group, slots_per_rank: int, row_format: RowFormat, ops: Ops) -> None:
        super().__init__(group, slots_per_rank, row_format, ops)
        self._relay_of_rank_W = _on(ops, [_relay(group, group.rank, node) for node in group.nodes])
        own_node = group.nodes[group.rank]
        self._is_near_W = _on(ops, [node == own_node for node in group.nodes])
        relay_of_source = [_relay(group, source, own_node) for source in range(group.size)]
        self._relay_of_source_W = _on(ops, relay_of_source)
        self._arrival_W = _on(ops, sorted(range(group.size), key=lambda source: (relay_of_source[source], source)))

    def exchange(self, rows_TX: Tensor, slots_TK: Tensor) -> Callable[[], tuple[Tensor, Tensor]]:
        """Sizes, then rows to relays, then rows to ranks."""
        ranks_TK = slots_TK // self.slots_per_rank
        to_relays, to_each_relay = self.for_each(rows_TX, self.among(self._relay_of_rank_W[ranks_TK]))
        sizes_sent = torch.stack((self.among(ranks_TK).sum(0), to_each_relay), 1)

        def by_relays() -> tuple[Tensor, Tensor]:
            one_row_each = [1] * self.group.size
            from_each_W, relayed = self.group.all_to_all(sizes_sent, one_row_each, one_row_each).unbind(1)
            at_relay = self.give(to_relays, to_each_relay.tolist(), relayed.tolist())
            ranks_RK = self.slots_of(at_relay, slots_TK.shape[1]) // self.slots_per_rank
            to_ranks, to_each_rank = self.for_each(at_relay, self.among(ranks_RK) & self._is_near_W)
            from_relays = torch.zeros_like(from_each_W).index_add_(0, self._relay_of_source_W, from_each_W)
            rows = self.give(to_ranks, to_each_rank.tolist(), from_relays.tolist())
            return from_each_W, rows[self._by_source(from_each_W)]

        return by_relays

    def _by_source(self, from_each_W: Tensor) -> Tensor:
        """Rows arrive by relay, then source: the order that puts sources first."""
        return self._arrival_W.repeat_interleave(from_each_W[self._arrival_W]).argsort(stable=True)


def _relay(group: Group, source: int, node: int) -> int:
    """Return the rank of `node` that stands there where `source` stands in its own."""
    own = [rank for rank in range(group.size) if group.nodes[rank] == group.nodes[source]]
    there = [rank for rank in range(group.size) if group.nodes[rank] == node]
    return there[own.index(source) % len(there)]


def _on(ops: Ops, values: list[int] | list[bool]) -> Tensor:
    """Put a table of the ranks where the rows are."""
    return torch.tensor(values, device=ops.device)
