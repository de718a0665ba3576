"""A night and a morning on real nodes, under streams: units go and come back by themselves, and nobody notices.

NetworkPolicies are enforced all the while. The nodes share a folder, in which prefill units keep KV.

The day goes 120 times as fast as clocks. Nothing else is faster: pods start, load, drain and end in their own time.
"""

import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from kubernetes import client
from prometheus_client.parser import text_string_to_metric_families

import runtime.demo
from stacks.controller.spec import read_clock
from tests.benchmarks.played_day import Streams, client_of, undisturbed
from tests.cluster.cluster_day import NAME, clock_shows, day_deployed, deployment_of, look, looks_until
from tests.cluster.policies import connects, enforced_policies, inside_network
from tests.cluster.products import PULUMI
from tests.cluster.test_cluster import pod_spec
from tests.stacks.deployments import total

NAMESPACE, PACE = "day-and-night", 120
DEMO_WEIGHTS = Path(runtime.demo.__file__).parent
ALL = tuple(f"{NAME}-{phase}-{index}" for phase in ("decode", "prefill") for index in (0, 1))
GATEWAY = f"{NAME}-gateway"
PHASES = ("prefill", "decode")
BOTH = {"prefill_units": 2, "decode_units": 2}
NIGHT = tuple(unit for unit in ALL if unit.endswith("-0"))
EVENING_MIN, NIGHT_MIN = 120, 200  # of the day: a minute until the evening, in which `up` tells the cluster of it
CHANGED_S = 240  # on two busy cores a unit takes a minute to start
BLOCK_TOKENS = 64
READ = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())"
# together less than a step of prompts, or demand would keep units in the evening
OPENINGS = [f"Chapter {number}: the river rises in the hills and runs to the sea. " * 9 for number in range(2)]


@pytest.fixture(scope="module")
def kv_folder():
    """A folder that all nodes see. It is not in /tmp, where pods have a folder of their own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield folder


@pytest.fixture(scope="module")
def up(cluster, toolchain, tmp_path_factory, kv_folder):
    """All units on, all day."""
    (executable,) = toolchain(PULUMI)
    made = day_deployed(
        executable,
        tmp_path_factory.mktemp("day"),
        cluster,
        NAMESPACE,
        schedule={"windows": [{"at": "00:00", **BOTH}], "warm_up": "90min"},
        kv_cache={"memory": "64MiB", "disk": {"path": kv_folder, "size": "1GB"}},
        kubernetes={"namespace": NAMESPACE, "controller": {"pace": PACE, "demand": {}}},
    )
    with enforced_policies(cluster):
        run = made.pulumi.up()
        assert run.status == 0, run.output
        yield made
        made.pulumi.destroy()


@dataclass(frozen=True)
class Turn:
    """A conversation's second turn, and its text where nothing is cached."""

    prompt: str
    cached: int  # tokens of whole blocks, in the first turn's prompt
    text: str


