"""All-to-all dispatch that sends each token only once to each node.

A token for several ranks of another node is sent once, to a relay there. The relay is the rank with the same position
in its node as the sender has in its own. It passes the token on.

Only the exchange differs from `AllToAllDispatcher`; rows end up in the same order. Combine is the same: each choice's
output comes back, since the token's rank makes the weighted sum in the order of the choices.

Worked example: ranks 0, 1 on node A and 2, 3 on node B. A token of rank 1 wants slots on ranks 2, 2 and 3. Its row goes
to rank 3 with the three slots; rank 3 gives it to rank 2 and to itself, once each. One row crossed, not three.

Model: DeepEP's normal kernels (github.com/deepseek-ai/DeepEP).
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from runtime.expert_parallel.dispatcher import AllToAllDispatcher, RowFormat, Sizes
from runtime.expert_parallel.group import Group
from runtime.kernels.ops import Ops

__all__ = ["NodeDispatcher"]


class NodeDispatcher(AllToAllDispatcher):
    """Sends a row to one relay rank on each node with slots for it.

    The relay sends it to the ranks with these slots.
    """

    def __init__(self, group: Group, slots_per_rank: int, row_format: RowFormat, ops: Ops) -> None:
        super().__init__(group, slots_per_rank, row_format, ops)
        own_node = group.nodes[group.rank]
        relay_of_rank = [_relay_on(group, group.rank, node) for node in group.nodes]
        self._relay_of_rank_W = _device_table(ops, relay_of_rank)
        self._near_ranks = [rank for rank in range(group.size) if group.nodes[rank] == own_node]
        self._is_near_W = _device_table(ops, [node == own_node for node in group.nodes])
        self._passed_on_WX = _device_table(ops, _forwarding_table(group, relay_of_rank))
        self._relay_of_source = [_relay_on(group, source, own_node) for source in range(group.size)]
        self._arrival_W = _device_table(
            ops, sorted(range(group.size), key=lambda source: (self._relay_of_source[source], source))
        )

    def exchange(self, rows_TX: Tensor, slots_TK: Tensor, pairs_WM: Tensor) -> Callable[[], tuple[Sizes, Tensor]]:
        """Return a function that exchanges sizes, then sends rows by relays.

        The function returns the sizes and the received rows, in the order of the ranks that sent them.
        """
        ranks_TK = slots_TK // self.slots_per_rank
        is_for_relay_TW = self.rank_mask(self._relay_of_rank_W[ranks_TK])
        sizes_WX = self._sizes_by_relay(pairs_WM, is_for_relay_TW.sum(0), self.rank_mask(ranks_TK).sum(0))

        def exchange_by_relays() -> tuple[Sizes, Tensor]:
            sizes = self.send_sizes(sizes_WX)
            first, near = self.slots_per_rank, len(self._near_ranks)
            to_relays, relayed = ([line[first] for line in lines] for lines in (sizes.sent, sizes.received))
            at_relay = self.send_rows(self.rows_by_rank(rows_TX, is_for_relay_TW, sum(to_relays)), to_relays, relayed)
            to_near = [sum(rows) for rows in zip(*(line[first + 2 :][:near] for line in sizes.received), strict=True)]
            ranks_RK = self.read_slots(at_relay, slots_TK.shape[1]) // self.slots_per_rank
            to_ranks = self.rows_by_rank(at_relay, self.rank_mask(ranks_RK) & self._is_near_W, sum(to_near))
            received = [line[first + 1] for line in sizes.received]
            rows = self.send_rows(
                to_ranks,
                self._sum_by_rank(self._near_ranks, to_near),
                self._sum_by_rank(self._relay_of_source, received),
            )
            return sizes, rows[self._source_order(sizes.received_WX[:, first + 1], len(rows))]

        return exchange_by_relays

    def _sizes_by_relay(self, pairs_WM: Tensor, to_relay_W: Tensor, rows_W: Tensor) -> Tensor:
        """Return the line of numbers that `send_sizes` sends to each rank, [W, X].

        A rank's line has four parts: the number of pairs for each of its slots; the number of rows that it relays; the
        number of rows for the rank itself; the number of rows to pass on to each rank of its node.
        """
        no_rows = rows_W.new_zeros(1)
        passed_on_WX = torch.cat((rows_W, no_rows))[self._passed_on_WX]
        return torch.cat((pairs_WM, to_relay_W[:, None], rows_W[:, None], passed_on_WX), 1)

    def _sum_by_rank(self, ranks: list[int], rows: list[int]) -> list[int]:
        """Return the sum of `rows` for each rank of the group; `rows[i]` counts rows of the rank `ranks[i]`."""
        total = [0] * self.group.size
        for rank, number in zip(ranks, rows, strict=True):
            total[rank] += number
        return total

    def _source_order(self, received_W: Tensor, num_rows: int) -> Tensor:
        """Return the order that sorts rows by source.

        Rows arrive in the order of relays, and from each relay in the order of sources.
        """
        sources = self._arrival_W.repeat_interleave(received_W[self._arrival_W], output_size=num_rows)
        return sources.argsort(stable=True)


def _forwarding_table(group: Group, relay_of_rank: list[int]) -> list[list[int]]:
    """Return for each rank the ranks to which it passes rows on.

    A relay passes rows on to the ranks of its node, any other rank to none. Each line is filled up with `size` to the
    length of the largest node's line.
    """
    members = [[rank for rank in range(group.size) if group.nodes[rank] == node] for node in group.nodes]
    most = max(map(len, members))
    is_relay = set(relay_of_rank)
    lines = [own if rank in is_relay else [] for rank, own in enumerate(members)]
    return [line + [group.size] * (most - len(line)) for line in lines]


def _relay_on(group: Group, source: int, node: int) -> int:
    """Return the rank of `node` that has the same position there as `source` has in its own node."""
    own = [rank for rank in range(group.size) if group.nodes[rank] == group.nodes[source]]
    there = [rank for rank in range(group.size) if group.nodes[rank] == node]
    return there[own.index(source) % len(there)]


def _device_table(ops: Ops, values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
    """Return a table of ranks as a tensor on the device of the rows."""
    return torch.tensor(values, device=ops.device)
