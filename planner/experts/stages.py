"""Move from one map to another while serving: which GPU sends which expert to which, stage by stage.

A stage is one layer. Its GPUs receive into spare slots while they serve from the old ones, and switch to the new map
together when all have received. Freed slots are the spare ones of the next stage. So no expert is ever without a slot,
and a GPU needs room for at most `spare_slots` more experts of one layer.

The sender holds the expert in the old map. It is on the receiver's node if possible; of several it is the one that has
sent least in the stage so far, with the lowest number.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from planner.expert_map.types import Sizes

__all__ = ["LinkTotal", "Stage", "Transfer", "link_totals", "stage_moves"]

Row = Sequence[int]  # the expert in each slot of a layer


@dataclass(frozen=True)
class Transfer:
    """One expert's weights of one layer from a GPU to a slot of another."""

    expert: int
    from_gpu: int
    to_gpu: int
    to_slot: int


@dataclass(frozen=True)
class Stage:
    """The transfers of one layer; all are done before any GPU switches."""

    layer: int
    transfers: tuple[Transfer, ...]

    @property
    def spare_slots(self) -> int:
        """The most experts that one GPU receives."""
        return max(Counter(transfer.to_gpu for transfer in self.transfers).values())


@dataclass(frozen=True)
class LinkTotal:
    """The traffic on one kind of link, NVLink in nodes or NICs between them, and its busiest GPU in one direction."""

    kind: Literal["nvlink", "nic"]
    experts: int
    busiest_gpu: int
    direction: Literal["sends", "receives"]
    busiest_experts: int


def stage_moves(previous: Sequence[Row], new: Sequence[Row], sizes: Sizes) -> tuple[Stage, ...]:
    """Return the stages from `previous` to `new`, without layers in which nothing moves."""
    layers = enumerate(zip(previous, new, strict=True))
    stages = (Stage(layer, tuple(_transfers(before, after, sizes))) for layer, (before, after) in layers)
    return tuple(stage for stage in stages if stage.transfers)


def link_totals(stages: Sequence[Stage], sizes: Sizes) -> tuple[LinkTotal, ...]:
    """Return the totals of all stages by kind of link; of equally busy GPUs the first is named."""
    gpus_per_node = sizes.num_gpus // sizes.num_nodes
    crossing: dict[Literal["nvlink", "nic"], list[Transfer]] = {"nvlink": [], "nic": []}
    for transfer in (each for stage in stages for each in stage.transfers):
        inside = transfer.from_gpu // gpus_per_node == transfer.to_gpu // gpus_per_node
        crossing["nvlink" if inside else "nic"].append(transfer)
    return tuple(_total(kind, transfers) for kind, transfers in crossing.items() if transfers)


def _total(kind: Literal["nvlink", "nic"], transfers: Sequence[Transfer]) -> LinkTotal:
    sent = Counter(each.from_gpu for each in transfers)
    received = Counter(each.to_gpu for each in transfers)
    sender = min(sent, key=lambda gpu: (-sent[gpu], gpu))
    receiver = min(received, key=lambda gpu: (-received[gpu], gpu))
    if sent[sender] > received[receiver]:
        return LinkTotal(kind, len(transfers), sender, "sends", sent[sender])
    return LinkTotal(kind, len(transfers), receiver, "receives", received[receiver])


def _transfers(before: Row, after: Row, sizes: Sizes) -> list[Transfer]:
    holders: dict[int, list[int]] = {}
    for slot, expert in enumerate(before):
        holders.setdefault(expert, []).append(slot // sizes.slots_per_gpu)
    gpus_per_node = sizes.num_gpus // sizes.num_nodes
    sent: Counter[int] = Counter()
    transfers = []
    for slot, expert in _coming(before, after, sizes.slots_per_gpu):
        gpu = slot // sizes.slots_per_gpu
        node = gpu // gpus_per_node
        sender = min(holders[expert], key=lambda each: (each // gpus_per_node != node, sent[each], each))
        sent[sender] += 1
        transfers.append(Transfer(expert, sender, gpu, slot))
    return transfers


def _coming(before: Row, after: Row, slots_per_gpu: int) -> list[tuple[int, int]]:
    """Return (slot, expert) for each expert that a GPU must receive."""
    coming = []
    for first in range(0, len(after), slots_per_gpu):
        held = Counter(before[first : first + slots_per_gpu])
        for slot in range(first, first + slots_per_gpu):
            if held[after[slot]]:
                held[after[slot]] -= 1
            else:
                coming.append((slot, after[slot]))
    return coming
