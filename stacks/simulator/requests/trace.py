"""Traces of requests: the time of each, the lengths of its prompt and answer, and what its prompt begins with.

Two public formats are read; the first line tells which it is:

    Azure      CSV: `TIMESTAMP,ContextTokens,GeneratedTokens` (Azure/AzurePublicDataset; Patel et al., ISCA 2024)
    Mooncake   JSON lines: `timestamp` (ms), `input_length`, `output_length`, `hash_ids`: an id for each 512 tokens of
               the prompt, equal where content is equal (kvcache-ai/Mooncake, FAST25-release)

Times become seconds from the first request.
"""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.facts.day import DAY_S, HOUR_MINUTES, MINUTE_S
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.problems.fix import for_example

__all__ = ["BLOCK_TOKENS", "TraceRequest", "read_trace", "read_window", "select_window"]

BLOCK_TOKENS = 512  # of one hash id; source: Mooncake's README of the traces
AZURE = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
TIME = re.compile(r"\d{4}-\d\d-(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d(?:\.\d+)?)")
WINDOW = re.compile(r"(?P<start>\d+(?:\.\d+)?)-(?P<end>\d+(?:\.\d+)?)")
COUNT = re.compile(r"[0-9]{1,9}")
MILLI = 1e-3
LONGEST_S = 366 * DAY_S


@dataclass(frozen=True)
class TraceRequest:
    """One request of a trace."""

    at: float  # seconds since the trace's first request
    prompt: int  # tokens, 1 at least
    output: int  # tokens, 1 at least
    blocks: tuple[int, ...] = ()  # ids of the prompt's blocks; none where the trace has no content


def read_trace(path: Path) -> tuple[TraceRequest, ...]:
    """Return the requests in the file at `path`, by time. Raises CallError for any other file."""
    if path.exists() and not path.is_file():  # reading a pipe may block, and some devices never end
        raise _trace_error(path, "R411 must be a readable file", "it is no regular file", "choose another")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise _trace_error(path, "R411 must be a readable file", reason, "choose another") from None
    header = next(csv.reader(lines[:1]), [])
    found = list(_read_azure(path, lines[1:]) if header == AZURE else _read_mooncake(path, lines))
    if not found:
        raise _format_error(path, "it has no request")
    first, last = min(each.at for each in found), max(each.at for each in found)
    if not last - first <= LONGEST_S:
        raise _format_error(path, "its first and last request are more than a year apart")
    return tuple(sorted((replace(each, at=each.at - first) for each in found), key=lambda each: each.at))


def read_window(text: str) -> tuple[float, float]:
    """Return start and end of a window in seconds, such as `600-1200`. Raises CallError for anything else."""
    matched = WINDOW.fullmatch(text)
    if matched is None or float(matched["start"]) >= float(matched["end"]):
        rule, reason = "R413 must be START-END, in seconds", "it is counted from the trace's first request"
        raise CallError([Finding("--window", text, rule, reason, for_example("600-1200")).at("tidemill simulate")])
    return float(matched["start"]), float(matched["end"])


def select_window(requests: Sequence[TraceRequest], start: float, end: float, scale: float = 1.0) -> list[TraceRequest]:
    """Return the requests between the seconds `start` and `end`, retimed to come `scale` times as fast."""
    return [replace(each, at=(each.at - start) / scale) for each in requests if start <= each.at < end]


def _read_azure(path: Path, lines: Sequence[str]) -> Iterator[TraceRequest]:
    for number, row in enumerate(csv.reader(lines), start=2):
        matched = TIME.match(row[0]) if len(row) == len(AZURE) else None
        if matched is None or not (COUNT.fullmatch(row[1]) and COUNT.fullmatch(row[2])):
            raise _format_error(path, f"line {number} has no time and two counts")
        hours = DAY_S * int(matched["day"]) + MINUTE_S * HOUR_MINUTES * int(matched["hour"])
        seconds = hours + MINUTE_S * int(matched["minute"]) + float(matched["second"])
        yield TraceRequest(seconds, max(int(row[1]), 1), max(int(row[2]), 1))


def _read_mooncake(path: Path, lines: Sequence[str]) -> Iterator[TraceRequest]:
    for number, line in enumerate(lines, start=1):
        try:
            each: Any = json.loads(line)
            at, prompt, output = (each[key] for key in ("timestamp", "input_length", "output_length"))
            blocks = tuple(int(block) for block in each.get("hash_ids", ()))
            yield TraceRequest(float(at) * MILLI, max(int(prompt), 1), max(int(output), 1), blocks)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            raise _format_error(path, f"line {number} is no request") from None


def _format_error(path: Path, reason: str) -> CallError:
    return _trace_error(path, "R412 must be a trace of Azure's or Mooncake's format", reason, "see docs/simulate.md")


def _trace_error(path: Path, rule: str, reason: str, fix: str) -> CallError:
    return CallError([Finding("--trace", str(path), rule, reason, fix).at("tidemill simulate")])
