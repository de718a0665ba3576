"""The other ranks of a unit, played: a stand-in for DeepEP that brings as many rows as an even unit would send.

The product's own dispatchers run on it, so all that they do on the device around an exchange is paid: quantising,
putting rows in order, adding them up. Nothing travels, and the rows that come were made once.
"""

import math

import torch

from runtime.kernels.fp8 import E4M3, num_blocks
from runtime.kernels.gpu.quantise import empty_scales

__all__ = ["PlayedDeepEp", "PlayedGroup", "arriving"]

ONE = 0x38  # in E4M3; the codes below it are the numbers from 0 to 1


class PlayedGroup:
    """A unit of which only rank 0 is here, and which does what this rank votes for."""

    rank = 0

    def __init__(self, nodes):
        self.size, self.nodes = len(nodes), tuple(nodes)

    def gather(self, part):
        return [part] * self.size

    def any(self, flag):
        return flag

    def vote(self, *flags):
        return list(flags)


class PlayedDeepEp:
    """The module `deep_ep`. `num_bytes` is what the rows that it brings take."""

    def __init__(self, device):
        self.device, self.num_bytes = device, 0
        self.Buffer = PlayedBuffers(self)


class PlayedBuffers:
    """The class `deep_ep.Buffer`: sizes of memory that nobody needs here, and a buffer."""

    def __init__(self, module):
        self._module = module

    def __call__(self, group, nvlink_bytes, rdma_bytes, comm, **options):
        return PlayedBuffer(self._module, comm.Get_size())

    def get_dispatch_config(self, num_ranks):
        return NoMemory()

    get_combine_config = get_dispatch_config

    def get_low_latency_rdma_size_hint(self, *sizes):
        return 0


class NoMemory:
    """A configuration of DeepEP's buffers."""

    def get_nvl_buffer_size_hint(self, row_bytes, num_ranks):
        return 0

    get_rdma_buffer_size_hint = get_nvl_buffer_size_hint


class NoEvent:
    """Nothing is under way."""

    def current_stream_wait(self):
        pass


class PlayedBuffer:
    """An object of `deep_ep.Buffer`."""

    def __init__(self, module, num_ranks):
        self._module, self._num_ranks, self._made = module, num_ranks, {}

    def capture(self):
        return NoEvent()

    def get_dispatch_layout(self, slots_TK, num_slots, **options):
        self._slots = num_slots // self._num_ranks
        return None, None, None, None, NoEvent()

    def dispatch(self, x, topk_idx, topk_weights, expert_alignment, **options):
        """Bring the tokens that choose a slot here, each once, with its slots here or -1."""
        (num_tokens, top_k), hidden = topk_idx.shape, x[0].shape[1]
        if num_tokens not in self._made:
            self._made[num_tokens] = self._came(num_tokens, top_k, hidden, expert_alignment)
        came, slots_RK, weights_RK, counts = self._made[num_tokens]
        return came, slots_RK, weights_RK, counts, num_tokens, NoEvent()

    def combine(self, rows_RD, handle, **options):
        """Give this rank's tokens as many of the rows."""
        return rows_RD[:handle].clone(), None, NoEvent()

    def low_latency_dispatch(self, x, topk_idx, capacity, num_slots, **options):
        """Bring as many pairs as this rank's tokens have, spread over its slots. The room is the same every time."""
        slots, num_pairs = num_slots // self._num_ranks, topk_idx.numel()
        if "room" not in self._made:
            self._made["room"] = self._rows(True, slots, capacity * self._num_ranks, x.shape[1])
        if num_pairs not in self._made:
            counts_M = torch.full((slots,), num_pairs // slots, dtype=torch.int32, device=self._module.device)
            self._made[num_pairs] = counts_M
        return self._made["room"], self._made[num_pairs], x, None, lambda: None

    def low_latency_combine(self, results, topk_idx, topk_weights, handle, **options):
        """Give this rank's tokens their own activations."""
        return handle.clone(), None, lambda: None

    def _came(self, num_tokens, top_k, hidden, alignment):
        slots, device = self._slots, self._module.device
        num_came, num_twice, pairs_M = arriving(num_tokens, top_k, self._num_ranks, slots)
        number_R = torch.arange(num_came, device=device)
        slots_RK = torch.full((num_came, top_k), -1, device=device)
        slots_RK[:, 0] = number_R % slots
        slots_RK[:num_twice, 1] = (number_R[:num_twice] + 1) % slots
        weights_RK = torch.full((num_came, top_k), 1 / top_k, device=device)
        counts = [-(-pairs // alignment) * alignment for pairs in pairs_M]
        return self._rows(False, num_came, hidden), slots_RK, weights_RK, counts

    def _rows(self, by_columns, *shape):
        """Return codes and scales as they come out of DeepEP, in its low-latency form column by column."""
        device = self._module.device
        codes = torch.empty(shape, dtype=torch.uint8, device=device).random_(0, ONE).view(E4M3)
        scales = empty_scales(shape[:-1], num_blocks(shape[-1]), by_columns, device).fill_(1)
        self._module.num_bytes += codes.nbytes + scales.nbytes
        return codes, scales


def arriving(num_tokens, top_k, num_ranks, slots):
    """Return what comes to one of equal ranks: tokens, those of them that want two slots here, pairs of each slot.

    Each token of each rank wants `top_k` of all slots, any as likely as any other. A token that wants more than two
    here counts as several that want two, so that the pairs are as many as an even unit's.
    """
    nowhere_here = math.prod(1 - slots / (num_ranks * slots - chosen) for chosen in range(top_k))
    num_came = round(num_ranks * num_tokens * (1 - nowhere_here))
    num_twice = min(max(num_tokens * top_k - num_came, 0), num_came)
    pairs_M = [
        len(range(slot, num_came, slots)) + len(range((slot - 1) % slots, num_twice, slots)) for slot in range(slots)
    ]
    return num_came, num_twice, pairs_M
