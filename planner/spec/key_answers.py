"""Keys that the spec does not have: which field was meant, and why there is none. The first of `ANSWERS` counts.

A key may be on a wrong level (`key_levels.py`), in a form or unit of its own (`key_forms.py`, `key_units.py`), called
otherwise by an engine or Kubernetes (`other_names.py`), in the wrong section (`misplaced.py`), or misspelt. A field
that was meant is there under a wrong name, so that nobody calls it missing too.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches

from planner.facts.terms import PHASES
from planner.problems.errors import Violation, may_be_secret
from planner.problems.fix import close_to, removal
from planner.spec.container_resources import rdma_said_by_key
from planner.spec.declared import may_be_auto, place_of, takes_mapping
from planner.spec.engine_flags import of_the_server, overlap_said_by_flag
from planner.spec.instead import in_our_form
from planner.spec.key_forms import as_a_container_says, as_an_engine_says, as_kustomize_says, as_others_say
from planner.spec.key_levels import (
    beside_the_models_name,
    not_indented,
    of_an_object,
    section_too_deep,
    spec_too_deep,
)
from planner.spec.key_units import in_our_unit
from planner.spec.meant import toleration
from planner.spec.misplaced import given_elsewhere, homes_of, may_hold, turned_on
from planner.spec.model_names import is_hub_name, named_on_hub
from planner.spec.other_names import qualifiers_of, said_better
from planner.spec.phase import PhaseSpec
from planner.spec.pods import GatewayPodSpec
from planner.spec.schema import GatewaySpec, Spec
from planner.spec.undecided import AUTO
from planner.spec.unknown_key import Answer, UnknownKey, none_such, put_instead, renamed
from planner.spec.volume_rules import VOLUMES
from planner.spec.why_not import what_instead_of

__all__ = ["answer_to", "violation_of"]

GATEWAYS = {  # a section of the gateway -> the other one, and what that has
    "gateway": ("kubernetes.gateway", GatewayPodSpec.model_fields),
    "kubernetes.gateway": ("gateway", GatewaySpec.model_fields),
}
UNITS_OF_WINDOW = "schedule.windows.units"  # of one phase, where there is one only


def answer_to(key: UnknownKey) -> Answer:
    """Return the first answer that applies: why there is no such key, and what to do."""
    found = (answer(key) for answer in ANSWERS)
    return next(each for each in found if each is not None)


def violation_of(key: UnknownKey, answer: Answer) -> Violation:
    """Return `answer` in our four parts. Where the value may be a secret, nothing that is told has it."""
    rule = f"S201 is not a key of {key.parent or 'the spec'}"
    if any(map(may_be_secret, answer.meant)):
        return Violation(key.path, None, rule, answer.reason, f"did you mean {' and '.join(answer.meant)}?")
    if key.parent == "kubernetes" and close_to(key.name, list(key.fields)) == "env":
        return Violation(key.path, None, rule, answer.reason, "did you mean env?")
    if key.name == "env":
        return Violation(key.path, None, rule, answer.reason, answer.fix)
    return Violation(key.path, key.value, rule, answer.reason, answer.fix)


def in_another_unit(key: UnknownKey) -> Answer | None:
    """Answer a number in a unit of its own: `ttft_s: 2` is `ttft_ms: 2000`."""
    found = in_our_unit(key.name, key.beside, key.fields)
    if found is None:
        return None
    if found.value is None:
        return Answer(found.reason, found.instead)
    return renamed(key, {key.sibling(found.field): found.value}, found.reason)


def said_better_beside(key: UnknownKey) -> Answer | None:
    """Take away what a better name of the same field says: `dtype: bfloat16` beside `quantization: fp8`."""
    better = said_better(key.name, key.beside, key.section)
    return Answer(f"{better} already gives {key.ours}", none_such(key).fix) if better else None


def left_to_us(key: UnknownKey) -> Answer | None:
    """Take away an `auto` that asks for a default: `max_model_len: auto`."""
    field = key.fields.get(key.ours) or PhaseSpec.model_fields.get(key.ours)
    if key.value != AUTO or field is None or field.is_required() or may_be_auto(field):
        return None
    return Answer(f"{key.ours} has a default, so auto is not needed", removal(words="leave it out"))


def named_on_a_hub(key: UnknownKey) -> Answer | None:
    """Answer a model's name on a hub: `name: deepseek-ai/DeepSeek-R1` below `model` is `catalog: deepseek-r1`."""
    if key.parent != "model" or not is_hub_name(key.value):
        return None
    reason = "a model is given by config or by catalog"
    named = None if key.beside.keys() & {"config", "catalog"} else named_on_hub(key.value)
    return renamed(key, {"model.catalog": named}, reason) if named else Answer(reason, none_such(key).fix)


