"""Ranks on GPUs issue their exchanges beside the computation and order it after them; `tests/gpu` runs NCCL itself."""

import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from runtime.errors import PeerLost
from runtime.expert_parallel import factory
from runtime.expert_parallel.dispatcher import Sizes
from runtime.expert_parallel.group import GlooGroup, SoloGroup
from runtime.expert_parallel.nccl import NcclGroup
from tests.runtime.joined_groups import joined_groups


class Queue:
    """A queue that records the calls that it gets."""

    def __init__(self):
        self.record, self._is_beside = [], False

    def side_work(self):
        return self

    def __enter__(self):
        self.record.append("beside")
        self._is_beside = True

    def __exit__(self, *error):
        self._is_beside = False

    def mark(self):
        assert self._is_beside
        self.record.append("mark")
        return len(self.record)

    def join(self, mark):
        assert not self._is_beside
        self.record.append(("join", mark))


class Backend:
    """A stand-in for torch's process group of NCCL."""

    def __init__(self, error=None):
        self.calls, self._error = [], error

    def alltoall_base(self, received, rows, receive, send):
        if self._error is not None:
            raise self._error
        self.calls.append((tuple(received.shape), tuple(rows.shape), receive, send))
        return self

    def wait(self):
        pass


def group(error=None):
    found = NcclGroup(0, 2, None, torch.device("cpu"), Queue())
    found._nccl = Backend(error)
    return found


def test_an_exchange_is_issued_beside_and_joined_when_it_is_asked_for():
    """An exchange runs beside the computation, which is ordered after it when the result is read."""
    ranks = group()
    rows, sizes = torch.zeros(3, 4), Sizes([[1]], [[2]], torch.zeros(2, 5))
    begun = ranks.begin(lambda: (sizes, ranks.all_to_all(rows, [1, 2], [4, 1])))

    assert ranks._queue.record == ["beside", "mark"]
    found_sizes, found_rows = begun.result()
    assert found_sizes is sizes
    assert found_rows.shape == (5, 4)
    assert ranks._queue.record[2:] == [("join", 2)]
    assert ranks._nccl.calls == [((5, 4), (3, 4), [4, 1], [1, 2])]


def test_what_an_exchange_reads_is_held_until_it_is_joined():
    """An exchange keeps its inputs until it is joined, so that their memory is not reused."""
    ranks, rows = group(), torch.zeros(3, 4)
    alive = weakref.ref(rows)
    begun = ranks.begin(lambda rows=rows: ranks.all_to_all(rows, [1, 2], [2, 1]))
    del rows

    assert alive() is not None
    begun.result()
    assert alive() is None


def test_a_peer_that_nccl_misses_ends_the_rank():
    """A peer that NCCL misses is lost, in one sentence like gloo's."""
    ranks = group(dist.DistBackendError("[Rank 0] NCCL error: remote process exited\nstack"))
    with pytest.raises(PeerLost, match="remote process exited"):
        ranks.all_to_all(torch.zeros(2, 1), [1, 1], [1, 1])


def test_the_device_chooses_the_group(monkeypatch):
    """The device decides between gloo and NCCL, and a rank alone has neither."""
    made = []
    monkeypatch.setattr(factory, "NcclGroup", lambda *arguments: made.append(arguments))
    cuda = torch.device("cuda", 3)

    assert isinstance(factory.new_group(0, 1, None, cuda), SoloGroup)
    assert isinstance(factory.new_group(0, 2), GlooGroup)
    assert factory.new_group(1, 2, [0, 1], cuda) is None
    assert made == [(1, 2, [0, 1], cuda)]


def test_ranks_gather_small_things_by_the_store(free_port):
    """Ranks gather their parts through the store in order, and a second round does not see the first."""
    groups = joined_groups(2, free_port())
    with ThreadPoolExecutor(2) as ranks:
        for round_ in (b"first", b"second"):
            found = list(ranks.map(lambda each, said=round_: each.gather(said + bytes([each.rank])), groups))

            assert found == [[round_ + b"\0", round_ + b"\1"]] * 2
