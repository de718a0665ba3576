"""What pods on GPUs get, field by field of the spec's `kubernetes`."""

from dataclasses import replace
from math import ceil

import kubernetes_validate
import pytest

from planner.plan.pods import pods_of
from planner.spec.schema import Spec
from tests.templates.gpu_plans import (
    SPEC,
    container_of,
    gpu_plan,
    objects_of,
    of_kind,
    pod_of,
    rendered,
    unit_of,
    validate,
)

VOLUME = {"claim": "models", "mount_path": "/models"}
RDMA = {"resource": "rdma/hca", "count": 8}
EVERYTHING = {
    "image": f"registry.example.com/tidemill@sha256:{'0' * 64}",
    "volumes": [VOLUME],
    "resources": {"unit": {"cpus": 32, "memory": "512GiB"}},
    "rdma": RDMA,
    "networks": ["rdma-0", "rdma-1"],
    "nics": {"hca": ["mlx5_0", "mlx5_1"], "socket": "eth0"},
    "env": {"NCCL_DEBUG": "INFO", "HF_TOKEN": {"secret": "hugging-face", "key": "token"}},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}, {"key": "a", "effect": "NoExecute", "seconds": 9}],
    "node_selector": {"pool": "inference"},
    "gateway": {"image": "registry.example.com/tidemill-runtime:0.1.0"},
    "priority_class": "inference",
    "queue": "inference",
    "stage": {"source": "/models/r1", "host_path": "/mnt/nvme/r1"},
    "kernel_cache": "/mnt/nvme/kernels",
    "drain": "2min",
    "tls": {"issuer": "tidemill-ca"},
    "overlay": {
        "unit_pod": {
            "metadata": {"annotations": {"example.com/interfaces": "eth0"}},
            "spec": {
                "runtimeClassName": "nvidia",
                "schedulerName": "gpu-scheduler",
                "containers": [
                    {
                        "name": "runtime",
                        "resources": {"requests": {"hugepages-2Mi": "16Gi"}, "limits": {"hugepages-2Mi": "16Gi"}},
                        "volumeMounts": [{"mountPath": "/dev/hugepages", "name": "huge-pages"}],
                    }
                ],
                "volumes": [
                    {"name": "shared-memory", "emptyDir": {"sizeLimit": "64Gi"}},
                    {"name": "huge-pages", "emptyDir": {"medium": "HugePages-2Mi", "sizeLimit": "16Gi"}},
                ],
            },
        },
        "gateway_pod": {
            "spec": {
                "nodeSelector": {"pool": "cpu"},
                "tolerations": [{"key": "dedicated", "value": "inference", "effect": "NoSchedule"}],
            }
        },
        "objects": [{"kind": "Service", "name": "river-gateway", "patch": {"spec": {"type": "LoadBalancer"}}}],
    },
}


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """On H800s."""
    return gpu_plan(tmp_path_factory.mktemp("gpu"))


@pytest.fixture(scope="module")
def full(plan):
    """With every field that changes pods."""
    return rendered(plan, **EVERYTHING)


@pytest.mark.parametrize("unit_kind", ["leaderworkerset", "statefulset"])
def test_every_object_is_of_its_kind(plan, unit_kind):
    """Kubernetes knows every field of pods with everything, of LeaderWorkerSets by way of a Pod of their template."""
    objects = rendered(plan, **EVERYTHING, unit_kind=unit_kind)

    validate(objects, ["river-decode-0", "river-gateway"])
    pod_of(objects)["spec"]["hostNetwrok"] = True
    with pytest.raises(kubernetes_validate.ValidationError, match="hostNetwrok"):
        validate(objects, ["river-decode-0"])


def test_each_rank_has_a_gpu(plan):
    """The catalog's resource, as many as ranks on the node; limits and requests say the same."""
    resources = container_of(rendered(plan))["resources"]

    assert resources == {"requests": {"nvidia.com/gpu": "8"}, "limits": {"nvidia.com/gpu": "8"}}
    assert "resources" not in container_of(rendered(plan), "river-gateway")


