"""A plan as text, for a terminal of 80 columns and for design reviews: first what everybody asks, then tables."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from planner.layout.unit import Unit
from planner.plan.plan import Plan
from planner.plan.row import Row
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.problems.printable import printable
from planner.report.columns import WIDTH, filled, runs_of, wrapped
from planner.report.report import Report, written, written_range
from planner.report.summary import summary
from planner.report.tables import Table, read_tables

__all__ = ["plan_text", "unit_named", "unit_text"]

Keys = Sequence[tuple[str, ...]]
Rows = Mapping[tuple[tuple[str, ...], str], Row | None]

CAPITALS = "GPU GPUs KV USD GB GB/s Gbps NVLink NIC FP4 FP8 BF16 TFLOPS EP TTFT TPOT".split()  # noqa: SIM905
INDENT = 12  # of a summary's sentences
MORE = (
    "--full shows the rest: failures, links, memory by part, defaults, every unit. --unit NAME shows one unit's nodes."
)
LISTS = {  # of rows whose names stand first
    "decided": "decided",
    "assumed": "assumed",
    "defaults": "left at its default",
    "relies_on": "relies on",
    "overlay": "changed by the overlay",
}


def plan_text(plan: Plan, *, full: bool = False) -> str:
    """Return the plan's text, which ends with a line end; `full` with defaults, parts and lists."""
    report, tables = Report(plan.report or ()), read_tables()
    parts = [_head(plan, report), *_problems(report), *(_list(report, topic) for topic in ("decided", "relies_on"))]
    parts += [_table(report, each) for each in (*tables.usual, *(tables.more if full else ()))]
    if full:
        parts += [_list(report, topic) for topic in ("assumed", "defaults", "overlay")]
        parts += [_nodes(plan), _units(plan.units)]
    else:
        parts.append("\n".join(filled(MORE)))
    return _printed(filter(None, parts))


def unit_named(plan: Plan, name: str) -> Unit:
    """Return the unit of that name; what all names begin with may be left out. Raises CallError where there is none."""
    for unit in plan.units:
        if name in (unit.name, unit.name.removeprefix(f"{plan.name}-")):
            return unit
    fix = f"name one of them, {plan.units[0].name} to {plan.units[-1].name} (tidemill plan --full lists them)"
    finding = Finding("--unit", name, "S916 must be a unit of the plan", "there is none of that name", fix)
    raise CallError([finding.at("tidemill plan")])


