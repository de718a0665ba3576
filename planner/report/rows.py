"""Build all report rows of a plan. Text, page and diff show these rows and compute nothing.

A figure of PLAN.json keeps its keys as section and name: `performance.decode` and `tpot_ms`. A list entry is named by
its time, name or number: `schedule.steps.12:00`. `derived.py` builds the rows that combine several figures. A plan has
one row of each section and name, so that rows of two plans can be matched.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from planner.cost.cost import estimate_cost
from planner.estimate.utilisation import is_set_by_ttft
from planner.facts.catalog import ASSUMED
from planner.plan.expected import Range
from planner.plan.plan import Plan
from planner.plan.row import Provenance, Row, make_rows
from planner.report.as_run import as_run
from planner.report.derived import derived_rows, field_origin
from planner.report.report import Report
from planner.report.summary import describe_day
from planner.spec.phase import PhaseSpec
from planner.spec.request_lengths import request_lengths

# Sections of PLAN.json that hold figures.
TOPICS = (
    *("phases", "schedule", "cost", "demand", "performance", "failures", "memory", "balance"),
    *("placement", "search", "kv_cache", "model", "gpu", "phase_gpus"),
)
NO_FIGURES = {
    *("kubernetes_resource", "expert_map", "digest", "unusable_nodes", "transitions", "for_example"),
    "stretches",  # a list of a day's parts, for pictures
}

# words in a figure's name -> the figure's unit; the first match counts
UNITS = {
    "usd_per_million": "USD per million tokens",
    "usd": "USD",
    "tokens_per_s": "tokens/s",
    "bytes_per_s": "bytes/s",
    "bytes": "bytes",
    "gb_per_s": "GB/s",
    "gbps": "Gb/s",
    "ms": "ms",
    "us": "us",
    "hours": "hours",
    "minutes": "minutes",
    **dict.fromkeys(("share", "hit_rate", "acceptance_rate", "margin", "markup", "load"), "share"),
    **dict.fromkeys(("utilisation",), "share"),
    **dict.fromkeys(("max_over_mean", "imbalance", "bound"), "ratio"),
    "weights": "bytes",
}
PREDICTED = ("performance", "demand", "search")
SPEED_COSTS = ("revenue", "answered", "margin", "markup", "per_million")  # words in names of costs that depend on speed
COSTS_OF_TOKENS = ("usd_per_million_input_tokens", "usd_per_million_output_tokens")
SPEC_FIGURES = {"promised", "asked_tokens_per_s", "input_tokens", "output_tokens", "timezone"}  # copied from the spec


def rows_of(plan: Plan) -> tuple[Row, ...]:
    """Return all report rows of a plan, whether it was just compiled or loaded from a file."""
    figures = (row for topic in TOPICS for row in _rows(plan, topic, getattr(plan, topic)))
    return (*derived_rows(plan), *figures)


def report_of(plan: Plan) -> Report:
    """Return the rows that text, page and pictures show; none for a plan without estimates.

    If the schedule is not carried out, the rows are those of a day with all units on. Rows are made from the plan's
    sections. The rows in a PLAN.json are for other programs and only give the order, so an edited row misleads nobody.
    """
    if plan.report is None:
        return Report(())
    running, places = as_run(plan), {(row.section, row.name): place for place, row in enumerate(plan.report)}
    rows = sorted(rows_of(running), key=lambda row: places.get((row.section, row.name), len(places)))
    if running is plan:
        return Report(rows)
    switched = estimate_cost(plan.spec, plan.timetable, plan.units, {})
    day = ("day", describe_day(Report(rows_of(plan))))
    usd = ("usd_per_day", switched and switched.usd_per_day, "USD")
    return Report([*rows, *make_rows("with_controller", day, usd)])


def _rows(plan: Plan, section: str, part: Any) -> Iterator[Row]:
    """Yield a row for each figure in `part` (a part of the plan, called `section`) and in the parts of `part`."""
    for name, value in _named_parts(part):
        if name in NO_FIGURES or value is None:
            continue
        if isinstance(value, int | float | str):
            shown = ("no", "yes")[value] if isinstance(value, bool) else value
            unit = "" if isinstance(shown, str) else _unit(name) or _unit(section.rpartition(".")[2])
            low, high = _range_over_speeds(plan, section, name)
            yield Row(section, name, shown, unit, low, high, *_origin(plan, section, name))
        elif isinstance(value, Range):
            yield Row(section, name, value.mid, _unit(name), value.low, value.high, "predicted")
        else:
            yield from _rows(plan, f"{section}.{name}", value)


def _range_over_speeds(plan: Plan, section: str, name: str) -> tuple[float | None, float | None]:
    """Return (lowest, highest) of a day's income, margin or cost of a million tokens over the range of speeds.

    Return (None, None) for any other figure, and if an end is unknown or both ends are equal. A day costs the same at
    every speed, and answers more tokens at a higher one.
    """
    cost = plan.cost
    if section != "cost" or cost is None or name not in (*COSTS_OF_TOKENS, "revenue_usd_per_day", "margin"):
        return None, None
    cases = {case.name: case for case in cost.cases}
    ends = [case for end in ("slowest", "fastest") if (case := cases.get(f"the {end} speed"))]
    if name in COSTS_OF_TOKENS:
        of_all = getattr(cost, name) * (cost.answered_share or 0.0)
        values = [of_all / case.answered_share if case.answered_share else None for case in ends]
    else:
        values = [getattr(case, name) for case in ends]
    known = sorted(value for value in values if value is not None)
    return (known[0], known[1]) if len(known) == 2 and known[0] < known[1] else (None, None)


def _named_parts(part: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of each field of `part`.

    If it is a list, its entries that are objects are named by `_entry_name`.
    """
    if isinstance(part, tuple):
        parts = [each for each in part if not isinstance(each, int | float | str | tuple)]
        yield from ((_entry_name(each, number), each) for number, each in enumerate(parts))
    elif isinstance(part, Mapping):
        yield from part.items()
    elif part is not None:
        yield from part if isinstance(part, BaseModel) else vars(part).items()


