"""Answers that no API server gives, through the real client: an error that says so, and never a traceback."""

import pytest

from stacks.kube.connection import _parse_body
from stacks.kube.errors import ProviderError, RefusedError, UnreachableError
from stacks.kube.manifest import Reference
from stacks.kube.quantities import amounts
from stacks.kube.shape import EVERY, QUANTITY, misfit
from tests.stacks.doctor.clusters import node, pod
from tests.stacks.kube.fake_api import running_fake_api


@pytest.fixture
def server():
    """(fake, api), whose answers are what a test puts into `odd`, by path."""
    with running_fake_api() as (fake, api):
        fake.odd = {}
        answer = fake.answer
        fake.answer = lambda verb, path, *more: fake.odd.get(path) or answer(verb, path, *more)
        yield fake, api


NO_SHAPE = [
    ({"a": str}, {}, "a is missing"),
    ({"a": str}, {"a": None}, "a must be text, and is null"),
    ({"a?": str}, {"a": 5}, "a must be text, and is 5"),
    ({"a": [{"b": int}]}, {"a": [{"b": 1}, "x"]}, "a[1] must be a map, and is 'x'"),
    ({"a": [{"b": int}]}, {"a": [{"b": True}]}, "a[0].b must be a whole number, and is True"),
    ({"a*": [str]}, {}, "a is missing"),
    ({"a": {EVERY: QUANTITY}}, {"a": {"cpu": "abc"}}, "a.cpu must be a quantity, and is 'abc'"),
]


@pytest.mark.parametrize(("shape", "document", "wrong"), NO_SHAPE)
def test_what_does_not_fit_is_named(shape, document, wrong):
    """With its place."""
    assert misfit(document, shape) == wrong


@pytest.mark.parametrize(
    ("shape", "document"),
    [({"a?": str}, {}), ({"a?": str}, {"a": None}), ({"a*": [str]}, {"a": None}), ({"a": QUANTITY}, {"a": 8, "b": 1})],
)
def test_what_fits_is_let_through(shape, document):
    """Whatever else is in it."""
    assert misfit(document, shape) is None


def without(document, *path):
    """The same without a field."""
    *above, last = path
    inner = document
    for each in above:
        inner = inner[each]
    del inner[last]
    return document


ODD_LISTS = {
    "text": {"items": ["x"]},
    "no items": {},
    "no name": {"items": [without(node("n"), "metadata", "name")]},
    "no metadata": {"items": [{"metadata": None}]},
    "no spec": {"items": [without(node("n"), "spec")]},
    "condition": {"items": [node("n", status={"conditions": [{"status": "True"}]})]},
    "taint": {"items": [node("n", taints=[{"key": "k"}])]},
    **{
        f"quantity {each}": {"items": [node("n", status={"allocatable": {"cpu": each}})]}
        for each in ("abc", None, "NaN", "Infinity", "1e-99999", "1e999999999")
    },
}


@pytest.mark.parametrize("answer", ODD_LISTS.values(), ids=ODD_LISTS.keys())
def test_a_list_of_no_nodes_is_no_answer(server, answer):
    """Nothing that follows may be believed."""
    fake, api = server
    fake.odd["/api/v1/nodes"] = (200, answer)

    with pytest.raises(UnreachableError, match=r"but not as an API server does \(list of Nodes: "):
        api.list_all("v1", "Node", "")


@pytest.mark.parametrize("path", [("metadata", "namespace"), ("spec", "containers")])
def test_a_list_of_no_pods_is_no_answer(server, path):
    """The same for pods."""
    fake, api = server
    fake.odd["/api/v1/pods"] = (200, {"items": [without(pod("p", "n", {}), *path)]})

    with pytest.raises(UnreachableError, match="list of Pods"):
        api.list_all("v1", "Pod", "")


@pytest.mark.parametrize(
    ("path", "answer", "ask"),
    [
        ("/api/v1", {"x": 1}, lambda api: api.require_kind("v1", "Pod")),
        ("/api/v1", {"resources": [{"kind": "Pod"}]}, lambda api: api.require_kind("v1", "Pod")),
        ("/apis/apps", {"versions": []}, lambda api: api.versions("apps")),
        (
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            {"status": {}},
            lambda api: api.may("get", "v1", "Pod", "x"),
        ),
        ("/api/v1/namespaces/x", {"kind": "Namespace"}, lambda api: api.get(Reference("v1", "Namespace", "", "x"))),
    ],
)
def test_other_odd_answers_are_none_either(server, path, answer, ask):
    """Neither an answer to discovery, nor one about rights, nor one object may have another shape."""
    fake, api = server
    fake.odd[path] = (200, answer)

    with pytest.raises(UnreachableError, match="but not as an API server does"):
        ask(api)


def test_an_object_is_of_the_kind_that_was_asked_for(server):
    """Also where the answer does not say so."""
    fake, api = server
    fake.odd["/api/v1/namespaces/x"] = (200, {"metadata": {"name": "x", "uid": "1"}})

    live = api.get(Reference("v1", "Namespace", "", "x"))

    assert live is not None
    assert (live["apiVersion"], live["kind"]) == ("v1", "Namespace")


def test_json_nested_too_deep_is_no_json():
    """Reading it would end in a traceback."""
    assert isinstance(_parse_body(b"[" * 200_000), str)


def test_a_status_that_nobody_knows_is_refused_by_its_number():
    """And a page for a message is cut."""
    assert RefusedError("x", 799, {}).server_message == "status 799"
    assert len(RefusedError("x", 500, {"message": "y" * 2_000_000}).sentence) < 600
    assert RefusedError("x", 422, {"message": "z", "details": {"causes": [5]}}).fields == []


@pytest.mark.parametrize("value", ["abc", None, "NaN", float("inf"), "1e-99999", True, [], "1e99"])
def test_what_is_no_quantity_is_said(value):
    """By name and value."""
    with pytest.raises(ProviderError, match=r"cpu is .*, which is no quantity"):
        amounts({"cpu": value})
