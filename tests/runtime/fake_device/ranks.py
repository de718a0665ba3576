"""One rank of a unit on fake tensors: the runtime's own model, cache and dispatchers, at real sizes, without a GPU.

What is replaced, and nothing else:

    the device's tensors    torch's fake tensors: shapes, types and devices, no numbers
    the other ranks         torch's fake process group; its exchanges end at once
    numbers that are read   `Ops.read` is given sizes of the worst dispatch that the planner's ledger allows for
    the kernels             not at all (`ReferenceOps`), or by their shapes (`KernelShapes`), to count memory

`KernelShapes` allocates what DeepGEMM, FlashMLA and torch's SDPA do: their results, quantised rows, and keys put
together for prefill. Rows on their way between ranks count as the exchange's, since DeepEP keeps them in its buffers.
Nothing here says that those kernels run, or how fast.
"""

from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch._C._distributed_c10d import FakeProcessGroup
from torch._subclasses import FakeTensorMode

from runtime.expert_parallel.group import GlooGroup
from runtime.expert_parallel.overlap import OVERLAPS
from runtime.kernels.backend import Backend
from runtime.kernels.batch_invariant import Batched
from runtime.kernels.fp8 import E4M3, Quantised, num_blocks
from runtime.kernels.ops import Ops
from runtime.kv.cache import LatentCache
from runtime.model.deepseek import DeepseekV3
from tests.runtime.fake_device.watcher import DeviceWatcher

__all__ = ["CUDA", "FakeRank", "FakeUnit", "KernelShapes", "ReferenceOps"]

CUDA = torch.device("cuda")


class ReferenceOps(Ops):
    """The reference on a fake device: what the host reads is told beforehand."""

    def __init__(self):
        super().__init__(CUDA)
        self.num_reads, self.sizes, self._multiplied = 0, None, set()

    def fp8_matmul(self, x, w, dtype):
        """Let one product of its shapes stand for its equals: the reference has a loop of up to 144 blocks."""
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


class KernelShapes(ReferenceOps):
    """What a GPU's kernels allocate, with the reference where its allocations are theirs."""

    def rms_norm(self, x, weight_D, eps):
        return torch.empty_like(x)

    def silu_product(self, gate_RI, up_RI):
        return gate_RI.new_empty(gate_RI.shape)

    def quantise_rows(self, x_RD, power_of_two):
        return self._codes(*x_RD.shape)

    def fp8_matmul(self, x, w, dtype):
        assert x.codes.shape[1] == w.codes.shape[1]
        return x.codes.new_empty(len(x.codes), len(w.codes), dtype=dtype)

    def rotate(self, x, cos_TX, sin_TX):
        """In place."""

    def attend_causally(self, q_THQ, kv_SHX, k_rope_SP, value_size, scale):
        """SDPA reads whole keys, which are put together before; values are a part of `kv`."""
        keys_SHQ = q_THQ.new_empty(len(kv_SHX), *q_THQ.shape[1:])
        assert keys_SHQ.shape[2] == kv_SHX.shape[2] - value_size + k_rope_SP.shape[1]
        return q_THQ.new_empty(*q_THQ.shape[:2], value_size)

    def attend_pages(self, q_BHC, pages_JSC, tables_BJ, lengths_B, lora_rank, scale):
        """FlashMLA reads pages where they lie."""
        return q_BHC.new_empty(*q_BHC.shape[:2], lora_rank)

    def gate_logits(self, x_TD, w_ED):
        return x_TD.new_empty(len(x_TD), len(w_ED), dtype=torch.float32)

    def fp8_experts(self, packed_RX, counts, experts):
        return self._grouped(len(packed_RX), experts)

    def masked_fp8_experts(self, packed_MZX, counts_M, experts):
        return self._grouped(packed_MZX.shape[0] * packed_MZX.shape[1], experts).unflatten(0, packed_MZX.shape[:2])

    def _grouped(self, num_rows, experts):
        """DeepGEMM's grouped form: gate and up in one, their product quantised as it is made, down."""
        hidden, intermediate = experts.down.codes.shape[1:]
        gate_up = torch.empty(num_rows, 2 * intermediate, dtype=torch.bfloat16, device=CUDA)
        product = self._codes(num_rows, intermediate)
        del gate_up
        return torch.empty(len(product.codes), hidden, dtype=torch.bfloat16, device=CUDA)

    def _codes(self, rows, size):
        scales = torch.empty(rows, num_blocks(size), device=CUDA)
        return Quantised(torch.empty(rows, size, dtype=E4M3, device=CUDA), scales)


