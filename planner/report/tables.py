"""The tables of a plan's text, as `tables.yaml` declares them: whose figures stand in them, under which titles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

__all__ = ["Table", "Tables", "read_tables"]


@dataclass(frozen=True)
class Table:
    """Figures of the sections that are like a pattern; the file's head says what each field means."""

    title: str
    rows: str
    names: str = ""  # words
    note: str = ""
    across: bool = False
    has_ranges: bool = False
    beside: str = ""


@dataclass(frozen=True)
class Tables:
    """Those that are always shown, those that `--full` adds, and what they call figures in lines and in columns."""

    usual: Sequence[Table]
    more: Sequence[Table]
    titles: Mapping[str, str]
    heads: Mapping[str, str]


@cache
def read_tables() -> Tables:
    """Return what the file declares."""
    text = Path(__file__).with_name("tables.yaml").read_text(encoding="utf-8")
    found = yaml.load(text, Loader=yaml.CSafeLoader)
    usual, more = ([Table(**each) for each in found[key]] for key in ("tables", "full_tables"))
    return Tables(usual, more, found["titles"], found["heads"])
