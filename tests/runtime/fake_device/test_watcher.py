"""The watcher finds each planted mistake that makes a device wait or uses the host."""

import pytest
import torch

from runtime.expert_parallel.dispatcher import AllToAllDispatcher
from runtime.model.forward_batch import Chunk
from runtime.model.moe import Gate
from runtime.model.rope import RotaryTable
from tests.runtime.fake_device.ranks import CUDA, FakeRank, FakeUnit, ReferenceOps
from tests.runtime.fake_device.watcher import DeviceWatcher, HostWait, OffTheDevice

PROMPT = Chunk(list(range(40)), 0, [0])


@pytest.fixture
def rank(small_config):
    """Return one of two nodes' four ranks, whose unit computes prompts."""
    return FakeRank(small_config, ReferenceOps(), FakeUnit(4, 1, 8, "dual_batch"), kv_tokens=128)


def test_a_step_without_mistakes_passes(rank):
    """A step without mistakes passes, and the host waits once for each dispatch."""
    logits = rank.step([PROMPT], [])

    assert logits.device.type == "cuda"
    assert rank.ops.num_reads == rank.num_dispatches == 2 * 2


def test_a_decode_step_waits_for_nothing(small_config):
    """A decode step waits for nothing, because all its shapes are known."""
    rank = FakeRank(small_config, ReferenceOps(), FakeUnit(4, 1, 8, "five_stage", max_step_tokens=3), kv_tokens=128)
    logits = rank.step([], [Chunk([5], 70, [0, 1]), Chunk([7], 3, [1]), Chunk([2], 9, [0])])

    assert logits.shape == (3, small_config.vocab_size)
    assert (rank.ops.num_reads, rank.num_dispatches) == (0, 2 * 2)


def test_a_number_read_in_the_gate_is_found(rank, monkeypatch):
    """`.item()` in the gate is found."""
    forward = Gate.forward

    def reading(self, x_TD):
        x_TD.sum().item()
        return forward(self, x_TD)

    monkeypatch.setattr(Gate, "forward", reading)
    with pytest.raises(HostWait, match="_local_scalar_dense"):
        rank.step([PROMPT], [])


def test_a_rotary_table_of_the_host_is_found(rank, small_config):
    """A rotary table on the host is found, although torch would accept it."""
    config = small_config
    with rank._fake:
        table = RotaryTable(config.qk_rope_head_dim, 64, config.rope_theta, None, torch.device("cpu"))
        table._cos, table._sin = table._cos + 0, table._sin + 0
    rank.model.rotary = table

    with pytest.raises(OffTheDevice, match="two devices"):
        rank.step([PROMPT], [])


def test_a_mask_in_dispatch_is_found(rank, monkeypatch):
    """A boolean mask in dispatch is found, because only the device knows how many rows it leaves."""

    def masked(self, rows_RX, is_for_RW, num_rows):
        return torch.cat([rows_RX[is_for_R] for is_for_R in is_for_RW.T])

    monkeypatch.setattr(AllToAllDispatcher, "rows_by_rank", masked)
    with pytest.raises(HostWait, match="mask"):
        rank.step([PROMPT], [])


def test_a_copy_from_the_host_in_a_layer_is_found(rank, monkeypatch):
    """A copy from the host inside a layer is found."""
    forward = Gate.forward

    def copying(self, x_TD):
        return forward(self, x_TD * torch.tensor([1.0, 2.0], device=CUDA)[0])

    monkeypatch.setattr(Gate, "forward", copying)
    with pytest.raises(OffTheDevice, match="from the host in layer 1"):
        rank.step([PROMPT], [])


@pytest.mark.parametrize(
    "waits",
    [
        lambda x: x.item(),
        lambda x: x.tolist(),
        lambda x: bool(x.any()),
        lambda x: x.cpu(),
        lambda x: x.to("cpu"),
        lambda x: torch.zeros(1, dtype=x.dtype).copy_(x),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: x.index_put_((x > 0,), x),
        lambda x: x.bincount(),
        lambda x: x.repeat_interleave(x),
        lambda x: torch.ones(3, device="cuda").split(x.tolist()),
    ],
)
def test_it_knows_what_waits(rank, waits):
    """Each of these operations needs a device's value on the host."""
    with rank.watch_device():
        x = torch.ones(1, dtype=torch.long, device=CUDA)
        with pytest.raises((HostWait, OffTheDevice)):
            waits(x)


@pytest.mark.parametrize(
    "goes_on",
    [
        lambda x: x.repeat_interleave(x, output_size=1),
        lambda x: x.nonzero_static(size=1),
        lambda x: torch.tensor([1, 2], device="cuda")[x],
        lambda x: x.masked_fill(x > 0, 0),
        lambda x: x.argsort(stable=True).cumsum(0),
        lambda x: x.split([1]),
    ],
)
def test_it_knows_what_does_not_wait(rank, goes_on):
    """These operations need no device's value on the host."""
    with rank.watch_device():
        goes_on(torch.ones(1, dtype=torch.long, device=CUDA))


def test_memory_counts_until_nothing_holds_it():
    """Memory counts once until nothing holds it, and the peak is kept for each purpose."""
    with torch._subclasses.FakeTensorMode(), torch.no_grad(), DeviceWatcher() as watcher:
        held = torch.empty(10, dtype=torch.uint8, device=CUDA)
        with watcher.allocations.count_allocations("step"):
            for size in (30, 50, 20):
                passing = torch.empty(size, dtype=torch.uint8, device=CUDA).view(2, -1)
                del passing
            view = held[2:]

    assert watcher.allocations.held == {"model": 10, "step": 0}
    assert watcher.allocations.most == {"model": 10, "step": 50}
    assert len(view) == 8
