"""Spec overlays: a base and what lies over it are one spec, and each mistake is found in the file that makes it."""

import json
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cli import main
from planner.compiler import run_passes
from planner.plan.user_input import read_input
from planner.problems.errors import InfeasibleError, SpecError
from planner.spec.overlays import apply_overlay
from planner.spec.yaml import parse_document
from tests.planner.conftest import SPEC
from tests.planner.spec.wrong_specs import data_of

WHOLE = data_of(SPEC) | {
    "prefill": data_of(SPEC)["prefill"] | {"units": "auto", "ep_size": "auto"},
    "kubernetes": {"env": {"A": "x", "B.C": "y"}, "node_selector": {"a": "b", "a.b": "c"}},
    "traffic": {"input_tokens": 1e9, "output_tokens": 1e8, "profile": [1] * 24},
}
OTHERS = st.sampled_from([None, "auto", 7, "x", [1, [2]], [{"a": "auto"}]])  # what an overlay replaces
PROD = """\
name: river-prod
cluster:
  nodes: 5
expert_load: {seed: null}
kubernetes:
  namespace: prod
  image: registry.example.com/runtime:2
"""
AS_ONE = SPEC.replace("river", "river-prod").replace("nodes: 3", "nodes: 5").replace("  seed: 0\n", "")
AS_ONE = AS_ONE.replace("tidemill\n", "prod\n").replace("tidemill-runtime:0.1.0", "registry.example.com/runtime:2")


def merged(*texts):
    """The document of a base and its overlays."""
    return reduce(apply_overlay, [parse_document(text, f"{number}.yaml") for number, text in enumerate(texts)])


@st.composite
def parted(draw, whole=WHOLE):
    """A base, and the overlay that makes it `whole`."""
    base, overlay = {}, {}
    for key, value in whole.items():
        where = draw(st.sampled_from(["base", "overlay", "both", "parted"]))
        if where == "parted" and isinstance(value, dict):
            base[key], overlay[key] = draw(parted(value))
            continue
        if where == "both":
            may_be_short = isinstance(value, dict)  # text there may be a section in short, which merges
            base[key] = draw(OTHERS.filter(lambda other: not isinstance(other, str)) if may_be_short else OTHERS)
        (base if where == "base" else overlay)[key] = value
    for key in draw(st.sets(st.sampled_from(["slo", "coverage", "a.c"]))):
        base[key], overlay[key] = draw(OTHERS), None
    return base, overlay


@given(parted())
def test_a_base_under_an_overlay_is_one_spec(parts):
    """Data and what is left open are as in one file, and each value's place is in the file that has it."""
    base, overlay = (json.dumps(each) for each in parts)
    document, whole = merged(base, overlay), parse_document(json.dumps(WHOLE), "whole.yaml")
    above = parse_document(overlay, "1.yaml").values
    leaves = [path for path in whole.values if not isinstance(_at(path), dict)]

    assert (document.data, document.autos) == (whole.data, whole.autos)
    assert all(document.values[path] == above.get(path, ("0.yaml", *document.values[path][1:])) for path in leaves)


def _at(path, value=WHOLE):
    """What stands at a path of the whole spec; keys may have dots."""
    if not path:
        return value
    if isinstance(value, list):
        return value[int(path)]
    key = max((each for each in value if f"{path}.".startswith(f"{each}.")), key=len)
    return _at(path[len(key) + 1 :], value[key])


def test_an_environment_plans_as_the_same_spec_in_one_file(spec_file, spec_folder):
    """Digest and launch documents are the same, with the overlay and a file that it names in a folder of their own."""
    overlay = spec_file(PROD.replace("{seed", "{file: loads.json, alpha: null, seed"), "prod/overlay.yaml")
    overlay.with_name("loads.json").write_bytes((spec_folder / "loads.json").read_bytes())
    whole = spec_file(AS_ONE.replace("alpha: 1.01", "file: prod/loads.json"), "one.yaml")
    plan = run_passes(read_input(spec_file(SPEC, "base.yaml"), [overlay])).deployed
    one = run_passes(read_input(whole)).deployed

    assert plan.launch_documents == one.launch_documents
    assert plan.as_json() == one.as_json()


