"""Write a plan as text, for a terminal of 80 columns and for design reviews: a summary, then tables."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import yaml

from planner.facts import names
from planner.layout.unit import Unit
from planner.plan.plan import Plan
from planner.plan.row import Row
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.problems.printable import printable
from planner.report.columns import WIDTH, format_runs, wrap_note, wrap_table
from planner.report.derived import MISSED_VERDICTS
from planner.report.report import Report, format_range, format_value
from planner.report.rows import report_of
from planner.report.summary import summary

# What a terminal shows in red of a plan's text, whose sentences are wrapped.
ALARMS = "|".join((*MISSED_VERDICTS, r"is short for \S+ h")).replace(" ", r"\s+")

Keys = Sequence[tuple[str, ...]]
Rows = Mapping[tuple[tuple[str, ...], str], Row | None]

CAPITALS = "GPU GPUs KV USD GB GB/s Gbps NVLink NIC FP4 FP8 BF16 TFLOPS EP TTFT TPOT".split()  # noqa: SIM905
INDENT = 12  # column at which the summary's sentences begin
MORE = "--full shows the rest: failures, memory by part, defaults, every unit. --unit NAME shows one unit's nodes."
LISTS = {  # topics shown as lists -> their titles
    "decided": "decided",
    "assumed": "assumed",
    "defaults": "left at its default",
    "relies_on": "relies on",
    "overlay": "changed by the overlay",
}


@dataclass(frozen=True)
class Table:
    """One table of the text: which figures of which sections it shows.

    The head of `tables.yaml` explains each field.
    """

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
    """All tables: the usual ones and those that `--full` adds, with the titles of figures and the heads of columns."""

    usual: Sequence[Table]
    more: Sequence[Table]
    titles: Mapping[str, str]
    heads: Mapping[str, str]


def plan_text(plan: Plan, *, full: bool = False) -> str:
    """Return the plan as text that ends with a newline. `full` adds defaults, memory by part, lists and all units."""
    report, tables = report_of(plan), read_tables()
    parts = [_head(plan, report), *_problems(report), *(_list(report, topic) for topic in ("decided", "relies_on"))]
    parts += [_table(report, each) for each in (*tables.usual, *(tables.more if full else ()))]
    if full:
        parts += [_list(report, topic) for topic in ("assumed", "defaults", "overlay")]
        parts += [_unused_nodes(plan), _unit_table(plan.units)]
    else:
        parts.append("\n".join(wrap_note(MORE)))
    return _join_paragraphs(filter(None, parts))


def find_unit(plan: Plan, name: str) -> Unit:
    """Return the unit called `name`, with or without the plan's prefix. Raises CallError if there is none."""
    for unit in plan.units:
        if name in (unit.name, names.short_name(unit.name, plan.name)):
            return unit
    fix = f"name one of them, {plan.units[0].name} to {plan.units[-1].name} (tidemill plan --full lists them)"
    finding = Finding("--unit", name, "S916 must be a unit of the plan", "there is none of that name", fix)
    raise CallError([finding.at("tidemill plan")])


