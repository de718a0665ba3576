"""Choose a unit's group and its dispatcher."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.errors import RuntimeFailure
from runtime.expert_parallel.dispatcher import AllToAllDispatcher, LocalDispatcher, RowFormat, TokenDispatcher
from runtime.expert_parallel.group import GlooGroup, Group, SoloGroup
from runtime.expert_parallel.hierarchical import NodeDispatcher
from runtime.expert_parallel.masked import MaskedDispatcher
from runtime.expert_parallel.nccl import NcclGroup
from runtime.expert_parallel.shared_memory.dispatcher import SharedDispatcher
from runtime.kernels.backend import Backend
from runtime.kernels.device import CPU

__all__ = ["new_dispatcher", "new_group"]


def new_group(rank: int, size: int, nodes: Sequence[int] | None = None, device: torch.device = CPU) -> Group:
    """Return the group of a unit, not joined yet. `nodes` is the node of each rank; None if all are on one."""
    if size == 1:
        return SoloGroup()
    return GlooGroup(rank, size, nodes) if device.type == "cpu" else NcclGroup(rank, size, nodes, device)


def new_dispatcher(
    group: Group,
    slots_per_rank: int,
    top_k: int,
    row_format: RowFormat,
    x_1D: Tensor,
    backend: Backend,
    capacity: int | None = None,
) -> TokenDispatcher:
    """Return the dispatcher for this unit. `x_1D` is a sample of a token's row and of an expert's result.

    `capacity` is the most tokens that any rank dispatches at once in a unit without prompts; None in a unit with
    prompts. Raises RuntimeFailure if the model must be deterministic and the dispatcher is not.
    """
    if backend.device.type == "cpu":
        dispatcher = _choose_portable_form(group, slots_per_rank, top_k, row_format, x_1D, backend)
    else:
        dispatcher = _choose_device_form(group, slots_per_rank, top_k, row_format, x_1D, backend, capacity)
    if backend.batching.is_invariant and not dispatcher.sums_in_order:
        raise RuntimeFailure(
            f"deterministic mode is not possible with {type(dispatcher).__name__}: it adds what a token's"
            f" experts made in the order in which it comes, which depends on where they are"
        )
    return dispatcher


def _choose_device_form(
    group: Group,
    slots_per_rank: int,
    top_k: int,
    row_format: RowFormat,
    x_1D: Tensor,
    backend: Backend,
    capacity: int | None,
) -> TokenDispatcher:
    """Return DeepEP's kernels if they fit, else the masked exchange if steps have few tokens, else a portable form."""
    from runtime.expert_parallel.deep_ep import deep_ep_form

    if capacity is not None:
        capacity = _fill_tiles(capacity, group.size, backend.ops.row_alignment)
    form = deep_ep_form(group, slots_per_rank, top_k, row_format, x_1D, backend.ops, capacity)
    if form is not None:
        return form
    if capacity is not None:
        return MaskedDispatcher(group, slots_per_rank, capacity, row_format, backend.ops)
    return _choose_portable_form(group, slots_per_rank, top_k, row_format, x_1D, backend)


def _fill_tiles(capacity: int, num_ranks: int, row_alignment: int) -> int:
    """Return `capacity`, raised until a slot's room for the rows of all ranks is a whole number of tiles."""
    step = row_alignment // math.gcd(row_alignment, num_ranks)
    return -(-capacity // step) * step


def _choose_portable_form(
    group: Group, slots_per_rank: int, top_k: int, row_format: RowFormat, x_1D: Tensor, backend: Backend
) -> TokenDispatcher:
    """Return a dispatcher that needs no special kernels: local for one rank, shared memory on one node of CPUs.

    Otherwise return an all-to-all. With several ranks on each of several nodes, the all-to-all sends each row only once
    to a node.
    """
    if group.size == 1:
        return LocalDispatcher(slots_per_rank, row_format, backend.ops)
    num_nodes = len(set(group.nodes))
    form = NodeDispatcher if 1 < num_nodes < group.size else AllToAllDispatcher
    normal = form(group, slots_per_rank, row_format, backend.ops)
    if num_nodes == 1 and backend.device.type == "cpu":
        row_bytes = row_format.encode(x_1D).shape[1]
        return SharedDispatcher(normal, row_bytes, x_1D.nbytes, min(top_k, slots_per_rank))
    return normal
