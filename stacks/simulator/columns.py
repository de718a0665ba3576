"""What stands side by side: the day as its spec writes it, and one column for each `--set`.

A `--set` holds one change or several, `decode.ep_size=72,traffic.cache_hit_rate=0`, as the spec would have it written.
The spec is checked and planned anew with it. One path is no field: `traffic.scale` multiplies the day that comes and
leaves the plan as it is. That is the question after a wrong forecast.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.compiler import run_passes
from planner.plan.estimated import Estimated
from planner.problems.errors import CallError, InfeasibleError, SpecError
from planner.problems.finding import Finding
from planner.problems.fix import for_example, nearest
from planner.spec.check import ResolvedSpec, with_values
from planner.spec.places import no_place_at
from planner.spec.yaml import parse_document
from stacks.simulator.day import PlayedDay, simulate_day
from stacks.simulator.failures import Failure
from stacks.simulator.service import require_speeds, require_traffic

__all__ = [
    "AS_WRITTEN",
    "Column",
    "Variant",
    "checked",
    "mistakes_in_columns",
    "part_of",
    "planned",
    "play_columns",
    "read_variants",
]

AS_WRITTEN = "as written"
SCALE = "traffic.scale"
MAX_SCALE = 1000.0  # assumed: more is a slip of the pen
NEXT = re.compile(r",(?=[\w.]+=)")
CHANGE = re.compile(r"(?P<path>\w+(?:\.\w+)*)=(?P<value>.*)", re.S)


@dataclass(frozen=True)
class Variant:
    """One column before it is played."""

    title: str
    changes: Mapping[str, Any]  # of the spec: dotted path -> value
    scale: float = 1.0


@dataclass(frozen=True)
class Column:
    """One column."""

    variant: Variant
    day: PlayedDay


def read_variants(words: Sequence[str], wrong: list[Finding]) -> tuple[Variant, ...]:
    """Return the columns that the options ask for, the spec as written first; what cannot be read goes to `wrong`."""
    found = [Variant(AS_WRITTEN, {})]
    for word in words:
        changes: dict[str, Any] = {}
        for part in NEXT.split(word):
            finding = _read_change(part, changes)
            wrong += [finding.at("tidemill simulate")] if finding else []
        scale = changes.pop(SCALE, 1.0)
        found.append(Variant(word, changes, scale))
    return tuple(found)


def mistakes_in_columns(spec: ResolvedSpec, variants: Sequence[Variant]) -> Sequence[Finding]:
    """Return what is wrong with variants of `spec`, to be said with what is wrong with the call."""
    try:
        checked(spec, variants, require_traffic)
    except (CallError, SpecError) as error:
        return error.findings
    return ()


def play_columns(
    spec: ResolvedSpec,
    variants: Sequence[Variant],
    failures: Sequence[Failure],
    tell: Callable[[str, float], None] = lambda _, __: None,
    date: str | None = None,
) -> tuple[tuple[Column, ...], tuple[Finding, ...]]:
    """Return each of `variants` of `spec`, played, and why others cannot be planned or their speed is not known.

    `tell` hears a title and the share of all that is done. Without a `date` or a weekday it is a day like most.

    Raises SpecError where a variant is wrong or has no traffic, and InfeasibleError where the spec as written cannot
    be played.
    """
    found, failed, specs = list[Column](), list[Finding](), checked(spec, variants, require_traffic)
    for number, (variant, changed) in enumerate(zip(variants, specs, strict=True)):
        tell_part = part_of(tell, variant.title, number, len(variants))
        plan = planned(changed, variant, tell_part, failed)
        if plan is not None:
            found.append(Column(variant, simulate_day(plan, variant.scale, failures, tell_part, date)))
    return tuple(found), tuple(failed)


def planned(
    spec: ResolvedSpec, variant: Variant, tell: Callable[[float], None], failed: list[Finding]
) -> Estimated | None:
    """Return the plan of a variant's `spec`; None where there is none or its speed is not known, and then why is added
    to `failed`, with the column.

    Raises InfeasibleError where that is so of the spec as written.
    """
    tell(0.0)
    try:
        plan = run_passes(spec)
        require_speeds(spec, plan)
    except InfeasibleError as error:
        if variant.title == AS_WRITTEN:
            raise
        failed += _named(error.findings, variant)
        return None
    return plan


def part_of(tell: Callable[[str, float], None], title: str, number: int, of_all: int) -> Callable[[float], None]:
    """Return who hears the share of one of several parts that is done, and tells the share of all."""
    return lambda done: tell(title, (number + done) / of_all)


def checked(
    spec: ResolvedSpec, variants: Sequence[Variant], require: Callable[[ResolvedSpec], None] = lambda _: None
) -> list[ResolvedSpec]:
    """Return the spec of each variant, of which `require` may refuse some.

    Raises CallError for changes of what no spec has, and SpecError with all that is wrong otherwise.
    """
    _require_places(spec, variants)
    found, wrong = [], list[Finding]()
    for variant in variants:
        try:
            changed = _changed(spec, variant.changes) if variant.changes else spec
            require(changed)
            found.append(changed)
        except SpecError as error:
            wrong += _named(error.findings, variant, wrong)
    if wrong:
        raise SpecError(wrong)
    return found


def _named(findings: Sequence[Finding], variant: Variant, told: Sequence[Finding] = ()) -> list[Finding]:
    """Return those of `findings` that are not told of the spec itself, with the column that they are of."""
    column = "" if variant.title == AS_WRITTEN else f" (with --set {variant.title})"
    return [replace(each, reason=f"{each.reason}{column}") for each in findings if each not in told]


def _changed(spec: ResolvedSpec, changes: Mapping[str, Any]) -> ResolvedSpec:
    """Return `spec` as if its file had `changes`; where it says `auto`, they stand instead."""
    document = replace(spec.document, autos=spec.document.autos - changes.keys())
    return with_values(replace(spec, document=document), changes)


def _require_places(spec: ResolvedSpec, variants: Sequence[Variant]) -> None:
    """Raise CallError for every change at whose path nothing can stand in `spec`."""
    wrong = []
    for variant in variants:
        for path in variant.changes:
            if none := no_place_at(path, spec.document.data):
                rule, known = "R418 must change a field of the spec", f"{none.meant}="
                fix = nearest(variant.title.replace(f"{path}=", known, 1)) if none.meant else "see tidemill schema"
                wrong.append(Finding("--set", variant.title, rule, none.reason, fix))
    if wrong:
        raise CallError([each.at("tidemill simulate") for each in wrong])


def _read_change(part: str, changes: dict[str, Any]) -> Finding | None:
    """Add what `part` says to `changes`, or return what is wrong with it."""
    matched = CHANGE.fullmatch(part)
    if matched is None:
        reason = "it names a field of the spec, and the value to try"
        return Finding("--set", part, "R405 must be PATH=VALUE", reason, for_example("decode.ep_size=72"))
    path, text = matched["path"], matched["value"]
    try:
        value = parse_document(f"value:\n  {text}", "--set").data["value"]
    except SpecError:
        rule, reason = "R406 must have a value in YAML", "the value is read as if it stood in the spec"
        return Finding("--set", part, rule, reason, "put it in quotes, or close its brackets")
    if path == SCALE and not (type(value) in (int, float) and 0 < value <= MAX_SCALE):
        rule = f"R407 must be a number above 0, at most {MAX_SCALE:g}"
        reason = "traffic.scale multiplies the day's traffic"
        return Finding("--set", part, rule, reason, for_example("traffic.scale=1.3"))
    changes[path] = value
    return None
