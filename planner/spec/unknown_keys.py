"""Keys that the spec does not have: which field was meant, and why there is none.

A key may be misspelt, called otherwise by an engine or Kubernetes (`other_names.py`), in the wrong section, or at the
wrong indentation. A field that was meant is there under a wrong name, so that nobody calls it missing too.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic_core import ErrorDetails

from planner.facts.terms import PHASES
from planner.families import MODELS
from planner.problems.errors import Violation, may_be_secret
from planner.problems.fix import HERE, Fix, close_to, removal
from planner.spec.container_resources import (
    GPU_COUNTS,
    IB_DEVICES,
    QUANTITIES,
    has_two_sizes,
    of_all_nodes,
    of_container,
    of_count,
    of_ib_devices,
    of_kind,
    of_phase,
    rdma_said_by_key,
)
from planner.spec.declared import may_be_auto, path_of, place_of, required_in, section_at, section_of
from planner.spec.instead import as_yaml, in_our_form
from planner.spec.key_units import InOurUnit, in_our_unit
from planner.spec.kustomize import KUSTOMIZE_KEYS, keys_of_kustomize, said_by_kustomize
from planner.spec.meant import toleration
from planner.spec.misplaced import entered, given_elsewhere, homes_of, may_hold, turned_on
from planner.spec.model_names import is_hub_name, named_on_hub
from planner.spec.other_names import (
    KUBERNETES_KEYS,
    as_we_say,
    of_the_server,
    overlap_said_by_flag,
    qualifiers_of,
    said_better,
    said_by_flag,
    said_by_object,
    unwrapped,
    what_instead_of,
    why_we_have_no,
)
from planner.spec.phase import PhaseSpec
from planner.spec.schema import Spec
from planner.spec.section import UNION_TAGS
from planner.spec.undecided import AUTO

__all__ = ["fields_meant", "is_told_elsewhere", "unknown_key"]


def unknown_key(detail: ErrorDetails, data: Mapping[str, Any]) -> Violation:
    """Return what is said about a key that Pydantic does not know in `data`."""
    parent, known = path_of(detail["loc"][:-1]), list(section_at(detail["loc"]).model_fields)
    path, meant = path_of(detail["loc"]), fields_meant(detail, data)
    ours = as_we_say(path.rpartition(".")[2], place_of(parent))
    reason = why_we_have_no(path) or f"known keys: {', '.join(known)}"
    fix: Fix | str = what_instead_of(path) or removal()
    if other_unit := _in_our_unit(detail, data):
        reason, fix = other_unit.reason, _renaming(detail["input"], meant, parent) if meant else other_unit.instead
    elif path in KUBERNETES_KEYS:
        reason = "a spec is not a Kubernetes object, and tidemill render writes those"
        fix = Fix(f"{_instead(meant)}{_without(detail, meant)}", ({HERE: None, **meant},))
    elif _level_above(detail, data):
        reason = "the spec is nested one level too deep"
        fix = Fix(f"remove this level{_without(detail, meant)}", ({HERE: None, **meant},))
    elif not_indented := _not_indented(detail, data):
        section = next(iter(not_indented)).partition(".")[0]
        reason, fix = f"{section} above it has nothing below it", Fix("indent it", ({HERE: None, **meant},))
    elif too_deep := _too_deep(detail, data):
        sections = " and ".join(too_deep)
        fix = Fix(f"move {sections} to the top level", ({HERE: None, **too_deep},))
        reason = "it is nested one level too deep"
    elif said := _said_by_flag(detail, data):
        reason, fix = said[1], Fix(_written(said[0]) or "leave it out", ({HERE: None, **meant},))
    elif meant and (of_kustomize := _of_kustomize(detail, data)):
        gone = {f"{parent}.{each}": None for each in of_kustomize}
        reason, fix = "that is Kustomize's form", Fix(_written(_short(meant, parent)), ({**gone, **meant},))
    elif beside := _beside_the_name(detail, data):
        reason, fix = "it belongs below model", Fix(_written(beside), ({HERE: None, **beside},))
    elif better := said_better(str(detail["loc"][-1]), _given(detail, data), place_of(parent)):
        reason = f"{better} already gives {ours}"
    elif _is_left_to_us(detail):
        reason, fix = f"{ours} has a default, so auto is not needed", removal(words="leave it out")
    elif meant and (of_server := _of_the_server(detail, data)):
        reason, fix = of_server
    elif _is_of_toleration(detail) and not meant and not _given(detail, data).get("key"):
        fix = "write the taint's key as key: ..., since without it every taint is tolerated"
    elif parent == "model" and is_hub_name(detail["input"]):
        reason, fix = (
            "a model is given by config or by catalog",
            _renaming(detail["input"], meant, parent) if meant else fix,
        )
    elif meant and parent == "kubernetes.resources" and has_two_sizes(_given(detail, data)):
        reason = "a pod's memory request equals its limit, so there is one size for both"
        fix = _renaming(detail["input"], meant, parent, _same_quantities(detail, data))
    elif meant and (same := _same_quantities(detail, data)):
        fix = _renaming(detail["input"], meant, parent, same)
    elif meant:
        fix = _renaming(detail["input"], entered(meant, data), parent)
        if not all(each.rpartition(".")[0] == parent for each in meant):
            reason = "it belongs in another section"
        elif ours in known:
            reason = "tidemill calls it by another name"
    elif ours in known:
        reason = f"{ours} already gives the same"
    elif (
        given := []
        if why_we_have_no(path) or what_instead_of(path)
        else given_elsewhere(ours or str(detail["loc"][-1]), data)
    ):
        reason = f"{' and '.join(given)} already {'gives' if len(given) == 1 else 'give'} it"
    is_like_env = parent == "kubernetes" and close_to(str(detail["loc"][-1]), known) == "env"
    if is_like_env or any(map(may_be_secret, meant)):  # no change, which would print the variables' values
        written = f"did you mean {' and '.join(meant) or 'env'}?"
        return Violation(path, None, f"S201 is not a key of {parent or 'the spec'}", reason, written)
    return Violation(path, detail["input"], f"S201 is not a key of {parent or 'the spec'}", reason, fix)


def fields_meant(detail: ErrorDetails, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The field that an unknown key is probably meant to be, unless that is given as well, with what it says.

    None or several, by path, for the keys of a Kubernetes object.
    """
    path = path_of(detail["loc"])
    if path in KUBERNETES_KEYS:
        said = said_by_object(str(detail["loc"][0]), detail["input"])
        return {path: value for path, value in said.items() if path.partition(".")[0] not in data}
    *parents, key = (part for part in detail["loc"] if part not in UNION_TAGS)
    if by_flag := _said_by_flag(detail, data):
        return {path_of((*parents, each)): number for each, number in by_flag[0].items()}
    if other_unit := _in_our_unit(detail, data):
        return {} if other_unit.value is None else {path_of((*parents, other_unit.field)): other_unit.value}
    if moved := _level_above(detail, data) or _not_indented(detail, data) or _too_deep(detail, data):
        return moved
    given = _given(detail, data)
    if path_of(detail["loc"][:-1]) == "model" and is_hub_name(detail["input"]):
        named = _named_model(detail, data)
        return {"model.catalog": named} if named else {}
    if form := FORMS.get(place_of(path)):
        said = {each if "." in each else path_of((*parents, each)): value for each, value in form(given).items()}
        return {each: value for each, value in said.items() if not _is_given(each, data)}
    if overlap := _overlap(detail):
        return {} if "overlap" in given else {path_of((*parents, "overlap")): overlap}
    if path_of(detail["loc"][:-1]) == "kubernetes.rdma" and "resource" not in given:
        return {f"kubernetes.rdma.{each}": value for each, value in rdma_said_by_key(str(key), detail["input"]).items()}
    if _is_of_toleration(detail):
        taint = toleration(key, detail["input"]) if _is_only_taint(given) else None
        if taint and not close_to(key, list(section_at(detail["loc"]).model_fields), cutoff=0.6):
            return {path_of((*parents, each)): value for each, value in taint.items() if each not in given}
    fields = section_at(detail["loc"]).model_fields
    free = [name for name in fields if name not in given]
    ours = as_we_say(str(key), place_of(path_of(parents)))
    if _is_left_to_us(detail) or said_better(str(key), given, place_of(path_of(parents))):
        return {}
    if ours in free:
        path = path_of((*parents, ours))
        return {path: in_our_form(path, detail["input"])}
    if ours in fields or why_we_have_no(path) or (place_of(path) == UNITS_OF_WINDOW and "mixed" not in data):
        return {}
    there = (each for each in homes_of(ours or str(key), data) if may_hold(each, detail["input"]))
    there = (each for each in there if _is_of_point(each, detail["loc"]))
    elsewhere = {each: in_our_form(each, detail["input"]) for each in there} or turned_on(
        str(key), detail["input"], data
    )
    free = [name for name in free if section_of(fields[name]) or not isinstance(detail["input"], dict)]
    free = [name for name in free if qualifiers_of(str(key)) <= qualifiers_of(name)]
    free = [name for name in free if not _is_of_no_phase(name, data)]
    free = [name for name in free if _numbers(name) in ([], _numbers(str(key)))]
    close = None if elsewhere else close_to(key, free, cutoff=0.6)
    return {path_of((*parents, close)): detail["input"]} if close else elsewhere


