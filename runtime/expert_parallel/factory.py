"""Which dispatcher a unit gets."""

from torch import Tensor

from runtime.errors import RuntimeFailure
from runtime.expert_parallel.dispatcher import AllToAllDispatcher, LocalDispatcher, RowFormat, TokenDispatcher
from runtime.expert_parallel.group import Group
from runtime.expert_parallel.hierarchical import NodeDispatcher
from runtime.expert_parallel.masked import MaskedDispatcher
from runtime.expert_parallel.shared_memory.dispatcher import SharedDispatcher
from runtime.kernels.backend import Backend

__all__ = ["new_dispatcher"]


def new_dispatcher(
    group: Group,
    slots_per_rank: int,
    top_k: int,
    row_format: RowFormat,
    x_1D: Tensor,
    backend: Backend,
    capacity: int | None = None,
) -> TokenDispatcher:
    """Choose the form for this unit. `x_1D` is what a token's row is made of and what an expert makes of it.

    `capacity`: the most tokens that any rank dispatches at once, where these are few; None where there are prompts.
    Raises RuntimeFailure when the model is to be deterministic and the form is not.
    """
    if capacity is not None and backend.device.type != "cpu":
        dispatcher: TokenDispatcher = MaskedDispatcher(group, slots_per_rank, capacity, row_format, backend.ops)
    else:
        dispatcher = _form_for(group, slots_per_rank, top_k, row_format, x_1D, backend)
    if backend.batching.is_invariant and not dispatcher.sums_in_order:
        raise RuntimeFailure(
            f"deterministic mode is not possible with {type(dispatcher).__name__}: it adds what a token's"
            f" experts made in the order in which it comes, which depends on where they are"
        )
    return dispatcher


def _form_for(
    group: Group, slots_per_rank: int, top_k: int, row_format: RowFormat, x_1D: Tensor, backend: Backend
) -> TokenDispatcher:
    """No exchange at EP1, common memory inside a CPU node, otherwise by node where that saves something."""
    if group.size == 1:
        return LocalDispatcher(slots_per_rank, row_format, backend.ops)
    num_nodes = len(set(group.nodes))
    form = NodeDispatcher if 1 < num_nodes < group.size else AllToAllDispatcher
    normal = form(group, slots_per_rank, row_format, backend.ops)
    if num_nodes == 1 and backend.device.type == "cpu":
        row_bytes = row_format.encode(x_1D).shape[1]
        return SharedDispatcher(normal, row_bytes, x_1D.nbytes, min(top_k, slots_per_rank))
    return normal
