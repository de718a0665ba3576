"""Rendered units of SGLang on real nodes: they start, are ready, restart as a group, and are drained.

A prefill unit on one node, a decode unit on two, and the router. The engine itself is not run: no node here has a GPU.
What is replaced, and nothing else of what `render` writes:

    image      busybox with this machine's Python and SGLang's unpacked wheel mounted
    command    python3 -m sglang.launch_server         ->  sglang_stand_in.py server: SGLang's own parser and check,
                                                           sockets where the arguments say, answers that quote requests
               python3 -m sglang_router.launch_router  ->  sglang_stand_in.py router: SGLang's real router
    GPUs       nodes say that they have eight

SGLang's imports take most of the time: 5.6 s of CPU for each of six processes.
"""

import json
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml
from kubernetes import client

from planner.compiler import compile_plan
from planner.rules.check import check_spec
from tests.cluster.engine_units import gpus_offered, is_ready, pods_of, router_pod, units_deployed
from tests.planner.engines.wheels import require

NAMESPACE = "engines"
PREFILL, DECODE, GATEWAY = "wide-prefill-0", "wide-decode-0", "wide-gateway"
NODES = ("node-0", "node-1", "node-2")
SOURCES = "/sglang"
STAND_IN = ["python", "-m", "tests.cluster.sglang_stand_in"]
READY_S, RESTARTED_S = 300, 300
DRAIN, GONE_S = "3min", 180  # so what is gone by then has left by itself
BOOTSTRAP_PORT = 8998
SPEC = {
    "version": 1,
    "name": "wide",
    "model": {"catalog": "deepseek-r1", "checkpoint": "/usr/share/deepseek-r1"},
    "engine": "sglang",
    "cluster": {"gpu": "h200", "nodes": [{"name": name} for name in NODES], "gpus_per_node": 8},
    "prefill": {"ep_size": 8, "precision": "fp8", "max_request_tokens": 8192},
    "decode": {"ep_size": 16, "precision": "fp8", "max_requests": 64, "max_request_tokens": 8192},
}


@pytest.fixture(scope="module")
def plan(cluster, tmp_path_factory):
    """What is deployed: the overlay replaces the commands, and gives the router what the units mount."""
    volumes = [*cluster.volumes, {"mount_path": SOURCES, "host_path": str(require("sglang"))}]
    container = {"name": "runtime", "command": [*STAND_IN, "server", SOURCES]}
    router = router_pod(volumes, command=[*STAND_IN, "router", SOURCES])
    kubernetes = {
        "namespace": NAMESPACE,
        "image": cluster.image,
        "volumes": volumes,
        "drain": DRAIN,
        "resources": {"unit": {"cpus": 0.5, "memory": "2GiB"}, "gateway": {"cpus": 0.1, "memory": "1GiB"}},
        "overlay": {"unit_pod": {"spec": {"containers": [container]}}, "gateway_pod": {"spec": router}},
    }
    path = tmp_path_factory.mktemp("sglang") / "spec.yaml"
    path.write_text(yaml.safe_dump(SPEC | {"kubernetes": kubernetes}))
    return compile_plan(check_spec(path))


@pytest.fixture(scope="module")
def core(cluster):
    """The core API, with eight GPUs on each node while the module runs."""
    with gpus_offered(cluster, NODES) as api:
        yield api


@pytest.fixture(scope="module")
def up(cluster, core, plan):
    """The API, when all units and the router are ready; afterwards everything is gone."""
    began = time.monotonic()
    with units_deployed(cluster, plan) as api:
        say(f"ready after {time.monotonic() - began:.0f} s")
        yield api


def say(text):
    """For whoever watches the seconds."""
    print(f"\nSGLang's units: {text}", file=sys.stderr)


def pods(core, unit):
    """Pod's name -> pod, of those that are not on their way out."""
    return pods_of(core, NAMESPACE, unit)


def uids(core, unit):
    """Of the pods that are ready."""
    return {each.metadata.uid for each in pods(core, unit).values() if is_ready(each)}


def serves(core):
    """Whether the router knows both units; until then its Service has nobody behind it."""
    try:
        return "came" in ask(core, "hello")
    except OSError:
        return False


