"""The demo's plan by `pulumi up` on real nodes, three and a spare: it serves, it is what was rendered, and it heals.

One deployment, and the tests in the order of its life: made, used, looked at, changed, hurt, removed.
"""

import json
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest
import yaml
from kubernetes import client
from openai import OpenAI, OpenAIError
from tokenizers import Tokenizer

from planner.facts.digest import pretty_json
from planner.manifests.render import KUSTOMIZATION, render_files
from stacks.kube.manifest import OBJECTS
from tests.cluster.cluster import NODE_GRACE_S
from tests.cluster.deployed import Deployed, listing, write_spec
from tests.cluster.objects import Objects, assert_holds
from tests.cluster.products import PULUMI, PULUMI_YAML
from tests.cluster.pulumi import Pulumi
from tests.stacks.deployments import CHECKPOINT, get_json, samples, total, wait_until

MODEL = "tidemill-demo"
DECODE, PREFILL, GATEWAY = "demo-decode-0", "demo-prefill-0", "demo-gateway"
PROMPTS = [[0, 5 + number, 100 + number, 2000 - number] for number in range(20)]
MAX_TOKENS = 32
NUM_CLIENTS = 10
NUM_STEADY = 4
END = 1  # the checkpoint's end-of-text token
ROWS = "tidemill_expert_rows_total"
HEALED_S = 400  # on two busy cores it took 160


@pytest.fixture(scope="module")
def deployed(cluster, toolchain, tmp_path_factory):
    """A stack, not up yet, with one node more than its units need."""
    (executable,) = toolchain(PULUMI)
    made = Deployed.of_demo(executable, tmp_path_factory.mktemp("stack"), cluster, "demo")
    made.change_spec(lambda spec: spec["cluster"].update(nodes=4, spares=["node-3"]))
    return made


@pytest.fixture(scope="module")
def before(deployed):
    """Everything that is in the cluster before the first `up`."""
    return listing(deployed.cluster.api)


@pytest.fixture(scope="module")
def first(before, deployed):
    """`up`, then one request at once; how both went."""
    began = time.monotonic()
    run = deployed.pulumi.up()
    seconds = time.monotonic() - began
    assert run.status == 0, run.output
    answer = openai(deployed).completions.create(model=MODEL, prompt=PROMPTS[0], max_tokens=4, temperature=0)
    print(f"\npulumi up: {seconds:.0f} s", file=sys.stderr)
    yield answer
    deployed.pulumi.destroy()  # when a test failed half-way; otherwise there is nothing left to do


@pytest.fixture(scope="module")
def up(first, deployed):
    """The deployment, up."""
    return deployed


def openai(deployed, endpoint=None):
    """The public client, which tries everything once; of the gateway's Service unless one gateway is named."""
    return OpenAI(base_url=f"{endpoint or deployed.endpoint()}/v1", api_key="none", max_retries=0, timeout=120)


def serves(deployed):
    """Whether a request gets an answer."""
    answer = openai(deployed).completions.create(model=MODEL, prompt=PROMPTS[1], max_tokens=4, temperature=0)
    return bool(answer.choices[0].text)


@contextmanager
def steady_requests(deployed, endpoint=None):
    """Clients who ask one after the other until the block ends; what they were answered, or why not."""
    answers, is_over = [], Event()

    def ask(number):
        calls = openai(deployed, endpoint).completions
        while not is_over.is_set():
            try:
                answers.append(calls.create(model=MODEL, prompt=PROMPTS[number], max_tokens=8, temperature=0).id)
            except OpenAIError as error:
                answers.append(error)

    with ThreadPoolExecutor(NUM_STEADY) as clients:
        asking = [clients.submit(ask, number) for number in range(NUM_STEADY)]
        try:
            yield answers
        finally:
            is_over.set()
    for each in asking:
        each.result()


def rank_samples(deployed, unit):
    """(node, metrics) of each of the unit's ranks, in order."""
    nodes = {pod.spec.node_name: pod.status.pod_ip for pod in deployed.pods(unit)}
    ranks = next(each.rank_places for each in deployed.plan.units if each.name == unit)
    return [(rank.node, samples(nodes[rank.node], 9400 + rank.local_rank)) for rank in ranks]


def live(deployed, document):
    """The object as the cluster has it."""
    cache = deployed.spec.with_name("discovery.json")
    return Objects(deployed.cluster.api, str(cache)).read(document)


