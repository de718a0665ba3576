"""Plans for other engines: what their JSON holds, what is read back, and what is rendered of it."""

import json

import kubernetes_validate
import pytest
import yaml

from planner.compiler import compile_plan
from planner.engines.adapters import gateway_container
from planner.facts.digest import pretty_json
from planner.manifests.render import render_files
from planner.plan.launch import launch_digest, restore_map, strip_map, unit_digest
from planner.plan.load import load_plan
from planner.plan.plan import document_digest, plan_digest
from planner.problems.errors import CallError, InfeasibleError
from planner.rules.check import check_spec
from planner.spec.kubernetes import KubernetesSpec
from planner.spec.schema import Spec

PAIR = """\
version: 1
name: pair
model: {catalog: deepseek-r1, checkpoint: /models/deepseek-r1}
engine: ENGINE
cluster: {gpu: h200, nodes: 6, gpus_per_node: 8}
prefill: {ep_size: 32, redundant_experts: 32, overlap: dual_batch, precision: fp8, max_request_tokens: 32768,
  max_batch_tokens: 16384}
decode: {ep_size: 16, redundant_experts: 32, overlap: OVERLAP, precision: fp8, max_requests: 128,
  max_request_tokens: 32768}
kubernetes:
  nics: {hca: [mlx5_0, mlx5_1]}
  volumes: [{host_path: /mnt/models, mount_path: /models}]
"""
UNITS = ("pair-prefill-0", "pair-decode-0")


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """A pair of units, planned for each engine."""
    path = tmp_path_factory.mktemp("engines") / "spec.yaml"
    made = {}
    for engine, overlap in {"sglang": "five_stage", "vllm": "dual_batch"}.items():
        path.write_text(PAIR.replace("ENGINE", engine).replace("OVERLAP", overlap))
        made[engine] = compile_plan(check_spec(path))
    return made


@pytest.fixture(scope="module")
def objects(plans):
    """Of each engine: the rendered objects, by kind and name."""

    def read(plan):
        files = (
            yaml.load(text, Loader=yaml.CSafeLoader)
            for name, text in render_files(plan).items()
            if "kustom" not in name
        )
        return {(each["kind"], each["metadata"]["name"]): each for each in files}

    return {engine: read(plan) for engine, plan in plans.items()}


