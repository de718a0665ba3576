"""Patches that would make a plan's pods others under the same names; what a patch may still do is taken."""

import pytest

from planner.spec.layout_rules import broken_rules

METADATA = ("finalizers", "ownerReferences", "generateName", "deletionTimestamp")


def broken(kind, patch, name=None):
    """The paths below the patch that are refused."""
    each = {"kind": kind, "patch": patch} | ({"name": name} if name else {})
    values = {"kubernetes.patches": [each], "name": "river", "gateway.port": 8000}
    found = (each for each in broken_rules(values) if each.path.startswith("kubernetes.patches"))
    return [violation.path.removeprefix("kubernetes.patches.0.patch.") for violation in found]


def of_unit(pod):
    return {"spec": {"leaderWorkerTemplate": {"workerTemplate": {"spec": pod}}}}


def containers(**fields):
    return {"containers": [{"name": "runtime"} | fields]}


@pytest.mark.parametrize(
    ("pod", "end"),
    [
        *(({field: "x"}, field) for field in ("nodeName", "schedulerName", "restartPolicy", "activeDeadlineSeconds")),
        (containers(resources=[]), "resources"),
        (containers(resources={"limits": None}), "limits"),
        (containers(resources={"requests": "none"}), "requests"),
        (containers(image={}), "image"),
        (containers(command=[]), "command"),
        (containers(args={"a": 1}), "args"),
        (containers(env=[{"name": "NODE_NAME", "value": "other"}]), "env.0"),
        (containers(volumeMounts=[{"mountPath": "/etc/tidemill", "name": "x"}]), "volumeMounts.0"),
        ({"volumes": [{"name": "launch", "projected": None}]}, "projected"),
        ({"volumes": [{"name": "launch", "emptyDir": {}}]}, "emptyDir"),
        ({"volumes": [{"name": "models", "hostPath": None}]}, "hostPath"),
    ],
)
def test_a_unit_stays_what_was_planned(pod, end):
    """Its node, its life, its GPUs, its program, its launch file."""
    (path,) = broken("LeaderWorkerSet", of_unit(pod))

    assert path.endswith(end)


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        *(("Deployment", {"metadata": {field: "x"}}) for field in METADATA),
        *(("Deployment", {"spec": {"template": {"metadata": {field: "x"}}}}) for field in METADATA),
        ("LeaderWorkerSet", {"spec": {"startupPolicy": "LeaderReady"}}),
        ("LeaderWorkerSet", {"spec": {"leaderWorkerTemplate": {"restartPolicy": "None"}}}),
        ("StatefulSet", {"spec": {"updateStrategy": {"type": "RollingUpdate"}}}),
        ("Service", {"spec": {"type": " ExternalName"}}),
        ("Service", {"spec": {"type": {}}}),
        ("Service", {"spec": {"clusterIP": "10.0.0.1"}}),
        ("Service", {"spec": {"ports": [{"port": 8000, "targetPort": 22}]}}),
    ],
)
def test_an_object_stays_what_was_planned(kind, patch):
    """What keeps it from going, and how its pods begin and are replaced."""
    assert len(broken(kind, patch)) == 1


@pytest.mark.parametrize(
    ("kind", "patch", "name"),
    [
        ("Service", {"spec": {"type": "LoadBalancer", "clusterIP": "10.0.0.1"}}, "river-gateway"),
        ("Service", {"spec": {"ports": [{"port": 8000, "nodePort": 30000}, {"port": 80, "targetPort": "http"}]}}, None),
        ("Deployment", {"spec": {"template": {"spec": {"schedulerName": "mine"}}}}, None),
        ("LeaderWorkerSet", of_unit(containers(resources={"limits": {"nvidia.com/gpu": None}})), None),
        ("LeaderWorkerSet", of_unit(containers(command=["sh"], env=[{"name": "A", "value": "b"}])), None),
        ("LeaderWorkerSet", of_unit({"volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}]}), None),
        ("LeaderWorkerSet", of_unit({"containers": [{"name": "sidecar", "args": []}]}), None),
    ],
)
def test_what_the_plan_leaves_open_may_be_patched(kind, patch, name):
    """A gateway's address and scheduler, a claim in place of GPUs, sizes, other containers."""
    assert broken(kind, patch, name) == []
