"""The page's figures of DeepSeek's published day beside the plan's, where the spec has that day's tokens."""

from collections.abc import Iterator
from itertools import pairwise

from planner.facts import deepseek_day
from planner.facts.day import DAY_MINUTES, hh_mm, minute_of
from planner.plan.plan import Plan
from planner.report.page.day import HOURS, count_units
from planner.report.page.figures import Area, Figure, Line, Steps, Table, by_phase
from planner.report.report import Report

TITLES = {
    "peak_nodes": "nodes at most",
    "mean_nodes_taken": "nodes taken on average, with warm-up and drain",
    "tokens_per_s_per_node_with_hits": "prefill: tokens/s of a node, cache hits included",
    "tokens_per_s_per_node": "decode: tokens/s of a node",
    "tokens_per_s_per_user": "decode: tokens/s of a user",
    "usd_per_day": "cost of the day",
    "revenue_if_all_answered_usd_per_day": "income, if all is answered",
    "markup": "(income - cost) / cost; planned: of what is answered",
}


def show_published(plan: Plan, report: Report) -> Iterator[Figure]:
    """Yield a figure of nodes in use, planned and published, and a table of all that was published."""
    traffic = plan.spec.traffic
    if traffic is not None and (traffic.input_tokens, traffic.output_tokens) == deepseek_day.TOKENS:
        yield _nodes_in_use(plan)
        rows = [
            (TITLES[name], _planned_value(plan, report, section, name), published)
            for (section, name), published in deepseek_day.PUBLISHED.items()
        ]
        yield Table(("figure", "planned", "published"), rows, "What else was published")


def _planned_value(plan: Plan, report: Report, section: str, name: str) -> str:
    """Return the plan's value of a published figure, with its range. Without a schedule all nodes are on all day."""
    if section == "schedule" and plan.schedule is None:
        section, name = "cluster", "nodes_used"
    return " ".join(filter(None, report.value_and_range(section, name))) or "-"


def _nodes_in_use(plan: Plan) -> Steps:
    areas, tops = list[Area](), dict[int, int]()
    for phase, shape in reversed(by_phase(plan.phases)):
        boxes = []
        for begin, end, units in count_units(plan, phase, plan.schedule.steps if plan.schedule else ()):
            low = tops.get(begin, 0)
            tops[begin] = low + units * shape.nodes_per_unit
            boxes.append((begin, end, low, tops[begin]))
        areas.append(Area(f"unit {phase}", boxes, f"{phase} units"))
    published = [(minute_of(at), nodes) for at, nodes in deepseek_day.NODES]
    ends = [minute for minute, _ in published[1:]] + [DAY_MINUTES]
    line = [(at, nodes) for (begin, nodes), end in zip(published, ends, strict=True) for at in (begin, end)]
    return Steps(
        title="Nodes in use",
        end=DAY_MINUTES,
        labels=HOURS,
        areas=areas,
        lines=[Line("published", line)],
        table=_table(tops, dict(published)),
        legend={area.kind: area.words for area in areas} | {"published": "published"},
        y_title="nodes",
        note=f"Published for 27 and 28 February 2025, in {deepseek_day.CLOCK}; read off the chart of the source, "
        f"{deepseek_day.SOURCE}.",
        least_step=1.0,
        has_clock=plan.switches_units,
    )


def _table(planned: dict[int, int], published: dict[int, int]) -> Table:
    """Return both numbers of nodes for each time at which one of them may change."""
    rows = []
    for begin, end in pairwise([*sorted(planned | published), DAY_MINUTES]):
        numbers = (nodes[max(minute for minute in nodes if minute <= begin)] for nodes in (planned, published))
        rows.append((hh_mm(begin), hh_mm(end), *map(str, numbers)))
    return Table(("from", "to", "planned", "published"), rows)