@pytest.mark.parametrize(
    ("texts", "data"),
    [
        (["a: 1", "a: 2", "a: 3"], {"a": 3}),
        (["a: {b: 1}", "a: {b: null}", "a: {c: 2}"], {"a": {"c": 2}}),
        (["a: [1, 2]", "a: [3]"], {"a": [3]}),
        (["engine: sglang", "engine: {version: 0.5.23}"], {"engine": {"name": "sglang", "version": "0.5.23"}}),
        (["schedule: auto", "schedule: {headroom: 0.2}"], {"schedule": {"windows": "auto", "headroom": 0.2}}),
        (["engine: {name: sglang}", "engine: vllm"], {"engine": "vllm"}),
        (["name: a", "coverage: null\nslo: {ttft_ms: null}"], {"name": "a", "slo": {}}),
        (["kubernetes: {}", "kubernetes: {env: {b: null}}"], {"kubernetes": {"env": {"b": None}}}),
    ],
)
def test_mappings_merge_and_later_files_win(texts, data):
    """Null takes away what is there, is nothing at a field that is not, and stays among keys that are the user's."""
    assert merged(*texts).data == data


def test_a_section_in_short_leaves_its_windows_open():
    """`schedule: auto` under more of the schedule is `windows: auto`, at the line of the base."""
    document = merged("name: a\nschedule: auto\n", "schedule: {headroom: 0.2}\n")

    assert document.autos == {"schedule.windows"}
    assert document.values["schedule.windows"] == ("0.yaml", 2, 11)


MISTAKES = {
    "a value": ("coverage: shelf", "S204 1.yaml 1:11"),
    "an unknown key": ("decode:\n  unitz: 3", "S201 1.yaml 2:3"),
    "an unknown key to take away": ("clustr: null", "S201 1.yaml 1:1"),
    "a required field taken away": ("cluster: {gpu: null}", "S202 1.yaml 1:11"),
    "a key given twice": ("name: a\nname: b", "S106 1.yaml 2:1"),
    "an anchor": ("name: &a b", "S107 1.yaml 1:7"),
    "no mapping": ("- name", "S105 1.yaml 1:1"),
    "a file": ("expert_load: {file: none.npy, alpha: null, seed: null}", "S603 1.yaml 1:21"),
    "a rule between two values": ("decode: {redundant_experts: 5}", "S501 0.yaml 20:12"),
}


@pytest.mark.parametrize(("text", "told"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_told_where_it_is_written(text, told, spec_folder, spec_file):
    """A rule between two values names the place of the first, in whichever file it is."""
    base, overlay = spec_file(SPEC, "0.yaml"), spec_file(text, "above/1.yaml")
    with pytest.raises(SpecError) as error:
        read_input(base, [overlay])
    (found,) = error.value.findings

    assert f"{found.id} {found.file.rpartition('/')[2]} {found.line}:{found.column}" == told


def test_files_are_quoted_as_their_overlay_names_them(spec_file):
    """The value in a message is the one that stands in the line it points to."""
    with pytest.raises(SpecError) as error:
        read_input(spec_file(SPEC, "0.yaml"), [spec_file("model: {config: no.json}", "above/1.yaml")])

    assert error.value.findings[0].message.startswith("model.config (no.json) must be a readable file")


def test_all_files_that_cannot_be_read_are_told(spec_file):
    """S103 and S101: a base that is no YAML hides no overlay that is missing."""
    with pytest.raises(SpecError) as error:
        read_input(spec_file("a: [", "0.yaml"), [spec_file("", "1.yaml").with_name("none.yaml")])

    assert [each.id for each in error.value.findings] == ["S103", "S101"]


@pytest.mark.parametrize(
    ("overlay", "files"),
    [
        ("decode: {redundant_experts: 5}", {"decode.redundant_experts": "1.yaml"}),
        ("decode: {ep_size: 8}", {"decode.redundant_experts": "0.yaml"}),
        ("cluster: {nodes: 1}", {"cluster.nodes": "1.yaml"}),
        ("prefill: {units: 2}", {"cluster.nodes": "0.yaml"}),
    ],
)
def test_a_change_names_the_file_to_write_it_in(overlay, files, spec_file):
    """A wrong spec's changes and an infeasible one's go where the value is that holds today."""
    base, above = spec_file(SPEC, "0.yaml"), spec_file(overlay, "1.yaml")
    with pytest.raises((SpecError, InfeasibleError)) as error:
        run_passes(read_input(base, [above]))
    found = error.value.findings[0].as_json()["change_files"]

    assert {path: file.rpartition("/")[2] for path, file in found.items()}.items() >= files.items()


def test_validate_names_the_files_of_a_valid_spec(spec_file, capsys):
    """The base, and each overlay in the order in which it wins."""
    base, prod, more = spec_file(SPEC, "0.yaml"), spec_file(PROD, "1.yaml"), spec_file("name: sea", "2.yaml")

    assert main(["validate", str(base), "-f", str(prod), "-f", str(more)]) == 0
    assert capsys.readouterr().out.startswith(f"{base} -f {prod} -f {more}: valid")
