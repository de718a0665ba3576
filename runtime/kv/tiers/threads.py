"""Threads that may wait for a disk for ever, so that nobody else does.

An operation on a disk that hangs never returns, and no signal ends it. So a tier has a fixed number of threads, gives
them tasks, and looks at the clock: while an operation takes too long, it gives no more, nor for a while after one that
took too long. No stuck thread is replaced. A process ends without them.

    Health     whether the disk works, and what is said when that changes
    Workers    the threads
    Bandwidth  how much of it may be used
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

__all__ = ["Bandwidth", "Health", "Workers"]

STUCK_S = 2.0  # assumed: a block takes milliseconds from a local disk, and under a second over a busy network
REST_S = 30.0  # assumed


class Health:
    """Tracks whether one kind of disk work succeeds. Logs once when it fails, and once when it works again."""

    def __init__(self, work: str, say: Callable[[str], None]) -> None:
        self._work, self._say = work, say
        self._lock = threading.Lock()
        self._is_well = True
        self._ill_until = self._rests_until = 0.0

    @property
    def rests(self) -> bool:
        """True if the work is skipped for now, after a recent failure."""
        return time.monotonic() < self._rests_until

    def record_failure(self, why: str, *, rests: bool) -> None:
        """Record a failure and its reason.

        With `rests`, the work is skipped for a while, because each further try costs too much.
        """
        with self._lock:
            self._ill_until = time.monotonic() + REST_S
            if rests:
                self._rests_until = self._ill_until
            if self._is_well:
                self._is_well = False
                self._say(f"prefix cache: {self._work} fails: {why}; what it would have saved is computed")

    def record_success(self) -> None:
        """Record a success. After a period without failures the work counts as healthy again."""
        if self._is_well:
            return
        with self._lock:
            if not self._is_well and time.monotonic() >= self._ill_until:
                self._is_well = True
                self._say(f"prefix cache: {self._work} works again")


class Workers:
    """Threads that run tasks in order. An operation on the disk that takes too long counts as a failure.

    So does a task that raises whatever it should have handled; its thread goes on with the next.
    """

    def __init__(self, number: int, name: str, health: Health) -> None:
        self._number, self._health = number, health
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._began: dict[int, float] = {}  # thread -> the time at which its operation began
        for _ in range(number):
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, task: Callable[[], None]) -> None:
        """Queue a task for the threads."""
        self._tasks.put(task)

    @contextmanager
    def operation(self) -> Iterator[None]:
        """Measure, for the calling thread, the time of the disk operation in this context."""
        thread = threading.get_ident()
        self._began[thread] = time.monotonic()
        try:
            yield
        finally:
            if _is_too_long(self._began[thread]):
                self._fail()
            del self._began[thread]

    def sleep(self, seconds: float) -> None:
        """Let the calling thread wait without counting that as part of its operation."""
        if threading.get_ident() in self._began:
            self._began[threading.get_ident()] += seconds
        time.sleep(seconds)

    def rest(self) -> bool:
        """Return whether to skip work for now: an operation takes too long, or work failed recently."""
        if any(map(_is_too_long, tuple(self._began.values()))):
            self._fail()
        return self._health.rests

    def close(self) -> None:
        """Let the threads end after their queued tasks."""
        for _ in range(self._number):
            self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception as error:  # noqa: BLE001  a thread that ends would end its work for ever, and silently
                self._health.record_failure(f"{type(error).__name__}: {error}", rests=True)
            del task  # and the memory that it refers to

    def _fail(self) -> None:
        self._health.record_failure(f"the disk takes over {STUCK_S:g} s to answer", rests=True)


def _is_too_long(began: float) -> bool:
    return time.monotonic() - began > STUCK_S


class Bandwidth:
    """Limits reads and writes to a share of the disk's bandwidth. Unused bandwidth is not saved up."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._is_free_at = 0.0

    def take(self, num_bytes: int, until: float) -> float | None:
        """Reserve `num_bytes`. Return the seconds to wait before moving them; None if that would be after `until`."""
        if self._bytes_per_s is None:
            return 0.0
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._is_free_at)
            if begin > until:
                return None
            self._is_free_at = begin + num_bytes / self._bytes_per_s
        return begin - now