def unit_text(unit: Unit) -> str:
    """Return a unit with each of its nodes and the ranks there: what is looked for at night."""
    lines = [("node", "ranks")]
    for node in unit.nodes:
        ranks = [rank.rank for rank in unit.rank_places if rank.node == node]
        lines.append((node, f"{ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else str(ranks[0])))
    return _printed([f"Unit {unit.name}, {unit.phase}, {unit.why}", wrapped(lines)])


def _printed(parts: Iterator[str] | Sequence[str]) -> str:
    """Join paragraphs; what a spec's names and paths hold that nobody sees is written out."""
    return "".join(f"{printable(line)}\n" for line in "\n\n".join(parts).split("\n"))


def _head(plan: Plan, report: Report) -> str:
    """Return the plan's name and digest, and the lines that its readers came for."""
    told = [
        textwrap.fill(
            f"  {topic:{INDENT - 2}}{sentence}", WIDTH, subsequent_indent=" " * INDENT, break_on_hyphens=False
        )
        for topic, sentence in summary(report).items()
    ]
    title = f"Plan {plan.name}: {report.text('plan', 'model')} on {report.text('plan', 'engine')}"
    return "\n".join([title, f"  {plan.digest}", "", *told])


def _problems(report: Report) -> Iterator[str]:
    """Yield why the engine cannot run the plan, and its warnings, each behind a dash."""
    for topic, title in (("refusals", "It cannot run:"), ("warnings", "Warnings:")):
        messages = [
            textwrap.fill(written(row), WIDTH, initial_indent="  - ", subsequent_indent="    ")
            for row in report.of(topic)
        ]
        if messages:
            yield "\n".join([title, *messages])


def _list(report: Report, topic: str) -> str:
    """Return rows by name, each with its value and why it is that; a reason is told once."""
    rows, lines = report.of(topic), [(LISTS[topic], "")]
    for before, row in zip([None, *rows], rows, strict=False):
        why = "" if not row.note else "; for the same reason" if before and before.note == row.note else f"; {row.note}"
        lines.append((row.name, f"{written(row)}{why}"))
    return wrapped(lines) if rows else ""


def _table(report: Report, shown: Table) -> str:
    """Return the table with its note; empty where the plan has none of its figures."""
    keys = report.keys(shown.rows)
    sections = {key: [_named(pattern, key) for pattern in (shown.rows, shown.beside) if pattern] for key in keys}
    every = shown.names.split() or list(dict.fromkeys(row.name for key in keys for row in report.of(sections[key][0])))
    rows = {
        (key, name): next((row for section in found if (row := report.find(section, name))), None)
        for key, found in sections.items()
        for name in every
    }
    names = [name for name in every if any(row.value for key in keys if (row := rows[key, name]))]
    keys = [key for key in keys if any(rows[key, name] for name in names)]
    if not names:
        return ""
    lines = (_across if shown.across or keys == [()] else _down)(shown, keys, names, rows)
    return "\n".join([wrapped(lines), *filled(shown.note)])


def _named(pattern: str, key: Sequence[str]) -> str:
    """Return the section that `key` makes of a pattern."""
    parts = iter(key)
    return ".".join(next(parts) if part == "*" else part for part in pattern.split("."))


def _down(shown: Table, keys: Keys, names: Sequence[str], rows: Rows) -> list[tuple[str, ...]]:
    """Return a line for each section."""
    labels = [tuple(part for part in key if not part.isdigit()) for key in keys]  # numbers of a list say nothing
    heads = (_called(name, {**read_tables().titles, **read_tables().heads}) for name in names)
    lines = [(*label, *(_cell(rows[key, name]) for name in names)) for label, key in zip(labels, keys, strict=True)]
    return [(shown.title, *[""] * (len(labels[0]) - 1), *heads), *lines]


def _across(shown: Table, keys: Keys, names: Sequence[str], rows: Rows) -> list[tuple[str, ...]]:
    """Return a line for each figure, with the ends of its range where the table has some."""
    ends = ("low", "high") if shown.has_ranges else ()
    lines = [(shown.title, *(head for key in keys for head in ("".join(key), *ends)))]
    for name in names:
        found = [rows[key, name] for key in keys]
        cells = ((_cell(row), *(written_range(row) if row else ("", ""))[: len(ends)]) for row in found)
        lines.append((_called(name, read_tables().titles), *(cell for each in cells for cell in each)))
    return lines


def _cell(row: Row | None) -> str:
    return "-" if row is None else written(row)


def _called(name: str, titles: Mapping[str, str]) -> str:
    """Return what a table calls a figure: its name in words, if `titles` have no other."""
    last = name.rpartition(".")[2]
    words = last.removesuffix("_bytes").replace("_per_s", "/s").replace("_", " ").split(" ")
    written_so = {word.lower(): word for word in CAPITALS}
    return titles.get(name) or titles.get(last) or " ".join(written_so.get(word, word) for word in words)


def _nodes(plan: Plan) -> str:
    """Name the spares, and the nodes that are left out with the reason."""
    lines, by_reason = [], dict[str, list[str]]()
    if plan.placement.spares:
        lines += filled(f"Spares for units that lose a node: {_runs(plan.placement.spares)}.")
    for node, why in plan.placement.unusable_nodes.items():
        by_reason.setdefault(why, []).append(node)
    if by_reason:
        named = "; ".join(f"{_runs(nodes)} ({why})" for why, nodes in by_reason.items())
        lines += filled(f"Not used: {named}.")
    return "\n".join(lines)


def _units(units: Sequence[Unit]) -> str:
    """Return every unit with all its nodes."""
    return wrapped([("unit", "placed", "nodes by rank"), *((unit.name, unit.why, _runs(unit.nodes)) for unit in units)])


def _runs(names: Sequence[str]) -> str:
    """`node-0 to node-15, node-18`: nodes whose numbers follow one another are named by the first and the last."""
    runs = runs_of(names)
    return ", ".join(
        run[0] if len(run) == 1 else f"{run[0]}{' to ' if len(run) > 2 else ', '}{run[-1]}" for run in runs
    )
