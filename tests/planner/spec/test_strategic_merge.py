"""How a patch is merged into an object of Kubernetes."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.spec.strategic_merge import JSON_MERGE, keys_of_kind, merge_patch

POD_KEYS = keys_of_kind("Pod")
POD = {
    "containers": [{"name": "runtime", "image": "a", "env": [{"name": "A", "value": "1"}]}],
    "volumes": [{"name": "scratch", "emptyDir": {}}],
    "tolerations": [{"key": "a"}],
    "securityContext": {"runAsUser": 1, "fsGroup": 2},
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
            {"containers": [{"name": "sidecar", "image": "b", "tty": None}]},
            {"containers": [*POD["containers"], {"name": "sidecar", "image": "b"}]},
        ),
        ({"volumes": [{"name": "scratch", "$patch": "delete"}]}, {"volumes": []}),
        ({"volumes": [{"$patch": "replace"}, {"name": "b"}]}, {"volumes": [{"name": "b"}]}),
        ({"securityContext": {"$patch": "replace", "fsGroup": 3}}, {"securityContext": {"fsGroup": 3}}),
        ({"securityContext": {"$patch": "delete"}}, {"securityContext": {}}),
        ({"affinity": {"podAffinity": {}}}, {"affinity": {"podAffinity": {}}}),
    ],
)
def test_a_pods_patch_is_merged_as_kubectl_merges_it(patch, changed):
    """Mappings key by key, items with names by name, other lists as a whole; null and directives take away."""
    before = copy.deepcopy(POD)

    assert merge_patch(POD, patch, POD_KEYS) == {key: each for key, each in (POD | changed).items() if each is not ...}
    assert before == POD


@pytest.mark.parametrize(("kind", "key"), [("Pod", "containerPort"), ("Service", "port")])
def test_ports_are_told_apart_by_number(kind, key):
    """A container's by containerPort and a Service's by port, whatever their names."""
    ports = {"ports": [{key: 1, "name": "a"}, {key: 2}]}

    assert merge_patch(ports, {"ports": [{key: 2, "name": "b"}]}, keys_of_kind(kind)) == {
        "ports": [{key: 1, "name": "a"}, {key: 2, "name": "b"}]
    }


def test_custom_kinds_are_merged_as_json():
    """Their lists are replaced, even of containers, and a directive is a key like any other."""
    patch = {"containers": [{"name": "b"}], "$patch": "replace", "tolerations": None}

    assert keys_of_kind("LeaderWorkerSet") is JSON_MERGE
    assert merge_patch(POD, patch, JSON_MERGE) == {
        "containers": [{"name": "b"}],
        "$patch": "replace",
        "volumes": POD["volumes"],
        "securityContext": POD["securityContext"],
    }


NAMES = st.sampled_from(["a", "b", "c"])
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(0, 3), NAMES)


def items(values):
    return st.lists(st.tuples(NAMES, values).map(lambda pair: {"name": pair[0], "of": pair[1]}), max_size=3)


def patches(leaves=LEAVES):
    """Mappings with lists of named items, lists without names, and nulls where `leaves` have them."""
    nested = st.recursive(
        leaves,
        lambda inner: st.dictionaries(NAMES, inner, max_size=3) | items(inner).map(lambda each: {"containers": each}),
        max_leaves=8,
    )
    fields = {"containers": items(nested), "spec": nested, "args": st.lists(NAMES, max_size=2)}
    return st.fixed_dictionaries({}, optional=fields)


OBJECTS = patches(LEAVES.filter(lambda each: each is not None))
KEYS = st.sampled_from([POD_KEYS, JSON_MERGE])


@given(OBJECTS, KEYS)
def test_merging_nothing_changes_nothing(base, keys):
    """An empty overlay is none."""
    assert merge_patch(base, {}, keys) == base


@given(OBJECTS, patches(), KEYS)
def test_merging_twice_is_merging_once(base, patch, keys):
    """So a rendered object stays as it is when it is rendered again."""
    once = merge_patch(base, patch, keys)

    assert merge_patch(once, patch, keys) == once


@given(OBJECTS, patches(), KEYS)
def test_what_a_patch_does_not_name_stays(base, patch, keys):
    """Fields keep their values, and the plan's items their order before any new ones."""
    result = merge_patch(base, patch, keys)
    order = [each["name"] for each in result.get("containers", [])]
    before = list(dict.fromkeys(each["name"] for each in base.get("containers", [])))

    assert {key: result[key] for key in base.keys() - patch.keys()} == {
        key: base[key] for key in base.keys() - patch.keys()
    }
    if keys is not JSON_MERGE:
        assert list(dict.fromkeys(order))[: len(before)] == before


@given(OBJECTS, NAMES, NAMES, st.integers(0, 3), st.integers(0, 3))
def test_patches_of_different_items_go_in_any_order(base, one, other, first, second):
    """Two parts of an overlay that name different containers of the plan do not depend on each other."""
    named = {each["name"] for each in base.get("containers", [])}
    patches_of = [
        {"containers": [{"name": name, "more": {name: value}}]}
        for name, value in ((one, first), (other, second))
        if name in named
    ]
    results = [base, base]
    for each, reverse in zip(patches_of, reversed(patches_of), strict=True):
        results = [merge_patch(results[0], each, POD_KEYS), merge_patch(results[1], reverse, POD_KEYS)]

    assert one == other or results[0] == results[1]
