"""A page of metrics, and the samples on it in Prometheus' text format.

Prometheus' own parser is part of its client, which is installed only with the runtime. This one reads metrics of
Tidemill alone: it skips comments, other lines, and values that are too long to be numbers.
"""

import re
import time
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple
from urllib.parse import unquote

import urllib3

__all__ = ["PREFIX", "Sample", "fetch", "read_samples"]

PREFIX = "tidemill_"
PIECE_BYTES = 2**16
# `++` and `*+` give nothing back: a line that is no sample is read once, however long it is. A quote within a label's
# value has a backslash before it. A number has 24 characters at most.
LABEL = r'(\w++)="((?:[^"\\\n]|\\.)*+)"'
PAIR = re.compile(LABEL)


class Sample(NamedTuple):
    """One value of a metric: its name without `tidemill_`, its labels, and its number as written."""

    name: str
    labels: dict[str, str]
    written: str


def fetch(url: str, *, timeout_s: float, max_bytes: int) -> bytes:
    """Return the body at `url`, with the credentials in the URL. All of the body has to arrive within `timeout_s`.

    Raises HTTPError, OSError or ValueError if it does not, or if it is larger than `max_bytes`.
    """
    until = time.monotonic() + timeout_s
    auth = urllib3.util.parse_url(url).auth
    headers = urllib3.make_headers(basic_auth=unquote(auth)) if auth else {}
    with urllib3.PoolManager(timeout=timeout_s, retries=False) as pool:
        response = pool.request("GET", url, headers=headers, preload_content=False)
        answer = b""
        while len(answer) <= max_bytes and (piece := response.read1(PIECE_BYTES, decode_content=True)):
            answer += piece
            if time.monotonic() > until:
                raise ValueError(f"its answer does not end within {timeout_s:g} s")
    if response.status != 200:
        raise ValueError(f"it answers with status {response.status}")
    if len(answer) > max_bytes:
        raise ValueError(f"its answer has more than {max_bytes:,} bytes")
    return answer


def read_samples(text: str, names: str) -> Iterator[Sample]:
    """Yield the samples on a page whose names, without `tidemill_`, match the pattern `names`."""
    for match in _pattern(names).finditer(text):
        yield Sample(match["name"], dict(PAIR.findall(match["labels"] or "")), match["number"])


@cache
def _pattern(names: str) -> re.Pattern[str]:
    labels = rf"\{{(?P<labels>(?:{LABEL},?)*+)\}}"
    return re.compile(rf"^{PREFIX}(?P<name>{names})(?:{labels})? (?P<number>\S{{1,24}})$", re.MULTILINE)