def of_the_gateway(key: UnknownKey) -> Answer | None:
    """Answer what belongs to the gateway's pod below `gateway`, and what belongs to the gateway below its pod."""
    home, fields = GATEWAYS.get(key.parent, ("", {}))
    if key.name not in fields:
        return None
    path, there = f"{home}.{key.name}", key.spec
    for part in home.split("."):
        there = there.get(part) or {} if isinstance(there, Mapping) else {}
    is_given = isinstance(there, Mapping) and key.name in there
    return Answer(f"{path} already gives it", removal()) if is_given else renamed(key, {path: key.value})


def turning_overlap_on(key: UnknownKey) -> Answer | None:
    """Answer a flag that turns overlap on: `enable_dbo: true` is `overlap: dual_batch`."""
    overlap = overlap_said_by_flag(key.phase, key.name, key.value) if key.phase else None
    return renamed(key, {key.sibling("overlap"): overlap}) if overlap and "overlap" not in key.beside else None


def of_rdma(key: UnknownKey) -> Answer | None:
    """Answer an RDMA resource with its count: `rdma/hca: 8` is `resource: rdma/hca` and `count: 8`."""
    if not _may_be_rdma(key):
        return None
    said = rdma_said_by_key(key.name, key.value)
    return renamed(key, {key.sibling(each): value for each, value in said.items()}) if said else None


def of_a_taint(key: UnknownKey) -> Answer | None:
    """Answer a taint with its value or effect: `nvidia.com/gpu: NoSchedule` of a toleration without a key."""
    taint = toleration(key.name, key.value) if _is_in_toleration(key) and _is_only_taint(key) else None
    if taint is None or close_to(key.name, list(key.fields), cutoff=0.6):
        return None
    meant = {key.sibling(each): value for each, value in taint.items() if each not in key.beside}
    return renamed(key, meant) if meant else toleration_of_nothing(key)


def limit_of_the_server(key: UnknownKey) -> Answer | None:
    """Answer SGLang's limit of a whole server, of which each rank has a part: `max_running_requests: 4096`."""
    if key.phase is None or key.ours not in key.free:
        return None
    found = of_the_server(key.name, key.value, key.beside)
    if found is None:
        return None
    (number, reason), path = found, key.sibling(key.ours)
    if number is None:
        return Answer(reason, f"write {key.ours}, as {key.name} / dp_size", {path: key.value})
    return put_instead(reason, f"write {key.ours}: {number}", {path: number})


def called_otherwise(key: UnknownKey) -> Answer | None:
    """Answer a field that is called otherwise elsewhere: `max_num_seqs: 8` is `max_requests: 8`."""
    if key.ours not in key.free:
        return None
    path = key.sibling(key.ours)
    return renamed(key, {path: in_our_form(path, key.value)})


def in_another_section(key: UnknownKey) -> Answer | None:
    """Answer a field of another section: `coverage: node` below `expert_load`."""
    if _is_no_field(key):
        return None
    homes = (each for each in homes_of(key.ours or key.name, key.spec) if may_hold(each, key.value))
    moved = {each: in_our_form(each, key.value) for each in homes if _is_of_its_point(each, key)}
    meant = moved or turned_on(key.name, key.value, key.spec)
    return renamed(key, meant) if meant else None


def of_a_volume(key: UnknownKey) -> Answer | None:
    """Answer a `path` of a volume: where pods find it, beside what it is of; else the folder of its nodes."""
    if key.section not in VOLUMES or key.name != "path":
        return None
    field = "mount_path" if key.beside.keys() & {"claim", "host_path"} else "host_path"
    return renamed(key, {key.sibling(field): key.value}) if field in key.free else None


def misspelt(key: UnknownKey) -> Answer | None:
    """Answer a misspelt field: `overlpa: none`."""
    close = None if _is_no_field(key) else close_to(key.name, _alike(key), cutoff=0.6)
    return renamed(key, {key.sibling(close): key.value}) if close and not _is_more_like_a_given(close, key) else None


