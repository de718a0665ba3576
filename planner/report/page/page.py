"""Write a plan as one HTML page that needs no network: the summary, pictures with their numbers, every figure.

Words and numbers are the report's rows; figures draw the plan's own sections. Nothing reads a clock or the file system,
so a plan gives the same bytes. With the plan before a change, each figure stands beside the one it replaces.

`templates/report` has the HTML, its style and its script. Every text is escaped there.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from typing import Any

import jinja2
from markupsafe import Markup

from planner.plan.plan import Plan
from planner.problems.printable import printable, without_passwords
from planner.report.page.charts import show_cost, show_kv_cache, show_memory, show_speed, show_stages
from planner.report.page.day import show_day
from planner.report.page.experts import show_experts
from planner.report.page.figures import Drawn, Figure, Table, draw
from planner.report.page.nodes import Nodes, show_nodes
from planner.report.report import Report, format_range, format_value
from planner.report.summary import summary

__all__ = ["plan_page"]

Topics = Sequence[tuple[str, Sequence[str]]]

LISTS = {
    "decided": "Decided by the planner",
    "assumed": "Assumed: nobody has published or measured it",
    "relies_on": "Relied on: only the cluster can show it",
    "defaults": "Left at its default: nobody wrote it",
    "overlay": "Changed by kubernetes.overlay",
}
PROBLEMS = {"refusals": "It cannot run", "warnings": "Warnings"}
NODES_INTRO = "Each square is a node. Nodes of a rack stand together, where the spec names racks."
AS_SCHEDULED = "This is the day as scheduled. Without kubernetes.controller all units stay on."


@dataclass(frozen=True)
class Section:
    """A part of the page. Each figure stands beside the one before the change, if there is a change."""

    id: str
    title: str
    intro: str
    pairs: Sequence[tuple[Drawn | Nodes | None, Drawn | Nodes | None]]


def plan_page(plan: Plan, before: Plan | None = None, changes: Topics = ()) -> str:
    """Return the page of `plan`. `changes` says in words what the change from the plan `before` does."""
    report = Report(plan.report or ())
    return _template().render(
        plan=plan,
        before=before,
        changes=changes,
        model=report.text("plan", "model"),
        engine=report.text("plan", "engine"),
        summary=summary(report),
        problems=[(title, report.section_rows(topic)) for topic, title in PROBLEMS.items()],
        sections=[each for each in _sections(plan, before) if each.pairs],
        rows=[_cells(row) for row in report.rows],
    )


def _sections(plan: Plan, before: Plan | None) -> Iterable[Section]:
    """Yield the sections in the order of what readers ask."""
    yield Section("nodes", "Nodes", NODES_INTRO, [(show_nodes(before) if before else None, show_nodes(plan))])
    as_scheduled = AS_SCHEDULED if plan.switches_units and not plan.kubernetes.controller else ""
    yield _section("day", "The day", as_scheduled, show_day, plan, before)
    yield _section("speed", "Speed", "", show_speed, plan, before)
    yield _section("cost", "Cost and income", as_scheduled, show_cost, plan, before)
    yield _section("memory", "Memory", "", show_memory, plan, before)
    yield _section("experts", "Experts", "", show_experts, plan, before)
    yield _section("stages", "One MoE layer, stage by stage", "", show_stages, plan, before)
    yield _section("kv", "KV cache", "", show_kv_cache, plan, before)
    yield _section("why", "Decided and assumed", "", _lists, plan, before)


def _section(
    key: str,
    title: str,
    intro: str,
    show: Callable[[Plan, Report], Iterable[Figure]],
    plan: Plan,
    before: Plan | None,
) -> Section:
    """Return a section with the figures of one plan or of two, drawn to the same scales."""
    new = list(show(plan, Report(plan.report or ())))
    old = list(show(before, Report(before.report))) if before and before.report else []  # a folder keeps no figures
    pairs = [(_draw(old_one, new_one), _draw(new_one, old_one)) for old_one, new_one in zip_longest(old, new)]
    return Section(key, title, intro, pairs)


def _draw(figure: Figure | None, beside: Figure | None) -> Drawn | None:
    return None if figure is None else draw(figure, beside)


def _lists(plan: Plan, report: Report) -> Iterable[Table]:
    for topic, title in LISTS.items():
        found = report.section_rows(topic)
        has_notes = any(row.note for row in found)
        rows = [(row.name, format_value(row), row.note)[: 2 + has_notes] for row in found]
        if rows:
            yield Table(("field", "value", "reason")[: 2 + has_notes], rows, title, is_folded=topic == "defaults")


def _cells(row: Any) -> tuple[str, ...]:
    low, high = format_range(row)
    return (
        row.section,
        row.name,
        format_value(row),
        f"{low} to {high}" if low else "",
        row.unit,
        row.provenance,
        row.note,
    )


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("templates", "report"),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        finalize=_clean,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2")


def _clean(value: Any) -> Any:
    """Return a text without passwords and invisible characters; Jinja escapes it afterwards."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(without_passwords(value))
    return value
