"""Find the fields that differ and may do what no figure of a diff shows.

Figures may show a part of what such a field does: `max_requests` also decides what a day answers. A field that nobody
thought of must not pass in silence. So every field of the spec that differs is named, whoever decided it, except for
two kinds: fields that callers notice (`clients.py`), and the fields of `JUDGED`. A new field of the spec is named by
default. If the plans differ and nothing in their specs does, that is named instead.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.diff.change import SpecField
from planner.diff.values import are_same
from planner.layout.nodes import Node, nodes_of
from planner.plan.plan import Plan
from planner.spec.declared import table_key
from planner.spec.schema import Spec
from planner.spec.section import Section
from planner.spec.short_forms import SHORT_FORMS, expand_short_forms

__all__ = ["JUDGED", "describe_value", "differing_fields", "find_unjudged", "is_judged"]

# Fields, and sections with all their fields -> key of the diff that shows their whole effect.
JUDGED: Mapping[str, str] = {
    "PHASE.units": "units",
    "PHASE.ep_size": "performance",
    "PHASE.redundant_experts": "experts",
    "PHASE.overlap": "performance",
    "schedule.windows": "schedule",
    "schedule.other_days": "cost_of_other_days",
    "schedule.timezone": "yardsticks",
    "traffic": "yardsticks",
    "slo": "yardsticks",
    "operating_point": "yardsticks",
    "cost": "yardsticks",
    "expert_load.alpha": "yardsticks",
    "expert_load.seed": "loads",
    "expert_load.file": "loads",
}
NODES = "cluster.nodes"
PLAN_ALONE = "the plan alone, with the same spec"  # made near another plan, it has other nodes, maps or sizes
SET = "set"  # a value that has no short text
MAX_TEXT = 120  # characters of a path or of a value to show


def find_unjudged(before: Plan, after: Plan, shown: Collection[str], added: Sequence[str] = ()) -> Iterator[SpecField]:
    """Yield the fields that differ and of which figures need not show all, then files and what is `added` to pods.

    `shown` are paths of fields that the diff names with their effect.
    """
    known = {*shown, NODES} if _keeps_nodes(before, after) else {*shown}
    differing = [*differing_fields(_read_spec(before), _read_spec(after))]
    if not differing and before.inputs == after.inputs and before.digest != after.digest:
        yield SpecField(path=PLAN_ALONE, values=None)
    yield from (each for each in differing if each.path not in known and not is_judged(each.path))
    loads = {plan.spec.expert_load.file for plan in (before, after)}
    names = [name for name in after.inputs if name in before.inputs and name not in loads]
    others = [*(f"content of {name}" for name in names if before.inputs[name] != after.inputs[name]), *added]
    yield from (SpecField(path=each[:MAX_TEXT], values=None) for each in others)


def is_judged(path: str) -> bool:
    """Return whether figures of the diff show all that the field at `path` does."""
    parts = table_key(path).split(".")
    return any(".".join(parts[:length]) in JUDGED for length in range(1, len(parts) + 1))


def differing_fields(old: Any, new: Any, path: str = "") -> Iterator[SpecField]:
    """Yield the fields below `path` that differ between two sections.

    Of options, variables and the like, which users name, each has a path of its own. Their values may be private.
    """
    if isinstance(old, Section) and type(old) is type(new):
        for name in type(old).model_fields:
            yield from differing_fields(getattr(old, name), getattr(new, name), f"{path}.{name}".lstrip("."))
    elif isinstance(old, dict) and isinstance(new, dict):
        names = (name for name in {**old, **new} if not are_same(old.get(name), new.get(name)))
        yield from (SpecField(path=f"{path}.{name}"[:MAX_TEXT], values=None) for name in names)
        if [name for name in old if name in new] != [name for name in new if name in old]:
            yield SpecField(path=f"order of {path}", values=None)  # a variable may use those before it
    elif not are_same(old, new):
        words = [describe_value(each) for each in (old, new)]
        yield SpecField(path=path, values=None if words[0] == words[1] or "" in words else (words[0], words[1]))


def _read_spec(plan: Plan) -> Spec:
    """Return the plan's spec with the full form of sections that have a short one."""
    paths = [f"{section}.{field}" for section, field in SHORT_FORMS.items()]
    return Spec.model_validate(expand_short_forms(plan.written, paths))


def _keeps_nodes(before: Plan, after: Plan) -> bool:
    """Return whether the old spec has all nodes of units as the new one has them, and the new one has all spares."""
    old, new = (_known_nodes(plan) for plan in (before, after))
    used = [node for unit in after.units for node in unit.nodes]
    spares = [node for node in old if old[node].is_spare]
    return all(new[node] == old.get(node) for node in used) and all(new.get(node) == old[node] for node in spares)


def _known_nodes(plan: Plan) -> dict[str, Node]:
    found = nodes_of(plan.spec.cluster, plan.spec.gpu_names, plan.kubernetes.tolerations)
    return {node.name: replace(node, index=0) for node in found}


def describe_value(value: Any) -> str:
    """Return a short value as text, `set` for a section or a list, and nothing for a long text."""
    if value is None or value == [] or value == {}:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value / 1e6:,.6g}M" if value >= 1e6 else f"{value:,.6g}"
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else ""
    return SET