def rendered(deployed):
    """File name -> object, of what `tidemill render` writes."""
    files = render_files(deployed.plan)
    return {name: yaml.safe_load(text) for name, text in files.items() if name != KUSTOMIZATION}


def test_status_says_what_is_not_there(deployed, before):
    """Before `up` every unit is absent, which is no failure of `status`."""
    done = deployed.run_status()

    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [
            "demo: http://demo-gateway.demo:8000, plan not applied",
            "  demo-prefill-0  prefill  2 ranks  absent",
            "  demo-decode-0  decode  4 ranks  absent",
        ],
    )


def test_status_of_an_unknown_cluster_is_one_line(deployed):
    """With what is wrong and what to do."""
    done = deployed.run_status(context="elsewhere")

    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "the cluster cannot be asked" in done.stderr
    assert "elsewhere" in done.stderr


def test_the_first_request_after_up_succeeds(first):
    """Once, without a retry, through the gateway's Service: `up` returned when the demo could answer."""
    assert first.choices[0].text
    assert first.usage.completion_tokens == 4


def test_texts_equal_the_local_ones(up, tmp_path):
    """20 greedy texts, token by token, whatever the layout and batch: here three nodes, there one offline process."""
    (tmp_path / "ids.json").write_text(json.dumps(PROMPTS))
    command = [str(Path(sys.executable).with_name("tidemill")), "generate", "bundled:demo", "--prompt-ids"]
    flags = [str(tmp_path / "ids.json"), "--max-tokens", str(MAX_TOKENS)]
    local = json.loads(subprocess.run([*command, *flags], capture_output=True, check=True).stdout)["outputs"]

    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        served = list(clients.map(lambda prompt: list(streamed(up, prompt)), PROMPTS))

    decode = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json")).decode
    assert served == [[decode([token]) for token in ids if token != END] for ids in local]


