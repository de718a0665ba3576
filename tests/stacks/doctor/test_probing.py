"""The pods of a probe, and what is made of their last words."""

import json
from dataclasses import replace

import pytest

from planner.spec.kv_cache import KvDiskSpec
from stacks.doctor.probe_checks import probe_findings, probe_summary
from stacks.doctor.probing import Probe, _describe_running, _planned_nodes, _probe_manifests, _read_results
from tests.stacks.doctor.clusters import changed_pods, demo_needs

NODES = ("node-0", "node-1", "node-2", "node-3")
NAMES = {"demo-probe-0": "node-0", "demo-probe-1": "node-1"}


@pytest.fixture(scope="module")
def needs():
    """The demo's."""
    return demo_needs()


def found(probe):
    return [(each.check, each.object, each.blocks) for each in probe_findings(probe)]


def test_there_is_a_pod_for_each_planned_node(needs):
    """Pinned to it, with a name that the Service gives, and the script as its program."""
    service, *pods = _probe_manifests(needs, list(_planned_nodes(needs)), "tidemill", 600)
    terms = [
        each["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] for each in pods
    ]

    assert service["spec"]["publishNotReadyAddresses"]
    assert [each["nodeSelectorTerms"][0]["matchFields"][0]["values"] for each in terms] == [
        ["node-0"],
        ["node-1"],
        ["node-2"],
    ]
    assert [(each["spec"]["hostname"], each["spec"]["subdomain"]) for each in pods] == [
        (f"probe-{number}", "demo-probe") for number in range(3)
    ]
    command = pods[1]["spec"]["containers"][0]["command"]
    assert command[:2] == ["python3", "-c"]
    assert "def main(" in command[2]
    assert command[3:5] == ["1", "3"]


def test_a_probe_starts_where_a_unit_would(needs):
    """Its image, volumes, tolerations and security are the unit's; its GPUs and launch files are not."""

    def ask(spec):
        spec["tolerations"] = [{"key": "gpu", "operator": "Exists"}]
        spec["volumes"].append({"name": "models", "hostPath": {"path": "/mnt/models", "type": "Directory"}})
        mount = {"name": "models", "mountPath": "/models", "readOnly": True}
        spec["containers"][0]["volumeMounts"].append(mount)
        spec["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "8"}}

    changed = changed_pods(needs, ask)
    _, pod, *_ = _probe_manifests(changed, list(_planned_nodes(changed)), "tidemill", 600)
    (container,) = pod["spec"]["containers"]

    assert container["image"] == needs.pod_sets[0].template["spec"]["containers"][0]["image"]
    assert pod["spec"]["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert {each["name"] for each in pod["spec"]["volumes"]} == {"scratch", "models"}
    assert {each["name"] for each in container["volumeMounts"]} == {"scratch", "models"}
    assert "resources" not in container
    assert pod["spec"]["securityContext"]["runAsNonRoot"]


def pod(index, phase="Succeeded", said=None, waiting=None):
    state = {"terminated": {"message": json.dumps(said)}} if said else {"waiting": waiting} if waiting else {}
    container = {"name": "probe", "image": "x", "state": state}
    status = {"phase": phase, "containerStatuses": [container] if state else []}
    return {"metadata": {"name": f"demo-probe-{index}"}, "spec": {"nodeName": NODES[index]}, "status": status}


def test_pods_try_the_disk_where_their_ranks_keep_kv(needs):
    """Those of prefill mount it, so they are told its path; those of decode are not."""
    mount = {"name": "kv", "mountPath": "/kv"}
    mounting = changed_pods(needs, lambda spec: spec["containers"][0]["volumeMounts"].append(mount), "prefill")
    keeping = replace(mounting, disk=KvDiskSpec(path="/kv", size="1TB"))
    _, *pods = _probe_manifests(keeping, list(_planned_nodes(keeping)), "tidemill", 600)

    assert [each["spec"]["containers"][0]["command"][9:] for each in pods] == [["/kv"], [], []]


def test_a_disk_that_is_less_than_the_spec_says_is_a_note():
    """Ranks serve without it. What it has and what the spec says stand side by side."""
    good = {"bytes": 10**12, "write_mb_per_s": 7000.0, "read_mb_per_s": 6500.0, "is_nameless": False}
    disks = (good, good | {"bytes": 10**9}, good | {"write_mb_per_s": 500.0}, {"error": "Permission denied"})
    names = {f"demo-probe-{number}": node for number, node in enumerate(NODES)}
    rates = [None, None, None, None]
    probe = _read_results(
        names, [pod(index, said={"missing": [], "mb_per_s": rates, "disk": each}) for index, each in enumerate(disks)]
    )
    found = list(probe_findings(probe, KvDiskSpec(path="/kv", size="1TB", bandwidth="6GB/s")))

    assert [(each.check, each.object, each.blocks) for each in found] == [
        ("disk", f"Node {node}", False) for node in NODES[1:]
    ]
    assert "has 1.0 GB there, less than kv_cache.disk.size (1,000.0 GB)" in found[0].reason
    assert found[1].reason == "it writes 500 MB/s to /kv and reads 6500; kv_cache.disk.bandwidth says 6000"
    assert found[2].reason == "pods cannot write to /kv there: Permission denied"
    assert probe_summary(probe).endswith(
        "KV on 3 disks, at least 500 MB/s written and 6500 read; 3 disks can link no file without a name, so ranks "
        "rename theirs"
    )


def test_last_words_become_rates_from_node_to_node():
    """A pod says what it received. Kubernetes holds it for running a moment longer than its container runs."""
    pods = [
        pod(0, "Running", said={"missing": [], "mb_per_s": [None, 100.0]}),
        pod(1, said={"missing": [], "mb_per_s": [90.0, None]}),
    ]

    probe = _read_results(NAMES, pods)

    assert probe.mb_per_s == {("node-1", "node-0"): 100.0, ("node-0", "node-1"): 90.0}
    assert found(probe) == []
    assert probe_summary(probe) == (
        "all to all between 2 nodes: 100 MB/s between two nodes in the median, 90 in the worst case (node-0 to node-1)"
    )


NO_IMAGE = {"reason": "ErrImagePull", "message": "not found"}


def test_a_node_that_cannot_have_the_image_is_said_alone():
    """The others waited for it, and are not to blame."""
    pods = [pod(0, "Running"), pod(1, "Pending", waiting=NO_IMAGE)]

    assert _describe_running(pods) is None
    probe = _read_results(NAMES, pods)
    (finding,) = probe_findings(probe)
    assert (finding.check, finding.object) == ("image", "Node node-1")
    assert "image x cannot be had (not found)" in finding.reason
    assert finding.fix == "correct kubernetes.image in the spec, or load it on the nodes"
    assert probe_summary(probe) == "nothing was measured between 2 nodes"


def test_pods_are_waited_for_while_they_may_still_end():
    """Until each has its last words, or waits for one that cannot start."""
    said = {"missing": [], "mb_per_s": [None, 1.0]}

    assert _describe_running([pod(0, "Pending"), pod(1, "Pending", waiting=NO_IMAGE)]) == "1 of 2 probes run"
    assert _describe_running([pod(0, "Running"), pod(1, said=said)]) == "1 of 2 probes run"
    assert _describe_running([pod(0, said=said), pod(1, said=said)]) is None


def test_a_node_that_is_cut_off_is_said_once():
    """All others miss it, and it misses all."""
    unreached = {"node-0": ("node-2",), "node-1": ("node-2",), "node-2": ("node-0", "node-1", "node-3")}

    (finding,) = probe_findings(Probe(NODES, {}, unreached, {}))

    assert (finding.check, finding.object, finding.blocks) == ("reach", "Node node-2", True)
    assert finding.reason == "pods there have no connection with those on node-0, node-1, node-3"


def test_two_broken_pairs_are_two_findings():
    """No single node explains them."""
    unreached = {"node-0": ("node-1",), "node-2": ("node-3",)}

    assert found(Probe(NODES, {}, unreached, {})) == [("reach", "Node node-0", True), ("reach", "Node node-2", True)]


def test_a_node_that_has_not_started_is_not_cut_off_besides():
    """Its own finding says why nobody reaches it."""
    unreached = {"node-0": ("node-1",), "node-2": ("node-1",)}

    assert found(Probe(NODES, {"node-1": "no image; correct it"}, unreached, {})) == [("image", "Node node-1", True)]


def test_a_slow_node_is_a_note():
    """Against the median of all pairs: one slow link of three does not make its peers slow."""
    rates = {(one, other): 1000.0 for one in NODES for other in NODES if one != other}
    slow = {pair: 100.0 if "node-3" in pair else rate for pair, rate in rates.items()}

    assert found(Probe(NODES, {}, {}, rates)) == []
    assert found(Probe(NODES, {}, {}, slow)) == [("slow", "Node node-3", False)]


ODD_WORDS = [
    "Traceback x",
    "[]",
    "{}",
    '{"missing": [99], "mb_per_s": [null, 1]}',
    '{"missing": [], "mb_per_s": [1, 1, 1, 1, 1]}',
    '{"missing": "ab", "mb_per_s": [null, 1]}',
    '{"missing": [], "mb_per_s": ["x", null]}',
    '{"missing": [], "mb_per_s": [NaN, 1e400]}',
    '{"missing": [], "mb_per_s": [null, 1], "disk": {"bytes": "x"}}',
    "[" * 5000,
]


@pytest.mark.parametrize("words", ODD_WORDS)
def test_words_that_no_probe_writes_are_a_finding(words):
    """An image's entrypoint may write anything; what others measured stands."""
    odd = pod(0, said=["x"])
    odd["status"]["containerStatuses"][0]["state"]["terminated"]["message"] = words

    probe = _read_results(NAMES, [odd, pod(1, said={"missing": [], "mb_per_s": [90.0, None]})])

    assert found(probe) == [("image", "Node node-0", True)]
    assert probe.mb_per_s == {("node-0", "node-1"): 90.0}
