"""Differences between two manifests: none between equals, and enough to make the old one the new one."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stacks.kube.diff import Difference, DifferenceKind, differences, path_text

SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, "", "a", "1"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
    max_leaves=12,
)
MANIFESTS = st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4)


def at(value, path):
    for step in path:
        value = value[step]
    return value


def applied(old, new, found):
    """`old` with each difference taken over from `new`: changes first, then what goes from the end, then what comes."""
    made = copy.deepcopy(old)
    for each in found:
        if each.kind is DifferenceKind.UPDATE and each.path:
            at(made, each.path[:-1])[each.path[-1]] = at(new, each.path)
    for each in reversed(found):
        if each.kind is DifferenceKind.DELETE:
            del at(made, each.path[:-1])[each.path[-1]]
    for each in found:
        if each.kind is DifferenceKind.ADD:
            parent = at(made, each.path[:-1])
            if isinstance(parent, list):
                parent.insert(each.path[-1], at(new, each.path))
            else:
                parent[each.path[-1]] = at(new, each.path)
    return made


def as_json(value):
    """Equal exactly when equal as JSON: in Python `True == 1` and `1 == 1.0`."""
    if isinstance(value, dict):
        return {key: as_json(each) for key, each in value.items()}
    return [as_json(each) for each in value] if isinstance(value, list) else (isinstance(value, bool), value)


@given(MANIFESTS)
def test_equal_manifests_do_not_differ(manifest):
    """Not even in the order of their keys."""
    other = dict(reversed(copy.deepcopy(manifest).items()))

    assert list(differences(manifest, other)) == []


@pytest.mark.slow
@given(MANIFESTS, MANIFESTS)
def test_differences_turn_the_old_manifest_into_the_new_one(old, new):
    """So nothing is left out, and nothing is named that stays."""
    found = list(differences(old, new))

    assert as_json(applied(old, new, found)) == as_json(new)
    assert (found == []) == (as_json(old) == as_json(new))


@given(MANIFESTS, MANIFESTS)
def test_no_path_is_named_twice(old, new):
    """Pulumi keeps one entry for each."""
    paths = [path_text(each.path) for each in differences(old, new)]

    assert len(paths) == len(set(paths))


def test_true_is_not_one():
    """In Python it is, and so are the lists and maps that hold them."""
    for old, new in ((True, 1), (0, False), ([True], [1]), ({"x": True}, {"x": 1})):
        assert [each.kind for each in differences({"a": old}, {"a": new})] == [DifferenceKind.UPDATE]
    assert list(differences({"a": [1, True, 3]}, {"a": [1, 3]})) == [Difference(("a", 1), DifferenceKind.DELETE)]


def test_one_item_more_or_less_is_one_difference():
    """Wherever in the list."""
    short, long = ["a", "c", "d"], ["a", "b", "c", "d"]

    assert list(differences({"args": short}, {"args": long})) == [Difference(("args", 1), DifferenceKind.ADD)]
    assert list(differences({"args": long}, {"args": short})) == [Difference(("args", 1), DifferenceKind.DELETE)]


def test_paths_are_written_as_pulumi_reads_them():
    """Keys that hold a dot, a bracket or a quote stand in quotes."""
    assert path_text(("spec", "ports", 0, "name")) == "spec.ports[0].name"
    assert path_text(("metadata", "labels", "app.kubernetes.io/name")) == 'metadata.labels["app.kubernetes.io/name"]'
    assert path_text(("data", 'a"b')) == 'data["a\\"b"]'