@pytest.fixture(scope="module")
def turns(up):
    """Second turns of conversations that were begun on both prefill units, and whose first turn has been used twice."""
    firsts = [ask_all(up, OPENINGS) for _ in range(2)][-1]
    assert all(tokens_found(up, unit, "device") for unit in ALL if "prefill" in unit)
    prompts = [f"{each}{found.choices[0].text} And then" for each, found in zip(OPENINGS, firsts, strict=True)]
    alone = ask_all(up, prompts, cache_salt="alone")
    assert [each.usage.prompt_cache_hit_tokens for each in alone] == [0] * len(prompts)
    return [
        Turn(prompt, (first.usage.prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS, found.choices[0].text)
        for prompt, first, found in zip(prompts, firsts, alone, strict=True)
    ]


def ask_all(deployed, prompts, **more):
    """Ask for all prompts at a time, so that units share them. Return the completions."""
    openai = client_of(host_of(deployed)).completions
    call = {"model": "tidemill-demo", "max_tokens": 12, "temperature": 0, "extra_body": more}
    with ThreadPoolExecutor(len(prompts)) as callers:
        return list(callers.map(lambda prompt: openai.create(prompt=prompt, **call), prompts))


def assert_found(deployed, turns):
    """Assert that the turns' first prompts are found, whichever unit computed them, and that the texts are the same."""
    answers = ask_all(deployed, [each.prompt for each in turns])

    assert [each.choices[0].text for each in answers] == [each.text for each in turns]
    for answer, turn in zip(answers, turns, strict=True):
        assert answer.usage.prompt_cache_hit_tokens >= turn.cached >= 2 * BLOCK_TOKENS


def tokens_found(deployed, unit, tier):
    """Return how many tokens of prompts a unit of one rank has found in a tier. Its pod lets this host read nothing."""
    (pod,) = deployed.pods(unit)
    read = [*inside_network(deployed.cluster, pod), "python3", "-c", READ, f"http://{pod.status.pod_ip}:9400/metrics"]
    text = subprocess.run(read, capture_output=True, text=True, check=True).stdout
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return total(found, "tidemill_prefix_cache_hits_total", tier=tier)


@pytest.fixture
def stranger(cluster):
    """A pod of somebody else's, in a namespace without policies."""
    core = client.CoreV1Api(cluster.api)
    core.create_namespace({"metadata": {"name": "strangers"}})
    cluster.wait_until(lambda: core.list_namespaced_service_account("strangers").items, "an account", 30)
    spec = pod_spec(cluster, "sleep", "3600")
    core.create_namespaced_pod("strangers", {"metadata": {"name": "stranger"}, "spec": spec})
    cluster.wait_until(
        lambda: core.read_namespaced_pod("stranger", "strangers").status.phase == "Running", "the stranger runs", 60
    )
    yield core.read_namespaced_pod("stranger", "strangers")
    core.delete_namespace("strangers")


# where -> who may connect, of GATEWAY's, PREFILL's, DECODE's and the controller's pods, a stranger, and the host
ALLOWED = {
    ("gateway", 8000): {"stranger", "host"},
    ("gateway", 29400): {"prefill-0", "prefill-1", "decode-0", "decode-1"},
    ("gateway", 9400): {"stranger", "controller"},
    ("prefill-0", 9400): {"stranger"},
    ("prefill-0", 29600): set(),
    ("decode-0", 9400): {"stranger"},
    ("decode-0", 29600): {"prefill-0", "prefill-1"},
    ("decode-0", 29501): set(),
    ("controller", 9400): set(),
    ("server", 443): {"controller", "stranger", "host"},
    ("dns", 53): {"gateway", "prefill-0", "prefill-1", "decode-0", "decode-1", "controller", "stranger", "host"},
}


def test_pods_have_the_connections_of_the_design_and_no_other(up, cluster, stranger):
    """From every kind of pod, a stranger and the host to every port: connected or refused, as the table says."""
    owners = ("gateway", "prefill-0", "prefill-1", "decode-0", "decode-1", "controller")
    pods = {owner: up.pods(f"{NAME}-{owner}")[0] for owner in owners} | {"stranger": stranger}
    services = client.CoreV1Api(cluster.api)
    addresses = {owner: pod.status.pod_ip for owner, pod in pods.items()} | {
        "server": services.read_namespaced_service("kubernetes", "default").spec.cluster_ip,
        "dns": cluster.network.control_plane,
    }

    found = {
        (where, port): {
            who for who in (*pods, "host") if who != where and connects(cluster, pods.get(who), addresses[where], port)
        }
        for where, port in ALLOWED
    }

    assert found == ALLOWED


def test_units_go_in_the_evening_and_are_back_in_the_morning(up, turns):
    """Every answer is whole and the same as when nothing changes; the controller is killed in the night.

    A preview in the night finds nothing to do, and `status` calls the units off. Demand is measured, and is no more
    than forecast. Conversations that the other unit began go on at the unit that is left, which finds their KV.
    """
    (left,) = (unit for unit in NIGHT if "prefill" in unit)
    own = tokens_found(up, left, "disk")
    told = tell_of_a_night(up)
    assert (told.status, look(up).running) == (0, ALL), told.output
    with streams_of(up) as streams:
        began = time.time()
        evening = looks_until(up, lambda each: each.running == NIGHT, CHANGED_S)
        preview = up.pulumi.preview("--expect-no-changes")
        status = json.loads(up.run_status("--format", "json").stdout)
        assert_found(up, turns)
        from_others = tokens_found(up, left, "disk") - own
        kill_controller(up)
        morning = looks_until(up, lambda each: "prefill 2/2, decode 2/2" in each.status["units"], CHANGED_S)
        time.sleep(2)
    for at, each in evening + morning:
        print(f"{at - began:5.0f} s  {each.words}  {', '.join(each.running)}", file=sys.stderr)

    assert streams.wrong == []
    assert from_others >= 2 * BLOCK_TOKENS
    assert streams.num_under_way(next(at for at, each in evening if each.running != ALL))
    assert streams.num_under_way(morning[-1][0])
    assert (preview.steps, preview.status) == ({}, 0)
    assert {each["name"]: each["state"] for each in status["units"]} == {
        unit: "ready" if unit in NIGHT else "off" for unit in ALL
    }
    assert look(up).running == ALL
    forecast = [each["reason"] for each in morning[-1][1].status["conditions"] if each["type"] == "Forecast"]
    assert forecast == ["AsForecast"]
    events = client.CoreV1Api(up.cluster.api).list_namespaced_event(NAMESPACE).items
    ours = [(each.reason, each.message.partition(":")[0]) for each in events if each.reason in ("Start", "Drain")]
    assert sorted(ours) == sorted((reason, unit) for reason in ("Start", "Drain") for unit in ALL if unit not in NIGHT)


def tell_of_a_night(deployed):
    """Write a day into its spec whose evening is near by the cluster's own clock, and run `up`."""
    now = read_clock(deployment_of(deployed)).day_time(time.time())
    evening, morning = (clock_shows(now + 60 * minutes) for minutes in (EVENING_MIN, EVENING_MIN + NIGHT_MIN))
    night = {"prefill_units": 1, "decode_units": 1}
    deployed.change_spec(
        lambda spec: spec["schedule"].update(windows=[{"at": evening, **night}, {"at": morning, **BOTH}])
    )
    return deployed.pulumi.up()


def streams_of(deployed):
    """Callers of its gateway, who expect the texts of now."""
    return Streams(host_of(deployed), undisturbed(host_of(deployed)))


def host_of(deployed):
    """Return the address of its gateway's Service."""
    return deployed.endpoint().removeprefix("http://").partition(":")[0]


def test_a_change_of_all_units_reaches_one_of_a_phase_at_a_time(up, turns):
    """`up` stores it, and the controller gives the turns: every pod is another one afterwards, and no answer failed.

    Memory is lost with the pods, and what is on the disk is found.
    """
    before = {unit: up.uids(unit) for unit in ALL}
    up.change_spec(lambda spec: spec["kubernetes"].update(env={"EXAMPLE": "1"}))

    with streams_of(up) as streams:
        run = up.pulumi.up()
        away = watch_turns(up, lambda: not any(before[unit] & up.uids(unit) for unit in ALL) and all_current(up))

    assert run.status == 0, run.output
    assert "waits for its turn, which the controller gives" in run.output
    assert streams.wrong == []
    most = {phase: max(sum(phase in unit for unit in each) for each in away) for phase in ("prefill", "decode")}
    assert most == {"prefill": 1, "decode": 1}
    looks_until(up, lambda each: "ended" in each.status["changes"][-1], CHANGED_S)
    change = look(up).status["changes"][-1]
    print(f"turns: {change}", file=sys.stderr)
    assert change["failed"] == 0
    assert_found(up, turns)


def test_a_change_that_kv_cannot_cross_takes_one_pair_and_then_the_others(up):
    """The same weights by another name are another KV format. Two gateways serve one each, and no answer fails."""
    before = {unit: up.uids(unit) for unit in ALL}
    up.change_spec(lambda spec: spec["model"].update(checkpoint=str(DEMO_WEIGHTS)))

    with streams_of(up) as streams:
        run = up.pulumi.up()
        watch_turns(up, lambda: not any(before[unit] & up.uids(unit) for unit in ALL) and all_current(up))
        looks_until(up, lambda each: "ended" in each.status["changes"][-1], CHANGED_S)

    assert run.status == 0, run.output
    assert streams.wrong == []
    change = look(up).status["changes"][-1]
    print(f"KV cannot cross: {change}", file=sys.stderr)
    assert {each["name"] for each in change["units"][:2]} == {*NIGHT}
    assert {each["name"] for each in change["units"]} == {*ALL}
    assert change["least"] == change["promised"]["least"] == {phase: {"units": 1, "ofUnits": 2} for phase in PHASES}
    assert change["failed"] == 0


def watch_turns(deployed, is_over):
    """The units that were away, look by look, until it is over."""
    away, deadline = [], time.monotonic() + 2 * CHANGED_S
    while not is_over():
        assert time.monotonic() < deadline, look(deployed).words
        away.append({unit for unit in ALL if not all(map(is_ready, deployed.pods(unit) or [None]))})
        time.sleep(0.5)
    return away


def current(deployed):
    """Status and reason of the condition that tells how far a change has come."""
    conditions = look(deployed).status["conditions"]
    return next((each["status"], each["reason"]) for each in conditions if each["type"] == "Current")


def all_current(deployed):
    """Whether all units run, with their newest templates."""
    ready = all(map(is_ready, (pod for unit in ALL for pod in deployed.pods(unit) or [None])))
    return ready and current(deployed)[0] == "True"


def is_ready(pod):
    """By its condition; no pod is not."""
    return pod is not None and any(
        (each.type, each.status) == ("Ready", "True") for each in pod.status.conditions or []
    )


def test_an_image_that_cannot_be_had_stops_after_one_unit_and_the_former_one_heals_it(up):
    """The second unit of each phase and the gateway that answers are not touched, and no answer fails.

    The gateway's new pod is undone by `up`. The controller's own waits beside the old one, which goes on.
    """
    before = {owner: up.uids(owner) for owner in (*ALL, GATEWAY)}
    right = up.spec.read_text()
    up.change_spec(lambda spec: spec["kubernetes"].update(image="localhost/nobody:1", ready_timeout="15s"))

    with streams_of(up) as streams:
        wrong = up.pulumi.up()
        watch_turns(
            up, lambda: current(up) == ("False", "InTurns") and any(up.uids(unit) != before[unit] for unit in ALL)
        )
        up.spec.write_text(right)
        mended = up.pulumi.up()
        watch_turns(up, lambda: all_current(up))

    assert streams.wrong == []
    assert wrong.status != 0
    assert [each for each in wrong.errors if f"{GATEWAY} was restored, and is ready" in each], wrong.output
    assert mended.status == 0, mended.output
    assert sum(before[unit] == up.uids(unit) for unit in ALL) in (2, 3)
    assert before[GATEWAY] == up.uids(GATEWAY)
    assert {pod.spec.containers[0].image for owner in before for pod in up.pods(owner)} == {up.cluster.image}


def kill_controller(deployed):
    """End its pod; another one comes and goes on."""
    (pod,) = deployed.pods(f"{NAME}-controller")
    client.CoreV1Api(deployed.cluster.api).delete_namespaced_pod(
        pod.metadata.name, deployed.namespace, grace_period_seconds=1
    )
