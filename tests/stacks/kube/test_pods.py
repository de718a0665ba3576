"""Why an object is not ready, from its pods, their nodes and its events."""

import pytest

from stacks.kube.pods import pod_selector, reasons, unready_nodes

UNIT = {"kind": "LeaderWorkerSet", "metadata": {"name": "decode-0"}, "status": {"replicas": 1}}


def pod(name, *, node="n1", container=None, condition=None, ending=False):
    status = {"containerStatuses": [container]} if container else {}
    if condition:
        status["conditions"] = [condition]
    metadata = {"name": name} | ({"deletionTimestamp": "2026-01-01T00:00:00Z"} if ending else {})
    return {"metadata": metadata, "spec": {"nodeName": node} if node else {}, "status": status}


def container(state, **more):
    return {"name": "rank", "image": "example.org/rank:1", "ready": False, "state": state} | more


def waiting(reason, message=None, **more):
    return container({"waiting": {"reason": reason, "message": message}}, **more)


def ended(status, reason="Error", **more):
    return {"terminated": {"exitCode": status, "reason": reason, **more}}


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
}
IMAGE_ADVICE = "correct kubernetes.image in the spec, or load it on the nodes"

TABLE = [
    (
        pod("p", node="", condition=UNSCHEDULABLE),
        "no node for it: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu (pod p)",
    ),
    (pod("p", node=""), "not yet seen by the scheduler (pod p)"),
    (
        pod("p", container=waiting("ErrImageNeverPull", "Container image is not present with pull policy of Never")),
        "image example.org/rank:1 cannot be had (Container image is not present with pull policy of Never); "
        f"{IMAGE_ADVICE} (pod p)",
    ),
    (
        pod("p", container=waiting("ImagePullBackOff")),
        f"image example.org/rank:1 cannot be had (ImagePullBackOff); {IMAGE_ADVICE} (pod p)",
    ),
    (
        pod("p", container=waiting("CrashLoopBackOff", "back-off 10s", lastState=ended(2))),
        "container rank ended with exit status 2; read `kubectl logs --previous` (pod p)",
    ),
    (
        pod("p", container=container(ended(2, message="loading\nerror: no  checkpoint in /models\n\n"))),
        "container rank ended with exit status 2 (error: no checkpoint in /models); "
        "read `kubectl logs --previous` (pod p)",
    ),
    (
        pod("p", container=container(ended(137, "OOMKilled"))),
        "container rank ended with exit status 137, OOMKilled; read `kubectl logs --previous` (pod p)",
    ),
    (
        pod("p", container=waiting("CreateContainerConfigError", 'configmap "launch" not found')),
        'container rank waits: configmap "launch" not found (pod p)',
    ),
    (pod("p", container=container({"running": {}})), "container rank runs and is not ready yet (pod p)"),
    (pod("p", node="down"), "node down is not ready (pod p)"),
    (pod("p", node="down", ending=True), "node down is not ready (pod p)"),
    (pod("p", ending=True), "being deleted (pod p)"),
]


@pytest.mark.parametrize(("found", "expected"), TABLE)
def test_a_pod_says_what_holds_it_up(found, expected):
    """With what to do, where there is something to do."""
    assert reasons(UNIT, [found], {"down"}, []) == [expected]


@pytest.mark.parametrize("state", [container({"running": {}}, ready=True), waiting("ContainerCreating")])
def test_a_pod_that_is_fine_or_starting_is_no_reason(state):
    """Nor is its name."""
    assert reasons(UNIT, [pod("p", container=state)], set(), []) == []


def test_a_reason_that_many_pods_share_is_said_once():
    """With the first pod's name and the number of the others."""
    found = [pod(f"p-{number}", container=waiting("ErrImagePull", "not found")) for number in (2, 0, 1)]

    assert reasons(UNIT, found, set(), []) == [
        f"image example.org/rank:1 cannot be had (not found); {IMAGE_ADVICE} (pod p-0 and 2 more)"
    ]


def test_an_image_between_two_tries_is_the_same_reason():
    """The kubelet's words for the pause hold those for the failure."""
    back_off = 'Back-off pulling image "example.org/rank:1": ErrImagePull: not found'
    found = [
        pod("p-0", container=waiting("ErrImagePull", "not found")),
        pod("p-1", container=waiting("ImagePullBackOff", back_off)),
    ]

    assert reasons(UNIT, found, set(), []) == [
        f"image example.org/rank:1 cannot be had (not found); {IMAGE_ADVICE} (pod p-0 and 1 more)"
    ]


def test_without_pods_the_object_and_its_events_are_asked():
    """Why no pod could be made; the latest event counts."""
    failure = {"type": "ReplicaFailure", "status": "True", "message": 'pods "x" is forbidden: exceeded quota.'}
    old = {"reason": "Old", "message": "old", "lastTimestamp": "2026-01-01T00:00:00Z"}
    new = {"reason": "FailedCreate", "message": "denied", "lastTimestamp": "2026-01-01T00:00:01Z"}

    assert reasons(UNIT | {"status": {"conditions": [failure]}}, [], set(), []) == [
        'pods "x" is forbidden: exceeded quota'
    ]
    assert reasons(UNIT, [], set(), [new, old]) == ["FailedCreate: denied"]
    assert reasons(UNIT | {"status": {}}, [], set(), []) == [
        "nothing has acted on it; check that the controller of LeaderWorkerSets runs"
    ]
    assert reasons(UNIT, [], set(), []) == []


def test_pods_are_found_by_their_labels():
    """Those of a LeaderWorkerSet by its name, others by the object's own selector."""
    deployment = {
        "kind": "Deployment",
        "metadata": {"name": "g"},
        "spec": {"selector": {"matchLabels": {"a": "b", "c": "d"}}},
    }

    assert pod_selector(UNIT) == "leaderworkerset.sigs.k8s.io/name=decode-0"
    assert pod_selector(deployment) == "a=b,c=d"
    assert pod_selector({"kind": "ConfigMap", "metadata": {"name": "c"}}) is None
    assert pod_selector({"kind": "Service", "metadata": {"name": "s"}, "spec": {"selector": {"a": "b"}}}) is None


def test_a_node_is_down_unless_it_says_that_it_is_ready():
    """Unknown counts as down: nobody hears of its pods."""

    def node(name, status):
        return {"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": status}]}}

    assert unready_nodes([node("a", "True"), node("b", "Unknown"), node("c", "False")]) == {"b", "c"}
