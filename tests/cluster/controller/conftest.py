"""Fixtures: the demo's day with a controller, written as the provider writes it; nothing runs pods."""

from dataclasses import replace

import pytest
import yaml
from kubernetes import client

from planner.manifests.render import KUSTOMIZATION, render_files
from stacks.kube.connection import Connection
from tests.cluster.controller.day import (
    ACCOUNT,
    DEPLOYMENTS,
    LWS,
    NAME,
    NAMESPACE,
    NODES,
    SPARE,
    TAINT,
    UNITS,
    SeenByLeaderWorkerSet,
    api_of_account,
    following_as,
    report,
)
from tests.cluster.objects import Objects
from tests.stacks.controller.day_spec import day_plan


@pytest.fixture(scope="session")
def documents(tmp_path_factory):
    """Kind and name -> object of the demo's day with a controller."""
    plan = day_plan(
        tmp_path_factory.mktemp("day"),
        cluster={"nodes": 5, "spares": [SPARE]},
        namespace=NAMESPACE,
        controller={"lend_nodes": True, "heal": {}},
    )
    files = render_files(plan)
    found = [yaml.safe_load(text) for name, text in files.items() if name != KUSTOMIZATION]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


@pytest.fixture(scope="module")
def objects(api_server, documents, tmp_path_factory):
    """The provider's way to write, after it has written everything."""
    made = Objects(api_server.api, str(tmp_path_factory.mktemp("discovery") / "cache.json"))
    core = client.CoreV1Api(api_server.api)
    for name in (*NODES, SPARE):
        core.create_node({"metadata": {"name": name}})
        core.patch_node(name, {"spec": {"taints": [TAINT]}})  # and not what a node without a kubelet gets
    for each in documents.values():
        made.apply(each)
    yield made
    for name in (*NODES, SPARE):
        core.delete_node(name)


@pytest.fixture(scope="module")
def account(api_server, objects):
    """The API as the controller's pod sees it."""
    return api_of_account(api_server, ACCOUNT)


@pytest.fixture
def custom(api_server, objects):
    """The administrator's way to objects of other groups. All units are on and ready, and there is no order."""
    calls = client.CustomObjectsApi(api_server.api)
    for unit in UNITS:
        calls.patch_namespaced_custom_object(*LWS, unit, {"spec": {"replicas": 1}})
        report(calls, unit, ready=1)
    none = dict.fromkeys(("hold", "force", "metrics", "demand", "stragglersLast"))
    calls.patch_namespaced_custom_object(*DEPLOYMENTS, NAME, {"spec": none})
    client.CoreV1Api(api_server.api).delete_collection_namespaced_event(NAMESPACE)
    leases = client.CoordinationV1Api(api_server.api)
    for each in leases.list_namespaced_lease(NAMESPACE).items:
        leases.delete_namespaced_lease(each.metadata.name, NAMESPACE)
    return calls


@pytest.fixture
def following(custom, account):
    """The controller of the demo's day."""
    return replace(following_as("one", account), api=SeenByLeaderWorkerSet(Connection(account), custom))
