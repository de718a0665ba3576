"""What the API server refuses, as one sentence that says what to do."""

import pytest
import urllib3

from stacks.kube.connection import RETRIES
from stacks.kube.errors import NotServedError, RefusedError

MEND = "correct kubernetes.overlay, or the field that writes it"
RBAC = (
    'configmaps "a" is forbidden: User "eve" cannot patch resource "configmaps" in API group "" in the namespace "demo"'
)
CLUSTER_RBAC = (
    'nodes is forbidden: User "eve" cannot list resource "leaderworkersets" in API group "x.io" at the cluster scope'
)
TYPED = "failed to create typed patch object (demo/a; v1, Kind=ConfigMap): .dta: field not declared in schema"

TABLE = [
    (
        401,
        "Unauthorized",
        "the API server does not accept the kubeconfig's credentials (401 Unauthorized); "
        "renew them, or choose another context",
    ),
    (
        403,
        RBAC,
        "the kubeconfig's user eve may not patch configmaps in namespace demo; "
        "bind a Role to it that allows get, create, patch and delete of them, or choose another context",
    ),
    (
        403,
        CLUSTER_RBAC,
        "the kubeconfig's user eve may not list leaderworkersets.x.io in the whole cluster; "
        "bind a ClusterRole to it that allows list of them, or choose another context",
    ),
    (
        403,
        'configmaps "a" is forbidden: unable to create new content in namespace demo because it is being terminated',
        "its namespace is being deleted; wait until it is gone, then repeat",
    ),
    (
        403,
        'pods "a" is forbidden: exceeded quota: gpus',
        'the API server refuses (403: pods "a" is forbidden: exceeded quota: gpus)',
    ),
    (404, 'namespaces "demo" not found', "namespace demo does not exist; create it first"),
    (
        409,
        'Apply failed with 1 conflict: conflict with "kubectl-edit" using v1: .data.a',
        'another program sets the same fields (Apply failed with 1 conflict: conflict with "kubectl-edit" using v1: '
        ".data.a); decide which of the two shall, and repeat",
    ),
    (
        422,
        "x is invalid: spec.a: Required",
        f"the API server finds it invalid (x is invalid: spec.a: Required); {MEND}",
    ),
    (
        500,
        TYPED,
        f"the API server finds it invalid (.dta: field not declared in schema); {MEND}",
    ),
    (
        403,
        'admission webhook "v.kb.io" denied the request: spec.size: Invalid value: 0: too small',
        f"the admission webhook v.kb.io finds it invalid (spec.size: Invalid value: 0: too small); {MEND}",
    ),
    (
        500,
        'Internal error occurred: failed calling webhook "v.kb.io": failed to call webhook: connection refused',
        "the admission webhook v.kb.io does not answer (failed to call webhook: connection refused); "
        "check that its controller runs",
    ),
    (429, "too many requests", "the API server is overloaded (429: too many requests); repeat later"),
    (500, "etcd is away", "the API server refuses (500: etcd is away)"),
]


@pytest.mark.parametrize(("status", "message", "sentence"), TABLE)
def test_a_refusal_says_what_to_do(status, message, sentence):
    """After the object that it is about."""
    error = RefusedError("ConfigMap demo/a", status, {"kind": "Status", "message": message})

    assert str(error) == f"ConfigMap demo/a: {sentence}"


@pytest.mark.parametrize(("asked", "seconds"), [("1", 1), ("86400", 5), ("Fri, 31 Dec 9999 23:59:59 GMT", 5)])
def test_an_overloaded_server_is_asked_again_soon(asked, seconds):
    """Whoever waits for the answer does not hear that it takes a day."""
    response = urllib3.HTTPResponse(headers={"Retry-After": asked}, status=429)

    assert RETRIES.get_retry_after(response) == seconds


@pytest.mark.parametrize(
    ("answer", "shown"),
    [("no Status at all", "no Status at all"), ("", "Bad Gateway"), (None, "Bad Gateway"), ({}, "Bad Gateway")],
)
def test_a_server_that_answers_no_status_is_quoted(answer, shown):
    """A proxy's answer, for example."""
    assert str(RefusedError("x", 502, answer)) == f"x: the API server refuses (502: {shown})"


@pytest.mark.parametrize(
    "message",
    [
        'Deployment.apps "g" is invalid: spec.selector: Invalid value: {}: field is immutable',
        "spec: Forbidden: updates to statefulset spec for fields other than 'replicas' are forbidden",
        "spec.clusterIPs[0]: Invalid value: []: may not change once set",
    ],
)
def test_a_field_that_may_not_change_is_recognised(message):
    """There is no code for it."""
    assert RefusedError("x", 422, {"message": message}).is_about_frozen_fields
    assert not RefusedError("x", 422, {"message": "Required value"}).is_about_frozen_fields


def test_refused_fields_are_found_in_causes_and_in_texts():
    """A webhook has only its text."""
    causes = {"details": {"causes": [{"field": "spec.selector", "message": "m"}, {"message": "without a field"}]}}
    text = 'admission webhook "v" denied the request: spec.a.b[0]: Invalid value: 2: field is immutable'

    assert RefusedError("x", 422, {"message": "m"} | causes).fields == ["spec.selector"]
    assert RefusedError("x", 403, {"message": text}).fields == ["spec.a.b[0]"]
    assert RefusedError("x", 502, "text").fields == []


def test_a_missing_kind_says_how_to_install_it():
    """LeaderWorkerSet by its usual command."""
    assert str(NotServedError("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")) == (
        "the cluster does not serve LeaderWorkerSet of leaderworkerset.x-k8s.io/v1; "
        "install LeaderWorkerSet 0.9 or newer: kubectl apply --server-side -f "
        "https://github.com/kubernetes-sigs/lws/releases/download/v0.9.0/manifests.yaml, "
        "or write kubernetes.unit_kind: statefulset"
    )
