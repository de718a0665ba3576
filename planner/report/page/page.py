"""Write a plan as one HTML page that needs no network: the summary, pictures with their numbers, every figure.

Words and numbers are the report's rows; figures draw the plan's own sections. Nothing reads a clock or the file system,
so the same plan always gives the same bytes. With the plan before a change, each figure is shown beside the one that it
replaces.

`templates/report` has the HTML, its style and its script. Every text is escaped there.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

from planner.plan.plan import Plan
from planner.plan.row import Row
from planner.problems.printable import printable, without_passwords
from planner.report.page.colours import KINDS, THEME
from planner.report.page.figures import Drawn, draw
from planner.report.page.nodes import Nodes
from planner.report.page.sections import Section, Shown, sections_of
from planner.report.report import format_range, format_value
from planner.report.rows import report_of
from planner.report.summary import summary

Topics = Sequence[tuple[str, Sequence[str]]]

PROBLEMS = {"refusals": "It cannot run", "warnings": "Warnings"}


def plan_page(
    plan: Plan,
    before: Plan | None = None,
    changes: Topics = (),
    *,
    more: Sequence[Section] = (),
    notes: Sequence[str] = (),
) -> str:
    """Return the HTML page of `plan`. `changes` says in words what the change from the plan `before` does.

    Sections in `more` come before those of the plan. `notes` say how the plans and their figures were obtained.
    """
    report = report_of(plan)
    return _template().render(
        plan=plan,
        before=before,
        changes=changes,
        notes=notes,
        model=report.text("plan", "model"),
        engine=report.text("plan", "engine"),
        summary=summary(report),
        problems=[(title, report.section_rows(topic)) for topic, title in PROBLEMS.items()],
        sections=[_draw_section(each) for each in (*more, *sections_of(plan, before))],
        kinds=KINDS,
        theme=THEME,
        rows=[_cells(row) for row in report.rows],
    )


def _draw_section(section: Section) -> dict[str, Any]:
    """Return what the template shows of a section, with the figures of a pair drawn to one scale."""
    pairs = [(_draw(old, new), _draw(new, old)) for old, new in section.pairs]
    return {"id": section.id, "title": section.title, "intro": section.intro, "pairs": pairs}


def _draw(figure: Shown | None, beside: Shown | None) -> Drawn | Nodes | None:
    if figure is None or isinstance(figure, Nodes):
        return figure
    return draw(figure, None if isinstance(beside, Nodes) else beside)


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
    environment.filters["clean"] = _clean
    return environment.get_template("page.html.j2")


def _clean(value: Any) -> Any:
    """Remove passwords and invisible characters from the texts in a value before Jinja writes it."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(without_passwords(value))
    if isinstance(value, dict):
        return {_clean(key): _clean(each) for key, each in value.items()}
    return [_clean(each) for each in value] if isinstance(value, list | tuple) else value
