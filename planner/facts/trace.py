"""Traces of requests: the time of each, the lengths of its prompt and answer, and what its prompt begins with.

Two public formats are read; the first line tells which it is:

    Azure      CSV: `TIMESTAMP,ContextTokens,GeneratedTokens` (Azure/AzurePublicDataset; Patel et al., ISCA 2024)
    Mooncake   JSON lines: `timestamp` (ms), `input_length`, `output_length`, `hash_ids`: an id for each 512 tokens of
               the prompt, equal where content is equal (kvcache-ai/Mooncake, FAST25-release)

Times become seconds from the first request.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.facts.day import DAY_S, HOUR_MINUTES, MINUTE_S

BLOCK_TOKENS = 512  # of one hash id; source: Mooncake's README of the traces
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
TIME = re.compile(r"\d{4}-\d\d-(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d(?:\.\d+)?)")
COUNT = re.compile(r"[0-9]{1,9}")
MILLI = 1e-3
LONGEST_S = 366 * DAY_S


class NotATrace(ValueError):
    """A file's content is no trace; the text says why."""


@dataclass(frozen=True)
class TraceRequest:
    """One request of a trace."""

    at: float  # seconds since the trace's first request
    prompt: int  # tokens, 1 at least
    output: int  # tokens, 1 at least
    blocks: tuple[int, ...] = ()  # ids of the prompt's blocks; none where the trace has no content


def parse_trace(content: bytes) -> tuple[TraceRequest, ...]:
    """Return the requests in a file's content, sorted by time. Raises NotATrace if the content is no trace."""
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError:
        raise NotATrace("it is not UTF-8 text") from None
    found = list(_read_azure(lines[1:]) if lines[:1] == [AZURE] else _read_mooncake(lines))
    if not found:
        raise NotATrace("it has no request")
    first, last = min(each.at for each in found), max(each.at for each in found)
    if not last - first <= LONGEST_S:
        raise NotATrace("its first and last request are more than a year apart")
    return tuple(sorted((replace(each, at=each.at - first) for each in found), key=lambda each: each.at))


def _read_azure(lines: Sequence[str]) -> Iterator[TraceRequest]:
    for number, line in enumerate(lines, start=2):
        time, *counts = line.split(",")
        matched = TIME.match(time)
        if matched is None or len(counts) != 2 or not all(map(COUNT.fullmatch, counts)):
            raise NotATrace(f"line {number} has no time and two counts")
        hours = DAY_S * int(matched["day"]) + MINUTE_S * HOUR_MINUTES * int(matched["hour"])
        seconds = hours + MINUTE_S * int(matched["minute"]) + float(matched["second"])
        prompt, output = map(int, counts)
        yield TraceRequest(seconds, max(prompt, 1), max(output, 1))


def _read_mooncake(lines: Sequence[str]) -> Iterator[TraceRequest]:
    for number, line in enumerate(lines, start=1):
        try:
            each: Any = json.loads(line)
            at, prompt, output = (each[key] for key in ("timestamp", "input_length", "output_length"))
            blocks = tuple(int(block) for block in each.get("hash_ids", ()))
            yield TraceRequest(float(at) * MILLI, max(int(prompt), 1), max(int(output), 1), blocks)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            raise NotATrace(f"line {number} is no request") from None