def toleration_of_nothing(key: UnknownKey) -> Answer | None:
    """Ask for a taint's key: `taint: gpu` alone would tolerate everything."""
    if not _is_in_toleration(key) or key.beside.get("key"):
        return None
    fix = "write the taint's key as key: ..., since without it every taint is tolerated"
    return Answer(none_such(key).reason, fix)


def given_already(key: UnknownKey) -> Answer | None:
    """Take away what the field itself gives: `max_num_seqs: 8` beside `max_requests: 16`."""
    return Answer(f"{key.ours} already gives the same", none_such(key).fix) if key.ours in key.fields else None


def given_in_another_section(key: UnknownKey) -> Answer | None:
    """Take away what another section gives: `nodes: 8` below `decode`, where `cluster.nodes` is given."""
    if key.why_not or what_instead_of(key.path):
        return None
    given = given_elsewhere(key.ours or key.name, key.spec)
    verb = "gives" if len(given) == 1 else "give"
    return Answer(f"{' and '.join(given)} already {verb} it", removal()) if given else None


ANSWERS: Sequence[Callable[[UnknownKey], Answer | None]] = (
    of_an_object,
    in_another_unit,
    spec_too_deep,
    not_indented,
    section_too_deep,
    as_an_engine_says,
    as_kustomize_says,
    beside_the_models_name,
    of_the_gateway,
    said_better_beside,
    left_to_us,
    named_on_a_hub,
    as_a_container_says,
    as_others_say,
    turning_overlap_on,
    of_rdma,
    of_a_taint,
    limit_of_the_server,
    called_otherwise,
    in_another_section,
    of_a_volume,
    misspelt,
    toleration_of_nothing,
    given_already,
    given_in_another_section,
    none_such,
)


def _is_no_field(key: UnknownKey) -> bool:
    """Return whether no free field can have been meant: that one is given, or tidemill has none for a reason."""
    is_of_either_phase = place_of(key.path) == UNITS_OF_WINDOW and "mixed" not in key.spec
    return bool(key.ours in key.fields or key.why_not or is_of_either_phase or _may_be_rdma(key))


def _alike(key: UnknownKey) -> list[str]:
    """Return the free fields of its section that a misspelling may have meant."""
    is_mapping = isinstance(key.value, dict)
    return [
        each
        for each in key.free
        if (not is_mapping or takes_mapping(key.fields[each]))
        and qualifiers_of(key.name) <= qualifiers_of(each)
        and not _is_of_no_phase(each, key)
        and _numbers(each) in ([], _numbers(key.name))
    ]


def _is_more_like_a_given(free: str, key: UnknownKey) -> bool:
    """Return whether a field that is given is more like the key than a `free` one: `usd_gpu_hour` means none but it."""
    given = [each for each in key.fields if each in key.beside and qualifiers_of(each) == qualifiers_of(key.name)]
    return get_close_matches(key.name, [free, *given], n=1, cutoff=0) != [free]


def _is_of_no_phase(name: str, key: UnknownKey) -> bool:
    """Return whether a field counts the units of a phase that the spec does not have."""
    return any(name == f"{phase}_units" and phase not in key.spec for phase in PHASES)


def _numbers(name: str) -> list[str]:
    """Return the numbers in a name: `fp4_tflops` is no misspelt `fp8_tflops`."""
    return re.findall("[0-9]+", name)


def _is_of_its_point(path: str, key: UnknownKey) -> bool:
    """Return whether a field at `path` is of no other phase than the operating point in which `key` stands."""
    first, *below = key.location
    of_point = below[0] if first == "operating_point" and len(below) > 1 else None
    return of_point is None or path.partition(".")[0] in {of_point} | (Spec.model_fields.keys() - set(PHASES))


def _may_be_rdma(key: UnknownKey) -> bool:
    """Return whether the key stands where an RDMA resource may be written as a key."""
    return key.parent == "kubernetes.rdma" and "resource" not in key.beside


def _is_in_toleration(key: UnknownKey) -> bool:
    return key.section in ("kubernetes.tolerations", "kubernetes.gateway.tolerations")


def _is_only_taint(key: UnknownKey) -> bool:
    """Return whether a toleration has no key, and one only that may be the taint's."""
    told = [name for name, value in key.beside.items() if toleration(name, value) is not None]
    return not key.beside.get("key") and len(told) == 1
