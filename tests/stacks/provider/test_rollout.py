"""Units that change in turn, and a unit that does not get ready, against a fake API server."""

import copy
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
from pulumi.runtime.proto import provider_pb2 as pb

from planner.compiler import compile_plan
from planner.diff.pods import compare_pods
from planner.facts import names
from planner.rules.check import change_spec
from stacks.kube.errors import ProviderError
from stacks.kube.manifest import OBJECTS
from stacks.program.plan_objects import plan_objects
from stacks.provider.rollout import Rollout, rolled_phase
from stacks.provider.wire import encode_struct
from tests.planner.diff.pairs import KINDS, base, changed
from tests.stacks.provider.test_servicer import GROUPS, fake, servicer  # noqa: F401

READY = {"observedGeneration": 1, "updatedReplicas": 1, "readyReplicas": 1}
AVAILABLE = {"conditions": [{"type": "Available", "status": "True"}]}


def unit(name, image="a", *, node="node-0", **told):
    """Launch file and group of a unit."""
    phase = name.rpartition("-")[0]
    labels = {"tidemill.dev/plan": "demo", "tidemill.dev/unit": name, "tidemill.dev/phase": phase}
    metadata = {"name": name, "namespace": "demo", "labels": labels}
    pod = {"affinity": {"node": node}, "containers": [{"name": "runtime", "image": image}]}
    return {
        "ConfigMap": {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata | {"name": f"{name}-{image}"},
            "data": {f"{name}.launch.json": json.dumps({"kv_digest": "sha256:1"} | told)},
        },
        "LeaderWorkerSet": {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": metadata,
            "spec": {"leaderWorkerTemplate": {"size": 1, "workerTemplate": {"spec": pod}}},
        },
    }


def update(provider, old, new, timeout=30):
    """What Pulumi asks for a unit that has changed."""
    request = pb.UpdateRequest(type=OBJECTS, old_inputs=encode_struct(old), news=encode_struct(new), timeout=timeout)
    return provider.Update.__wrapped__(provider, request)


@pytest.fixture
def cluster(fake, servicer):  # noqa: F811
    """The provider, and who was changing at each look; a group gets ready after a while, with the image `bad` never."""
    changing, most = set(), {}
    store = fake.store

    def store_and_start(path, manifest, manager="tidemill"):
        if not path.startswith(GROUPS):
            return store(path, manifest, manager)
        image = manifest["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]["image"]
        name = manifest["metadata"]["name"]
        phase = manifest["metadata"]["labels"]["tidemill.dev/phase"]
        changing.add(name)
        most[phase] = max(most.get(phase, 0), sum(each.startswith(phase) for each in changing))
        stored = store(path, manifest, manager)
        stored["status"] = {}  # the group is made anew

        def start():
            time.sleep(0.3)
            changing.discard(name)
            if image != "bad":
                stored["status"] = READY | AVAILABLE

        threading.Thread(target=start, daemon=True).start()
        return stored

    for name in ("prefill-0", "prefill-1", "decode-0", "decode-1"):
        for each in unit(name).values():
            status = {"status": READY | AVAILABLE} if each["kind"] == "LeaderWorkerSet" else {}
            kind = each["kind"].lower() + "s"
            folder = GROUPS if status else f"/api/v1/namespaces/demo/{kind}"
            store(f"{folder}/{each['metadata']['name']}", copy.deepcopy(each) | status)
    fake.store = store_and_start
    return servicer, most


def image_of(fake, name):  # noqa: F811
    """The image that the group runs."""
    spec = fake.objects[f"{GROUPS}/{name}"]["spec"]
    return spec["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]["image"]


def test_units_of_a_phase_change_one_after_the_other(fake, cluster):  # noqa: F811
    """Whatever the order in which Pulumi asks; prefill and decode change side by side."""
    provider, most = cluster
    names = ("prefill-0", "prefill-1", "decode-0", "decode-1")

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(update, provider, unit(name), unit(name, "b")) for name in names]:
            done.result()

    assert most == {"prefill": 1, "decode": 1}
    assert {image_of(fake, name) for name in names} == {"b"}


def test_a_unit_that_does_not_get_ready_is_made_as_it_was_and_the_others_are_left(fake, cluster):  # noqa: F811
    """Its former launch file is still there, the new one is gone, and the rest of the run does nothing more."""
    provider, _ = cluster

    with pytest.raises(ProviderError, match="prefill-0 was restored, and is ready"):
        update(provider, unit("prefill-0"), unit("prefill-0", "bad"), timeout=3)
    with pytest.raises(ProviderError, match="prefill-1 was left as it was: prefill-0 did not get ready"):
        update(provider, unit("prefill-1"), unit("prefill-1", "bad"))

    assert {image_of(fake, name) for name in ("prefill-0", "prefill-1")} == {"a"}
    maps = [path.rpartition("/")[2] for path in fake.objects if "configmaps" in path]
    assert {"prefill-0-a", "prefill-1-a"} <= set(maps)
    assert "prefill-0-bad" not in maps


@pytest.mark.parametrize(
    ("changed", "phase"),
    [
        (unit("decode-0", "b"), "decode"),
        (unit("decode-0"), None),
        (unit("decode-0", "b", node="node-1"), None),
        (unit("decode-0", "b", kv_digest="sha256:2"), None),
        (unit("decode-0", "b", engine={"name": "sglang", "version": "1"}), None),
    ],
    ids=["its pods", "nothing", "its nodes", "its KV", "its engine"],
)
def test_a_unit_has_a_turn_if_it_serves_with_those_of_before(changed, phase):
    """Other pods at the same places with the same KV; everything else changes at once."""
    assert rolled_phase(unit("decode-0"), changed) == phase
    assert rolled_phase({}, changed) is None


def gateway(image="a", **told):
    """Launch file and Deployment of a gateway."""
    metadata = {"name": "gateway", "namespace": "demo", "labels": {"app.kubernetes.io/component": "gateway"}}
    pod = {"containers": [{"name": "gateway", "image": image}]}
    document = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {"template": {"spec": pod}},
    }
    file = unit("decode-0", **told)["ConfigMap"]
    return {"ConfigMap": file, "Deployment": document}


