"""Pydantic's verdict on single fields in our words: the rule that each breaks, why, and the nearest fix.

Keys that are no fields are `key_answers.py`'s, and what to write for a wrong value `instead.py`'s.
"""

from collections.abc import Mapping, Sequence, Set
from itertools import chain
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from planner.facts.day import hh_mm
from planner.facts.gpu_names import same_gpu
from planner.facts.names import logical_node
from planner.facts.quantities import QUANTITIES, Kind, as_we_spell, could_be, is_quantity_of
from planner.facts.terms import PHASES
from planner.problems.errors import MAX_TOLD, Violation, may_be_secret
from planner.problems.fix import HERE, Fix, did_you_mean, for_example, nearest, removal
from planner.spec.cluster import MAX_NODES
from planner.spec.declared import choices_at, field_at, may_be_auto, path_of, place_of, sentence_of
from planner.spec.instead import as_yaml, example_at, instead_of, instead_of_empty_text, instead_of_nothing, only_item
from planner.spec.key_answers import answer_to, violation_of
from planner.spec.key_forms import is_told_elsewhere
from planner.spec.meant import engine_and_version, of_a_hundred, of_seconds, time_of_day, truth, variables
from planner.spec.node_ranges import instead_of_ranges, node_range
from planner.spec.other_names import OTHER_ENGINES, value_as_we_say
from planner.spec.section import UNION_TAGS
from planner.spec.undecided import AUTO
from planner.spec.unknown_key import UnknownKey
from planner.spec.why_not import is_not_planned_yet
from planner.spec.with_units import MORE_THAN_ALL
from planner.spec.yaml import INTEGER

__all__ = ["in_our_words"]

NOUNS = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "a mapping"}
OF_UNITS = ("Pod", "PodTemplate", "ReplicaSet")  # that Kubernetes makes from a unit's object
POD_TEMPLATES = {"LeaderWorkerSet": "spec.leaderWorkerTemplate.workerTemplate", "StatefulSet": "spec.template"}
MAX_EXAMPLES = 8  # of nodes, that a fix names
MAX_CHOICES = 4  # that a fix says again behind the rule
LEAST_MEANT = 1e-3  # assumed: a bound below it only keeps 0 out, and nobody means it
WANTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "model_type": "a mapping of keys to values",
    "dict_type": "a mapping of keys to values",
    "bool_type": "true or false",
    "list_type": "a list",
}


def in_our_words(details: Sequence[ErrorDetails], data: Mapping[str, Any]) -> tuple[list[Violation], frozenset[str]]:
    """Return what is wrong in `data`, and the paths of fields that are there under another key.

    A misspelt key is one mistake: the field that was meant is not missing too.
    """
    told = details[:MAX_TOLD]
    data = _without_untold(details[MAX_TOLD:], data)
    unknown = {detail["loc"]: UnknownKey.of(detail, data) for detail in told if detail["type"] == "extra_forbidden"}
    answers = {location: answer_to(key) for location, key in unknown.items()}
    misspelt = frozenset(chain.from_iterable(answer.meant for answer in answers.values()))
    violations = []
    for detail in told:
        if (key := unknown.get(detail["loc"])) is not None:
            violations += [] if is_told_elsewhere(key) else [violation_of(key, answers[detail["loc"]])]
        elif not _is_said(detail, misspelt):
            violations.append(_violation(detail, data))
    return violations + _not_told(len(details) - len(told)), misspelt


