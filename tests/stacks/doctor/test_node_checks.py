"""What is wrong with the planned nodes: each fault is one finding, and a good cluster has none."""

from dataclasses import replace

import pytest

from planner.facts.names import DEPLOYMENT_KIND
from stacks.doctor.checks import findings
from stacks.doctor.facts import ClusterFacts
from stacks.doctor.needs import RequiredObject
from stacks.doctor.node_checks import nodes
from tests.stacks.doctor.clusters import changed_pods, demo_needs, found, good_cluster, node, pod

GPUS = {"limits": {"nvidia.com/gpu": "8"}}
TAINT = {"key": "team", "value": "research", "effect": "NoSchedule"}
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


@pytest.fixture(scope="module")
def needs():
    """The demo's."""
    return demo_needs()


@pytest.fixture(scope="module")
def gpu_needs(needs):
    """The demo's, with units that ask for 8 GPUs a pod."""

    def ask(spec):
        spec["containers"][0]["resources"] = GPUS

    return changed_pods(changed_pods(needs, ask, "prefill"), ask, "decode")


def with_node(facts, changed):
    """The cluster with another node of that name."""
    others = [each for each in facts.nodes if each["metadata"]["name"] != changed["metadata"]["name"]]
    return replace(facts, nodes=(*others, changed))


def resources(**amounts):
    """The status of a ready node that offers just these."""
    return READY | {"allocatable": amounts, "capacity": amounts}


def test_a_good_cluster_has_no_finding(needs, gpu_needs):
    """Whether the plan asks for resources or not."""
    assert found(needs, good_cluster(needs)) == []
    assert found(gpu_needs, good_cluster(gpu_needs)) == []


def test_a_node_that_is_not_there_blocks(needs):
    """It is said what the cluster's names are for."""
    facts = good_cluster(needs)
    facts = replace(facts, nodes=tuple(each for each in facts.nodes if each["metadata"]["name"] != "node-1"))

    (finding,) = findings(needs, facts)

    assert (finding.check, finding.object, finding.blocks) == ("node", "Node node-1", True)
    assert finding.reason == "the cluster has no Node of that name"
    assert "list the nodes to use in cluster.nodes" in finding.fix


def test_a_node_known_by_its_hostname_is_named(needs):
    """Its label is not its name, by which pods are placed."""
    facts = good_cluster(needs)
    renamed = node("ip-10-0-0-7", metadata={"labels": {"kubernetes.io/hostname": "node-1"}})
    others = tuple(each for each in facts.nodes if each["metadata"]["name"] != "node-1")

    (finding,) = findings(needs, replace(facts, nodes=(*others, renamed)))

    assert "the label kubernetes.io/hostname of the Node ip-10-0-0-7" in finding.reason
    assert finding.fix == "call it ip-10-0-0-7 in cluster.nodes, and plan again"


NOT_READY = {"type": "Ready", "status": "False", "message": "container runtime network not ready\n"}


@pytest.mark.parametrize(
    ("changed", "check", "reason"),
    [
        (node("node-1", status={"conditions": [NOT_READY]}), "node", "it is not ready: container runtime network"),
        (node("node-1", status={"conditions": []}), "node", "it is not ready: it has not reported yet"),
        (node("node-1", unschedulable=True), "node", "it is cordoned"),
        (node("node-1", taints=[TAINT]), "taint", "it has the taint team=research:NoSchedule"),
        (node("node-1", taints=[{"key": "gone", "effect": "NoExecute"}]), "taint", "it has the taint gone:NoExecute"),
    ],
)
def test_a_node_that_takes_no_pods_blocks(needs, changed, check, reason):
    """Whatever else is right about it."""
    (finding,) = findings(needs, with_node(good_cluster(needs), changed))

    assert (finding.check, finding.object, finding.blocks) == (check, "Node node-1", True)
    assert finding.reason.startswith(reason)
    assert "kubectl" not in finding.fix or "node-1" in finding.fix