def is_told_elsewhere(detail: ErrorDetails, data: Mapping[str, Any]) -> bool:
    """Whether an unknown key is one of several of a form that is told at the first of them."""
    keys = _of_kustomize(detail, data) or _same_quantities(detail, data)
    return bool(keys) and detail["loc"][-1] in keys[1:] and bool(fields_meant(detail, data))


def _given(detail: ErrorDetails, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the section in which an unknown key stands."""
    given: Any = data
    for part in detail["loc"][:-1]:
        given = given if part in UNION_TAGS else given[part]
    assert isinstance(given, dict)
    return given


def _in_our_unit(detail: ErrorDetails, data: Mapping[str, Any]) -> InOurUnit | None:
    """Return the field that an unknown key says in another unit."""
    return in_our_unit(str(detail["loc"][-1]), _given(detail, data), section_at(detail["loc"]).model_fields)


def _is_of_point(path: str, location: Sequence[int | str]) -> bool:
    """Whether a field at `path` is of the phase whose operating point stands at `location`, or of no other phase."""
    of_point = location[1] if location[0] == "operating_point" and len(location) > 2 else None
    return of_point is None or path.partition(".")[0] in {of_point} | (Spec.model_fields.keys() - set(PHASES))


def _numbers(key: str) -> list[str]:
    """Return the numbers in a key: `fp4_tflops` is no misspelt `fp8_tflops`."""
    return re.findall("[0-9]+", key)


def _overlap(detail: ErrorDetails) -> str | None:
    """Return the overlap that an unknown key of a phase turns on."""
    phase = next((each for each in PHASES if each == detail["loc"][0]), None)
    return overlap_said_by_flag(phase, str(detail["loc"][-1]), detail["input"]) if phase else None


def _beside_the_name(detail: ErrorDetails, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the section that `model` becomes where it is only a name, and a key of that section stands at the top."""
    name, key = data.get("model"), detail["loc"][-1]
    is_of_model = len(detail["loc"]) == 1 and key in MODEL_KEYS and isinstance(name, str) and name in MODELS
    return {"model": {"catalog": name, str(key): detail["input"]}} if is_of_model else {}


def _named_model(detail: ErrorDetails, data: Mapping[str, Any]) -> str | None:
    """Return the model of the catalog that a hub's name says, under whatever key, where nothing else says one."""
    if path_of(detail["loc"][:-1]) != "model" or _given(detail, data).keys() & {"config", "catalog"}:
        return None
    return named_on_hub(detail["input"])


def _of_kustomize(detail: ErrorDetails, data: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys of Kustomize's form of a patch, of which this one is one."""
    is_of_patch = place_of(path_of(detail["loc"][:-1])) == "kubernetes.patches"
    keys = keys_of_kustomize(_given(detail, data)) if is_of_patch else ()
    return keys if detail["loc"][-1] in keys else ()


def _same_quantities(detail: ErrorDetails, data: Mapping[str, Any]) -> tuple[str, ...]:
    """Return `requests` and `limits` where both stand in one section, and the key is one of them."""
    is_one = detail["loc"][-1] in QUANTITIES and place_of(path_of(detail["loc"][:-1])) in RESOURCES
    found = tuple(each for each in _given(detail, data) if is_one and each in QUANTITIES)
    return found if len(found) > 1 else ()


def _is_left_to_us(detail: ErrorDetails) -> bool:
    """Whether a key of another tool asks for the default of a field that has one, and knows no `auto`."""
    ours, section = as_we_say(str(detail["loc"][-1])) or "", section_at(detail["loc"])
    field = section.model_fields.get(ours) or PhaseSpec.model_fields.get(ours)
    return detail["input"] == AUTO and field is not None and not field.is_required() and not may_be_auto(field)


def _of_folder(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """A volume for a folder of the nodes."""
    folder = unwrapped(given["hostPath"])
    is_told = isinstance(folder, str) and "volumes" not in given
    return {"volumes": [{"host_path": folder, "mount_path": folder}]} if is_told else {}


def _is_given(path: str, data: Mapping[str, Any]) -> bool:
    """Whether something stands at `path`."""
    found: Any = data
    for key in path.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found is not None


def _is_of_toleration(detail: ErrorDetails) -> bool:
    return place_of(path_of(detail["loc"][:-1])) in ("kubernetes.tolerations", "kubernetes.gateway.tolerations")


def _is_only_taint(given: Mapping[str, Any]) -> bool:
    """Whether a toleration has no key, and one only that may be the taint's."""
    return not given.get("key") and sum(toleration(key, value) is not None for key, value in given.items()) == 1


UNITS_OF_WINDOW = "schedule.windows.units"  # of one phase, where there is one only
MODEL_KEYS = ("checkpoint", "config_digest", "weights_digest")
RESOURCES = ("kubernetes.resources", "kubernetes.resources.unit", "kubernetes.resources.gateway")

# What is said in a form of its own elsewhere: place of a key that we lack -> what its section says, as keys of ours.
FORMS: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    "cluster.gpus": of_all_nodes,
    "kubernetes.hostPath": _of_folder,
    "PHASE.resources": of_phase,
    **dict.fromkeys((f"PHASE.{key}" for key in GPU_COUNTS), of_count),
    **dict.fromkeys((f"PHASE.{key}" for key in IB_DEVICES), of_ib_devices),
    **dict.fromkeys((f"kubernetes.resources.{key}" for key in QUANTITIES), of_container),
    **dict.fromkeys((f"{place}.{key}" for place in RESOURCES[1:] for key in QUANTITIES), of_kind),
    **dict.fromkeys((f"kubernetes.patches.{key}" for key in KUSTOMIZE_KEYS), said_by_kustomize),
}


def _renaming(value: Any, meant: Mapping[str, Any], parent: str, gone: Sequence[str] = ()) -> Fix:
    """Say which keys were meant, and what to write there where that is not `value`; keys that are `gone` go too."""
    short = _short(meant, parent)
    is_same = all(each == value for each in meant.values())
    words = f"did you mean {' and '.join(short)}?" if is_same else _written(short)
    return Fix(words, ({HERE: None, **{f"{parent}.{key}": None for key in gone}, **meant},))


def _short(meant: Mapping[str, Any], parent: str) -> dict[str, Any]:
    """`meant` by the keys of the section that they stand in."""
    return {path.removeprefix(f"{parent}."): each for path, each in meant.items()}


def _written(values: Mapping[str, Any]) -> str:
    """Say what to write, as YAML; empty where it is nothing."""
    words = " and ".join(f"{path}: {as_yaml(value)}" for path, value in values.items())
    return words and f"write {words}"


def _instead(meant: Mapping[str, Any]) -> str:
    """What to write in place of a key of a Kubernetes object."""
    if any(isinstance(value, dict | list) for value in meant.values()):
        return "write its keys at the top level"
    return _written(meant) or "remove it"


def _without(detail: ErrorDetails, meant: Mapping[str, Any]) -> str:
    """Name the keys below a level that is taken out which are none of a spec, and so are not kept."""
    is_level = isinstance(detail["input"], dict) and detail["loc"] != ("metadata",)
    left = [str(key) for key in detail["input"] if key not in meant] if is_level else []
    return f", without {' and '.join(left)}" if left else ""


def _said_by_flag(detail: ErrorDetails, data: Mapping[str, Any]) -> tuple[Mapping[str, int], str] | None:
    """What an engine's flag of a phase says together with those beside it."""
    section, key = detail["loc"][0], str(detail["loc"][-1])
    return said_by_flag(key, data[section]) if section in PHASES and len(detail["loc"]) == 2 else None


def _of_the_server(detail: ErrorDetails, data: Mapping[str, Any]) -> tuple[str, Fix | str] | None:
    """Why a limit of a whole server is another number here, and which."""
    section, key = detail["loc"][0], str(detail["loc"][-1])
    if section not in PHASES or len(detail["loc"]) != 2:
        return None
    found = of_the_server(key, detail["input"], data[section])
    if found is None:
        return None
    (number, reason), ours = found, as_we_say(key)
    if number is None:
        return reason, f"write {ours}, as {key} / dp_size"
    return reason, Fix(f"write {ours}: {number}", ({HERE: None, f"{section}.{ours}": number},))


def _level_above(detail: ErrorDetails, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of a spec that stand below an unknown key, where the spec lacks them and they are most of one."""
    below = detail["input"] if len(detail["loc"]) == 1 and isinstance(detail["input"], dict) else {}
    ours = {key: value for key, value in below.items() if key in Spec.model_fields and key not in data}
    required = required_in(Spec)
    return ours if 2 * sum(key in ours for key in required) > len(required) else {}


def _too_deep(detail: ErrorDetails, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """A section of the spec that stands one level too deep, with what it has of sections that stand deeper still."""
    key, below = str(detail["loc"][-1]), detail["input"]
    section = section_of(Spec.model_fields[key]) if key in Spec.model_fields else None
    if len(detail["loc"]) != 2 or section is None or key in data or not isinstance(below, dict):
        return {}
    taken = {*section.model_fields, *data, *_given(detail, data)}
    deeper = {each: value for each, value in below.items() if each not in taken and _is_section(each, value)}
    return {key: {each: value for each, value in below.items() if each not in deeper}, **deeper}


def _is_section(key: Any, value: Any) -> bool:
    """Whether the spec has a section called `key`, which may hold `value`."""
    return key in Spec.model_fields and bool(section_of(Spec.model_fields[key])) and isinstance(value, dict)


def _not_indented(detail: ErrorDetails, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """A field of the section above it, which has nothing below it, in that section."""
    key, above = detail["loc"][-1], None
    for name in data if len(detail["loc"]) == 1 else ():
        if name == key:
            break
        above = name if name in Spec.model_fields else above
    section = section_of(Spec.model_fields[above]) if above and data[above] is None else None
    return {f"{above}.{key}": detail["input"]} if section and key in section.model_fields else {}


def _is_of_no_phase(name: str, data: Mapping[str, Any]) -> bool:
    """Whether a field counts the units of a phase that the spec does not have."""
    return any(name == f"{phase}_units" and phase not in data for phase in PHASES)
