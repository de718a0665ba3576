"""A rank's timeline: spans around calls, in a file for chrome://tracing or ui.perfetto.dev.

    span     one call: its name, layer and micro-batch (0 or 1), its beginning and its duration
    track    compute, where spans follow each other; or link, where a span is an exchange from first byte to last

Communication is exposed while compute is in a span called "... wait". It is hidden while the link is in use and compute
is in any other span. Without `recording`, a span costs one comparison. A process is one rank, so the recorder is a
global of the process, and calls need not pass it on.

An event is written when it ends. The file has the format's array form, whose last bracket may be missing, because a
rank may be killed. If writing fails, the trace ends and the rank goes on. The clock is the machine's (CLOCK_MONOTONIC),
so the files of ranks on one machine can be joined.

Source: "Trace Event Format" (Google, 2016), complete events and metadata events.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeVar

from runtime.errors import RuntimeFailure, UsageError

__all__ = ["join", "link_recorder", "record_link", "recording", "set_micro_batch", "span"]

T = TypeVar("T")

COMPUTE, LINK = 0, 1
MAX_EVENTS = 1_000_000  # about 150 MB; later events are not in the file


class _Recorder:
    """Writes one rank's events. `where` is added to the arguments of each span."""

    def __init__(self, file: TextIO, rank: int) -> None:
        self._file, self._rank = file, rank
        self._lock = threading.Lock()
        self._num_events = 0
        self._is_over = False
        self.micro_batch = 0
        self.open_span: tuple[str, dict[str, Any]] = ("", {})
        self._add("[\n")
        self._write("process_name", "M", args={"name": f"rank {rank}"})
        for track, name in ((COMPUTE, "compute"), (LINK, "link")):
            self._write("thread_name", "M", tid=track, args={"name": name})

    @contextmanager
    def span(self, name: str, track: int, where: dict[str, Any]) -> Iterator[None]:
        began_ns = time.monotonic_ns()
        try:
            yield
        finally:
            self.note(name, track, where, began_ns, time.monotonic_ns())

    def note(self, name: str, track: int, where: dict[str, Any], began_ns: int, ended_ns: int) -> None:
        self._write(name, "X", tid=track, ts=began_ns / 1000, dur=(ended_ns - began_ns) / 1000, args=where)

    def end(self) -> None:
        """Complete the file, unless it was full before."""
        self._add(json.dumps({"name": "end", "ph": "M", "pid": self._rank, "args": {}}) + "\n]\n")
        with suppress(OSError):  # already reported
            self._file.close()

    def _write(self, name: str, kind: str, **fields: Any) -> None:
        if self._num_events < MAX_EVENTS:
            self._add(json.dumps({"name": name, "ph": kind, "pid": self._rank, **fields}) + ",\n")

    def _add(self, text: str) -> None:
        with self._lock:
            if self._is_over:
                return
            self._num_events += 1
            try:
                self._file.write(text)
            except OSError as error:
                self._is_over = True
                print(f"tidemill: the trace {self._file.name} ends early: {error.strerror}", file=sys.stderr)


_recorder: _Recorder | None = None


@contextmanager
def recording(path: Path | None, rank: int) -> Iterator[None]:
    """Record this process's spans to `path`; without a path, record nothing.

    Raises UsageError if the file cannot be written.
    """
    global _recorder
    if path is None:
        yield
        return
    recorder = _recorder = _Recorder(_open_trace(path), rank)
    try:
        yield
    finally:
        _recorder = None
        recorder.end()


def span(name: str, **where: Any) -> AbstractContextManager[None]:
    """Record a call on the compute track, with `where` as its arguments. Does nothing while nothing is recorded."""
    if _recorder is None:
        return nullcontext()
    where["micro_batch"] = _recorder.micro_batch
    _recorder.open_span = name, where
    return _recorder.span(name, COMPUTE, where)


def record_link(exchange: Callable[[], T]) -> Callable[[], T]:
    """Return `exchange`, recorded on the link's track under the name of the last span begun. Any thread may run it."""
    if _recorder is None:
        return exchange
    recorder, (name, where) = _recorder, _recorder.open_span

    def run() -> T:
        with recorder.span(name.removesuffix(" issue"), LINK, where):
            return exchange()

    return run


def link_recorder() -> Callable[[int, int], None]:
    """Return a function that records an exchange, given its beginning and end in ns of the machine's clock."""
    if _recorder is None:
        return lambda began_ns, ended_ns: None
    recorder, (name, where) = _recorder, _recorder.open_span
    return partial(recorder.note, name.removesuffix(" issue"), LINK, where)


def set_micro_batch(micro_batch: int) -> None:
    """Record later spans under this micro-batch."""
    if _recorder is not None:
        _recorder.micro_batch = micro_batch


def join(parts: list[Path], whole: Path) -> None:
    """Join the files of several ranks into `whole`. Raises RuntimeFailure if one of them ended early."""
    texts = [part.read_text() for part in parts]
    if not all(text.endswith("]\n") for text in texts):
        raise RuntimeFailure(f"there is no trace {whole}: a rank could not write its part")
    events = [event for text in texts for event in json.loads(text)]
    whole.write_text(json.dumps(events))


def _open_trace(path: Path) -> TextIO:
    try:
        return path.open("w", buffering=1)  # buffered by lines
    except OSError as error:
        raise UsageError(f"cannot write the trace {path}: {error.strerror}") from None