def _entry_name(part: Any, number: int) -> str:
    """Return a list entry's name: its first day, time, name or kind or, if it has none, its `number` in the list."""
    if days := getattr(part, "days", ()):
        return str(days[0])
    label = next((value for name in ("at", "name", "kind", "keep_s") if (value := getattr(part, name, None))), number)
    return f"{label:g} s" if isinstance(label, float) else str(label)


def _unit(name: str) -> str:
    return next((unit for words, unit in UNITS.items() if f"_{words}_" in f"_{name}_"), "")


def _origin(plan: Plan, section: str, name: str) -> tuple[Provenance, str]:
    """Return (how a figure came about, its source or an empty text).

    The first is `assumed`, `published`, `predicted` and so on.
    """
    topic, _, phase = section.partition(".")
    if topic in ("gpu", "phase_gpus"):
        source = plan.sources.get(f"{phase or 'cluster'}.gpu.{name}", "")
        return ("assumed" if source.startswith(ASSUMED) else "published" if "/" in source else "spec"), source
    if topic == "phases" and name in PhaseSpec.model_fields:
        return field_origin(plan, f"{phase}.{name}"), ""
    if section.endswith(".operating_point"):
        return _point_origin(plan, section, name)
    if name in SPEC_FIGURES:
        return "spec", ""
    if topic in PREDICTED or (topic == "cost" and any(part in name for part in SPEED_COSTS)):
        return "predicted", ""
    is_drawn = topic == "balance" and plan.spec.expert_load.file is None
    return ("assumed" if is_drawn else "derived"), ""


def _point_origin(plan: Plan, section: str, name: str) -> tuple[Provenance, str]:
    """Return (how a figure of an operating point came about, its source or an empty text)."""
    (phase,) = (each for each in plan.spec.phases if section == f"performance.{each}.operating_point")
    found = (plan.performance or {})[phase]
    if name == "utilisation" and is_set_by_ttft(plan.spec, phase):
        is_kept = found.slo is not None and found.slo["ttft_ms"].met
        return (
            "derived",
            "as full as the TTFT allows" if is_kept else "half full, and no less, though that misses the TTFT",
        )
    if found.operating_point is None or not found.operating_point.derived:
        return "spec", ""
    return ("assumed" if request_lengths(plan.spec, phase).are_assumed else "derived"), ""