def router_url(core):
    """The URL of the router's Service."""
    service = core.read_namespaced_service(GATEWAY, NAMESPACE).spec
    return f"http://{service.cluster_ip}:{service.ports[0].port}"


def ask(core, text):
    """One request to the router's Service; what the decode unit says that came."""
    url = f"{router_url(core)}/generate"
    request = urllib.request.Request(url, json.dumps({"text": text}).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def test_each_pod_takes_its_arguments_on_its_planned_node(up, core, plan):
    """SGLang's parser and check accept them in the pods, with the kubelet's values; a pod is a node of the plan."""
    for unit in plan.units:
        there = pods(core, unit.name)

        assert {each.spec.node_name for each in there.values()} == set(unit.nodes)
        for each in there.values():
            said = core.read_namespaced_pod_log(each.metadata.name, NAMESPACE)
            rank = each.metadata.labels["leaderworkerset.sigs.k8s.io/worker-index"]
            assert f"pod {rank} of {len(unit.nodes)} answers at ('{each.status.pod_ip}', 30000)" in said


def test_the_real_router_finds_the_units_by_their_labels(cluster, up, core):
    """A request goes to both phases: decode is told the prefill pod's address and bootstrap port."""
    (prefill,), first = pods(core, PREFILL).values(), pods(core, DECODE)[f"{DECODE}-0"]
    cluster.wait_until(lambda: serves(core), "the router knows both units", READY_S)
    answer = ask(core, "hello")

    assert answer["text"] == first.status.pod_ip
    assert (answer["came"]["bootstrap_host"], answer["came"]["bootstrap_port"]) == (
        prefill.status.pod_ip,
        BOOTSTRAP_PORT,
    )


@pytest.mark.parametrize("key", ["", "closed"])
def test_nobody_may_change_the_routers_servers(up, core, key):
    """Its routes for administrators are closed, with the key in its arguments too."""
    for method, path in (("GET", "/workers"), ("POST", "/workers"), ("POST", "/flush_cache")):
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        content = json.dumps({"url": "http://10.0.0.1:1"}).encode()
        request = urllib.request.Request(f"{router_url(core)}{path}", content, headers, method=method)
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(request, timeout=10)

        assert error.value.code in (401, 403)


def test_a_group_restarts_whole_when_a_pod_dies(cluster, up, core):
    """Both pods of the decode unit are new and ready; the prefill unit is left alone."""
    before, others = uids(core, DECODE), uids(core, PREFILL)
    began = time.monotonic()
    core.delete_namespaced_pod(f"{DECODE}-0-1", NAMESPACE, grace_period_seconds=1)

    cluster.wait_until(
        lambda: len(uids(core, DECODE)) == 2 and not uids(core, DECODE) & before, "the group is new", RESTARTED_S
    )

    say(f"a group restarted after {time.monotonic() - began:.0f} s")
    assert uids(core, PREFILL) == others


def test_a_unit_that_is_scaled_down_answers_first(cluster, up, core):
    """A request that is under way is answered, through the router; then the pods leave, the first one first."""
    api = client.CustomObjectsApi(cluster.api)
    cluster.wait_until(lambda: serves(core), "the router knows the new unit", READY_S)
    with ThreadPoolExecutor(1) as caller:
        answer = caller.submit(ask, core, "wait 8")
        time.sleep(1)
        began = time.monotonic()
        api.patch_namespaced_custom_object_scale(
            "leaderworkerset.x-k8s.io", "v1", NAMESPACE, "leaderworkersets", DECODE, {"spec": {"replicas": 0}}
        )
        cluster.wait_until(lambda: f"{DECODE}-0" not in pods(core, DECODE), "the first pod leaves", GONE_S)
        was_under_way = not answer.done()
        assert "came" in answer.result()
    label = f"tidemill.dev/unit={DECODE}"
    cluster.wait_until(
        lambda: not core.list_namespaced_pod(NAMESPACE, label_selector=label).items, "the unit is gone", GONE_S
    )

    say(f"a unit was gone after {time.monotonic() - began:.0f} s")
    assert was_under_way