def streamed(deployed, prompt):
    """The text of each token, as it arrives."""
    request = {"model": MODEL, "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0}
    chunks = openai(deployed).completions.create(**request, stream=True)
    return (chunk.choices[0].text for chunk in chunks if chunk.choices and chunk.choices[0].text)


def test_a_unit_is_as_many_pods_as_nodes(up):
    """Decode EP4: two pods of two ranks, on the two nodes that were planned for it, though the spare is free too."""
    report = get_json(f"{up.endpoint()}/readyz")
    (decode,) = (unit for unit in report["units"] if unit["unit"] == DECODE)

    assert {pod.spec.node_name for pod in up.pods(DECODE)} == {"node-1", "node-2"}
    assert [rank["node"] for rank in decode["ranks"]] == ["node-1", "node-1", "node-2", "node-2"]
    assert all(rank["state"] == "ready" for rank in decode["ranks"])


def test_expert_parallelism_crosses_nodes(up):
    """One request's tokens are computed by experts on both nodes, and no rank holds all experts."""
    before = [total(rank, ROWS) for _, rank in rank_samples(up, DECODE)]

    openai(up).completions.create(model=MODEL, prompt=PROMPTS[2], max_tokens=24, temperature=0)

    after = rank_samples(up, DECODE)
    worked = {node for (node, rank), rows in zip(after, before, strict=True) if total(rank, ROWS) > rows}
    assert worked == {"node-1", "node-2"}
    for _, rank in after:
        assert total(rank, "tidemill_dispatch_bytes_total") > 0
        experts = {
            sample.labels["expert"] for sample in rank if sample.name == ROWS and sample.labels["moe_layer"] == "0"
        }
        assert len(experts) < 32


def test_applied_objects_equal_the_rendered_files(up):
    """Every object of `tidemill render` is in the state as it was rendered, and in the cluster; there are no others."""
    files = rendered(up)
    applied = [manifest for each in up.pulumi.resources() for manifest in manifests(each)]

    assert sorted(map(pretty_json, applied)) == sorted(map(pretty_json, files.values()))
    for name, document in files.items():
        assert_holds(live(up, document), document, name)


def manifests(resource):
    """Those of a resource of the state; none of a list or a component."""
    inputs = resource.get("inputs", {})
    if resource["type"] == OBJECTS:
        return list(inputs.values())
    return [inputs] if "apiVersion" in inputs else []


def test_nobody_set_replicas(up):
    """The field belongs to whoever scales."""
    for document in rendered(up).values():
        if document["kind"] == "LeaderWorkerSet":
            managers = live(up, document)["metadata"]["managedFields"]
            assert not [each for each in managers if "f:replicas" in each["fieldsV1"].get("f:spec", {})]


def test_a_second_preview_is_clean(up):
    """Nothing that the server filled in or wrote differently looks like a change."""
    assert_settled(up)


def assert_settled(deployed):
    """A preview finds nothing to do."""
    preview = deployed.pulumi.preview("--refresh", "--expect-no-changes")
    assert (preview.steps, preview.changes, preview.status) == ({}, {}, 0)


def test_a_hand_edit_is_named_and_undone(up):
    """One field, changed behind our back: the preview names that path and no other, and `up` restores it."""
    apps = client.AppsV1Api(up.cluster.api)
    edit = {"spec": {"minReadySeconds": 7}}
    apps.patch_namespaced_deployment(GATEWAY, up.namespace, edit, field_manager="kubectl-edit")

    preview = up.pulumi.preview("--refresh")
    run = up.pulumi.up()

    assert preview.changes == {GATEWAY: {"Deployment.spec.minReadySeconds": "update"}}
    assert run.status == 0, run.output
    assert apps.read_namespaced_deployment(GATEWAY, up.namespace).spec.min_ready_seconds == 2
    assert_settled(up)


def test_a_change_of_the_spec_is_named(up):
    """More CPU for the gateway: its Deployment, and no other object."""
    up.change_spec(lambda spec: spec["kubernetes"]["resources"]["gateway"].update(cpus=0.2))
    units = up.uids(DECODE) | up.uids(PREFILL)

    preview = up.pulumi.preview("--refresh")
    run = up.pulumi.up()

    assert preview.changes == {
        GATEWAY: {"Deployment.spec.template.spec.containers[0].resources.requests.cpu": "update"}
    }
    assert run.status == 0, run.output
    assert up.uids(DECODE) | up.uids(PREFILL) == units
    assert serves(up)


def test_another_launch_file_restarts_only_its_unit(up):
    """Prefill without redundant experts: its pods are new ones, decode's and the gateway's are not."""
    before = {owner: up.uids(owner) for owner in (DECODE, GATEWAY, PREFILL)}
    up.change_spec(lambda spec: spec["prefill"].update(redundant_experts=0))

    run = up.pulumi.up()

    assert run.status == 0, run.output
    assert not up.uids(PREFILL) & before[PREFILL]
    assert {owner: up.uids(owner) for owner in (DECODE, GATEWAY)} == {
        owner: before[owner] for owner in (DECODE, GATEWAY)
    }
    wait_until_serving(up)
    assert_settled(up)


def test_a_lost_worker_restarts_its_whole_group(up):
    """Both pods are new, `status` said that the unit was not ready meanwhile, and it serves again."""
    before = up.uids(DECODE)
    worker = up.pods(DECODE)[1].metadata.name

    client.CoreV1Api(up.cluster.api).delete_namespaced_pod(worker, up.namespace, grace_period_seconds=1)
    down = up.states_until(DECODE, "starting", HEALED_S)
    back = up.states_until(DECODE, "ready", HEALED_S)

    assert down[-1].reason
    assert back[-1].state == "ready"
    assert not up.uids(DECODE) & before
    wait_until_serving(up)


def test_no_private_key_is_in_state_manifests_events_or_logs(up):
    """No line of any certificate's key is in anything but etcd, neither as it is nor in base64."""
    core = client.CoreV1Api(up.cluster.api)
    secrets = core.list_namespaced_secret(up.namespace).items
    keys = [b64decode(each.data["tls.key"]) for each in secrets if each.type == "kubernetes.io/tls"]
    lines = [line for key in keys for line in key.splitlines()[1:-1]]
    canaries = [*lines, *(b64encode(key)[len(key) // 2 :][:40] for key in keys)]
    kept = [*up.pulumi.home.rglob("*"), *up.cluster.logs.rglob("*"), up.spec, up.write_plan("canary.json")]
    texts = {
        path: path.read_bytes() for path in kept if path.is_file() and not {"plugins", "etcd-data"} & {*path.parts}
    }
    texts |= {name: text.encode() for name, text in render_files(up.plan).items()}
    texts["events and pods"] = "".join(
        str(each) for each in (core.list_event_for_all_namespaces(), core.list_pod_for_all_namespaces())
    ).encode()

    assert len(keys) == len(up.plan.units) + 1
    assert len(texts) > len(kept) // 4
    assert [str(where) for where, text in texts.items() if any(canary in text for canary in canaries)] == []


def test_a_spare_takes_the_place_of_a_destroyed_node(up):
    """SIGKILL of a node, and then its Node goes, as a cloud's controller removes it: the unit serves on the spare.

    Nobody plans again or touches the unit. `status` said why it had failed, soon after Kubernetes may know, and says
    then where it is. The same text comes from there. The node, booted again, is not needed for that.
    """
    text = up_text(up)
    began = time.monotonic()
    up.cluster.crash_node("node-2")
    try:
        seen = up.states_until(DECODE, "failed", NODE_GRACE_S + 60)
        client.CoreV1Api(up.cluster.api).delete_node("node-2")
        up.states_until(DECODE, "ready", HEALED_S)
        wait_until_serving(up)
        print(f"\nserves on the spare: {time.monotonic() - began:.0f} s after the crash", file=sys.stderr)
        assert up_text(up) == text
    finally:
        up.cluster.boot_node("node-2")

    assert seen[-1].reason.startswith("node node-2 is not ready; a spare takes over when that Node is deleted")
    assert {pod.spec.node_name for pod in up.pods(DECODE)} == {"node-1", "node-3"}
    assert "  demo-decode-0  decode  4 ranks  ready, on spare node-3 for node-2" in up.run_status().stdout.splitlines()
    report = get_json(f"{up.endpoint()}/readyz")
    (decode,) = (unit for unit in report["units"] if unit["unit"] == DECODE)
    places = [(rank["node"], rank.get("for_node")) for rank in decode["ranks"]]
    assert places == [("node-1", None)] * 2 + [("node-3", "node-2")] * 2


def up_text(deployed):
    """One prompt's greedy answer."""
    answer = openai(deployed).completions.create(model=MODEL, prompt=PROMPTS[3], max_tokens=MAX_TOKENS, temperature=0)
    return answer.choices[0].text


def wait_until_serving(deployed):
    """The gateway, which a restarted unit's ranks call by themselves, is ready again, and answers."""
    apps = client.AppsV1Api(deployed.cluster.api)
    wait_until(
        lambda: apps.read_namespaced_deployment_status(GATEWAY, deployed.namespace).status.available_replicas, HEALED_S
    )
    assert serves(deployed)


def test_one_more_unit_leaves_running_pods_alone(up):
    """`up` of a PLAN.json, then of the one with a second prefill unit planned near it: every pod keeps its UID.

    Planned anew, prefill would take a node that decode runs on. Each unit has a node for itself, though two of them
    would fit into a node's memory.
    """
    up.change_spec(lambda spec: spec["cluster"].update(nodes=4, gpus_per_node=1, spares=[]))
    up.change_spec(lambda spec: spec["prefill"].update(ep_size=1, redundant_experts=0))
    up.change_spec(lambda spec: spec["decode"].update(ep_size=1, redundant_experts=0, units=2))
    first = up.write_plan("first.json")
    up.deploy_plan(first)
    run = up.pulumi.up()
    assert run.status == 0, run.output
    running = {owner: up.uids(owner) for owner in (DECODE, "demo-decode-1", PREFILL, GATEWAY)}

    up.change_spec(lambda spec: spec["prefill"].update(units=2))
    second = up.write_plan("second.json", "--previous", str(first))
    up.deploy_plan(second)
    run = up.pulumi.up()

    assert run.status == 0, run.output
    assert {owner: up.uids(owner) for owner in running} == running
    assert states(up, second) == dict.fromkeys((PREFILL, "demo-prefill-1", DECODE, "demo-decode-1"), "ready")
    assert json.loads(second.read_text())["digest"] != up.plan.digest
    assert_settled(up)


def test_a_unit_takes_the_node_of_one_that_leaves(up):
    """From 2 prefill and 2 decode units to 1 and 3 on as many nodes, while clients ask: every other pod keeps its UID.

    No request is lost: the unit that leaves answers those that it has.
    """
    up.change_spec(lambda spec: (spec["prefill"].update(units=1), spec["decode"].update(units=3)))
    third = up.write_plan("third.json", "--previous", str(up.spec.with_name("second.json")))
    up.deploy_plan(third)
    (free,) = (pod.spec.node_name for pod in up.pods("demo-prefill-1"))
    running = {owner: up.uids(owner) for owner in (DECODE, "demo-decode-1", PREFILL, GATEWAY)}

    preview = up.pulumi.preview("--refresh")
    with steady_requests(up) as answers:
        run = up.pulumi.up()

    assert [each for each in answers if isinstance(each, OpenAIError)] == []
    assert len(answers) > NUM_STEADY
    assert preview.changes["demo-units"] == {"objects.demo-decode-2": "add", "objects.demo-prefill-1": "delete"}
    assert run.status == 0, run.output
    assert {owner: up.uids(owner) for owner in running} == running
    assert states(up, third) == dict.fromkeys((PREFILL, DECODE, "demo-decode-1", "demo-decode-2"), "ready")
    assert [pod.spec.node_name for pod in up.pods("demo-decode-2")] == [free]
    assert up.pods("demo-prefill-1") == []
    assert_settled(up)
    wait_until_serving(up)


def test_one_of_two_gateways_may_go(up):
    """Ranks call both: whoever asks the other one notices nothing, and the next one serves when they have called it."""
    up.change_spec(lambda spec: spec["gateway"].update(replicas=2))
    up.deploy_plan(up.write_plan("fourth.json", "--previous", str(up.spec.with_name("third.json"))))
    run = up.pulumi.up()
    assert run.status == 0, run.output
    before = ready_gateways(up)
    gone, kept = before

    with steady_requests(up, before[kept]) as answers:
        client.CoreV1Api(up.cluster.api).delete_namespaced_pod(gone, up.namespace, grace_period_seconds=0)
        wait_until(lambda: len(ready_gateways(up).keys() - {gone}) == 2, HEALED_S)
    ((_, new),) = ready_gateways(up).items() - before.items()

    assert [each for each in answers if isinstance(each, OpenAIError)] == []
    assert len(answers) > NUM_STEADY
    assert openai(up, new).completions.create(model=MODEL, prompt=PROMPTS[0], max_tokens=4).choices[0].text


def ready_gateways(deployed):
    """Pod's name -> where it answers, of each gateway that takes calls."""
    return {
        pod.metadata.name: f"http://{pod.status.pod_ip}:8000"
        for pod in deployed.pods(GATEWAY)
        if pod.metadata.deletion_timestamp is None
        and any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions or [])
    }


def states(deployed, plan):
    """Unit name -> state, as `tidemill status PLAN.json` says, which knows the digest of the plan that is applied."""
    status = json.loads(deployed.run_status("--format", "json", given=plan).stdout)
    assert status["plan_digest"] == json.loads(plan.read_text())["digest"]
    return {unit["name"]: unit["state"] for unit in status["units"]}


def test_destroy_leaves_nothing(up, before):
    """Every API resource is as it was before the first `up`."""
    run = up.pulumi.destroy()

    assert run.status == 0, run.output
    assert listing(up.cluster.api) == before


def test_an_image_that_cannot_be_had_is_an_error_in_time(deployed, cluster, toolchain, tmp_path):
    """Units and gateway each say so, within the deadline; what was made is in the state, and `destroy` finds it.

    Here a program in YAML deploys, with a spec and a kubeconfig as text.
    """
    executable, host = toolchain(PULUMI, PULUMI_YAML)
    before = listing(cluster.api)
    inputs = {
        "spec": write_spec(tmp_path, cluster, "broken").read_text(),
        "overlays": ["kubernetes:\n  image: localhost/nobody:1\n  ready_timeout: 12s\n"],
        "kubeconfig": cluster.kubeconfig.read_text(),
    }
    broken = Pulumi.of_yaml(executable, host, tmp_path / "stack", "/nonexistent", inputs)

    run = broken.up()
    removed = broken.destroy()

    said = [each for each in run.errors if "image localhost/nobody:1 cannot be had" in each]
    assert run.status != 0
    assert len(said) == 3, run.output
    assert all("correct kubernetes.image in the spec, or load it on the nodes" in each for each in said)
    assert removed.status == 0, removed.output
    assert listing(cluster.api) == before
