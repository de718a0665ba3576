"""An exchange through common memory ends when the last rank has written, in the counters and in the trace."""

import json
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest
import torch

from runtime import trace
from runtime.expert_parallel.dispatcher import AllToAllDispatcher, PlainRows
from runtime.expert_parallel.shared_memory.dispatcher import SharedDispatcher
from runtime.expert_parallel.shared_memory.pipes import Pipes
from tests.runtime.joined_groups import joined_groups
from tests.runtime.on_cpu import TORCH_OPS

SLOTS_PER_RANK, HIDDEN = 2, 4
ROW_BYTES, TOP_K = 4 * HIDDEN, 2
X, SLOTS = torch.ones(1, HIDDEN), torch.tensor([[0, 3]])
WEIGHTS = torch.ones(1, TOP_K)


@pytest.fixture
def pair(free_port):
    """Return two ranks' dispatchers in one process, at the beginning of a step."""
    rows = PlainRows(torch.float32)
    dispatchers = [
        SharedDispatcher(AllToAllDispatcher(group, SLOTS_PER_RANK, rows, TORCH_OPS), ROW_BYTES, ROW_BYTES, TOP_K)
        for group in joined_groups(2, free_port())
    ]
    with ThreadPoolExecutor(2) as ranks:
        list(ranks.map(SharedDispatcher.begin_step, dispatchers, [len(X)] * 2))
    return dispatchers


def test_an_exchange_lasts_until_the_last_rank_has_written(pair, tmp_path):
    """An exchange lasts until the last rank has written, and takes no time for that rank."""
    said_ns = []

    def signal(pipes, number, real=Pipes.signal):
        said_ns.append(real(pipes, number))
        return said_ns[-1]

    with trace.recording(tmp_path / "trace.json", rank=0), patch.object(Pipes, "signal", signal):
        with trace.span("dispatch issue", layer=3):
            pending = [dispatcher.dispatch(X, SLOTS, WEIGHTS) for dispatcher in pair]
        dispatched = [each.wait() for each in pending]
    spans = [event for event in json.loads((tmp_path / "trace.json").read_text()) if event.get("tid") == 1]
    taken_ns = said_ns[1] - said_ns[0]

    assert [each.rows.counts_M.tolist() for each in dispatched] == [[2, 0], [0, 2]]
    assert [dispatcher.traffic.dispatch.count for dispatcher in pair] == [1, 1]
    assert [dispatcher.traffic.dispatch.seconds for dispatcher in pair] == [taken_ns / 1e9, 0]
    assert [(span["name"], span["ts"], span["dur"], span["args"]["layer"]) for span in spans if span["ph"] == "X"] == [
        ("dispatch", said_ns[0] / 1000, taken_ns / 1000, 3),
        ("dispatch", said_ns[1] / 1000, 0, 3),
    ]


def test_exchanges_are_waited_for_in_their_order(pair):
    """Waiting for exchanges out of order fails, because a rank could read rows that are not written."""
    first, second = ([dispatcher.dispatch(X, SLOTS, WEIGHTS) for dispatcher in pair] for _ in range(2))
    first[0].wait()

    with pytest.raises(AssertionError):
        second[1].wait()