def unit_text(unit: Unit) -> str:
    """Return a unit's nodes and the ranks on each node as text, for use during an incident."""
    lines = [("node", "ranks")]
    for node in unit.nodes:
        ranks = [rank.rank for rank in unit.rank_places if rank.node == node]
        lines.append((node, f"{ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else str(ranks[0])))
    return _join_paragraphs([f"Unit {unit.name}, {unit.phase}, {unit.why}", wrap_table(lines)])


@cache
def read_tables() -> Tables:
    """Return the tables of `tables.yaml`."""
    text = Path(__file__).with_name("tables.yaml").read_text(encoding="utf-8")
    found = yaml.load(text, Loader=yaml.CSafeLoader)
    usual, more = ([Table(**each) for each in found[key]] for key in ("tables", "full_tables"))
    return Tables(usual, more, found["titles"], found["heads"])


def _join_paragraphs(parts: Iterator[str] | Sequence[str]) -> str:
    """Return paragraphs as text, with blank lines between them and invisible characters escaped."""
    return "".join(f"{printable(line)}\n" for line in "\n\n".join(parts).split("\n"))


def _head(plan: Plan, report: Report) -> str:
    """Return the text's beginning, with the plan's name, digest and summary."""
    shown_names = [
        textwrap.fill(
            f"  {topic:{INDENT - 2}}{sentence}", WIDTH, subsequent_indent=" " * INDENT, break_on_hyphens=False
        )
        for topic, sentence in summary(report).items()
    ]
    title = f"Plan {plan.name}: {report.text('plan', 'model')} on {report.text('plan', 'engine')}"
    return "\n".join([title, f"  {plan.digest}", "", *shown_names])


def _problems(report: Report) -> Iterator[str]:
    """Yield the engine's refusals and the plan's warnings, each as a bulleted list."""
    for topic, title in (("refusals", "It cannot run:"), ("warnings", "Warnings:")):
        messages = [
            textwrap.fill(
                format_value(row), WIDTH, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False
            )
            for row in report.section_rows(topic)
        ]
        if messages:
            yield "\n".join([title, *messages])


def _list(report: Report, topic: str) -> str:
    """Return a topic's rows as text, with values and reasons. A reason equal to the previous row's is not repeated."""
    rows, lines = report.section_rows(topic), [(LISTS[topic], "")]
    for before, row in zip([None, *rows], rows, strict=False):
        why = "" if not row.note else "; for the same reason" if before and before.note == row.note else f"; {row.note}"
        lines.append((row.name, f"{format_value(row)}{why}"))
    return wrap_table(lines) if rows else ""


def _table(report: Report, shown: Table) -> str:
    """Return a table with its note as text; an empty text if the plan has none of the table's figures."""
    keys = report.keys(shown.rows)
    sections = {key: [_fill_stars(pattern, key) for pattern in (shown.rows, shown.beside) if pattern] for key in keys}
    every = shown.names.split() or list(
        dict.fromkeys(row.name for key in keys for row in report.section_rows(sections[key][0]))
    )
    rows = {
        (key, name): next((row for section in found if (row := report.find(section, name))), None)
        for key, found in sections.items()
        for name in every
    }
    names = [name for name in every if any(row.value for key in keys if (row := rows[key, name]))]
    keys = [key for key in keys if any(rows[key, name] for name in names)]
    if not names:
        return ""
    lines = (_figure_lines if shown.across or keys == [()] else _section_lines)(shown, keys, names, rows)
    shown_names = {*names, *(part for key in keys for part in key)}
    note = " ".join(filter(None, [shown.note, *(each for name, each in shown.notes.items() if name in shown_names)]))
    return "\n".join([wrap_table(lines), *wrap_note(note)])


def _fill_stars(pattern: str, key: Sequence[str]) -> str:
    """Return `pattern` with its stars replaced by the parts of `key`."""
    parts = iter(key)
    return ".".join(next(parts) if part == "*" else part for part in pattern.split("."))


def _section_lines(shown: Table, keys: Keys, names: Sequence[str], rows: Rows) -> list[tuple[str, ...]]:
    """Return a table's cells: the heading, then a line for each section in `keys`, with a column for each figure."""
    labels = [tuple(part for part in key if not part.isdigit()) for key in keys]  # list indices mean nothing to readers
    heads = (_title(name, {**read_tables().titles, **read_tables().heads}) for name in names)
    lines = [(*label, *(_cell(rows[key, name]) for name in names)) for label, key in zip(labels, keys, strict=True)]
    return [(shown.title, *[""] * (len(labels[0]) - 1), *heads), *lines]


def _figure_lines(shown: Table, keys: Keys, names: Sequence[str], rows: Rows) -> list[tuple[str, ...]]:
    """Return a table's cells: the heading, then a line for each figure, with a column for each section in `keys`.

    Ranges add columns for low and high.
    """
    ends = ("low", "high") if shown.has_ranges else ()
    lines = [(shown.title, *(head for key in keys for head in ("".join(key), *ends)))]
    for name in names:
        found = [rows[key, name] for key in keys]
        cells = ((_cell(row), *(format_range(row) if row else ("", ""))[: len(ends)]) for row in found)
        lines.append((_title(name, read_tables().titles), *(cell for each in cells for cell in each)))
    return lines


def _cell(row: Row | None) -> str:
    return "-" if row is None else format_value(row)


def _title(name: str, titles: Mapping[str, str]) -> str:
    """Return a figure's title from `titles`, or else the words of its name."""
    last = name.rpartition(".")[2]
    words = last.removesuffix("_bytes").replace("_per_s", "/s").replace("_", " ").split(" ")
    written_so = {word.lower(): word for word in CAPITALS}
    return titles.get(name) or titles.get(last) or " ".join(written_so.get(word, word) for word in words)


def _unused_nodes(plan: Plan) -> str:
    """Return the spare nodes, and the unused nodes with the reasons, as text."""
    lines, by_reason = [], dict[str, list[str]]()
    if plan.placement.spares:
        lines += wrap_note(f"Spares for units that lose a node: {format_runs(plan.placement.spares)}.")
    for node, why in plan.placement.unusable_nodes.items():
        by_reason.setdefault(why, []).append(node)
    if by_reason:
        named = "; ".join(f"{format_runs(nodes)} ({why})" for why, nodes in by_reason.items())
        lines += wrap_note(f"Not used: {named}.")
    return "\n".join(lines)


def _unit_table(units: Sequence[Unit]) -> str:
    """Return a table of all units with their nodes as text."""
    return wrap_table(
        [("unit", "placed", "nodes by rank"), *((unit.name, unit.why, format_runs(unit.nodes)) for unit in units)]
    )
