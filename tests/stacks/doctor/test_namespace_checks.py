"""What is wrong with the plan's namespace and what must be in it: each fault is one finding."""

from dataclasses import replace

import pytest

from stacks.doctor.checks import findings
from stacks.doctor.facts import ReadFailure, Refusal
from stacks.doctor.needs import RequiredObject
from stacks.kube.errors import RefusedError
from tests.stacks.doctor.clusters import changed_pods, demo_needs, found, good_cluster, pod

ENDING = {"metadata": {"name": "tidemill", "deletionTimestamp": "2026-11-22T12:00:00Z"}}
CLAIM = RequiredObject("", "PersistentVolumeClaim", "tidemill", "models", "kubernetes.volumes")
SECRET = RequiredObject("", "Secret", "tidemill", "login", "kubernetes.image_pull_secrets")


@pytest.fixture(scope="module")
def needs():
    """The demo's; it makes its namespace."""
    return demo_needs()


@pytest.fixture(scope="module")
def guest(needs):
    """The same in a namespace that somebody else makes."""
    return replace(needs, creates_namespace=False)


@pytest.fixture(scope="module")
def mounting(needs):
    """The demo's with a claim in every pod."""
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}}
    return replace(changed_pods(needs, lambda spec: spec.update(volumes=[volume])), required_objects=(CLAIM,))


def claim(*modes, phase="Bound", **spec):
    return {"metadata": {"name": "models"}, "spec": spec, "status": {"phase": phase, "accessModes": list(modes)}}


def refused(message, component="decode", status=403):
    return Refusal(component, RefusedError("Pod tidemill/tidemill-doctor", status, {"message": message}))


def test_a_namespace_is_only_missed_where_the_plan_does_not_make_it(needs, guest):
    """And where somebody could look."""
    unseen = (ReadFailure("the namespace", "no; bind a ClusterRole"),)

    assert found(needs, good_cluster(needs, namespace=None)) == []
    assert found(guest, good_cluster(guest, namespace=None)) == [("namespace", "Namespace tidemill")]
    assert found(guest, good_cluster(guest, namespace=None, read_failures=unseen)) == [("rights", "the namespace")]


def test_a_namespace_on_its_way_out_is_waited_for_or_blocks(needs, guest):
    """`up` waits for what it makes itself, and for nothing else."""
    (waits,) = findings(needs, good_cluster(needs, namespace=ENDING))
    (blocks,) = findings(guest, good_cluster(guest, namespace=ENDING))

    assert (waits.check, waits.blocks) == ("namespace", False)
    assert (blocks.check, blocks.blocks) == ("namespace", True)


NAMED = [
    (CLAIM, "storage"),
    (SECRET, "secret"),
    (RequiredObject("scheduling.k8s.io", "PriorityClass", "", "x", "kubernetes.priority_class"), "priority-class"),
    (RequiredObject("node.k8s.io", "RuntimeClass", "", "x", "kubernetes.runtime_class"), "runtime-class"),
    (RequiredObject("kueue.x-k8s.io", "LocalQueue", "tidemill", "x", "kubernetes.queue"), "queue"),
    (
        RequiredObject("k8s.cni.cncf.io", "NetworkAttachmentDefinition", "tidemill", "x", "kubernetes.networks"),
        "network",
    ),
]


@pytest.mark.parametrize(("required", "check"), NAMED)
def test_whatever_pods_name_must_be_there(needs, required, check):
    """The finding says which field names it."""
    asking = replace(needs, required_objects=(required,))

    (finding,) = findings(asking, good_cluster(asking, required_objects={required: None}))

    assert (finding.check, finding.object, finding.blocks) == (check, str(required), True)
    assert finding.reason == f"it does not exist, and {required.field} names it"


def test_what_must_be_there_first_needs_a_namespace_first(needs, guest):
    """A plan that makes its namespace cannot find anything in it."""
    for each, advice in ((needs, "create first the namespace and then it"), (guest, "create it; or")):
        asking = replace(each, required_objects=(SECRET,))
        found_ones = findings(asking, good_cluster(asking, required_objects={SECRET: None}, namespace=None))
        assert found_ones[-1].fix.startswith(advice)