def pod_of(objects, unit):
    """The pod template of a unit, and its container."""
    template = objects["LeaderWorkerSet", unit]["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    (container,) = template["spec"]["containers"]
    return template, container


def mounted(objects, template):
    """The files that the template's pods find beside their launch file, and that."""
    (volume,) = (each for each in template["spec"]["volumes"] if each["name"] == "launch")
    files = {}
    for source in volume["projected"]["sources"]:
        files |= objects["ConfigMap", source["configMap"]["name"]]["data"]
    return files


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_plan_names_the_version_that_its_units_are_told(plans, engine):
    """In its spec too, so that a later Tidemill, which knows another version, reads the same plan."""
    document = plans[engine].as_json()

    assert document["runnable"]
    version = {"name": engine, "version": plans[engine].spec.engine_version}
    assert document["spec"]["engine"] == version | {"args": {}}
    assert "split" not in document["spec"]
    for unit in UNITS:
        told = document["launch_documents"][f"{unit}.launch.json"]
        assert (told["kind"], told["engine"]) == (engine, version)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_plan_read_back_deploys_the_same(plans, engine, tmp_path):
    """Every file, byte for byte."""
    content = pretty_json(plans[engine].as_json()).encode()
    loaded = load_plan(content, tmp_path / "plan.json")

    assert render_files(loaded) == render_files(plans[engine])


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_command_that_was_edited_is_refused(plans, engine, tmp_path):
    """Even where every digest was computed again: the containers are made anew from the spec."""
    data = json.loads(pretty_json(plans[engine].as_json()))
    maps = {sha256: each["physical_to_logical"] for sha256, each in data["expert_maps"].items()}
    told = data["launch_documents"]["pair-decode-0.launch.json"]
    told["container"]["args"].append("--trust-remote-code")
    told["unit_digest"] = unit_digest(restore_map(told, maps))
    told["launch_digest"] = launch_digest(restore_map(told, maps))
    next(unit for unit in data["units"] if unit["name"] == "pair-decode-0")["unit_digest"] = told["unit_digest"]
    data["digest"] = plan_digest(data, Spec.model_validate(data["spec"]))
    data["document_digest"] = document_digest(data)
    with pytest.raises(CallError, match="S908") as error:
        load_plan(json.dumps(data).encode(), tmp_path / "plan.json")

    assert error.value.findings[0].path == "launch_documents.pair-decode-0.launch.json.container.args"


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_every_object_is_of_its_kind(objects, engine):
    """By Kubernetes' published schemas, strictly; LeaderWorkerSet has one of its own."""
    for (kind, _), document in objects[engine].items():
        if kind != "LeaderWorkerSet":
            kubernetes_validate.validate(document, "1.36", strict=True)


def test_sglangs_pods_run_its_server_with_our_map(plans, objects):
    """61 rows beside the launch files, where the command looks for them; the ports and probes of its server."""
    plan = plans["sglang"]
    for unit, phase in zip(UNITS, ("prefill", "decode"), strict=True):
        template, container = pod_of(objects["sglang"], unit)
        rows = json.loads(mounted(objects["sglang"], template)["expert-location.json"])["physical_to_logical_map"]

        assert container["command"] == ["python3", "-m", "sglang.launch_server"]
        assert container["image"] == "lmsysorg/sglang:v0.5.23"
        assert container["args"][container["args"].index("--init-expert-location") + 1] == (
            "/etc/tidemill/expert-location.json"
        )
        assert container["args"][container["args"].index("--disaggregation-ib-device") + 1] == "mlx5_0,mlx5_1"
        assert len(rows) == 61
        assert tuple(map(tuple, rows[3:])) == plan.expert_maps[plan.map_digests[phase]].physical_to_logical
        assert container["livenessProbe"]["timeoutSeconds"] == container["readinessProbe"]["timeoutSeconds"] == 30
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
        assert {"name": "SGLANG_HOST_IP", "value": "$(POD_IP)"} in container["env"]
        has_bootstrap = "sglang.ai/bootstrap-port" in template["metadata"].get("annotations", {})
        assert has_bootstrap == (phase == "prefill")


def test_vllms_pods_are_given_time_to_say_how_they_are(objects):
    """A second, which is Kubernetes' default, is not enough for a server that writes many answers."""
    for unit in UNITS:
        _, container = pod_of(objects["vllm"], unit)

        assert container["livenessProbe"]["timeoutSeconds"] == container["readinessProbe"]["timeoutSeconds"] == 5


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_pods_mount_their_launch_file_without_a_map_that_nobody_reads(plans, objects, engine):
    """Another launch file is another name, and restarts them; the map stands in it by its digest."""
    for unit in UNITS:
        template, _ = pod_of(objects[engine], unit)
        told = json.loads(mounted(objects[engine], template)[f"{unit}.launch.json"])

        assert told == strip_map(plans[engine].launch_documents[f"{unit}.launch.json"])


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_engines_and_routers_listen_on_their_pods_own_address(objects, engine):
    """Not on every address, which with the nodes' network would be every network of the node.

    vLLM's router answers to nobody but the proxy beside it.
    """
    units = [(pod_of(objects[engine], unit)[1], {"$(POD_IP)"}) for unit in UNITS]
    (router,) = objects[engine]["Deployment", "pair-gateway"]["spec"]["template"]["spec"]["containers"]
    of_router = {"sglang": {"$(POD_IP)"}, "vllm": {"127.0.0.1", "$(POD_IP)"}}[engine]
    for container, addresses in [*units, (router, of_router)]:
        words = container["args"]
        own = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        hosts = {words[index + 1] for index, word in enumerate(words) if word in ("--host", "--prometheus-host")}

        assert hosts == addresses
        assert "0.0.0.0" not in words
        assert own in container["env"]
        assert container["env"].index(own) < min(
            (container["env"].index(each) for each in container["env"] if each.get("value") == "$(POD_IP)"), default=9
        )


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_an_engine_that_starts_can_be_ended(objects, engine):
    """It is not process 1, which the kernel spares every signal that it has no handler for."""
    for unit in UNITS:
        assert pod_of(objects[engine], unit)[0]["spec"]["shareProcessNamespace"] is True


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_routers_may_see_pods_and_nothing_else(objects, engine):
    """They find the servers by label, so that their account reads pods of its own namespace."""
    role, binding = (objects[engine][kind, "pair-gateway"] for kind in ("Role", "RoleBinding"))
    pod = objects[engine]["Deployment", "pair-gateway"]["spec"]["template"]["spec"]

    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "pair-gateway", "namespace": "tidemill"}]
    assert pod["automountServiceAccountToken"] is True
    assert pod["containers"][0]["command"] == ["python3", "-m", f"{engine}_router.launch_router"]