class FakeGroup(GlooGroup):
    """A unit of which only this rank is here. Exchanges end at once; a device would have a stream for them."""

    def __init__(self, size, ranks_per_node):
        super().__init__(0, size, [rank // ranks_per_node for rank in range(size)])
        self._backend = FakeProcessGroup._create_internal(0, size)

    def begin(self, exchange):
        result = exchange()
        return SimpleNamespace(result=lambda: result)


class FakeRank:
    """Rank 0 of a unit: its model, and a cache of `kv_tokens`, to step with."""

    def __init__(self, config, ops, unit, kv_tokens):
        self.ops, self.config, self.unit = ops, config, unit
        self.watcher, self._fake = DeviceWatcher(), FakeTensorMode()
        self.num_dispatches = 0
        experts = [slot % config.n_routed_experts for slot in range(unit.num_slots)]
        maps, group = [experts] * config.num_moe_layers, FakeGroup(unit.ep_size, unit.ranks_per_node)
        backend, overlap = Backend(E4M3, ops, Batched()), OVERLAPS[unit.overlap]
        with self.on_the_device():
            self.model = DeepseekV3(config, maps, group, backend, overlap, None, unit.max_step_tokens)
        with self.on_the_device("kv"):
            sizes = config.num_hidden_layers, config.latent_dim, kv_tokens
            self.cache = LatentCache(*sizes, torch.bfloat16, CUDA)
        for layer in self.model.model.layers:
            layer.forward = self._followed(layer.index, layer.forward)
        for name in ("dispatch", "combine"):
            setattr(self.model.dispatcher, name, self._counted(name, getattr(self.model.dispatcher, name)))

    @contextmanager
    def on_the_device(self, purpose="model"):
        """Fake tensors, watched and counted."""
        with self._fake, torch.no_grad(), self.watcher, self.watcher.allocations.made_for(purpose):
            yield

    def step(self, prefilling, decoding):
        """Compute one step, and return its logits."""
        tokens = sum(len(chunk.token_ids) for chunk in (*prefilling, *decoding))
        most = max(self.model.overlap.shares(tokens))
        self.ops.sizes = lambda shape: self.unit.sizes(shape, most, self.config.num_experts_per_tok)
        with self.on_the_device("activations"):
            return self.model.next_logits(prefilling, decoding, self.cache)

    def _followed(self, index, forward):
        """Let the watcher know when a layer computes; its flow pauses while the other micro-batch does."""

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

    def _counted(self, name, exchange):
        """What is made to be sent, and what arrives, lies in the buffers of the exchange."""

        def begin(*arguments):
            self.num_dispatches += name == "dispatch"
            with self.watcher.allocations.made_for("exchange"):
                return exchange(*arguments)

        return begin


@dataclass(frozen=True)
class FakeUnit:
    """A unit's shape, and the most pairs that one dispatch brings to a rank, for each token of a rank."""

    ep_size: int
    ranks_per_node: int
    num_slots: int
    overlap: str
    max_step_tokens: int | None = None
    imbalance: float = 1.0

    def sizes(self, shape, num_tokens, top_k):
        """What the host reads in a dispatch: `Sizes.sent` and `Sizes.received`, where this rank gets the most."""
        mean = num_tokens * top_k / self.ep_size
        return [
            [self._line(shape[2], rank, *pairs, num_tokens) for rank in range(self.ep_size)]
            for pairs in ((int(mean), int(mean)), (int(mean * self.imbalance), int(mean)))
        ]

    def _line(self, length, rank, pairs, mean, num_tokens):
        """As `AllToAllDispatcher` and `NodeDispatcher` tell it. Each pair is of another token, which is the most."""
        slots = self.num_slots // self.ep_size
        by_slot = [pairs // slots + (slot < pairs % slots) for slot in range(slots)]
        if length == slots + 1:
            return [*by_slot, pairs]
        is_relay = rank % self.ranks_per_node == 0  # rank 0's, on each node
        near = [pairs, *[mean] * (length - slots - 3)]
        return [*by_slot, num_tokens * is_relay, pairs, *(rows * is_relay for rows in near)]
