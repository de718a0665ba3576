"""The rules of fields under `kubernetes` that describe a unit's pods."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from planner.facts.names import CONTAINER_VARIABLES
from planner.facts.terms import PHASES
from planner.problems.finding import Finding
from planner.problems.fix import HERE, Fix, for_example, removal
from planner.rules.forms import LABEL_NAME, LABEL_VALUE, OBJECT, SECRET_KEY, VARIABLE
from planner.rules.rule import Rule, report_no_effect
from planner.rules.valid_values import ValidValues

ENVS = ("kubernetes.env", *(f"{phase}.env" for phase in PHASES))


def env_is_valid(c: ValidValues) -> Iterator[Finding]:
    """Reject environment variables that are neither text nor a Secret's key. No value is quoted: it may be secret."""
    written: Mapping[str, Mapping[str, Any]] = {place: c.get(place) or {} for place in ENVS}
    for place, name, value in ((place, *each) for place, env in written.items() for each in env.items()):
        path = f"{place}.{name}"
        yield from VARIABLE.findings(path, name)
        if name in CONTAINER_VARIABLES:
            rule = f"S443 must be none of {', '.join(CONTAINER_VARIABLES)}"
            yield Finding(path, None, rule, "the pod's command uses these variables", removal())
        if _is_reference(value):
            yield from OBJECT.findings(f"{path}.secret", value["secret"])
            yield from SECRET_KEY.findings(f"{path}.key", value["key"])
        elif not isinstance(value, str):
            has_parts = isinstance(value, dict | list)
            fix = for_example("{secret: tokens, key: token}") if has_parts else "put it in quotes"
            reason = "programs read text"
            yield Finding(path, None, "S442 must be text, or {secret: NAME, key: KEY}", reason, fix)


def node_selector_is_valid(c: ValidValues) -> Iterator[Finding]:
    """Reject labels that the API server would reject."""
    labels: Mapping[str, Any] = c["kubernetes.node_selector"]
    for name, value in labels.items():
        path = f"kubernetes.node_selector.{name}"
        yield from LABEL_NAME.findings(path, name)
        if isinstance(value, str):
            yield from LABEL_VALUE.findings(path, value, value)
        else:
            fix = for_example("inference") if isinstance(value, dict | list) else "put it in quotes"
            yield Finding(path, value, "S203 must be text", "a label has no other value", fix)


def tolerations_are_valid(c: ValidValues, place: str) -> Iterator[Finding]:
    """Reject tolerations that the API server would reject, such as a value without a key."""
    key, value, exists = c[f"{place}.key"], c[f"{place}.value"], c[f"{place}.operator"] == "Exists"
    effect, seconds = c[f"{place}.effect"], c[f"{place}.seconds"]
    if exists and value is not None:
        fix = removal(f"{place}.value", words="remove value")
        if key is not None:
            fix = Fix("remove value, or operator", ({f"{place}.value": None}, {f"{place}.operator": None}))
        where, reason = "with operator: Exists", "every value matches then"
        yield report_no_effect(where, reason, f"{place}.value", value, fix)
    elif not exists and key is None:
        rule = "S452 must have a key, or operator: Exists"
        reason = "without operator, a toleration compares the value of a key"
        fix = Fix("write operator: Exists", ({f"{place}.operator": "Exists", f"{place}.value": None},))
        yield Finding(place, c[place], rule, reason, fix)
    if seconds is not None and effect != "NoExecute":
        fix = Fix("write effect: NoExecute, or remove it", ({f"{place}.effect": "NoExecute"}, {HERE: None}))
        where, reason = "without effect: NoExecute", "no other taint evicts running pods"
        yield report_no_effect(where, reason, f"{place}.seconds", seconds, fix)


def _is_reference(value: Any) -> TypeGuard[dict[str, str]]:
    is_one = isinstance(value, dict) and value.keys() == {"secret", "key"}
    return is_one and all(isinstance(each, str) for each in value.values())


RULES = (
    Rule("S209 S442 S443", "fields", env_is_valid),
    Rule("S203 S209", "fields", node_selector_is_valid),
    Rule("S452 S560", "fields", tolerations_are_valid, ["kubernetes.tolerations.*"]),
)
