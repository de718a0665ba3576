"""One rank of a unit on fake tensors, at real sizes and without a GPU: the runtime's own model, cache and dispatchers.

What is replaced, and nothing else:

    the device's tensors    torch's fake tensors: shapes, types and devices, no numbers
    the other ranks         torch's fake process group; its exchanges end at once, on a queue that keeps no time
    numbers that are read   sizes of the worst dispatch that the planner's ledger allows for
    the kernels             not at all (`ReferenceOps`), or by stand-ins for the packages (`kernel_packages.py`): then
                            the runtime's own path to them runs, `GpuOps` and DeepEP's dispatchers (`KernelPath`)

Nothing here says that those kernels run, or how fast.
"""

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch._C._distributed_c10d import FakeProcessGroup
from torch._subclasses import FakeTensorMode

from runtime.expert_parallel.nccl import NcclGroup
from runtime.expert_parallel.overlap import OVERLAPS
from runtime.kernels.backend import Backend
from runtime.kernels.batch_invariant import Batched
from runtime.kernels.device import HostLink
from runtime.kernels.fp8 import E4M3, Quantised, num_blocks
from runtime.kernels.gpu.ops import GpuOps
from runtime.kernels.gpu.packages import HOPPER, Packages
from runtime.kernels.gpu.quantise import empty_scales
from runtime.kernels.ops import Ops
from runtime.kv.cache import LatentCache
from runtime.model.deepseek import DeepseekV3
from tests.runtime.fake_device.kernel_packages import FakeDeepEp, FakeDeepGemm, FakeFlashMla
from tests.runtime.fake_device.watcher import DeviceWatcher

__all__ = ["CUDA", "FakeGroup", "FakeQueue", "FakeRank", "FakeUnit", "KernelPath", "ReferenceOps"]

CUDA = torch.device("cuda")


class ReferenceOps(Ops):
    """The reference on a fake device. The numbers that the host reads are given beforehand."""

    def __init__(self):
        super().__init__(CUDA)
        self.num_reads, self.sizes, self._multiplied = 0, None, set()

    def fp8_matmul(self, x, w, dtype):
        """Compute one product for all of equal shapes, because the reference loops over up to 144 blocks."""
        shapes = x.codes.shape, x.scales.shape, w.codes.shape, w.scales.shape, dtype
        if shapes in self._multiplied:
            return x.codes.new_empty(len(x.codes), len(w.codes), dtype=dtype)
        self._multiplied.add(shapes)
        return super().fp8_matmul(x, w, dtype)

    def read(self, numbers):
        """Return the sizes that a real device would have computed."""
        self.num_reads += 1
        found = self.sizes(numbers.shape)
        assert torch.Size((len(found), len(found[0]), len(found[0][0]))) == numbers.shape
        return found


