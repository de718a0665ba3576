"""The manifest as it is found, from three documents. What a real server makes of them: tests/cluster/test_drift.py."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stacks.kube.drift import guess_applied, is_surely_unchanged, merge_live_values, owned_fields
from tests.stacks.kube.test_diff import MANIFESTS

KEYS = ('k:{"port":80,"protocol":"TCP"}', 'k:{"port":80,"protocol":"UDP"}')
OWNED = {
    "f:spec": {
        "f:ports": {
            'k:{"port":80,"protocol":"TCP"}': {".": {}, "f:name": {}},
            'k:{"port":80,"protocol":"UDP"}': {".": {}, "f:name": {}},
        },
        "f:flags": {'v:"a"': {}, 'v:"b"': {}},
    }
}


def stored(spec, owned=OWNED):
    """As a server answers."""
    ours = {"manager": "tidemill", "operation": "Apply", "fieldsV1": owned}
    theirs = {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:x": {}}}}
    return {"metadata": {"name": "n", "managedFields": [theirs, ours], "resourceVersion": str(spec)}, "spec": spec}


def manifest(spec):
    return {"metadata": {"name": "n"}, "spec": spec}


def found(ours, live, applied):
    """The spec as it is found."""
    return merge_live_values(manifest(ours), stored(live), stored(applied))["spec"]


def port(protocol, name, number=80):
    return {"port": number, "protocol": protocol, "name": name}


@pytest.mark.slow
@given(MANIFESTS, MANIFESTS)
def test_where_live_and_applied_are_equal_the_manifest_stands(ours, live):
    """However differently it is spelt, and whatever others added."""
    assert found(ours, live, copy.deepcopy(live)) == ours


@given(MANIFESTS, st.dictionaries(st.sampled_from("xyz"), st.integers(), max_size=2))
def test_what_others_add_is_not_ours(ours, theirs):
    """It is in the live object and in what applying would make of it."""
    assert found(ours, ours | theirs, ours | theirs) == ours


@given(MANIFESTS, MANIFESTS)
def test_guessing_what_an_apply_would_make_holds_the_manifest(live, ours):
    """Every value of ours, and every key of the live object's that we do not set."""
    made = guess_applied(live, ours)

    assert made.keys() == live.keys() | ours.keys()
    assert guess_applied(made, ours) == made
    assert guess_applied(live, {}) == live


def test_items_are_matched_by_the_keys_that_the_server_names():
    """A part of a key that has a default may be missing from the manifest; the order does not matter."""
    ours = [{"port": 80, "name": "web"}, {"port": 80, "protocol": "UDP", "name": "quic"}]
    applied = [port("TCP", "web"), port("UDP", "quic")]

    assert found({"ports": ours}, {"ports": applied[::-1]}, {"ports": applied}) == {"ports": ours}
    assert found({"ports": ours}, {"ports": [port("UDP", "edited"), applied[0]]}, {"ports": applied}) == {
        "ports": [ours[0], {"port": 80, "protocol": "UDP", "name": "edited"}]
    }
    assert found({"ports": ours}, {"ports": applied[1:]}, {"ports": applied}) == {"ports": ours[1:]}


def test_an_item_that_applying_would_end_is_found():
    """We own it and the manifest no longer has it."""
    ours = [{"port": 80, "name": "web"}]
    old = port("TCP", "old", number=79)

    assert found({"ports": ours}, {"ports": [old, port("TCP", "web")]}, {"ports": [port("TCP", "web")]}) == {
        "ports": [*ours, old]
    }


def test_items_of_a_set_are_their_own_keys():
    """What someone else put into it is in both."""
    ours = ["a", "b"]

    assert found({"flags": ours}, {"flags": ["z", "a"]}, {"flags": ["z", "a", "b"]}) == {"flags": ["a"]}
    assert found({"flags": ours}, {"flags": ["b", "a", "old"]}, {"flags": ["a", "b"]}) == {"flags": ["a", "b", "old"]}


def test_other_lists_are_found_as_a_whole():
    """Their order means something: arguments."""
    assert found({"args": ["a", "b"]}, {"args": ["b", "a"]}, {"args": ["a", "b"]}) == {"args": ["b", "a"]}


def test_a_field_that_the_server_does_not_keep_stands():
    """It was never stored, so nobody edited it."""
    assert found({"kept": 1, "given": 2}, {"kept": 9}, {"kept": 1}) == {"kept": 9, "given": 2}


def test_an_object_stands_as_applied_where_our_fields_have_our_values():
    """Whatever others put beside them; not with one field fewer or more of ours, or with another value."""
    ours = {"ports": [port("TCP", "web"), port("UDP", "quic")]}
    owned = {"f:spec": {"f:ports": {key: {".": {}, "f:port": {}, "f:protocol": {}, "f:name": {}} for key in KEYS}}}
    theirs = ours | {"x": 1, "ports": [port("TCP", "x", number=5), *reversed(ours["ports"])]}

    assert is_surely_unchanged(manifest(ours), stored(theirs, owned))
    assert not is_surely_unchanged(
        manifest(ours), stored({"ports": [port("TCP", "web"), port("UDP", "edited")]}, owned)
    )
    assert not is_surely_unchanged(manifest(ours), stored({"ports": ours["ports"][:1]}, owned))
    assert not is_surely_unchanged(manifest({"ports": ours["ports"][:1]}), stored(ours, owned))
    assert not is_surely_unchanged(manifest(ours | {"x": 1}), stored(theirs, owned))
    assert not is_surely_unchanged(manifest(ours), stored(ours, {"f:spec": owned["f:spec"] | {"f:old": {}}}))
    assert not is_surely_unchanged(manifest(ours), {**stored(ours), "metadata": {"name": "n"}})


def test_only_what_was_applied_under_our_name_is_ours():
    """Neither an update under that name nor the status."""
    update = {"manager": "tidemill", "operation": "Update", "fieldsV1": {"f:spec": {}}}
    status = {"manager": "tidemill", "operation": "Apply", "subresource": "status", "fieldsV1": {"f:status": {}}}

    assert owned_fields(stored({})) == OWNED
    assert owned_fields({"metadata": {"managedFields": [update, status]}}) == {}
    assert owned_fields({"metadata": {}}) == {}


def test_an_item_that_the_server_does_not_keep_is_no_difference():
    """A webhook has renamed the one that we sent."""
    renamed = {"f:spec": {"f:ports": {'k:{"port":81,"protocol":"TCP"}': {".": {}, "f:name": {}}}}}
    ours, theirs = {"ports": [port("TCP", "a")]}, {"ports": [port("TCP", "a", number=81)]}

    assert merge_live_values(manifest(ours), stored(theirs, renamed), stored(theirs, renamed))["spec"]["ports"][
        0
    ] == port("TCP", "a")
