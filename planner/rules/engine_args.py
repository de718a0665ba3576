"""The rules of `engine.args` and `PHASE.engine_args`: the options that a spec adds to an engine's command.

Whether such an option exists is for the engine to say when it starts.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from planner.facts.engines import ENGINES, OURS
from planner.facts.terms import PHASES
from planner.problems.finding import Finding
from planner.problems.fix import for_example, removal
from planner.rules.forms import OPTION
from planner.rules.rule import Rule
from planner.rules.valid_values import ValidValues
from planner.spec.section import ARGUMENT

ARGS = ("engine.args", *(f"{phase}.engine_args" for phase in PHASES))


def args_are_options(c: ValidValues) -> Iterator[Finding]:
    """Reject names and values that cannot be options of a command."""
    for path, name, value in _written_args(c):
        yield from OPTION.findings(path, name)
        if not _is_value(value):
            rule = "S442 must be true, a number, text, a list of these, or a mapping"
            reason = "text begins with no hyphen and has no $, which Kubernetes would expand"
            fix = removal() if value is None or value is False else for_example("deepseek_r1")
            yield Finding(path, value, rule, reason, fix)


def args_leave_plan_alone(c: ValidValues) -> Iterator[Finding]:
    """Reject options that the plan sets itself: the engine would run units that differ from the plan."""
    for path, name, value in _written_args(c):
        field = ENGINES[c.engine or OURS].decided.get(name)
        if field is not None:
            section = path.partition(".")[0]
            where = field.replace("PHASE", section) if section in PHASES else field.removeprefix("PHASE.")
            reason = f"the plan decides it, by {where}"
            yield Finding(path, value, f"S460 must leave --{name} alone", reason, removal())


def _written_args(c: ValidValues) -> Iterator[tuple[str, str, Any]]:
    """Yield (path, name, value) of each engine option that the spec adds."""
    for path in ARGS:
        args: Mapping[str, Any] = c.get(path) or {}
        yield from ((f"{path}.{name}", name, value) for name, value in args.items())


def _is_value(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(_is_word(each) for each in value)
    if isinstance(value, dict):
        return "$" not in json.dumps(value)
    return value is True or _is_word(value)


def _is_word(value: Any) -> bool:
    return type(value) in (int, float) or (isinstance(value, str) and bool(re.fullmatch(ARGUMENT, value)))


RULES = (
    Rule("S209 S442", "fields", args_are_options),
    Rule("S460", "fields", args_leave_plan_alone),
)