HEAL = {"conditions": ["GPUMissing"], "labels": ["health=bad"]}


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        (node("node-1", metadata={"labels": {"health": "bad"}}), "the label health=bad"),
        (
            node("node-1", status={"conditions": [*READY["conditions"], {"type": "GPUMissing", "status": "True"}]}),
            "the condition GPUMissing=True",
        ),
    ],
)
def test_a_node_that_units_would_leave_at_once_is_a_note(needs, changed, fault):
    """Only where the plan's controller moves units off faulty nodes."""
    followed = {"kind": DEPLOYMENT_KIND, "spec": {"heal": HEAL}}
    facts = with_node(good_cluster(needs), changed)

    (finding,) = nodes(replace(needs, objects=(*needs.objects, followed)), facts)

    assert (finding.object, finding.blocks) == ("Node node-1", False)
    assert f"it has {fault}, and by kubernetes.controller.heal that is a fault" in finding.reason
    assert found(needs, facts) == []


def test_what_the_node_controller_adds_is_said_once(needs):
    """A cordoned node has a taint that says so, and a silent one has two."""
    cordoned = node("node-1", unschedulable=True, taints=[{"key": "node.kubernetes.io/unschedulable", **NO_SCHEDULE}])
    silent = node(
        "node-2",
        status={"conditions": [NOT_READY]},
        taints=[{"key": "node.kubernetes.io/unreachable", "effect": effect} for effect in ("NoSchedule", "NoExecute")],
    )

    assert found(needs, with_node(with_node(good_cluster(needs), cordoned), silent)) == [
        ("node", "Node node-1"),
        ("node", "Node node-2"),
    ]


NO_SCHEDULE = {"effect": "NoSchedule"}
TOLERATIONS = [
    ({"key": "team", "operator": "Exists"}, True),
    ({"key": "team", "value": "research", "effect": "NoSchedule"}, True),
    ({"operator": "Exists"}, True),
    ({"key": "team", "operator": "Equal", "value": "other"}, False),
    ({"key": "team", "operator": "Exists", "effect": "NoExecute"}, False),
    ({"key": "other", "operator": "Exists"}, False),
    ({"value": "research"}, False),
]


@pytest.mark.parametrize(("toleration", "is_met"), TOLERATIONS)
def test_a_taint_that_the_pods_tolerate_is_no_fault(needs, toleration, is_met):
    """As Kubernetes matches them."""
    tolerant = changed_pods(needs, lambda spec: spec.update(tolerations=[toleration]))
    facts = with_node(good_cluster(needs), node("node-1", taints=[TAINT]))

    assert found(tolerant, facts) == ([] if is_met else [("taint", "Node node-1")])


def test_a_taint_that_only_prefers_others_is_no_fault(needs):
    """The scheduler has no other node for the unit."""
    facts = with_node(good_cluster(needs), node("node-1", taints=[TAINT | {"effect": "PreferNoSchedule"}]))

    assert found(needs, facts) == []


def test_a_label_that_the_pods_ask_for_must_be_there(needs):
    """Every planned node needs it: units are placed by name, and a selector holds besides."""
    picky = changed_pods(needs, lambda spec: spec.update(nodeSelector={"pool": "gpu"}), "decode")
    labelled = node("node-1", metadata={"labels": {"pool": "gpu"}})

    (finding,) = findings(picky, with_node(good_cluster(needs), labelled))

    assert (finding.check, finding.object) == ("node", "Node node-2")
    assert "lacks the label pool=gpu" in finding.reason


