"""The rows and bytes that a dispatcher has sent, and the time of its exchanges: for metrics and benchmarks."""

import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from typing import TypeVar

from runtime.expert_parallel.group import Group

__all__ = ["ExchangeTime", "Traffic", "TrafficTotals"]

T = TypeVar("T")


@dataclass
class ExchangeTime:
    """The number of exchanges, and their time from the beginning to the arrival of the rows."""

    count: int = 0
    seconds: float = 0.0

    def time_exchange(self, exchange: Callable[[], T]) -> Callable[[], T]:
        """Return a function that calls `exchange` and counts the time from now until `exchange` returns."""
        began = time.monotonic()

        def run() -> T:
            result = exchange()
            self.add(time.monotonic() - began)
            return result

        return run

    def add(self, seconds: float) -> None:
        """Count an exchange that took `seconds`."""
        self.count += 1
        self.seconds += seconds


@dataclass(frozen=True)
class TrafficTotals:
    """The totals of exchanges, without their times."""

    bytes_sent: int
    bytes_to_other_nodes: int
    dispatches: int
    combines: int

    def __sub__(self, other: "TrafficTotals") -> "TrafficTotals":
        """Return the difference to the earlier totals `other`."""
        return TrafficTotals(*(mine - theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


@dataclass
class Traffic:
    """The traffic so far. Bytes are those of dispatch, without combine."""

    bytes_sent: int = 0  # to other ranks
    bytes_to_other_nodes: int = 0  # those of them that went to other nodes
    dispatch: ExchangeTime = field(default_factory=ExchangeTime)
    combine: ExchangeTime = field(default_factory=ExchangeTime)
    # waits of the step's thread for rows that had not arrived
    waits: ExchangeTime = field(default_factory=ExchangeTime)

    def time_wait(self, arrive: Callable[[], T]) -> Callable[[], T]:
        """Return a function that calls `arrive` and counts the time of the call as waiting."""

        def wait() -> T:
            return self.waits.time_exchange(arrive)()

        return wait

    def totals(self) -> TrafficTotals:
        """Return the totals so far."""
        return TrafficTotals(self.bytes_sent, self.bytes_to_other_nodes, self.dispatch.count, self.combine.count)

    def add(self, moved: TrafficTotals) -> None:
        """Add the totals of a replayed step, whose exchanges the host did not begin one by one."""
        self.bytes_sent += moved.bytes_sent
        self.bytes_to_other_nodes += moved.bytes_to_other_nodes
        self.dispatch.count += moved.dispatches
        self.combine.count += moved.combines

    def count(self, group: Group, send: Sequence[int], row_bytes: int) -> None:
        """Count the bytes of the rows that go to other ranks of `group`, and to other nodes."""
        for rank, number in enumerate(send):
            if rank != group.rank:
                self.bytes_sent += number * row_bytes
            if group.nodes[rank] != group.nodes[group.rank]:
                self.bytes_to_other_nodes += number * row_bytes
