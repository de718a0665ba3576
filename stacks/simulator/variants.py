"""Variants of a spec that are compared side by side: the spec as written, and one for each `--set`.

A `--set` holds one or more changes, `decode.ep_size=72,traffic.cache_hit_rate=0`, written as in the spec, which is then
checked and planned again. One path is no field of the spec: `traffic.scale` multiplies the day's traffic and leaves the
plan as it is, to show what happens after a wrong forecast.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.compiler import Compiled, run_passes
from planner.problems.errors import InfeasibleError, SpecError
from planner.problems.finding import Finding, may_be_secret
from planner.problems.fix import for_example
from planner.rules.check import change_spec
from planner.spec.resolved import ResolvedSpec
from planner.spec.yaml import parse_document

__all__ = [
    "AS_WRITTEN",
    "Variant",
    "check_variants",
    "find_variant_mistakes",
    "part_progress",
    "plan_variant",
    "read_variants",
    "require_speeds",
    "require_traffic",
]

AS_WRITTEN = "as written"
SCALE = "traffic.scale"
MAX_SCALE = 1000.0  # assumed: more is a typing error
NEXT = re.compile(r",(?=[\w.]+=)")
CHANGE = re.compile(r"(?P<path>\w+(?:\.\w+)*)=(?P<value>.*)", re.S)


@dataclass(frozen=True)
class Variant:
    """One variant of the spec, to be simulated: its changes, and the factor `scale` on the day's traffic."""

    title: str
    changes: Mapping[str, Any]  # of the spec: dotted path -> value
    scale: float = 1.0


def read_variants(words: Sequence[str], wrong: list[Finding]) -> tuple[Variant, ...]:
    """Return the spec as written, and a variant for each `--set` in `words`.

    Mistakes in `words` are added to `wrong`.
    """
    found = [Variant(AS_WRITTEN, {})]
    for word in words:
        changes: dict[str, Any] = {}
        for part in NEXT.split(word):
            finding = _read_change(part, changes)
            wrong += [finding.at("tidemill simulate")] if finding else []
        scale = changes.pop(SCALE, 1.0)
        found.append(Variant(_title(word, changes), changes, scale))
    return tuple(found)


def _title(word: str, changes: Mapping[str, Any]) -> str:
    """Return a variant's title: the words of its `--set`, or only its fields if a value may be a secret."""
    return ", ".join(changes) if any(map(may_be_secret, changes)) else word


def find_variant_mistakes(spec: ResolvedSpec, variants: Sequence[Variant]) -> Sequence[Finding]:
    """Return the mistakes in variants of `spec`, to be reported together with mistakes in other options."""
    try:
        check_variants(spec, variants, require_traffic)
    except SpecError as error:
        return error.findings
    return ()


def require_traffic(spec: ResolvedSpec) -> None:
    """Raise SpecError if `spec` has no traffic."""
    if spec.written.traffic is None:
        rule, reason = "R401 is required by tidemill simulate", "a simulation plays the traffic of a day"
        fix = "write traffic: {input_tokens: ..., output_tokens: ...}, with the tokens of a day"
        raise SpecError([spec.locate(Finding("traffic", None, rule, reason, fix))])


def require_speeds(spec: ResolvedSpec, plan: Compiled) -> None:
    """Raise InfeasibleError if the speed of a phase of `plan` is not known."""
    rule, fix = "R402 must have a predicted speed to be simulated", "plan it for GPUs whose rates are known"
    unknown = [
        spec.locate(Finding(each.phase, None, rule, str(each.why_not), fix)) for each in plan.speed if each.case is None
    ]
    if unknown:
        raise InfeasibleError(unknown)


def plan_variant(
    spec: ResolvedSpec, variant: Variant, on_progress: Callable[[float], None], failed: list[Finding]
) -> Compiled | None:
    """Return the plan of a variant's `spec`.

    Return None if the spec cannot be planned, or if a speed is not known. The errors, with the variant's name, are then
    added to `failed`. Raises InfeasibleError if the variant is the spec as written.
    """
    on_progress(0.0)
    try:
        plan = run_passes(spec)
        require_speeds(spec, plan)
    except InfeasibleError as error:
        if variant.title == AS_WRITTEN:
            raise
        failed += _name_variant(error.findings, variant)
        return None
    return plan


def part_progress(
    on_progress: Callable[[str, float], None], title: str, number: int, num_parts: int
) -> Callable[[float], None]:
    """Return a callback for the progress of part `number` of `num_parts`, which reports the progress of the whole."""
    return lambda done: on_progress(title, (number + done) / num_parts)


def check_variants(
    spec: ResolvedSpec, variants: Sequence[Variant], require: Callable[[ResolvedSpec], None] = lambda _: None
) -> list[ResolvedSpec]:
    """Return the checked spec of each variant. `require` is called with each spec, and may raise SpecError.

    Raises SpecError with all mistakes.
    """
    found, wrong = [], list[Finding]()
    for variant in variants:
        try:
            changed = _change_spec(spec, variant.changes) if variant.changes else spec
            require(changed)
            found.append(changed)
        except LookupError as error:
            rule, reason = "R418 must change a field of the spec", f"the spec has no place for {error}"
            wrong.append(Finding("--set", variant.title, rule, reason, "see tidemill schema").at("tidemill simulate"))
        except SpecError as error:
            wrong += _name_variant(error.findings, variant, wrong)
    if wrong:
        raise SpecError(wrong)
    return found


def _name_variant(problems: Sequence[Finding], variant: Variant, known: Sequence[Finding] = ()) -> list[Finding]:
    """Return the findings of `problems` that are not in `known`, with the variant's name added to their reasons."""
    column = "" if variant.title == AS_WRITTEN else f" (with --set {variant.title})"
    return [replace(each, reason=f"{each.reason}{column}") for each in problems if each not in known]


def _change_spec(spec: ResolvedSpec, changes: Mapping[str, Any]) -> ResolvedSpec:
    """Return `spec` with `changes` applied as if they stood in its file. A change may also replace `auto`."""
    document = replace(spec.document, autos=spec.document.autos - changes.keys())
    return change_spec(replace(spec, document=document), changes)


def _read_change(part: str, changes: dict[str, Any]) -> Finding | None:
    """Read `part`, a change such as `decode.ep_size=72`, into `changes`. Return the mistake in it, or None."""
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