@pytest.mark.parametrize(
    ("engine", "which"), [("sglang", ["leaderworkerset.sigs.k8s.io/worker-index=0"]), ("vllm", [])]
)
def test_routers_find_the_pods_that_answer(objects, engine, which):
    """SGLang's first pod of a unit answers, and every pod of vLLM's, at the port where its server listens."""
    (container,) = objects[engine]["Deployment", "pair-gateway"]["spec"]["template"]["spec"]["containers"]
    said = said_by(container["args"])
    for unit, phase in zip(UNITS, ("prefill", "decode"), strict=True):
        template, server = pod_of(objects[engine], unit)
        selector = said[f"--{phase}-selector"]
        labels = {f"{key}={value}" for key, value in template["metadata"]["labels"].items()}
        (port,) = (each["containerPort"] for each in server["ports"] if each["name"] == "http")

        assert [each for each in selector if each not in labels] == which
        assert said["--service-discovery-port"] == [str(port)]
    assert said["--service-discovery-namespace"] == ["tidemill"]


def said_by(words):
    """Option -> its values."""
    starts = [index for index, word in enumerate(words) if word.startswith("--")]
    return {words[start]: words[start + 1 : end] for start, end in zip(starts, [*starts[1:], None], strict=True)}


def seconds_of(probe):
    """How long it may fail."""
    return probe["failureThreshold"] * probe["periodSeconds"]


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_everybody_waits_for_an_engine_that_compiles(objects, engine):
    """The kubelet, the engine itself, its router, and whoever rolls the router out: half an hour at least."""
    own = {"sglang": "SGLANG_WARMUP_TIMEOUT", "vllm": "VLLM_ENGINE_READY_TIMEOUT_S"}[engine]
    deployment = objects[engine]["Deployment", "pair-gateway"]["spec"]
    (router,) = deployment["template"]["spec"]["containers"]
    for unit in UNITS:
        _, container = pod_of(objects[engine], unit)

        assert seconds_of(container["startupProbe"]) == 1800
        assert {"name": own, "value": "1800"} in container["env"]
    assert seconds_of(router["startupProbe"]) == 1800
    assert said_by(router["args"])["--worker-startup-timeout-secs"] == ["1800"]
    assert deployment["progressDeadlineSeconds"] > 1800


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_pods_leave_the_routers_list_before_they_refuse_requests(objects, engine):
    """The router hears of a pod's end at once, the pod itself some seconds later, and its time to drain is whole."""
    for unit in UNITS:
        template, container = pod_of(objects[engine], unit)
        leaving = container["lifecycle"]["preStop"]["sleep"]["seconds"]

        assert leaving > 0
        assert template["spec"]["terminationGracePeriodSeconds"] == leaving + 30 + 10


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_routers_notice_a_dead_pod_within_seconds(objects, engine):
    """Left to themselves they look once a minute and believe the third failure."""
    (router,) = objects[engine]["Deployment", "pair-gateway"]["spec"]["template"]["spec"]["containers"]
    said = said_by(router["args"])

    assert said["--health-check-interval-secs"] == ["2"]
    assert said["--health-failure-threshold"] == ["1"]
    assert said.get("--decode-policy") == {"sglang": None, "vllm": ["round_robin"]}[engine]