class KernelPath(GpuOps):
    """The runtime's path to the kernels of a GPU of `arch`, with stand-ins for what only a GPU runs.

    Torch's own kernels for a GPU allocate their results alone, which its fake ones without a GPU do not show.
    """

    def __init__(self, arch=HOPPER):
        flash_mla = FakeFlashMla() if arch == HOPPER else None
        super().__init__(CUDA, Packages(arch, FakeDeepGemm(arch), flash_mla, FakeDeepEp()))
        self.num_reads, self.link = 0, HostLink()

    def read(self, numbers):
        raise AssertionError("DeepEP tells the host how many rows come")

    def rms_norm(self, x, weight_D, eps):
        return torch.empty_like(x)

    def _runs_triton(self, x):
        return False

    def _quantise(self, x_RD, power_of_two):
        return self._codes(x_RD.shape)

    def _quantise_gated(self, gate_up, power_of_two, counts_M=None):
        return self._codes((*gate_up.shape[:-1], gate_up.shape[-1] // 2))

    def _codes(self, shape):
        groups, by_columns = num_blocks(shape[-1]), self.packages.arch == HOPPER
        scales = empty_scales(tuple(shape[:-1]), groups, by_columns, CUDA)
        return Quantised(torch.empty(shape, dtype=E4M3, device=CUDA), scales)

    def _masked_attention(self, q, k, v, scale):
        assert (q.shape[1], k.shape[3]) == (k.shape[1], q.shape[3])
        return q.new_empty(*q.shape[:3], v.shape[3])

    def _has_cudnn(self, q, k, v):
        return True

    def _attention_part(self, q, k, v, scale, *, is_causal):
        context = self._masked_attention(q, k, v, scale)
        return context, q.new_empty(*q.shape[:3], 1, dtype=torch.float32)


class FakeQueue:
    """A side queue whose work is done at once, and which records its calls."""

    def __init__(self):
        self.num_begun, self.joined = 0, []

    @contextmanager
    def side_work(self):
        self.num_begun += 1
        yield

    def mark(self):
        return self.num_begun

    def join(self, mark):
        self.joined.append(mark)


class FakeGroup(NcclGroup):
    """A unit of which only this rank exists."""

    def __init__(self, size, ranks_per_node):
        nodes = [rank // ranks_per_node for rank in range(size)]
        super().__init__(0, size, nodes, CUDA, FakeQueue())
        self._nccl = FakeProcessGroup._create_internal(0, size)

    def gather(self, part):
        return [part] * self.size


class FakeRank:
    """Rank 0 of a unit: its model, and a cache of `kv_tokens`."""

    def __init__(self, config, ops, unit, kv_tokens):
        self.ops, self.config, self.unit = ops, config, unit
        self.watcher, self._fake = DeviceWatcher(), FakeTensorMode()
        self.num_dispatches = 0
        experts = [slot % config.n_routed_experts for slot in range(unit.num_slots)]
        maps, group = [experts] * config.num_moe_layers, FakeGroup(unit.ep_size, unit.ranks_per_node)
        backend, overlap = Backend(E4M3, ops, Batched()), OVERLAPS[unit.overlap]
        with self.watch_device():
            self.model = DeepseekV3(config, maps, group, backend, overlap, None, unit.max_step_tokens)
        with self.watch_device("kv"):
            sizes = config.num_hidden_layers, config.latent_dim, kv_tokens
            self.cache = LatentCache(*sizes, torch.bfloat16, CUDA)
        for layer in self.model.model.layers:
            layer.forward = self._follow_layer(layer.index, layer.forward)
        for name in ("dispatch", "combine"):
            setattr(self.model.dispatcher, name, self._count_exchange(name, getattr(self.model.dispatcher, name)))

    @contextmanager
    def watch_device(self, purpose="model"):
        """Run on fake tensors that are watched and counted."""
        with self._fake, torch.no_grad(), self.watcher, self.watcher.allocations.count_allocations(purpose):
            yield

    def step(self, prefilling, decoding):
        """Compute one step, and return its logits."""
        tokens = sum(len(chunk.token_ids) for chunk in (*prefilling, *decoding))
        most = max(self.model.overlap.shares(tokens))
        if isinstance(self.ops, KernelPath):
            self.ops.packages.deep_ep.received = self.unit.received_pairs(most, self.config.num_experts_per_tok)
        else:
            self.ops.sizes = lambda shape: self.unit.sizes(shape, most, self.config.num_experts_per_tok)
        with self.watch_device("activations"):
            return self.model.next_logits(prefilling, decoding, self.cache)

    def _follow_layer(self, index, forward):
        """Tell the watcher when a layer computes. Its flow pauses while the other micro-batch computes."""

        def flow(*arguments):
            flow = forward(*arguments)
            while True:
                self.watcher.layer = index
                try:
                    pause = next(flow)
                except StopIteration as end:
                    return end.value
                finally:
                    self.watcher.layer = None
                yield pause

        return flow

    def _count_exchange(self, name, exchange):
        """Count our own exchanges' memory apart: the ledger has DeepEP's buffers for it."""
        counts_apart = isinstance(self.ops, ReferenceOps)

        def begin(*arguments):
            self.num_dispatches += name == "dispatch"
            with self.watcher.allocations.count_allocations("exchange") if counts_apart else nullcontext():
                return exchange(*arguments)

        return begin


@dataclass(frozen=True)
class FakeUnit:
    """A unit's shape, and the most pairs that one dispatch brings to a rank for each token of a rank."""

    ep_size: int
    ranks_per_node: int
    num_slots: int
    overlap: str
    max_step_tokens: int | None = None
    imbalance: float = 1.0

    def received_pairs(self, num_tokens, top_k):
        """Return the pairs that come to this rank in one dispatch when it gets the most."""
        return int(num_tokens * top_k * self.imbalance)

    def sizes(self, shape, num_tokens, top_k):
        """Return the host's view of a dispatch, `Sizes.sent` and `Sizes.received`, where this rank gets the most."""
        mean = num_tokens * top_k / self.ep_size
        return [
            [self._line(shape[2], rank, *pairs, num_tokens) for rank in range(self.ep_size)]
            for pairs in ((int(mean), int(mean)), (int(mean * self.imbalance), int(mean)))
        ]

    def _line(self, length, rank, pairs, mean, num_tokens):
        """Return a line of sizes in the form of `AllToAllDispatcher` or `NodeDispatcher`.

        Each pair is of another token, which makes the most rows.
        """
        slots = self.num_slots // self.ep_size
        by_slot = [pairs // slots + (slot < pairs % slots) for slot in range(slots)]
        if length == slots + 1:
            return [*by_slot, pairs]
        is_relay = rank % self.ranks_per_node == 0  # rank 0's, on each node
        near = [pairs, *[mean] * (length - slots - 3)]
        return [*by_slot, num_tokens * is_relay, pairs, *(rows * is_relay for rows in near)]
