"""What `kubernetes.overlay` does to rendered objects."""

import pytest
import yaml

from planner.manifests.overlay import apply_overlay
from planner.spec.pods import OverlaySpec
from tests.templates.gpu_plans import gpu_plan, pod_of, rendered, unit_of


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """On H800s."""
    return gpu_plan(tmp_path_factory.mktemp("gpu"))


@pytest.mark.parametrize("unit_kind", ["leaderworkerset", "statefulset"])
def test_each_part_reaches_its_own_objects(plan, unit_kind):
    """Units' pods, the gateway's pod, and objects by kind; everything else is as without an overlay."""
    parts = {
        "unit_pod": {"spec": {"runtimeClassName": "nvidia", "containers": [{"name": "sidecar", "image": "a"}]}},
        "gateway_pod": {"metadata": {"annotations": {"a": "b"}}},
        "objects": [{"kind": "Service", "name": "river-gateway", "patch": {"spec": {"type": "LoadBalancer"}}}],
    }
    plain, changed = rendered(plan, unit_kind=unit_kind), rendered(plan, unit_kind=unit_kind, overlay=parts)
    differing = {each["metadata"]["name"] for each, other in zip(changed, plain, strict=True) if each != other}

    assert differing == {"river-prefill-0", "river-prefill-1", "river-decode-0", "river-gateway"}
    assert [each["name"] for each in pod_of(changed)["spec"]["containers"]] == ["runtime", "sidecar"]
    assert pod_of(changed)["spec"]["runtimeClassName"] == "nvidia"
    assert pod_of(changed, "river-gateway")["metadata"]["annotations"] == {"a": "b"}
    assert unit_of(changed)["metadata"] == unit_of(plain)["metadata"]


@pytest.mark.parametrize("overlay", [None, {}, {"unit_pod": {}, "gateway_pod": {}, "objects": []}])
def test_an_empty_overlay_is_none(overlay):
    """Every text stays byte for byte, comments and all."""
    text = "# Why.\nkind: Service\nmetadata:\n  name: a\n"

    assert apply_overlay(text, None if overlay is None else OverlaySpec.model_validate(overlay)) == text


def test_only_the_objects_that_are_meant_are_changed():
    """An item names a kind, and may name an object; a later item is merged after an earlier one."""
    text = "# Why.\nkind: Service\nmetadata:\n  name: a\n"
    by_kind = {"kind": "Service", "patch": {"spec": {"type": "LoadBalancer", "ports": []}}}
    by_name = {"kind": "Service", "name": "b", "patch": {"spec": {"clusterIP": "None"}}}
    later = {"kind": "Service", "name": "a", "patch": {"spec": {"type": "NodePort"}}}

    changed = apply_overlay(text, OverlaySpec.model_validate({"objects": [by_kind, by_name, later]}))
    assert changed.startswith("# Changed by kubernetes.overlay of the spec.\n")
    assert yaml.safe_load(changed) == {
        "kind": "Service",
        "metadata": {"name": "a"},
        "spec": {"type": "NodePort", "ports": []},
    }
    assert apply_overlay(text, OverlaySpec.model_validate({"objects": [by_name]})) == text


def test_texts_stay_texts_for_every_reader_of_yaml():
    """What YAML 1.2 or kubectl reads as a number, a truth or a date is quoted, as a key too; plain words are not."""
    texts = [
        "1234e56",
        "0o17",
        "1e3",
        "0b1",
        "1_000",
        "y",
        "Off",
        "null",
        "2026-11-22",
        "12:30",
        ".5",
        "<<",
        "",
        "a: b",
    ]
    numbered = {str(number): text for number, text in enumerate(texts)}
    patch = {"metadata": {"annotations": dict.fromkeys(texts, "word/1")}, "spec": numbered}
    overlay = OverlaySpec.model_validate({"objects": [{"kind": "Service", "patch": patch}]})

    written = apply_overlay("kind: Service\nmetadata: {name: a}\n", overlay)
    for number, text in enumerate(texts):
        assert f'    "{text}": word/1\n' in written
        assert f'  "{number}": "{text}"\n' in written
