"""The samples on a page of metrics, in Prometheus' text format.

Prometheus' own parser is part of its client, which is installed only with the runtime. This one reads metrics of
Tidemill alone: it skips comments, other lines, and values that are too long to be numbers.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

__all__ = ["PREFIX", "Sample", "read_samples"]

PREFIX = "tidemill_"
# `++` and `*+` give nothing back: a line that is no sample is read once, however long it is. A quote within a label's
# value has a backslash before it. A number has 24 characters at most.
LABEL = r'(\w++)="((?:[^"\\\n]|\\.)*+)"'
PAIR = re.compile(LABEL)


class Sample(NamedTuple):
    """One value of a metric: its name without `tidemill_`, its labels, and its number as written."""

    name: str
    labels: dict[str, str]
    written: str


def read_samples(text: str, names: str) -> Iterator[Sample]:
    """Yield the samples on a page whose names, without `tidemill_`, match the pattern `names`."""
    for match in _pattern(names).finditer(text):
        yield Sample(match["name"], dict(PAIR.findall(match["labels"] or "")), match["number"])


@cache
def _pattern(names: str) -> re.Pattern[str]:
    labels = rf"\{{(?P<labels>(?:{LABEL},?)*+)\}}"
    return re.compile(rf"^{PREFIX}(?P<name>{names})(?:{labels})? (?P<number>\S{{1,24}})$", re.MULTILINE)
