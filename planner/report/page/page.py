"""Write a plan as one HTML page that needs no network: the summary, pictures with their numbers, every figure.

Words and numbers are the report's rows; figures draw the plan's own sections. Nothing reads a clock or the file system,
so the same plan always gives the same bytes. With the plan before a change, each figure is shown beside the one that it
replaces.

`templates/report` has the HTML, its style and its script. Every text is escaped there.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from typing import Any

import jinja2
from markupsafe import Markup

from planner.plan.plan import Plan
from planner.plan.row import Row
from planner.problems.printable import printable, without_passwords
from planner.report.page.charts import show_cost, show_kv_cache, show_memory, show_reasons, show_speed, show_stages
from planner.report.page.day import show_day
from planner.report.page.experts import show_experts
from planner.report.page.figures import Drawn, Figure, draw
from planner.report.page.nodes import Nodes, show_nodes
from planner.report.report import Report, format_range, format_value
from planner.report.summary import summary

Topics = Sequence[tuple[str, Sequence[str]]]
Show = Callable[[Plan, Report], Iterable[Figure]]

SECTIONS: Mapping[str, tuple[str, Show]] = {
    "day": ("The day", show_day),
    "speed": ("Speed", show_speed),
    "cost": ("Cost and income", show_cost),
    "memory": ("Memory", show_memory),
    "experts": ("Experts", show_experts),
    "stages": ("One MoE layer, stage by stage", show_stages),
    "kv": ("KV cache", show_kv_cache),
    "why": ("Decided and assumed", show_reasons),
}
OF_THE_DAY = {"day", "cost"}
PROBLEMS = {"refusals": "It cannot run", "warnings": "Warnings"}
NODES_INTRO = "Each square is a node. Nodes of a rack stand together, where the spec names racks."
AS_SCHEDULED = "This is the day as scheduled. Without kubernetes.controller all units stay on."


@dataclass(frozen=True)
class Section:
    """A part of the page. `pairs` has each figure as (before the change or None, after)."""

    id: str
    title: str
    intro: str
    pairs: Sequence[tuple[Drawn | Nodes | None, Drawn | Nodes | None]]


def plan_page(plan: Plan, before: Plan | None = None, changes: Topics = ()) -> str:
    """Return the HTML page of `plan`. `changes` says in words what the change from the plan `before` does."""
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


def _sections(plan: Plan, before: Plan | None) -> Iterator[Section]:
    yield Section("nodes", "Nodes", NODES_INTRO, [(show_nodes(before) if before else None, show_nodes(plan))])
    as_scheduled = AS_SCHEDULED if plan.switches_units and not plan.kubernetes.controller else ""
    for key, (title, show) in SECTIONS.items():
        yield Section(key, title, as_scheduled if key in OF_THE_DAY else "", _pairs(show, plan, before))


def _pairs(show: Show, plan: Plan, before: Plan | None) -> list[tuple[Drawn | None, Drawn | None]]:
    """Return pairs of a section's figures, (`before`'s, `plan`'s), drawn to the same scales. Either may be missing."""
    old, new = (list(show(each, Report(each.report))) if each and each.report else [] for each in (before, plan))
    return [(_draw(old_one, new_one), _draw(new_one, old_one)) for old_one, new_one in zip_longest(old, new)]


def _draw(figure: Figure | None, beside: Figure | None) -> Drawn | None:
    return None if figure is None else draw(figure, beside)


def _cells(row: Row) -> tuple[str, ...]:
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
    """Remove passwords and invisible characters from a text before Jinja escapes it; leave other values alone."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(without_passwords(value))
    return value
