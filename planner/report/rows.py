"""All rows of a plan, made once. Whoever shows a plan shows these, and computes nothing of his own.

A figure of PLAN.json has the section and name of its keys: `performance.decode` and `tpot_ms`. A part of a list is
called by its time, its name or its number: `schedule.steps.12:00`. Rows that follow from several figures are made in
`derived.py`. No two rows have the same section and name, so that rows of two plans are matched by these.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from planner.estimate.utilisation import follows_from_promise
from planner.facts.catalog import ASSUMED
from planner.plan.expected import Range
from planner.plan.plan import Plan
from planner.plan.row import Provenance, Row
from planner.report.derived import derived_rows, field_origin
from planner.spec.phase import PhaseSpec
from planner.spec.request_lengths import request_lengths

__all__ = ["rows_of"]

# Sections of PLAN.json that hold figures.
TOPICS = (
    *("phases", "schedule", "cost", "demand", "performance", "failures", "uptime", "memory", "balance", "traffic"),
    *("placement", "search", "kv_cache", "model", "gpu", "phase_gpus"),
)
NO_FIGURES = {"kubernetes_resource", "expert_map", "digest", "unusable_nodes", "transitions", "busiest", "for_example"}

# Words of a name -> its unit; the first that are in the name hold.
UNITS = {
    "usd_per_million": "USD per million tokens",
    "usd": "USD",
    "tokens_per_s": "tokens/s",
    "bytes_per_s": "bytes/s",
    "bytes": "bytes",
    "gb_per_s": "GB/s",
    "gbps": "Gb/s",
    "ms": "ms",
    **dict.fromkeys(("us", "microseconds"), "us"),
    "hours": "hours",
    "minutes": "minutes",
    **dict.fromkeys(("share", "hit_rate", "acceptance_rate", "margin", "markup", "capacity_at_once", "load"), "share"),
    **dict.fromkeys(("utilisation", "availability"), "share"),
    **dict.fromkeys(("max_over_mean", "imbalance", "bound"), "ratio"),
    "weights": "bytes",
}
PREDICTED = ("performance", "demand", "uptime", "search")
OF_SPEED = ("revenue", "answered", "margin", "markup", "per_million")  # of names of costs that speed decides
WRITTEN = {"promised", "asked_tokens_per_s", "input_tokens", "output_tokens", "timezone"}  # in the spec


def rows_of(plan: Plan) -> tuple[Row, ...]:
    """Return the rows of a plan that was compiled, or read from its JSON."""
    figures = (row for topic in TOPICS for row in _rows(plan, topic, getattr(plan, topic)))
    return (*derived_rows(plan), *figures)


def _rows(plan: Plan, section: str, part: Any) -> Iterator[Row]:
    """Yield a row for each figure in `part` of the plan, and in the parts of that."""
    for name, value in _fields(part):
        if name in NO_FIGURES or value is None:
            continue
        if isinstance(value, int | float | str):
            shown = ("no", "yes")[value] if isinstance(value, bool) else value
            unit = "" if isinstance(shown, str) else _unit(name) or _unit(section.rpartition(".")[2])
            yield Row(section, name, shown, unit, None, None, *_origin(plan, section, name))
        elif isinstance(value, Range):
            yield Row(section, name, value.mid, _unit(name), value.low, value.high, "predicted")
        else:
            yield from _rows(plan, f"{section}.{name}", value)


def _fields(part: Any) -> Iterator[tuple[str, Any]]:
    """Yield what `part` has by name, and the parts of a list by what each is called; a list of numbers has none."""
    if isinstance(part, tuple):
        parts = [each for each in part if not isinstance(each, int | float | str | tuple)]
        yield from ((_called(each, number), each) for number, each in enumerate(parts))
    elif isinstance(part, Mapping):
        yield from part.items()
    elif part is not None:
        yield from part if isinstance(part, BaseModel) else vars(part).items()


def _called(part: Any, number: int) -> str:
    """Return what a part of a list is called: its time, name or kind, else its number."""
    if days := getattr(part, "days", ()):
        return str(days[0])
    label = next((value for name in ("at", "name", "kind", "keep_s") if (value := getattr(part, name, None))), number)
    return f"{label:g} s" if isinstance(label, float) else str(label)


def _unit(name: str) -> str:
    return next((unit for words, unit in UNITS.items() if f"_{words}_" in f"_{name}_"), "")


def _origin(plan: Plan, section: str, name: str) -> tuple[Provenance, str]:
    """Return where a figure comes from, and its source where it has one."""
    topic, _, phase = section.partition(".")
    if topic in ("gpu", "phase_gpus"):
        source = plan.sources.get(f"{phase or 'cluster'}.gpu.{name}", "")
        return ("assumed" if source.startswith(ASSUMED) else "published" if "/" in source else "spec"), source
    if topic == "phases" and name in PhaseSpec.model_fields:
        return field_origin(plan, f"{phase}.{name}"), ""
    if section.endswith(".operating_point"):
        return _point_origin(plan, section, name)
    if name in WRITTEN:
        return "spec", ""
    if topic in PREDICTED or (topic == "cost" and any(part in name for part in OF_SPEED)):
        return "predicted", ""
    is_drawn = topic == "balance" and plan.spec.expert_load.file is None
    return ("assumed" if is_drawn else "derived"), ""


def _point_origin(plan: Plan, section: str, name: str) -> tuple[Provenance, str]:
    """Return where the load comes from at which a phase is predicted."""
    (phase,) = (each for each in plan.spec.phases if section == f"performance.{each}.operating_point")
    found = (plan.performance or {})[phase]
    if name == "utilisation" and follows_from_promise(plan.spec, phase):
        is_kept = found.slo is not None and found.slo["ttft_ms"].met
        return (
            "derived",
            "as full as the TTFT allows" if is_kept else "half full, and no less, though that misses the TTFT",
        )
    if found.operating_point is None or not found.operating_point.derived:
        return "spec", ""
    return ("assumed" if request_lengths(plan.spec, phase).are_assumed else "derived"), ""