def test_the_gateway_is_made_as_it_was_if_it_does_not_get_ready():
    """It has a turn, and nobody to share it with; with another KV it changes at once, as the units do."""
    assert rolled_phase(gateway(), gateway("b")) == "gateway"
    assert rolled_phase(gateway(), gateway("b", kv_digest="sha256:2")) is None
    assert rolled_phase(gateway(), gateway()) is None


def turns_of(before, after):
    """Workload of both plans -> the phase in which the provider gives it a turn, from the objects that it gets."""
    gateway = names.gateway_name(after.name)
    old, new = ({**each.units, gateway: each.gateway} for each in map(plan_objects, (before, after)))
    return {name: rolled_phase(_manifests(old[name]), _manifests(new[name])) for name in old.keys() & new.keys()}


def _manifests(objects):
    return {f"{each.kind} {each.name}": each.manifest for each in objects}


@cache
def without_controller(kind=None):
    """A plan whose units the provider gives turns: the small base one, or with a change of this kind."""
    spec = base(40)[0]
    change = KINDS[kind] if kind else {}
    return compile_plan(
        change_spec(spec, {"kubernetes.controller": None} | change), without_controller() if kind else None
    )


@pytest.mark.parametrize("kind", ["expert loads", "limits", "another EP size", "checkpoint", "port"])
def test_a_change_foretells_the_turns(kind):
    """`tidemill diff` says of each unit whether it has a turn, and so does the provider once it has the objects."""
    plans = without_controller(), without_controller(kind)
    turns = turns_of(*plans)
    foretold = {each.name: each.phase if each.in_turn else None for each in compare_pods(*plans) if each.name in turns}

    assert foretold == turns


def test_units_whose_maps_are_in_another_object_have_turns():
    """The launch file of a published unit is in two ConfigMaps, and its first part alone is no JSON."""
    assert set(turns_of(without_controller(), without_controller("image")).values()) == {"prefill", "decode", None}


def test_units_that_a_controller_gives_turns_have_none_of_the_provider():
    """Their objects withhold the new template, so each is stored at once; the gateway's turn is the provider's."""
    assert set(turns_of(base(40)[1], changed(40, "image")).values()) == {None}
    assert set(turns_of(base(40)[1], changed(40, "limits")).values()) == {"gateway", None}


def test_whoever_waits_for_a_turn_hears_of_the_end():
    """A user who cancels does not wait for the unit before."""
    cancelled = threading.Event()
    rollout, said = Rollout(cancelled), []

    with rollout.turn("decode", "decode-0", said.append), ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lambda: rollout.turn("decode", "decode-1", said.append).__enter__())
        cancelled.set()
        with pytest.raises(ProviderError, match="decode-1 was left as it was: the run was cancelled"):
            waiting.result()
