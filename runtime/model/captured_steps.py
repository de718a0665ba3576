"""Decode steps that are recorded once and replayed, so that the host launches each at once.

    recording   the kernels of a step of exactly N requests, a CUDA graph: thousands of launches become one
    sizes       the N that are recorded; a step between two sizes is filled up with copies of its own requests

A step of DeepSeek-V3's decode unit has about 20,000 kernels. On an H100 it took 347 ms when they were launched one by
one, although the GPU computed for only 65 ms of these. Replayed, it took 61 ms (docs/performance.md).

A copy computes the same values as its request and writes them to the same places, so it needs no page of its own. Its
logits are dropped. Copies count in the load of the experts.

All ranks of a unit record together, since a step is a collective. Later each replays the size that it needs, because
the exchanges are the same in all sizes. The turn of an expert's replicas is kept on the device, so that each replay
advances it.

Steps with prompts are not recorded, since their shapes never repeat.

Source: CUDA C++ Programming Guide, "CUDA Graphs"; torch, notes/cuda.rst, "CUDA Graphs".
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.expert_parallel.traffic import TrafficTotals
from runtime.kernels.device import HostLink, Recorder, Recording
from runtime.kv.cache import LatentCache, PageTable
from runtime.model.deepseek import DeepseekV3
from runtime.model.forward_batch import Chunk, FixedRequests, ForwardBatch
from runtime.protocol.counting import num_pages

__all__ = ["CapturedSteps", "captured_sizes"]

SMALL, STEP, WIDE_STEP, WIDE_FROM = 8, 8, 16, 64


class CapturedSteps:
    """One rank's recordings of decode steps on `cache`."""

    def __init__(
        self, model: DeepseekV3, cache: LatentCache, recorder: Recorder, max_requests: int, max_request_tokens: int
    ) -> None:
        """Record a step of every size before requests come. A collective of the unit."""
        self._model, self._cache = model, cache
        self._inputs = _Inputs(max_requests, num_pages(max_request_tokens), cache.link, model.backend.device)
        self._steps = {size: self._record(size, recorder) for size in reversed(captured_sizes(max_requests))}

    def next_logits(self, decoding: Sequence[Chunk]) -> Tensor:
        """Replay these requests' step. Return their logits, [B, vocab], in memory that the next step overwrites."""
        size = min(size for size in self._steps if size >= len(decoding))
        step = self._steps[size]
        self._inputs.write([decoding[number % len(decoding)] for number in range(size)])
        step.recording.replay()
        self._model.dispatcher.traffic.add(step.totals)
        return step.logits[: len(decoding)]

    def _record(self, size: int, recorder: Recorder) -> "_Step":
        """Compute the step once to compile its kernels, then record it with fresh tensors."""
        self._compute(size)
        traffic = self._model.dispatcher.traffic
        before = traffic.totals()
        recording, logits = recorder.record(lambda: self._compute(size))
        return _Step(recording, logits, traffic.totals() - before)

    def _compute(self, size: int) -> Tensor:
        first = 0
        batches: list[ForwardBatch] = []
        for share in self._model.overlap.shares(size):
            batches.append(self._inputs.batch(first, first + share))
            first += share
        return self._model.logits_of_step(batches, self._cache)


def captured_sizes(max_requests: int) -> list[int]:
    """Return the sizes, in requests, of the steps to record, in ascending order and up to `max_requests`.

    A step of any other size is filled up with copies of requests: at most half of a small step are copies, and few of a
    large one.
    """
    small = [0, *(size for size in (1, 2, 4, SMALL) if size < max_requests)]
    close = range(SMALL + STEP, min(WIDE_FROM + 1, max_requests), STEP)
    wide = range(WIDE_FROM + WIDE_STEP, max_requests, WIDE_STEP)
    return [*small, *close, *wide, max_requests]


@dataclass(frozen=True)
class _Step:
    recording: Recording
    logits: Tensor  # [size, vocab], written anew by each replay
    totals: TrafficTotals  # of its exchanges; the host sees them only during the recording


class _Inputs:
    """The numbers that a step reads: filled on the host, then copied in two pieces to fixed places on the device."""

    def __init__(self, max_requests: int, max_pages: int, link: HostLink, device: torch.device) -> None:
        self._host = link.empty((4, max_requests), torch.long), link.empty((max_requests, max_pages), torch.long)
        for numbers in self._host:
            numbers.zero_()
        self._host[0][3] = 1  # one token in page 0, because recording comes before requests
        self._device = tuple(numbers.to(device) for numbers in self._host)
        self._link, self._await_copies = link, link.make_wait(device)
        self._tables: list[PageTable] = [[] for _ in range(max_requests)]  # as last written

    def write(self, decoding: Sequence[Chunk]) -> None:
        """Write the numbers of these decoding requests for the next step.

        Entries after the end of a request's table stay as they were, and are never read. First wait for the last step's
        copies: they may still run if no token was drawn from its logits.
        """
        self._await_copies()
        numbers, tables = self._host
        numbers[:, : len(decoding)] = FixedRequests.request_numbers(decoding)
        for number, chunk in enumerate(decoding):
            if chunk.table != self._tables[number]:  # rare: a request gets a page with every 64th token
                self._tables[number] = list(chunk.table)
                tables[number, : len(chunk.table)] = torch.tensor(chunk.table)
        for host, device in zip(self._host, self._device, strict=True):
            device.copy_(host, non_blocking=True)
        self._await_copies = self._link.make_wait(self._device[0].device)

    def batch(self, first: int, last: int) -> FixedRequests:
        """Return requests `first` to `last` - 1 as the tensors that a step reads."""
        numbers, tables = self._device
        return FixedRequests(numbers[:, first:last], tables[first:last])
