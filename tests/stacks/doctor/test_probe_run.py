"""A probe leaves alone what it has not made, against a fake API server; `tests/cluster` runs one on a real one."""

import json
import threading
from dataclasses import replace

import pytest

from stacks.doctor.facts import ClusterFacts
from stacks.doctor.probe_checks import probe_findings, probe_summary
from stacks.doctor.probing import probe
from stacks.kube.waiting import Patience
from tests.stacks.doctor.clusters import demo_needs, good_cluster
from tests.stacks.kube.fake_api import running_fake_api

HOME = "/api/v1/namespaces/tidemill"
ALONE = ClusterFacts()  # without the plan's namespace
SAID = json.dumps({"missing": [], "mb_per_s": [None, None, None]})


@pytest.fixture(scope="module")
def needs():
    """The demo's."""
    return demo_needs()


@pytest.fixture
def server():
    """(fake, api), whose pods end at once."""
    with running_fake_api() as (fake, api):
        store = fake.store

        def ended(path, manifest, manager="tidemill"):
            state = {"terminated": {"message": SAID}}
            container = {"name": "probe", "image": "x", "state": state}
            status = {"status": {"phase": "Succeeded", "containerStatuses": [container]}}
            return store(path, manifest | (status if manifest["kind"] == "Pod" else {}), manager)

        fake.store = ended
        yield fake, api


def run(api, needs, facts):
    return probe(api, needs, facts, Patience(5, threading.Event(), lambda said: None))


def foreign(fake, path, kind, labels=None):
    """Store something that Helm made."""
    namespace = {} if kind == "Namespace" else {"namespace": path.split("/")[4]}
    metadata = {"name": path.rpartition("/")[2], "labels": labels or {}, **namespace}
    manifest = {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": {"containers": []}}
    return fake.store(path, manifest, "helm")


def test_a_probe_leaves_nothing(server, needs):
    """Neither in the plan's namespace nor in one of its own."""
    fake, api = server

    for facts in (good_cluster(needs), ALONE):
        assert not run(api, needs, facts).not_started
        assert fake.objects == {}


@pytest.mark.parametrize(
    ("kind", "path", "facts"),
    [
        ("Pod", f"{HOME}/pods/demo-probe-0", good_cluster(demo_needs())),
        ("Service", f"{HOME}/services/demo-probe", good_cluster(demo_needs())),
        ("Namespace", "/api/v1/namespaces/demo-probe", ALONE),
    ],
)
def test_what_others_have_made_is_no_probe_s(server, needs, kind, path, facts):
    """It is named, and nothing is made or deleted: neither it nor what is beside it."""
    fake, api = server
    foreign(fake, path, kind)
    foreign(fake, "/api/v1/namespaces/demo-probe/pods/precious", "Pod")
    before = dict(fake.objects)

    ran = run(api, needs, facts)

    (finding,) = probe_findings(ran)
    assert fake.objects == before
    assert {verb for verb, _ in fake.requests} == {"GET"}
    assert (finding.check, finding.object.split()[0], finding.blocks) == ("owner", kind, True)
    assert probe_summary(ran).startswith("nodes were not probed")


def test_the_pods_of_another_plan_s_probe_stay(server, needs):
    """Two plans may be probed in one namespace at the same time."""
    fake, api = server
    other = f"{HOME}/pods/other-probe-0"
    foreign(fake, other, "Pod", {"tidemill.dev/probe": "other"})

    assert run(api, needs, good_cluster(needs)).not_started == {}
    assert list(fake.objects) == [other]
    run(api, replace(needs, plan="third"), good_cluster(needs))
    assert list(fake.objects) == [other]


def test_what_a_killed_run_has_left_goes(server, needs):
    """By its label."""
    fake, api = server
    for name in ("demo-probe-0", "demo-probe-7"):
        foreign(fake, f"{HOME}/pods/{name}", "Pod", {"tidemill.dev/probe": "demo"})

    assert run(api, needs, good_cluster(needs)).not_started == {}
    assert fake.objects == {}


def test_what_comes_under_a_name_in_the_same_moment_stays(server, needs):
    """Server-side apply then adds our fields to what somebody has made, and it is not ours to delete."""
    fake, api = server
    path = "/api/v1/namespaces/demo-probe"
    fake.before["PATCH"] = [lambda fake: foreign(fake, path, "Namespace")]
    store = fake.store

    def shared(at, manifest, manager="tidemill"):
        there = fake.objects.get(at)
        stored = store(at, manifest, manager)
        if there:
            stored["metadata"]["managedFields"] += there["metadata"]["managedFields"]
        return stored

    fake.store = shared
    ran = run(api, needs, ALONE)

    assert [str(each) for each in ran.foreign_objects] == ["Namespace demo-probe"]
    assert list(fake.objects) == [path]
