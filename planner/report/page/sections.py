"""The sections of a plan's page, each with its figures of the plan and of the plan before a change."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from planner.plan.plan import Plan
from planner.report.as_run import as_run
from planner.report.page.charts import show_cost, show_kv_cache, show_memory, show_reasons, show_speed, show_stages
from planner.report.page.day import show_day
from planner.report.page.experts import show_experts
from planner.report.page.figures import Figure
from planner.report.page.nodes import Nodes, show_nodes
from planner.report.page.published import show_published
from planner.report.report import Report
from planner.report.rows import report_of

Shown = Figure | Nodes
Show = Callable[[Plan, Report], Iterable[Figure]]
Running = tuple[Plan, Report]  # a plan as it runs, and its report

FIGURES: Mapping[str, tuple[str, Show]] = {
    "day": ("The day", show_day),
    "published": ("Beside DeepSeek's published day", show_published),
    "speed": ("Speed", show_speed),
    "cost": ("Cost and income", show_cost),
    "memory": ("Memory", show_memory),
    "experts": ("Experts", show_experts),
    "stages": ("One MoE layer, stage by stage", show_stages),
    "kv": ("KV cache", show_kv_cache),
    "why": ("Decided and assumed", show_reasons),
}
NODES_INTRO = "Each square is a node. Nodes of a rack stand together, where the spec names racks."


@dataclass(frozen=True)
class Section:
    """A part of the page. `pairs` has each figure as (before the change or None, after)."""

    id: str
    title: str
    intro: str
    pairs: Sequence[tuple[Shown | None, Shown | None]]


def sections_of(plan: Plan, before: Plan | None) -> Iterator[Section]:
    """Yield the sections that have figures, in the page's order."""
    new, old = (as_run(plan), report_of(plan)), (as_run(before), report_of(before)) if before else None
    yield Section("nodes", "Nodes", NODES_INTRO, [_nodes_pair(old[0] if old else None, new[0])])
    for key, (title, show) in FIGURES.items():
        if pairs := _pairs(show, old, new):
            yield Section(key, title, "", pairs)


def _nodes_pair(before: Plan | None, after: Plan) -> tuple[Nodes | None, Nodes]:
    """Return the pictures of nodes before and after. Both are the new one, with its loads, if they look alike."""
    new = show_nodes(after)
    if before is None:
        return None, new
    old = show_nodes(before)
    is_alike = (old.racks, old.tables, old.facts["states"]) == (new.racks, new.tables, new.facts["states"])
    return (new if is_alike else old), new


def _pairs(show: Show, before: Running | None, after: Running | None) -> list[tuple[Figure | None, Figure | None]]:
    """Return (figure before, figure after) for each subject of a section; None for a missing figure."""
    old, new = (_by_subject(show, each) for each in (before, after))
    places = {subject: place for each in (old, new) for place, subject in enumerate(each)}
    ordered = sorted(places, key=places.__getitem__)
    return [pair for subject in ordered for pair in zip_longest(old.get(subject, ()), new.get(subject, ()))]


def _by_subject(show: Show, running: Running | None) -> dict[str, list[Figure]]:
    """Return subject -> figures of a plan. A figure's title begins with it, as `prefill: the fullest GPU` does."""
    found: dict[str, list[Figure]] = {}
    for figure in show(*running) if running and running[0].report else ():
        found.setdefault(re.split("[:,]", figure.title)[0], []).append(figure)
    return found