@pytest.mark.parametrize(
    ("status", "reason", "fix"),
    [
        (
            resources(cpu="192", memory="2Ti"),
            "it offers no nvidia.com/gpu, and 8 are needed; devices that it offers: none",
            "install NVIDIA's driver and device plugin",
        ),
        (
            resources(cpu="192", **{"nvidia.com/gpu-h800": "8"}),
            "it offers no nvidia.com/gpu, and 8 are needed; devices that it offers: nvidia.com/gpu-h800",
            "install NVIDIA's driver and device plugin",
        ),
        (
            resources(**{"nvidia.com/gpu": "4"}),
            "it offers 4 nvidia.com/gpu of 4 that it has, and 8 are needed",
            "without the node",
        ),
        (
            READY | {"allocatable": {"nvidia.com/gpu": "7"}, "capacity": {"nvidia.com/gpu": "8"}},
            "it offers 7 nvidia.com/gpu of 8 that it has, and 8 are needed",
            "repair the others",
        ),
        (
            READY | {"allocatable": {"nvidia.com/gpu": "0"}, "capacity": {"nvidia.com/gpu": "0"}},
            "it offers no nvidia.com/gpu, and 8 are needed",
            "install NVIDIA's driver and device plugin",
        ),
    ],
)
def test_a_node_without_its_devices_blocks(gpu_needs, status, reason, fix):
    """No device plugin, another resource, fewer GPUs, or one that is broken."""
    (finding,) = findings(gpu_needs, with_node(good_cluster(gpu_needs), node("node-1", status=status)))

    assert (finding.check, finding.object, finding.blocks) == ("device", "Node node-1", True)
    assert finding.reason.startswith(reason)
    assert finding.fix.startswith(fix)


def test_rdma_devices_are_devices_like_any_other(needs):
    """What offers them is not known by the resource's name, which clusters choose."""
    asking = changed_pods(
        needs, lambda spec: spec["containers"][0].update(resources={"limits": {"rdma/hca": "1"}}), "prefill"
    )

    (finding,) = findings(asking, good_cluster(asking))

    assert (finding.check, finding.object) == ("device", "Node node-0")
    assert finding.reason.startswith("it offers no rdma/hca, and 1 are needed; devices that it offers: nvidia.com/gpu")
    assert finding.fix.startswith("install the device plugin that offers it there; or correct the resource's name")


def test_memory_and_cpus_are_compared_by_amount(needs):
    """Not by how they are written."""
    wanted = {"requests": {"cpu": "1500m", "memory": "512Gi"}}
    asking = changed_pods(needs, lambda spec: spec["containers"][0].update(resources=wanted), "prefill")
    enough = with_node(good_cluster(asking), node("node-0", status=resources(cpu="1.5", memory="549755813888")))
    short = with_node(good_cluster(asking), node("node-0", status=resources(cpu="1.5", memory="536870911Ki")))

    assert found(asking, enough) == []
    (finding,) = findings(asking, short)
    assert (finding.check, finding.reason) == ("capacity", "pods get 536870911Ki of its memory, and 512Gi are needed")


def test_pods_of_others_hold_what_is_needed(gpu_needs):
    """They are named; those that have other nodes or are ours do not count."""
    ours = {"tidemill.dev/plan": gpu_needs.plan}
    pods = (
        pod("train-0", "node-1", {"nvidia.com/gpu": "4"}),
        pod("train-1", "node-3", {"nvidia.com/gpu": "8"}),
        pod("demo-decode-0-1", "node-2", {"nvidia.com/gpu": "8"}, namespace=gpu_needs.namespace, labels=ours),
        pod("logs", "node-1", {"cpu": "1"}, namespace="kube-system"),
    )

    (finding,) = findings(gpu_needs, good_cluster(gpu_needs, pods=pods))

    assert (finding.check, finding.object, finding.blocks) == ("occupied", "Node node-1", True)
    assert finding.reason == "other pods hold 4 of its 8 nvidia.com/gpu, and 8 are needed: research/train-0"


def test_a_plan_of_the_same_name_elsewhere_is_somebody_elses(gpu_needs):
    """The label alone makes no pod ours: the namespace is part of the name."""
    labels = {"tidemill.dev/plan": gpu_needs.plan}
    pods = (pod("x", "node-1", {"nvidia.com/gpu": "8"}, namespace="elsewhere", labels=labels),)

    assert found(gpu_needs, good_cluster(gpu_needs, pods=pods)) == [("occupied", "Node node-1")]


