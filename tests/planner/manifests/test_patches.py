"""What `kubernetes.patches` do to rendered objects."""

import pytest
import yaml

from planner.manifests.patches import merged, patched
from planner.spec.pods import PatchSpec

POD = {
    "containers": [{"name": "runtime", "image": "a", "env": [{"name": "A", "value": "1"}]}],
    "volumes": [{"name": "scratch", "emptyDir": {}}],
    "tolerations": [{"key": "a"}],
}


@pytest.mark.parametrize(
    ("patch", "changed"),
    [
        ({"hostIPC": True}, {"hostIPC": True}),
        ({"tolerations": [{"key": "b"}]}, {"tolerations": [{"key": "b"}]}),
        ({"tolerations": None}, {"tolerations": ...}),
        ({"volumes": [{"name": "more"}]}, {"volumes": [{"name": "scratch", "emptyDir": {}}, {"name": "more"}]}),
        (
            {"volumes": [{"name": "scratch", "emptyDir": {"medium": "Memory"}}]},
            {"volumes": [{"name": "scratch", "emptyDir": {"medium": "Memory"}}]},
        ),
        (
            {"containers": [{"name": "runtime", "env": [{"name": "B", "value": "2"}], "image": None}]},
            {"containers": [{"name": "runtime", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}]},
        ),
        (
            {"containers": [{"name": "sidecar"}]},
            {"containers": [*POD["containers"], {"name": "sidecar"}]},
        ),
        ({"affinity": {"podAffinity": {}}}, {"affinity": {"podAffinity": {}}}),
    ],
)
def test_a_patch_is_merged_as_kubectl_merges_it(patch, changed):
    """Mappings key by key, null removes, items with names by name, other lists as a whole; the base stays as it is."""
    before = yaml.safe_dump(POD)
    expected = {key: value for key, value in (POD | changed).items() if value is not ...}

    assert merged(POD, patch) == expected
    assert yaml.safe_dump(POD) == before


@pytest.mark.parametrize(
    ("field", "item", "more"),
    [("ports", {"containerPort": 1}, {"name": "http"}), ("ports", {"port": 1}, {"name": "http"})],
)
def test_ports_are_known_by_number(field, item, more):
    """A container's and a Service's."""
    assert merged({field: [item]}, {field: [item | more]}) == {field: [item | more]}


def test_only_the_objects_that_are_meant_are_changed():
    """By kind, and by name where one is given; every other text stays byte for byte, comments and all."""
    text = "# Why.\nkind: Service\nmetadata:\n  name: a\n"
    by_kind = PatchSpec(kind="Service", patch={"spec": {"type": "LoadBalancer"}})
    by_name = PatchSpec(kind="Service", name="b", patch={"spec": {"clusterIP": "None"}})
    other = PatchSpec(kind="Deployment", patch={"spec": {}})

    assert patched(text, [by_name, other]) == text
    changed = patched(text, [by_kind, by_name, other])
    assert changed.startswith("# Changed by kubernetes.patches of the spec.\n")
    assert yaml.safe_load(changed) == {
        "kind": "Service",
        "metadata": {"name": "a"},
        "spec": {"type": "LoadBalancer"},
    }


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
    plain = PatchSpec(kind="Service", patch={"metadata": {"annotations": dict.fromkeys(texts, "word/1")}})
    keys = PatchSpec(kind="Service", patch={"spec": {str(number): text for number, text in enumerate(texts)}})

    written = patched("kind: Service\nmetadata: {name: a}\n", [plain, keys])
    for number, text in enumerate(texts):
        assert f'    "{text}": word/1\n' in written
        assert f'  "{number}": "{text}"\n' in written