def _without_untold(untold: Sequence[ErrorDetails], data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `data` without the unknown keys that are not told, since each answer looks at all keys many times."""
    unknown = (detail["loc"] for detail in untold if detail["type"] == "extra_forbidden")
    gone = {(*(part for part in above if part not in UNION_TAGS), key) for *above, key in unknown}
    kept: Mapping[str, Any] = _kept(data, (), gone) if gone else data
    return kept


def _kept(value: Any, location: tuple[int | str, ...], gone: Set[tuple[int | str, ...]]) -> Any:
    """Return what stands at `location`, without what is `gone` in it."""
    if isinstance(value, dict):
        return {key: _kept(each, at, gone) for key, each in value.items() if (at := (*location, key)) not in gone}
    if isinstance(value, list):
        return [_kept(each, (*location, index), gone) for index, each in enumerate(value)]
    return value


def _is_said(detail: ErrorDetails, misspelt: frozenset[str]) -> bool:
    """Whether a mistake is another one's: of a field that is there under another key, or at another indentation."""
    path = path_of(detail["loc"])
    if path in misspelt:
        return True
    return detail["input"] is None and any(each.startswith(f"{path}.") for each in misspelt)


def _not_told(number: int) -> list[Violation]:
    """Say that there are more mistakes: nobody reads thousands, and asking what was meant by each takes minutes."""
    if number == 0:
        return []
    rule = f"S109 has more wrong fields than the {MAX_TOLD} that are listed"
    return [Violation("", None, rule, f"it has {number:,} more", "correct the listed ones first")]


def _violation(detail: ErrorDetails, data: Mapping[str, Any]) -> Violation:
    """Pydantic's `detail` in our four parts."""
    path, kind, value, limits = path_of(detail["loc"]), detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "missing":
        return _missing(path, data)
    if (known := _another_notion(path, kind, value, data)) is not None:
        return known
    if kind in WANTED:
        return _of_another_type(path, value, WANTED[kind])
    if kind == "string_pattern_mismatch":
        rule = "S209 must have the form that the field requires"
        return Violation(path, value, rule, sentence_of(field_at(path)), instead_of(path, value))
    if kind in ("too_short", "too_long"):
        return _entries(path, value, limits)
    if kind == "quantity":
        return _not_a_quantity(path, value, limits["kind"])
    if kind == "quantity_range":
        rule = f"S205 must be at {limits['word']} {limits['bound']}"
        return Violation(path, value, rule, sentence_of(field_at(path)), nearest(limits["bound"]))
    if is_not_planned_yet(path, value):
        found = f"so far it can be {' or '.join(map(str, choices_at(path)))}"
        fix = "write what your checkpoint is in, if it is one of these"
        return Violation(path, value, "S211 is not planned yet", found, fix)
    if kind == "literal_error":
        choices = choices_at(path)
        if said := _not_a_choice(path, value):
            return said
        rule = f"S204 must be {' or '.join(map(str, choices))}"
        taken_out = instead_of(path, value) if isinstance(value, list) else None
        chosen = taken_out if taken_out and taken_out.changes else did_you_mean(value_as_we_say(path, value), choices)
        is_said = not chosen.changes and len(choices) > MAX_CHOICES
        return Violation(path, value, rule, "there are no other choices", "write one of these" if is_said else chosen)
    return _out_of_range(path, value, kind, limits)


def _another_notion(path: str, kind: str, value: Any, data: Mapping[str, Any]) -> Violation | None:
    """Return what is said about a range of nodes, and about a patch of a pod; None for anything else."""
    if kind in WANTED and place_of(path) == "cluster.nodes" and (names := node_range(value)):
        fix = instead_of_ranges(data["cluster"]["nodes"], names)
        return Violation(path, value, "S203 must be nodes, each with its name", "it is a range of names", fix)
    if kind in WANTED and value == AUTO and (of_list := _auto_in_list(path, value, kind, data)):
        return of_list
    if path == "cluster.spares" and (value == AUTO or type(value) is int):
        return _no_spares(value, data)
    if kind == "literal_error" and path in ("engine", "engine.name") and (named := engine_and_version(value)):
        return _engine_of_a_version(path, value, named, data)
    if kind == "literal_error" and place_of(path) == "kubernetes.patches.kind" and value in OF_UNITS:
        rule = "S204 must be a kind that the plan renders"
        unit_kind = "StatefulSet" if data["kubernetes"].get("unit_kind") == "statefulset" else "LeaderWorkerSet"
        words = f"write kind: {unit_kind}, and the pod's fields below patch.{POD_TEMPLATES[unit_kind]}"
        return Violation(path, value, rule, f"a {value} is made from the template of another object", words)
    return None


def _auto_in_list(path: str, value: Any, kind: str, data: Mapping[str, Any]) -> Violation | None:
    """Return what is said about `auto` as an item of a list in whose place it may stand."""
    above, _, number = path.rpartition(".")
    if not number.isdecimal() or not may_be_auto(field_at(above)):
        return None
    section, _, name = above.rpartition(".")
    is_alone = len(data[section][name]) == 1
    fix = Fix(f"write {name}: {AUTO}", ({above: AUTO},)) if is_alone else "remove it, or the other items"
    return Violation(path, value, f"S203 must be {WANTED[kind]}", "auto stands in place of the whole list", fix)


def _no_spares(value: Any, data: Mapping[str, Any]) -> Violation:
    """Return what is said about spares that are only counted, with the last nodes for example."""
    number = value if type(value) is int and 0 < value <= MAX_EXAMPLES else 1
    last = _node_names(data["cluster"].get("nodes"))[-number:]
    fix = for_example(f"spares: {as_yaml(last)}") if last else example_at("cluster.spares")
    reason = f"it is {_noun(value)}, and the spec must name the nodes that stay free"
    return Violation("cluster.spares", value, "S203 must be a list", reason, fix)


def _node_names(nodes: Any) -> list[str]:
    """Return the names of the nodes that are listed or counted; none where neither can be told."""
    if isinstance(nodes, list):
        return [each["name"] for each in nodes if isinstance(each, dict) and isinstance(each.get("name"), str)]
    return list(map(logical_node, range(nodes))) if type(nodes) is int and 0 < nodes <= MAX_NODES else []


def _not_a_choice(path: str, value: Any) -> Violation | None:
    """Return what is said about `auto` where leaving a field out means it, and about an engine that is not rendered."""
    rule = f"S204 must be {' or '.join(map(str, choices_at(path)))}"
    field = field_at(path)
    if value == AUTO and not field.is_required() and not path.rpartition(".")[2].isdecimal():
        return _left_out(path, value, rule, field)
    if path in ("engine", "engine.name") and str(value).casefold().replace("-", "_") in OTHER_ENGINES:
        return Violation(path, value, rule, "tidemill does not know the options of that engine", "write one of these")
    return None


def _left_out(path: str, value: Any, rule: str, field: FieldInfo) -> Violation:
    """Return what is said about `auto` where it is no choice: to leave the field out, if that is what was meant."""
    phase, _, name = path.rpartition(".")
    if name == "overlap":
        reason = f"the planner does not choose it, and its default is {field.default}"
        usual = value_as_we_say(path, "tbo")
        return Violation(path, value, rule, reason, f"write {usual}, as usual in {phase}, or {field.default}")
    is_ours = field.default is None
    reason = "the plan decides it when it is left out" if is_ours else f"its default is {as_yaml(field.default)}"
    return Violation(path, value, rule, reason, removal(words="leave it out"))


def _engine_of_a_version(path: str, value: Any, named: tuple[str, str], data: Mapping[str, Any]) -> Violation:
    """Return what is said about an engine's name with a version behind it."""
    name, version = named
    rule = f"S204 must be {' or '.join(map(str, choices_at(path)))}"
    said: Mapping[str, Any] = {"name": name, "version": version}
    if path == "engine":
        fix = Fix(f"write engine: {as_yaml(said)}", ({HERE: said},))
    elif data["engine"].get("version") is None:
        fix = Fix(f"write name: {name} and version: {version}", ({HERE: name, "engine.version": version},))
    else:
        fix = did_you_mean(name, [name])
    return Violation(path, value, rule, "its version has a key of its own", fix)


def _not_a_quantity(path: str, value: Any, kind: Kind) -> Violation:
    reason = "a number alone could mean any of them" if _is_number(value) else "write a number and its unit"
    alone = only_item(field_at(path), value)
    if is_quantity_of(kind, alone):
        return Violation(path, value, f"S208 must be {QUANTITIES[kind]}", "it is a list", nearest(alone))
    meant = as_we_spell(kind, value if alone is None else alone)
    known = [meant] if meant else could_be(kind, value)
    fix = did_you_mean(known[0], known[:1]) if len(known) == 1 else _as_one_of(path, known)
    return Violation(path, value, f"S208 must be {QUANTITIES[kind]}", reason, fix)


def _as_one_of(path: str, known: Sequence[str]) -> Fix | str:
    """Several quantities, of which the user knows the one that was meant; or an example, where none is known."""
    return f"write {' or '.join(known)}" if known else example_at(path)


def _of_another_type(path: str, value: Any, wanted: str) -> Violation:
    field = field_at(path)
    is_item = path.rpartition(".")[2].isdecimal()  # of a list, in whose place the word may stand
    rule = f"S203 must be {wanted}{' or auto' if may_be_auto(field) and not is_item else ''}"
    if path in (f"{phase}.gpu" for phase in PHASES) and isinstance(value, dict):
        reason = "one GPU can be described, the cluster's, and phases are on GPUs of the catalog beside it"
        return Violation(path, value, rule, reason, "describe it as cluster.gpu, and name one of the catalog here")
    if path == "schedule" and (value is False or truth(value) is False):
        fix_off = Fix("leave it out, and write the units of each phase", ())
        return Violation(path, value, rule, "without a schedule all units are on all day", fix_off)
    if value == AUTO and wanted == WANTED["bool_type"] and not field.is_required():
        return _left_out(path, value, rule, field)
    found = f"it has {len(value)} characters" if _is_too_long(value) else f"it is {_noun(value)}"
    fix = _as_variables(path, value) if may_be_secret(path) else instead_of(path, value)
    return Violation(path, value, rule, found, fix)


def _as_variables(path: str, value: Any) -> Fix | str:
    """Return the mapping that a list of variables is, where it names secrets; texts may be secrets, so none is told."""
    if not path.startswith("kubernetes.env"):
        return example_at(path)
    named = variables(value) or {}
    if not named or path != "kubernetes.env":
        return "write each as NAME: value"
    told = ", ".join(f"{key}: {as_yaml(each) if isinstance(each, dict) else '...'}" for key, each in named.items())
    has_text = any(isinstance(each, str) for each in named.values())
    return Fix(f"write {{{told}}}", () if has_text else ({HERE: named},))


def _missing(path: str, data: Mapping[str, Any]) -> Violation:
    field = field_at(path)
    if path == "cluster.gpu" and (gpus := _gpus_of_nodes(data)):
        fix = Fix(f"write gpu: {' or '.join(gpus)}", tuple({HERE: each} for each in gpus))
        return Violation(path, None, "S202 is required", "nodes say their own only where it differs", fix)
    fix = _free_time(path, data) if path.startswith("schedule.windows.") else instead_of_nothing(path, field)
    return Violation(path, None, "S202 is required", sentence_of(field), fix)


def _gpus_of_nodes(data: Mapping[str, Any]) -> list[str]:
    """Return the GPUs of the catalog that listed nodes say they have."""
    nodes = data["cluster"].get("nodes")
    named = [each.get("gpu") for each in nodes if isinstance(each, dict)] if isinstance(nodes, list) else []
    meant = (same_gpu(each) for each in named if isinstance(each, str))
    return list(dict.fromkeys(each for each in meant if each))


def _free_time(path: str, data: Mapping[str, Any]) -> Fix:
    """An example for a window without a time, at which no other window starts."""
    windows, own = data["schedule"]["windows"], int(path.split(".")[2])
    taken = {time_of_day(each["at"]) for each in windows if isinstance(each, dict) and "at" in each}
    minutes = (30 * step for step in range(17, 17 + 48))  # a day of half hours, from the field's example on
    times = [hh_mm(each) for each in minutes]
    free = [time for time in times if time not in taken] or times
    missing = [index for index, each in enumerate(windows) if not isinstance(each, dict) or "at" not in each]
    at = free[missing.index(own) % len(free)]
    return for_example(f"at: {at}")


def _out_of_range(path: str, value: Any, kind: str, limits: Mapping[str, Any]) -> Violation:
    if kind == "string_too_short":
        return Violation(
            path, value, "S206 must not be empty", sentence_of(field_at(path)), instead_of_empty_text(path)
        )
    if kind == "string_too_long":
        rule = f"S207 must have at most {limits['max_length']} characters"
        fix = Fix("shorten it", ({HERE: value[: limits["max_length"]]},))
        return Violation(path, value, rule, f"it has {len(value)}", fix)
    word, bound = ("least", limits["ge"]) if "ge" in limits else ("most", limits["le"])
    is_time = word == "least" and path.endswith("_ms")
    share = 1 if path in MORE_THAN_ALL else bound
    meant = of_seconds(value, bound) if is_time else of_a_hundred(value, share) if word == "most" else None
    is_nothing = word == "least" and 0 < bound < LEAST_MEANT
    fix = example_at(path) if is_nothing else nearest(bound if meant is None else meant)
    return Violation(path, value, f"S205 must be at {word} {bound}", sentence_of(field_at(path)), fix)


def _entries(path: str, value: list[Any], limits: Mapping[str, Any]) -> Violation:
    if "min_length" in limits:
        rule, fix = f"S210 must have at least {_number_of_entries(limits['min_length'])}", example_at(path)
    else:
        most = limits["max_length"]
        rule, fix = f"S210 must have at most {_number_of_entries(most)}", Fix("shorten it", ({HERE: value[:most]},))
    return Violation(path, value, rule, f"it has {len(value)}", fix)


def _number_of_entries(number: int) -> str:
    return "1 entry" if number == 1 else f"{number} entries"


def _noun(value: Any) -> str:
    return "null" if value is None else NOUNS[type(value)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and value.isdecimal())


def _is_too_long(value: Any) -> bool:
    """A number that the source has left as text."""
    return isinstance(value, str) and value.lstrip("+-").isdecimal() and not INTEGER.fullmatch(value)
