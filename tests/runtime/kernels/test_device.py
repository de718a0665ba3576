"""A rank takes its device, and a GPU's rank does not use what is for CPUs."""

import subprocess
import sys
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from runtime.errors import RuntimeFailure
from runtime.kernels import device as devices
from runtime.kernels.backend import choose_backend
from runtime.kernels.device import CPU, HostLink, PinnedLink, use_device
from runtime.kv.cache import LatentCache


@pytest.fixture
def gpus(monkeypatch):
    """Fake a driver with two GPUs, and record which one is taken."""
    taken = []
    fakes = {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "set_device": taken.append,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return taken


def test_a_rank_takes_the_gpu_of_its_number(gpus):
    """A rank takes the GPU of its local number, and makes it the process's current one."""
    assert use_device("cuda", 1) == torch.device("cuda", 1)
    assert gpus == [1]


def test_a_cpu_is_taken_without_asking_for_gpus(gpus):
    """A CPU is taken without a question about GPUs."""
    assert use_device("cpu", 1) == CPU
    assert gpus == []


def test_more_ranks_than_gpus_are_refused(gpus):
    """More ranks than GPUs are refused with the number of GPUs."""
    with pytest.raises(RuntimeFailure, match=r"local rank 2, which needs GPU 2, but the process sees 2: 0 to 1"):
        use_device("cuda", 2)

    assert gpus == []


def test_no_gpu_is_one_sentence(monkeypatch):
    """Without a GPU one sentence says so, and what torch was built for."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeFailure) as error:
        use_device("cuda", 0)

    assert str(error.value).startswith("the launch file's device is cuda, but this process finds no GPU (torch ")
    assert "\n" not in str(error.value)


def test_deterministic_mode_is_refused_on_a_gpu():
    """Deterministic mode is refused on a GPU."""
    with pytest.raises(RuntimeFailure, match="deterministic: true is not possible on cuda"):
        choose_backend(torch.device("cuda"), torch.bfloat16, deterministic=True)


def test_a_cpus_tensor_is_handed_over_as_it_is():
    """A CPU's tensor is not copied to the host."""
    x = torch.ones(3)

    assert HostLink().to_host(x) is x


def test_a_gpus_copies_go_through_pinned_memory_and_are_waited_for(monkeypatch):
    """Copies to the host use pinned memory, and any thread may wait for them on the compute stream."""
    waited, asked, chosen, own = [], [], [], torch.device("cuda", 1)
    stream = SimpleNamespace(synchronize=lambda: waited.append(True))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: asked.append(device) or stream)
    monkeypatch.setattr(torch.cuda, "device", lambda device: chosen.append(device) or nullcontext())
    monkeypatch.setattr(devices.torch, "empty", lambda shape, dtype, pin_memory: (shape, dtype, pin_memory))
    link = PinnedLink(own)

    assert link.empty([2, 3], torch.bfloat16) == ((2, 3), torch.bfloat16, True)
    link.finish(own)
    assert (waited, asked, chosen) == ([True], [own], [own])


class Queue:
    """A queue that records the calls that it gets."""

    def __init__(self):
        self.record, self.has_ended = [], False

    @contextmanager
    def side_work(self):
        self.record.append("beside")
        yield
        self.record.append("compute")

    def mark(self):
        self.record.append("mark")
        return len(self.record)

    def has_passed(self, mark):
        self.record.append(("passed?", mark))
        return self.has_ended

    def join(self, mark):
        self.record.append(("join", mark))


def test_a_copy_to_a_gpu_runs_beside_the_computation_until_it_is_joined():
    """A copy to the GPU runs beside the computation until it is joined, and keeps its inputs until then."""
    queue = Queue()
    arrival = PinnedLink(torch.device("cuda", 1), queue).begin_copy_to_device(lambda: queue.record.append("copy"))
    begun = list(queue.record)
    before, queue.has_ended = arrival.has_arrived(), True
    arrival.join()

    assert begun == ["beside", "copy", "mark", "compute"]
    assert (before, arrival.has_arrived()) == (False, True)
    assert queue.record[4:] == [("passed?", 3), ("join", 3), ("passed?", 3)]