@pytest.mark.parametrize(
    ("cluster", "kubernetes", "resource"),
    [
        ({"gpu": "cpu"}, {}, None),
        ({"gpu": "mi300x"}, {}, "amd.com/gpu"),
        ({"gpu": {"name": "own", "memory": "94GiB"}}, {}, "nvidia.com/gpu"),
        ({"gpu": {"name": "own", "memory": "94GiB"}}, {"gpu_resource": "a.b/c"}, "a.b/c"),
        ({}, {"gpu_resource": "nvidia.com/mig-7g.80gb"}, "nvidia.com/mig-7g.80gb"),
    ],
)
def test_the_resource_is_the_gpus_unless_the_spec_names_one(cluster, kubernetes, resource):
    """CPUs have none."""
    spec = Spec.model_validate(SPEC | {"cluster": SPEC["cluster"] | cluster, "kubernetes": kubernetes})

    assert {each.gpu_resource for each in pods_of(spec, {}).values()} == {resource}


@pytest.mark.parametrize(
    ("cluster", "joins"),
    [
        ({"gpu": "h800"}, False),
        ({"gpu": "gb200", "gpus_per_node": 4}, True),
        ({"gpu": {"name": "own", "memory": "94GiB"}}, False),
        ({"gpu": {"name": "own", "memory": "94GiB", "nvlink": "900GB/s", "nvlink_domain": 64}}, True),
    ],
)
def test_nvlink_joins_nodes_where_its_domain_is_larger(cluster, joins):
    """By the catalog, or by the spec's own description."""
    spec = Spec.model_validate(SPEC | {"cluster": SPEC["cluster"] | cluster})

    assert {each.nvlink_joins_nodes for each in pods_of(spec, {}).values()} == {joins}