CLAIMS = [
    (claim("ReadOnlyMany"), None),
    (claim("ReadWriteMany", "ReadWriteOnce"), None),
    (claim("ReadWriteOnce"), "pods on 4 nodes mount it, and ReadWriteOnce allows only one node"),
    (claim("ReadWriteOncePod"), "pods on 4 nodes mount it, and ReadWriteOncePod allows only one node"),
    (claim("ReadWriteMany", phase="Pending"), "it has no volume: its phase is Pending"),
    (claim("ReadWriteMany", phase="Lost"), "it has no volume: its phase is Lost"),
    (claim("ReadWriteMany", phase="Pending", storageClassName="late"), None),
    (claim("ReadWriteMany", phase="Lost", storageClassName="late"), "it has no volume: its phase is Lost"),
    (claim("ReadWriteMany") | ENDING, "it is being deleted"),
]


@pytest.mark.parametrize(("live", "reason"), CLAIMS)
def test_a_claim_has_a_volume_that_all_nodes_may_mount(mounting, live, reason):
    """Prefill's node, decode's two, and the gateway's."""
    late = ({"metadata": {"name": "late"}, "volumeBindingMode": "WaitForFirstConsumer"},)
    facts = good_cluster(mounting, required_objects={CLAIM: live}, storage_classes=late)

    assert [(each.check, each.reason) for each in findings(mounting, facts)] == (
        [("storage", reason)] if reason else []
    )


@pytest.mark.parametrize(
    ("component", "modes", "reason"),
    [
        (None, ("ReadWriteMany",), None),
        (
            None,
            ("ReadOnlyMany", "ReadWriteOnce"),
            "pods on 4 nodes write to it, and ReadOnlyMany, ReadWriteOnce does not",
        ),
        ("prefill", ("ReadWriteOnce",), None),
        ("prefill", ("ReadOnlyMany",), "pods on 1 node write to it, and ReadOnlyMany does not let them"),
    ],
)
def test_a_claim_lets_those_write_who_keep_kv_there(needs, component, modes, reason):
    """Whoever mounts it without readOnly writes to it."""
    volume = {"name": "kv", "persistentVolumeClaim": {"claimName": "models"}}
    writing = changed_pods(needs, lambda spec: spec.update(volumes=[volume]), component)
    writing = replace(writing, required_objects=(CLAIM,))
    reasons = [
        each.reason for each in findings(writing, good_cluster(writing, required_objects={CLAIM: claim(*modes)}))
    ]

    assert [each.startswith(reason or "-") for each in reasons] == ([True] if reason else [])


def test_a_claim_of_one_node_may_let_one_node_in(needs):
    """Only prefill mounts it here."""
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "models"}}
    alone = changed_pods(needs, lambda spec: spec.update(volumes=[volume]), "prefill")
    alone = replace(alone, required_objects=(CLAIM,))

    assert found(alone, good_cluster(alone, required_objects={CLAIM: claim("ReadWriteOnce")})) == []


def quota(hard, used=None, **spec):
    used = used or dict.fromkeys(hard, "0")
    return {"metadata": {"name": "team"}, "spec": {"hard": hard, **spec}, "status": {"hard": hard, "used": used}}


@pytest.fixture(scope="module")
def sized(needs):
    """The demo's three unit pods and its gateway, with 2 CPUs, 1 GiB and 8 GPUs each."""
    amounts = {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "8"}
    sizes = {"requests": amounts, "limits": {"memory": "1Gi", "nvidia.com/gpu": "8"}}
    return changed_pods(needs, lambda spec: spec["containers"][0].update(resources=sizes))


QUOTAS = [
    ({"pods": "4", "requests.cpu": "8", "limits.memory": "4Gi", "requests.nvidia.com/gpu": "32"}, None, None),
    ({"pods": "3"}, None, "pods: 4 needed, 3 left"),
    ({"pods": "10"}, {"pods": "7"}, "pods: 4 needed, 3 left"),
    ({"pods": "10"}, {"pods": "6"}, None),
    ({"cpu": "7500m"}, None, "cpu: 8 needed, 7.5 left"),
    ({"requests.nvidia.com/gpu": "16"}, None, "requests.nvidia.com/gpu: 32 needed, 16 left"),
    ({"limits.memory": "3Gi"}, None, "limits.memory: 4Gi needed, 3Gi left"),
    ({"services": "0"}, None, None),
]