def test_whoever_lets_memory_go_can_ask_for_the_copies_begun_until_then():
    """A mark tells whether the copies begun before it have ended; on a CPU they always have."""
    queue = Queue()
    before, link = PinnedLink(CPU).track_copies(), PinnedLink(CPU, queue)
    have_ended = link.track_copies()
    at_first, queue.has_ended = have_ended(), True

    assert (before(), HostLink().track_copies()()) == (True, True)
    assert (at_first, have_ended()) == (False, True)
    assert queue.record == ["mark", ("passed?", 1), ("passed?", 1)]


def test_latents_of_a_request_are_written_beside_the_computation():
    """The rows to write are copied to the device first, because a copy from pageable memory waits for the queue."""
    queue, made = Queue(), []
    cache = LatentCache(2, 4, 128, torch.float32, CPU, PinnedLink(CPU, queue))
    cache._rows = lambda table, start, end: made.append(list(queue.record)) or torch.arange(start, end)
    arrival = cache.swap_in([0, 1], torch.ones(2, 70, 4))

    assert (made, queue.record) == ([[]], ["beside", "mark", "compute"])
    assert arrival is not None
    assert cache.layers[1].read(torch.arange(71))[:, 0].tolist() == [1.0] * 70 + [0.0]


def test_a_cpus_copy_is_done_when_it_has_begun():
    """A CPU's copy is done when the call returns."""
    copied = []

    assert HostLink().begin_copy_to_device(lambda: copied.append(True)) is None
    assert copied == [True]


def test_who_waits_for_a_copy_to_the_host_sleeps(monkeypatch):
    """A thread that waits for a copy to the host sleeps on a blocking event."""
    events = []

    class Event:
        def __init__(self, blocking=False):
            self.blocking, self.recorded, self.waits = blocking, [], 0
            events.append(self)

        def record(self, stream):
            self.recorded.append(stream)

        def synchronize(self):
            self.waits += 1

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: ("computes", device))
    monkeypatch.setattr(PinnedLink, "empty", lambda self, shape, dtype: torch.empty(shape, dtype=dtype))
    host, wait = PinnedLink(CPU).begin_to_host(torch.ones(3))
    wait()

    assert host.tolist() == [1.0] * 3
    assert [(event.blocking, event.recorded, event.waits) for event in events] == [(True, [("computes", CPU)], 1)]


REACHED = """
import sys
from types import SimpleNamespace
import torch
from runtime.expert_parallel.factory import new_dispatcher
from runtime.expert_parallel.group import GlooGroup
from runtime.expert_parallel.dispatcher import PlainRows
from runtime.expert_parallel.shared_memory import dispatcher as shared
from runtime.kernels import backend
from runtime.worker import worker

def reached(*arguments):
    raise AssertionError("reached")

shared.SharedDispatcher.__init__ = worker.keep_freed_memory = reached
worker.use_device, worker.describe = lambda kind, local_rank: torch.device(kind, local_rank), str
launch, place = SimpleNamespace(device="cuda", unit="decode-0", ranks=[0, 1]), SimpleNamespace(rank=9, local_rank=1)
device = worker._take_device(launch, place)
chosen = backend.choose_backend(device, torch.bfloat16, deterministic=False)
for capacity in (None, 8):
    rows, x_1D = PlainRows(torch.bfloat16), torch.zeros(1, 16, dtype=torch.bfloat16)
    form = new_dispatcher(GlooGroup(0, 2), 2, 2, rows, x_1D, chosen, capacity)
    print(type(form).__name__)
print("numba" in sys.modules)
"""


def test_what_is_for_cpus_is_not_reached_on_a_gpu():
    """On a GPU there are no compiled loops, no common memory and no kept heap, and the log begins with the GPU."""
    done = subprocess.run([sys.executable, "-c", REACHED], capture_output=True, text=True, timeout=120)

    assert done.stdout.split() == ["AllToAllDispatcher", "MaskedDispatcher", "False"], done.stderr
    assert (
        done.stderr
        == "tidemill: rank 9 of decode-0 uses cuda:1; we have run exchanges on one GPU, but none between GPUs yet\n"
    )
