"""The options that say which requests are played: the file of a trace, and a window of its time."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from planner.facts.files import read_file
from planner.facts.trace import NotATrace, TraceRequest, parse_trace
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.problems.fix import for_example

__all__ = ["read_trace", "read_window", "select_window"]

MAX_TRACE_BYTES = 2**30  # assumed: Mooncake's hour has 3 MB
WINDOW = re.compile(r"(?P<start>\d+(?:\.\d+)?)-(?P<end>\d+(?:\.\d+)?)")


def read_trace(path: Path) -> tuple[TraceRequest, ...]:
    """Return the requests in the file at `path`, by time. Raises CallError if the file is unreadable or no trace."""
    try:
        return parse_trace(read_file(path, MAX_TRACE_BYTES))
    except OSError as error:
        rule, reason, fix = "R411 must be a readable file", error.strerror or str(error), "choose another"
    except NotATrace as error:
        rule, reason, fix = "R412 must be a trace of Azure's or Mooncake's format", str(error), "see docs/simulate.md"
    raise CallError([Finding("--trace", str(path), rule, reason, fix).at("tidemill simulate")])


def read_window(text: str) -> tuple[float, float]:
    """Return (start, end) in seconds of a window such as `600-1200`. Raises CallError if `text` is no window."""
    matched = WINDOW.fullmatch(text)
    if matched is None or float(matched["start"]) >= float(matched["end"]):
        rule, reason = "R413 must be START-END, in seconds", "it is counted from the trace's first request"
        raise CallError([Finding("--window", text, rule, reason, for_example("600-1200")).at("tidemill simulate")])
    return float(matched["start"]), float(matched["end"])


def select_window(requests: Sequence[TraceRequest], start: float, end: float, scale: float = 1.0) -> list[TraceRequest]:
    """Return the requests between `start` and `end`, in seconds.

    Their times then begin at 0, and are divided by `scale`.
    """
    return [replace(each, at=(each.at - start) / scale) for each in requests if start <= each.at < end]