@pytest.mark.parametrize(("hard", "used", "reason"), QUOTAS)
def test_a_quota_leaves_room_for_all_pods(sized, hard, used, reason):
    """By the names that quotas have for what pods take; what else they count is left to dry runs."""
    facts = good_cluster(sized, quotas=(quota(hard, used),), nodes=None)

    found_ones = [(each.check, each.object, each.reason) for each in findings(sized, facts)]

    assert found_ones == ([("quota", "ResourceQuota tidemill/team", reason)] if reason else [])


def test_a_quota_is_raised_to_what_would_do(sized):
    """What others use stays theirs."""
    facts = good_cluster(sized, quotas=(quota({"pods": "10"}, {"pods": "7"}),), nodes=None)

    assert [each.fix for each in findings(sized, facts)] == ["raise its spec.hard to pods: 11"]


def test_the_plans_own_pods_do_not_count_twice(sized):
    """Those that are there are replaced, not added."""
    ours = {"tidemill.dev/plan": sized.plan}
    pods = tuple(pod(f"p-{n}", "node-0", {"cpu": "2"}, namespace="tidemill", labels=ours) for n in range(4))
    facts = good_cluster(sized, quotas=(quota({"pods": "4", "cpu": "8"}, {"pods": "4", "cpu": "8"}),), nodes=None)

    assert found(sized, facts) == [("quota", "ResourceQuota tidemill/team")]
    assert found(sized, replace(facts, pods=pods)) == []


def test_a_quota_with_scopes_is_judged_by_the_server_alone(sized):
    """Which pods it counts is not known here; a pod that was tried is let in, or is not."""
    scoped = quota({"pods": "0"}, scopes=["BestEffort"])
    facts = good_cluster(sized, quotas=(scoped,), nodes=None)
    message = 'pods "x" is forbidden: exceeded quota: team, requested: pods=1, used: pods=0, limited: pods=0'

    assert found(sized, facts) == []
    assert found(sized, replace(facts, pod_refusals=(refused(message),))) == [("quota", "ResourceQuota tidemill/team")]


def test_a_quota_is_said_once(sized):
    """By its numbers; the pod that was tried met it too."""
    message = 'pods "x" is forbidden: exceeded quota: team, requested: pods=1, used: pods=0, limited: pods=0'
    facts = good_cluster(sized, quotas=(quota({"pods": "0"}),), pod_refusals=(refused(message),), nodes=None)

    assert found(sized, facts) == [("quota", "ResourceQuota tidemill/team")]


HOST_PATH = 'hostPath volumes (volume "volume-0")'


def test_a_standard_that_keeps_pods_out_is_one_finding(needs):
    """However many components it keeps out, with what each violates."""
    message = f'pods "tidemill-doctor" is forbidden: violates PodSecurity "baseline:latest": {HOST_PATH}'
    facts = good_cluster(needs, pod_refusals=(refused(message, "decode"), refused(message, "prefill")))

    (finding,) = findings(needs, facts)

    assert (finding.check, finding.object, finding.blocks) == ("pod-security", "Namespace tidemill", True)
    assert finding.reason == f"it enforces the standard baseline:latest, which the plan's pods violate: {HOST_PATH}"
    assert finding.fix.startswith(
        "kubectl label --overwrite namespace tidemill pod-security.kubernetes.io/enforce=privileged"
    )


def test_a_class_that_is_missing_is_said_once(needs):
    """Also where the pod that was tried met it."""
    required = NAMED[2][0]
    asking = replace(needs, required_objects=(required,))
    message = 'pods "x" is forbidden: no PriorityClass with name x was found'
    facts = good_cluster(asking, required_objects={required: None}, pod_refusals=(refused(message),))

    assert found(asking, facts) == [("priority-class", "PriorityClass x")]


@pytest.mark.parametrize(
    ("message", "status", "said"),
    [
        ('pods "x" is forbidden: maximum memory usage per Container is 1Gi', 403, ("pod", True)),
        (
            'User "eve" cannot create resource "pods" in API group "" in the namespace "tidemill"',
            403,
            ("rights", False),
        ),
        ('Internal error occurred: failed calling webhook "v.io": refused', 500, ("webhook", True)),
    ],
)
def test_what_else_a_pod_meets_is_said_as_the_server_says_it(needs, message, status, said):
    """A limit range; the right to try a pod, which `up` needs not; a webhook."""
    (finding,) = findings(needs, good_cluster(needs, pod_refusals=(refused(message, status=status),)))

    assert (finding.check, finding.blocks) == said