def test_a_proxy_stands_before_the_router_that_closes_nothing(objects):
    """It starts before the router and ends after it, and reads its file where the pod mounts it."""
    pod = {engine: each["Deployment", "pair-gateway"]["spec"]["template"] for engine, each in objects.items()}
    (edge,) = pod["vllm"]["spec"]["initContainers"]

    assert "initContainers" not in pod["sglang"]["spec"]
    assert (edge["restartPolicy"], edge["image"]) == ("Always", "nginxinc/nginx-unprivileged:1.29.4-alpine")
    assert edge["command"][-1] == "/etc/tidemill/edge.conf"
    assert "listen 8000;" in mounted(objects["vllm"], pod["vllm"])["edge.conf"]


def test_two_of_vllms_routers_stand_on_two_nodes(plans):
    """Where there are as many, and one of them stays when nodes are drained."""
    files = render_files(plans["vllm"].with_sections(written=plans["vllm"].written | {"gateway": {"replicas": 2}}))
    (deployment,) = (yaml.safe_load(text) for name, text in files.items() if name == "deployment-pair-gateway.yaml")
    spread = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]

    assert deployment["spec"]["replicas"] == 2
    assert [each["topologyKey"] for each in spread] == ["kubernetes.io/hostname"]
    assert "poddisruptionbudget-pair-gateway.yaml" in files


def test_a_phases_variables_are_in_its_pods_alone(plans):
    """They win over those of all units, which win over the engine's."""
    written = plans["vllm"].written
    of_all = {"VLLM_HOST_IP": "10.0.0.1", "A": "all", "B": "all"}
    changed = {
        "kubernetes": written["kubernetes"] | {"env": of_all},
        "decode": written["decode"] | {"env": {"A": "decode", "POD_IP_OF": "decode"}},
    }
    files = render_files(plans["vllm"].with_sections(written=written | changed))
    said = {}
    for unit in UNITS:
        pod = yaml.safe_load(files[f"leaderworkerset-{unit}.yaml"])["spec"]["leaderWorkerTemplate"]["workerTemplate"]
        said[unit] = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}

    assert said["pair-prefill-0"].items() >= of_all.items()
    assert said["pair-decode-0"].items() >= (of_all | changed["decode"]["env"]).items()
    assert "POD_IP_OF" not in said["pair-prefill-0"]


def test_a_plan_for_vllm_says_that_its_map_is_told_to_nobody(plans):
    """Its documents hold none."""
    documents = plans["vllm"].as_json()["launch_documents"]

    assert all("expert_map" not in each for each in documents.values())


def test_only_the_bundled_runtime_runs_on_this_machine(plans):
    """`tidemill up` refuses others as infeasible (S753)."""
    with pytest.raises(InfeasibleError, match="S753"):
        plans["sglang"].require_local()

    plans["sglang"].with_sections(written=plans["sglang"].written | {"engine": "tidemill"}).require_local()


@pytest.mark.parametrize(
    ("written", "images"),
    [
        ({}, {"sglang": "lmsysorg/sglang:v0.5.23", "vllm": "vllm/vllm-router:v0.1.17"}),
        ({"image": "own:1"}, {"sglang": "own:1", "vllm": "vllm/vllm-router:v0.1.17"}),
        ({"image": "own:1", "gateway": {"image": "router:2"}}, {"sglang": "router:2", "vllm": "router:2"}),
    ],
)
def test_vllms_router_is_not_in_vllms_image(plans, written, images):
    """SGLang's image holds both; whoever names the gateway's image decides."""
    for engine, plan in plans.items():
        kubernetes = KubernetesSpec.model_validate(written)
        spec = plan.spec.model_copy(update={"kubernetes": kubernetes})

        assert gateway_container(spec, 1800).image == images[engine]
