"""When an object is ready, kind by kind, from one look at it."""

import pytest

from stacks.kube.readiness import MISSING, is_off, missing

GROUPS = {"Deployment": "apps/v1", "StatefulSet": "apps/v1", "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1"}
UNSEEN = "not yet seen by its controller"


def live(kind, *, wanted=2, generation=3, **status):
    status = {"observedGeneration": 3} | status
    spec = {} if wanted is None else {"replicas": wanted}
    return {
        "apiVersion": GROUPS[kind],
        "kind": kind,
        "metadata": {"generation": generation},
        "spec": spec,
        "status": status,
    }


def deployment(**more):
    return live("Deployment", **({"replicas": 2, "updatedReplicas": 2, "availableReplicas": 2} | more))


def stateful_set(**more):
    same = {"currentRevision": "b", "updateRevision": "b"}
    return live("StatefulSet", **({"readyReplicas": 2, "updatedReplicas": 2} | same | more))


def by_hand(**more):
    """Whose pods are replaced by whoever deletes them."""
    found = stateful_set(**more)
    return found | {"spec": found["spec"] | {"updateStrategy": {"type": "OnDelete"}}}


def unit(*conditions, **more):
    found = [{"type": kind, "status": "True"} for kind in conditions or ("Available",)]
    return live("LeaderWorkerSet", **({"readyReplicas": 2, "updatedReplicas": 2, "conditions": found} | more))


def withheld(*conditions, partition=2, **more):
    """A unit whose first groups keep their template."""
    found = unit(*conditions, **more)
    return found | {
        "spec": found["spec"] | {"rolloutStrategy": {"rollingUpdateConfiguration": {"partition": partition}}}
    }


def job(*conditions, **spec):
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": spec, "status": {"conditions": list(conditions)}}


def pod(phase, *conditions):
    return {"apiVersion": "v1", "kind": "Pod", "spec": {}, "status": {"phase": phase, "conditions": list(conditions)}}


def condition(kind, status="True", **said):
    return {"type": kind, "status": status, **said}


def other(*conditions):
    """Of a kind that nobody here knows."""
    return {"apiVersion": "example.org/v1", "kind": "Database", "status": {"conditions": list(conditions)}}


TABLE = [
    (deployment(), None),
    (deployment(generation=4), UNSEEN),
    (deployment(updatedReplicas=1), "1 of 2 pods updated"),
    (deployment(availableReplicas=1), "1 of 2 pods available"),
    (deployment(replicas=3), "1 pods of the version before still there"),
    (deployment(wanted=None, replicas=1, updatedReplicas=1, availableReplicas=0), "0 of 1 pods available"),
    (deployment(wanted=0, replicas=0, updatedReplicas=0, availableReplicas=0), None),
    (live("Deployment", observedGeneration=0), UNSEEN),
    (stateful_set(), None),
    (stateful_set(generation=4), UNSEEN),
    (stateful_set(readyReplicas=1), "1 of 2 pods ready"),
    (stateful_set(currentRevision="a", updatedReplicas=1), "1 of 2 pods updated"),
    (by_hand(currentRevision="a", updatedReplicas=1), "1 of 2 pods updated: delete its other pods together"),
    (by_hand(currentRevision="a"), None),  # nobody moves the revision under OnDelete
    (stateful_set(wanted=0, readyReplicas=0, updatedReplicas=0), None),
    (unit(), None),
    (unit(generation=4), UNSEEN),
    (unit(readyReplicas=1), "1 of 2 groups ready"),
    (unit(updatedReplicas=0), "0 of 2 groups updated"),
    (unit("Progressing"), "an update of its groups is in progress"),
    (withheld(updatedReplicas=0), None),
    (withheld(updatedReplicas=0, partition=1), "0 of 1 groups updated"),
    (withheld(updatedReplicas=0, readyReplicas=1), "1 of 2 groups ready"),
    (withheld(updatedReplicas=0, generation=4), UNSEEN),
    (withheld(partition=5), None),
    (live("LeaderWorkerSet", updatedReplicas=2), "0 of 2 groups ready"),  # absent means 0
    (live("LeaderWorkerSet", wanted=0, generation=4), None),  # nothing to wait for, at night
    (job(condition("Complete")), None),
    (job(), "it is not complete"),
    (job(condition("Failed", message="Job has reached its limit.")), "it has failed: Job has reached its limit"),
    (job(condition("Failed", "False"), suspend=True), None),
    (pod("Running", condition("Ready")), None),
    (pod("Running", condition("Ready", "False", reason="ContainersNotReady")), "it is not ready: ContainersNotReady"),
    (pod("Succeeded", condition("Ready", "False", reason="PodCompleted")), None),
]
OTHERS = [
    (other(condition("Ready", "False")) | {"apiVersion": "tidemill.dev/v1alpha1", "kind": "TidemillDeployment"}, None),
    (other(), None),
    ({"apiVersion": "example.org/v1", "kind": "Database"}, None),
    (other(condition("Synced", "False")), None),
    (other(condition("Ready")), None),
    (other(condition("Ready", "False")), "it is not ready: its controller does not say why"),
    (other(condition("Ready", "Unknown", message="being\nmade.")), "it is not ready: being made"),
]


@pytest.mark.parametrize(("found", "expected"), TABLE + OTHERS)
def test_an_object_is_ready_when_nothing_is_missing(found, expected):
    """And what is missing is said in a few words."""
    assert missing(found) == expected


def test_every_judged_kind_is_shown_ready_and_not():
    """A kind that is awaited has a row in the table where it is ready and one where something is missing."""
    shown = {(found["apiVersion"].partition("/")[0], found["kind"], expected is None) for found, expected in TABLE}

    assert shown == {(*kind, is_ready) for kind in MISSING for is_ready in (True, False)}


@pytest.mark.parametrize("kind", ["ConfigMap", "Namespace", "Job", "Service"])
def test_other_kinds_are_ready_once_they_exist(kind):
    """Also kinds of the same name in another group."""
    assert missing({"apiVersion": "v1", "kind": kind, "metadata": {}}) is None
    assert missing({"apiVersion": "example.org/v1", "kind": "Deployment", "metadata": {}}) is None


def test_what_is_scaled_to_nothing_is_off():
    """A kind that has no replicas never is, and one replica is the default."""
    assert is_off(live("LeaderWorkerSet", wanted=0))
    assert not is_off(unit())
    assert not is_off(live("LeaderWorkerSet", wanted=None))
    assert not is_off({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}})
