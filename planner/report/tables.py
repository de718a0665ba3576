"""Load the tables of a plan's text from `tables.yaml`: which figures they show, and their titles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import yaml

__all__ = ["Table", "Tables", "read_tables"]


@dataclass(frozen=True)
class Table:
    """A table of figures from matching sections. The head of `tables.yaml` explains each field."""

    title: str
    rows: str
    names: str = ""  # names of figures, separated by spaces
    note: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)  # name of a figure or a column -> sentence
    across: bool = False
    has_ranges: bool = False
    beside: str = ""


@dataclass(frozen=True)
class Tables:
    """The tables that are always shown, those that `--full` adds, and the figures' titles and column heads."""

    usual: Sequence[Table]
    more: Sequence[Table]
    titles: Mapping[str, str]
    heads: Mapping[str, str]


@cache
def read_tables() -> Tables:
    """Return the tables of `tables.yaml`."""
    text = Path(__file__).with_name("tables.yaml").read_text(encoding="utf-8")
    found = yaml.load(text, Loader=yaml.CSafeLoader)
    usual, more = ([Table(**each) for each in found[key]] for key in ("tables", "full_tables"))
    return Tables(usual, more, found["titles"], found["heads"])