def test_rdma_devices_come_with_pinned_memory(full, plan):
    """The plugin's resource, and IPC_LOCK for root alone: a process of another user would not get it."""
    container, without = container_of(full), container_of(rendered(plan))

    assert container["resources"]["limits"]["rdma/hca"] == container["resources"]["requests"]["rdma/hca"] == "8"
    assert container["securityContext"] == {
        "runAsNonRoot": False,
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
    }
    assert without["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "runAsUser" not in without["securityContext"]


@pytest.mark.parametrize(
    ("kubernetes", "reason"),
    [
        ({}, None),
        ({"rdma": RDMA}, "privileged: IPC_LOCK for RDMA"),
        ({"host_network": True}, "privileged: the network of the nodes"),
        ({"volumes": [{"host_path": "/mnt", "mount_path": "/models"}]}, "privileged: folders of the nodes"),
        ({"volumes": [VOLUME]}, None),
    ],
)
def test_the_namespace_admits_what_the_pods_need(plan, kubernetes, reason):
    """Its label says so and an annotation why; a namespace of the user's is not touched, the account says it there."""
    (namespace,) = of_kind(rendered(plan, **kubernetes), "Namespace").values()
    accounts = of_kind(rendered(plan, create_namespace=False, **kubernetes), "ServiceAccount")
    level = namespace["metadata"]["labels"].get("pod-security.kubernetes.io/enforce")
    annotation = "tidemill.dev/pod-security"

    assert level == (None if reason is None else "privileged")
    assert namespace["metadata"].get("annotations", {}).get(annotation) == reason
    assert accounts["river-runtime"]["metadata"].get("annotations", {}).get(annotation) == reason


def test_further_networks_are_an_annotation_of_pods(full, plan):
    """Multus' own, beside the overlay's; of units only, and none without."""
    assert pod_of(full)["metadata"]["annotations"] == {
        "k8s.v1.cni.cncf.io/networks": "rdma-0,rdma-1",
        "example.com/interfaces": "eth0",
    }
    assert "annotations" not in pod_of(full, "river-gateway")["metadata"]
    assert "annotations" not in pod_of(rendered(plan))["metadata"]


def test_the_nodes_network_still_finds_services(plan):
    """With the cluster's DNS, which pods on the nodes' network do not ask by themselves."""
    pod = pod_of(rendered(plan, host_network=True))["spec"]

    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert pod_of(rendered(plan))["spec"].keys().isdisjoint({"hostNetwork", "dnsPolicy"})


def variables(container):
    """Name -> value, secret or field."""
    return {each["name"]: each.get("value") or each["valueFrom"] for each in container["env"]}


def test_libraries_are_told_the_nics(full):
    """By whole names, in the GPUs' order, and the same interface to all; DeepEP itself asks for IBGDA."""
    found = variables(container_of(full))

    assert found["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1"
    assert (found["NVSHMEM_HCA_LIST"], found["NVSHMEM_ENABLE_NIC_PE_MAPPING"]) == ("mlx5_0:1,mlx5_1:1", "1")
    assert {found[f"{each}_SOCKET_IFNAME"] for each in ("NCCL", "GLOO")} == {"eth0"}
    assert found["NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME"] == "eth0"
    assert not any("IBGDA" in name for name in found)


def test_ranks_that_dispatch_prompts_take_the_nic_next_to_their_gpu(full):
    """Each is the first of its node in an NVSHMEM world of its local index, so all would be given the first NIC."""
    found = variables(container_of(full, "river-prefill-0"))

    assert found["NVSHMEM_HCA_LIST"] == "mlx5_0:1,mlx5_1:1"
    assert "NVSHMEM_ENABLE_NIC_PE_MAPPING" not in found


def test_variables_of_the_spec_win(plan):
    """Over those of the plan; secrets are references, and each variable stands once."""
    env = {"NCCL_SOCKET_IFNAME": "bond0", "HF_TOKEN": {"secret": "hugging-face", "key": "token"}}
    container = container_of(rendered(plan, nics={"socket": "eth0"}, env=env))
    found = variables(container)

    assert (found["NCCL_SOCKET_IFNAME"], found["GLOO_SOCKET_IFNAME"]) == ("bond0", "eth0")
    assert found["HF_TOKEN"] == {"secretKeyRef": {"name": "hugging-face", "key": "token"}}
    assert len(found) == len(container["env"])
    assert found["POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}


def test_shared_memory_has_a_size(full, plan):
    """2 GiB, or the overlay's; on GPUs only."""

    def sizes(objects, name="river-decode-0"):
        volumes = {each["name"]: each for each in pod_of(objects, name)["spec"]["volumes"]}
        mounts = container_of(objects, name)["volumeMounts"]
        return [volumes[each["name"]]["emptyDir"] for each in mounts if each["mountPath"] == "/dev/shm"]

    assert sizes(full) == [{"medium": "Memory", "sizeLimit": "64Gi"}]
    assert sizes(rendered(plan)) == [{"medium": "Memory", "sizeLimit": "2Gi"}]
    assert sizes(full, "river-gateway") == []


def test_an_overlay_adds_to_what_is_planned(full):
    """Huge pages stand beside the plan's devices, and their volume beside the plan's volumes."""
    container, volumes = container_of(full), pod_of(full)["spec"]["volumes"]

    assert container["resources"]["limits"]["hugepages-2Mi"] == "16Gi"
    assert container["resources"]["requests"] == {
        "cpu": "32",
        "memory": "512Gi",
        "nvidia.com/gpu": "8",
        "rdma/hca": "8",
        "hugepages-2Mi": "16Gi",
    }
    assert {"name": "huge-pages", "emptyDir": {"medium": "HugePages-2Mi", "sizeLimit": "16Gi"}} in volumes


@pytest.mark.parametrize(("memory", "written"), [("1536MiB", "1536Mi"), ("1024GiB", "1Ti"), ("1536GiB", "1536Gi")])
def test_sizes_are_as_the_api_server_writes_them(plan, memory, written):
    """In the largest unit that takes no fraction: else every look at the object would find a change."""
    resources = {"unit": {"cpus": 1, "memory": memory}}

    assert container_of(rendered(plan, resources=resources))["resources"]["limits"]["memory"] == written


def test_pods_run_where_and_before_whom_the_spec_says(full):
    """Tolerations, selector, classes and scheduler are of units' pods; the queue is of the unit itself."""
    pod = pod_of(full)["spec"]

    assert pod["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {"key": "a", "operator": "Equal", "effect": "NoExecute", "tolerationSeconds": 9},
    ]
    assert pod["nodeSelector"] == {"pool": "inference"}
    assert (pod["priorityClassName"], pod["runtimeClassName"]) == ("inference", "nvidia")
    assert (pod["schedulerName"], pod["terminationGracePeriodSeconds"]) == ("gpu-scheduler", 130)
    assert unit_of(full)["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "inference"
    assert "kueue.x-k8s.io/queue-name" not in pod_of(full)["metadata"]["labels"]
    assert "schedulerName" not in pod_of(full, "river-gateway")["spec"]


def test_an_image_is_named_by_its_digest(full):
    """As it is written."""
    assert container_of(full)["image"] == EVERYTHING["image"]


@pytest.mark.parametrize(("wanted", "joins", "num_domains"), [(None, True, 3), (False, True, 0), (None, False, 0)])
def test_a_unit_of_joined_nodes_has_a_compute_domain(plan, wanted, joins, num_domains):
    """Where NVLink joins its nodes: the object, and the claim of the template that NVIDIA's driver makes for it."""
    pods = {phase: replace(each, nvlink_joins_nodes=joins) for phase, each in plan.pods.items()}
    joined = plan.with_sections(written=plan.written | {"kubernetes": {"compute_domain": wanted}})
    vars(joined)["pods"] = pods  # as of another GPU
    objects = objects_of(joined)
    domains = of_kind(objects, "ComputeDomain")
    pod, container = pod_of(objects)["spec"], container_of(objects)

    assert len(domains) == num_domains
    for name, domain in domains.items():
        template = domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
        assert (template, domain["spec"]["numNodes"]) == (f"{name}-channel", 0)
    claims = [{"name": "compute-domain", "resourceClaimTemplateName": "river-decode-0-channel"}]
    assert pod.get("resourceClaims", []) == (claims if num_domains else [])
    assert container["resources"].get("claims", []) == ([{"name": "compute-domain"}] if num_domains else [])


def test_the_checkpoint_is_staged_before_ranks_start(full):
    """From the volume to the node's disk, by root, for only root may write there; ranks see the copy, read-only."""
    pod = pod_of(full)["spec"]
    (stage,) = pod["initContainers"]
    mounts = {each["mountPath"]: each for each in stage["volumeMounts"]}
    staged = {each["mountPath"]: each for each in container_of(full)["volumeMounts"]}["/checkpoint"]

    assert stage["command"] + stage["args"] == ["python", "-m", "runtime", "stage", "/models/r1", "/checkpoint"]
    assert (mounts["/models"]["readOnly"], "readOnly" in mounts["/checkpoint"]) == (True, False)
    assert (stage["securityContext"]["runAsUser"], stage["image"]) == (0, EVERYTHING["image"])
    assert stage["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert staged == {"name": "staged", "mountPath": "/checkpoint", "readOnly": True}
    assert {"name": "staged", "hostPath": {"path": "/mnt/nvme/r1", "type": "DirectoryOrCreate"}} in pod["volumes"]


def test_the_gateway_reads_the_original(full):
    """At the same path, without a copy of 700 GB for a tokenizer."""
    pod = pod_of(full, "river-gateway")["spec"]
    mounts = {each["mountPath"]: each for each in container_of(full, "river-gateway")["volumeMounts"]}

    assert mounts["/checkpoint"] == {
        "name": "volume-0",
        "mountPath": "/checkpoint",
        "subPath": "r1",
        "readOnly": True,
    }
    assert "initContainers" not in pod


def test_compiled_kernels_outlive_their_pod(plan):
    """In a folder of the node's, which only root may write: without RDMA as well, and then without any capability."""
    objects = rendered(plan, kernel_cache="/mnt/nvme/kernels")
    container, found = container_of(objects), variables(container_of(objects))
    folder = {"name": "kernels", "hostPath": {"path": "/mnt/nvme/kernels", "type": "DirectoryOrCreate"}}

    assert folder in pod_of(objects)["spec"]["volumes"]
    assert {"name": "kernels", "mountPath": "/var/cache/kernels"} in container["volumeMounts"]
    assert found["DG_JIT_CACHE_DIR"] == "/var/cache/kernels/deep_gemm"
    assert len({value for value in found.values() if str(value).startswith("/var/cache/kernels/")}) == 4
    assert container["securityContext"]["runAsUser"] == 0
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    (namespace,) = of_kind(objects, "Namespace").values()
    assert namespace["metadata"]["annotations"]["tidemill.dev/pod-security"] == "privileged: folders of the nodes"


@pytest.mark.parametrize(("max_requests", "depth"), [(511, None), (512, "1026"), (1024, "2050")])
def test_queues_hold_a_decode_steps_tokens(plan, max_requests, depth):
    """DeepEP refuses queues that do not hold two entries for each token and two more; prefill has no such step."""
    documents = {
        name: each | {"limits": each["limits"] | {"max_requests": max_requests}}
        for name, each in plan.launch_documents.items()
    }
    objects = rendered(plan.with_sections(launch_documents=documents))

    assert variables(container_of(objects)).get("NVSHMEM_QP_DEPTH") == depth
    assert "NVSHMEM_QP_DEPTH" not in variables(container_of(objects, "river-prefill-0"))


def test_another_image_may_stage(plan):
    """An engine's own has no runtime of ours."""
    stage, image = EVERYTHING["stage"], "tidemill-runtime:1"
    objects = rendered(plan, volumes=[VOLUME], stage=stage, tidemill_image=image)
    (container,) = pod_of(objects)["spec"]["initContainers"]

    assert container["image"] == image


@pytest.mark.parametrize(("rate", "seconds"), [("2GB/s", 600), ("1MB/s", None)])
def test_pods_get_the_time_that_their_weights_take(plan, rate, seconds):
    """As long again as planned, ten minutes at least; then a rank that stands still ends when the spec says."""
    container = container_of(rendered(plan, load_rate=rate, stall_timeout="5min"))
    num_bytes = plan.pods["decode"].weights_bytes * 8
    planned = num_bytes / (2e9 if rate == "2GB/s" else 1e6)
    startup, liveness = container["startupProbe"], container["livenessProbe"]

    assert startup["httpGet"] == liveness["httpGet"] == {"path": "/health", "port": "metrics"}
    assert startup["failureThreshold"] == ceil((planned + (seconds or max(planned, 600))) / startup["periodSeconds"])
    assert liveness["failureThreshold"] * liveness["periodSeconds"] == 300
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_nobody_knows_how_long_a_cpu_loads(tmp_path):
    """Without planned memory there is no probe that could end a pod too soon, and no budget or folder of memory."""
    objects = rendered(gpu_plan(tmp_path, gpu="cpu"))

    assert container_of(objects).keys().isdisjoint({"startupProbe", "livenessProbe", "resources"})
    assert of_kind(objects, "PodDisruptionBudget") == {}


@pytest.mark.parametrize(
    ("disruptions", "prefill", "decode"),
    [(None, 3, 4), (0, 4, 4), (1, 3, 3), (2, 1, 3)],
)
def test_evictions_end_whole_units_one_after_the_other(plan, disruptions, prefill, decode):
    """A budget of pods that lets go the first pod of a unit, and none of a further one: see `evictable`."""
    budgets = of_kind(rendered(plan, disruptions=disruptions), "PodDisruptionBudget")
    stay = {name: each["spec"]["minAvailable"] for name, each in budgets.items()}

    assert stay == {"river-prefill": prefill, "river-decode": decode}
    assert {each["spec"]["unhealthyPodEvictionPolicy"] for each in budgets.values()} == {"AlwaysAllow"}
    allowed = {None: 1, 0: 0, 1: 1, 2: 2}[disruptions]
    assert evictable(stay["river-prefill"], num_units=2, pods_per_unit=2) == allowed


def evictable(min_available, num_units, pods_per_unit):
    """How many units fall when somebody evicts whatever may go: one pod less, and its whole unit is not ready."""
    units_up = num_units
    while units_up and units_up * pods_per_unit - 1 >= min_available:
        units_up -= 1
    return num_units - units_up


def test_budgets_pick_the_pods_of_their_phase(plan):
    """And no others."""
    objects = rendered(plan)
    budgets = of_kind(objects, "PodDisruptionBudget")
    for phase, other in (("prefill", "decode"), ("decode", "prefill")):
        selector = budgets[f"river-{phase}"]["spec"]["selector"]["matchLabels"].items()
        assert selector <= pod_of(objects, f"river-{phase}-0")["metadata"]["labels"].items()
        assert not selector <= pod_of(objects, f"river-{other}-0")["metadata"]["labels"].items()


def test_monitors_find_every_rank_and_the_gateway(plan):
    """Each rank has metrics of its own, at a port of its own that the pod names."""
    objects = rendered(plan, monitors=True)
    monitors = of_kind(objects, "PodMonitor")
    asked = [each["port"] for each in monitors["river-runtime"]["spec"]["podMetricsEndpoints"]]
    ports = {each["name"]: each["containerPort"] for each in container_of(objects)["ports"]}

    assert asked == list(ports) == ["metrics", *(f"metrics-{rank}" for rank in range(1, 8))]
    assert list(ports.values()) == list(range(9400, 9408))
    gateway = monitors["river-gateway"]["spec"]
    labels = pod_of(objects, "river-gateway")["metadata"]["labels"]
    assert gateway["selector"]["matchLabels"].items() <= labels.items()
    assert of_kind(rendered(plan), "PodMonitor") == {}


def test_a_unit_may_be_a_stateful_set(plan):
    """The same pods, all at once; the variables that LeaderWorkerSet would set come from the pod's name and label."""
    objects, usual = rendered(plan, unit_kind="statefulset"), rendered(plan)
    unit = of_kind(objects, "StatefulSet")["river-decode-0"]
    spec, found = unit["spec"], variables(container_of(objects))

    assert of_kind(objects, "LeaderWorkerSet") == {}
    assert (spec["replicas"], spec["podManagementPolicy"], spec["serviceName"]) == (4, "Parallel", "river-decode-0")
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    assert spec["selector"]["matchLabels"].items() <= pod_of(objects)["metadata"]["labels"].items()
    assert found["LWS_LEADER_ADDRESS"] == "river-decode-0-0.river-decode-0.tidemill"
    assert found["LWS_GROUP_SIZE"] == "4"
    assert found["LWS_WORKER_INDEX"] == {"fieldRef": {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}}
    same = ("command", "args", "image", "ports", "volumeMounts", "resources", "securityContext", "startupProbe")
    assert [container_of(objects)[key] for key in same] == [container_of(usual)[key] for key in same]
    assert [each for each in objects if each["kind"] == "ConfigMap"] == [
        each for each in usual if each["kind"] == "ConfigMap"
    ]


def test_the_gateway_runs_where_it_is_told_and_not_where_units_do(plan, full):
    """In an image without GPU kernels, on nodes of its own; with the priority of units, which need it."""
    pod = pod_of(full, "river-gateway")["spec"]
    (container,) = pod["containers"]
    plain = pod_of(rendered(plan, image="mine:1"), "river-gateway")["spec"]

    assert container["image"] == EVERYTHING["gateway"]["image"]
    assert pod["nodeSelector"] == {"pool": "cpu"}
    assert [each["key"] for each in pod["tolerations"]] == ["dedicated"]
    assert pod["priorityClassName"] == "inference"
    assert plain["containers"][0]["image"] == "mine:1"
    assert not {"nodeSelector", "tolerations", "priorityClassName"} & plain.keys()


@pytest.mark.parametrize("stage", [None, EVERYTHING["stage"]], ids=["read in place", "staged"])
@pytest.mark.parametrize("own", [[{"claim": "tokenizer", "mount_path": "/checkpoint"}], []], ids=["a claim", "nothing"])
def test_the_gateway_may_mount_other_volumes_than_units(plan, stage, own):
    """A small one, or none where its image has the tokenizer; the weights are the units' alone."""
    objects = rendered(plan, volumes=[VOLUME], gateway={"volumes": own}, stage=stage)
    pod = pod_of(objects, "river-gateway")["spec"]
    claims = [each["persistentVolumeClaim"]["claimName"] for each in pod["volumes"] if "persistentVolumeClaim" in each]
    paths = {each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}

    assert claims == [each["claim"] for each in own]
    assert paths == {"/etc/tidemill", "/tmp", *(each["mount_path"] for each in own)}
    assert "/models" in {each["mountPath"] for each in container_of(objects)["volumeMounts"]}