PRIORITY = RequiredObject("scheduling.k8s.io", "PriorityClass", "", "production", "kubernetes.priority_class")


@pytest.mark.parametrize(
    ("priority_class", "others", "is_said"),
    [
        ({"value": 1000}, 10, False),
        ({"value": 1000}, 1000, True),
        ({"value": 1000, "preemptionPolicy": "Never"}, 10, True),
    ],
)
def test_pods_that_give_way_are_no_fault(gpu_needs, priority_class, others, is_said):
    """Those of a lower priority are evicted, where the plan's class evicts at all."""
    urgent = changed_pods(gpu_needs, lambda spec: spec.update(priorityClassName="production"))
    urgent = replace(urgent, required_objects=(PRIORITY,))
    pods = (pod("train-0", "node-1", {"nvidia.com/gpu": "4"}, priority=others),)

    facts = good_cluster(urgent, pods=pods, required_objects={PRIORITY: priority_class})

    assert found(urgent, facts) == ([("occupied", "Node node-1")] if is_said else [])


def test_a_spare_of_no_use_is_a_note(needs):
    """The unit starts without it."""
    spared = replace(needs, pod_sets=tuple(replace(each, spares=("node-9",)) for each in needs.pod_sets if each.nodes))

    (finding,) = findings(spared, good_cluster(needs))

    assert (finding.check, finding.object, finding.blocks) == ("node", "Node node-9", False)


def test_a_fault_of_a_node_of_two_units_is_said_once(needs):
    """Units of different hours may share a node."""
    (prefill,) = (each for each in needs.pod_sets if each.component == "prefill")
    twice = replace(needs, pod_sets=(*needs.pod_sets, replace(prefill, owner="demo-prefill-1")))

    assert found(twice, with_node(good_cluster(needs), node("node-0", unschedulable=True))) == [("node", "Node node-0")]


def test_the_gateway_needs_a_node_too(needs):
    """Any that is open to it and has room; the units' own nodes count with what the units leave."""
    wanted = {"requests": {"cpu": "100"}}
    asking = changed_pods(needs, lambda spec: spec["containers"][0].update(resources=wanted))
    facts = good_cluster(asking)
    (finding,) = findings(asking, with_node(facts, node("node-3", taints=[TAINT])))

    assert found(asking, facts) == []
    assert (finding.check, finding.object) == ("gateway", "pods of demo-gateway")
    assert finding.reason == "none of 4 nodes is ready, admits it and has 100 cpu left"


def test_nodes_that_are_all_closed_to_the_gateway_say_why(needs):
    """Units stand their nodes' taints, and the gateway has tolerations of its own."""
    tolerant = changed_pods(needs, lambda spec: spec.update(tolerations=[{"operator": "Exists"}]), "prefill")
    tolerant = changed_pods(tolerant, lambda spec: spec.update(tolerations=[{"operator": "Exists"}]), "decode")
    facts = replace(good_cluster(needs), nodes=tuple(node(f"node-{index}", taints=[TAINT]) for index in range(4)))
    elsewhere = changed_pods(needs, lambda spec: spec.update(nodeSelector={"pool": "cpu"}), "gateway")

    (tainted,) = findings(tolerant, facts)
    (unlabelled,) = findings(elsewhere, good_cluster(needs))

    assert (tainted.check, tainted.object) == ("gateway", "pods of demo-gateway")
    assert tainted.reason.startswith("each of 4 nodes lacks a label that they ask for or has a taint: taints ")
    assert tainted.fix == "correct kubernetes.overlay.gateway_pod.spec: its nodeSelector, or its tolerations"
    assert unlabelled.reason.endswith("has a taint: labels pool=cpu")


def test_nodes_that_nobody_may_list_are_not_judged(needs):
    """Nothing is known of them."""
    assert found(needs, ClusterFacts(nodes=None, pods=None, namespace={"metadata": {"name": "tidemill"}})) == []
