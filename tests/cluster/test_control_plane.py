"""The controllers of the control plane act: what other tests lean on."""

import time

import pytest
from kubernetes import client

CONTAINER = {"name": "one", "image": "nowhere.invalid/none:1"}
TEMPLATE = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [CONTAINER]}}
DEPLOYMENT = {
    "metadata": {"name": "web"},
    "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": TEMPLATE},
}


@pytest.fixture
def core(control_plane):
    """The core API."""
    return client.CoreV1Api(control_plane.api)


@pytest.fixture
def apps(control_plane):
    """The apps API."""
    return client.AppsV1Api(control_plane.api)


@pytest.fixture
def namespace(core):
    """A new one, which the test may delete."""
    made = core.create_namespace({"metadata": {"generateName": "acting-"}})
    return made.metadata.name


def wait_until(happened, timeout_s=30):
    """Poll; a failed assert at the deadline."""
    deadline = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_deployment_makes_pods_and_foreground_deletion_takes_them_along(core, apps, namespace):
    """The pods stay pending for want of nodes; the Deployment goes when they are gone."""
    apps.create_namespaced_deployment(namespace, DEPLOYMENT)
    wait_until(lambda: len(core.list_namespaced_pod(namespace).items) == 2)

    apps.delete_namespaced_deployment("web", namespace, propagation_policy="Foreground")

    wait_until(lambda: not apps.list_namespaced_deployment(namespace).items)
    assert core.list_namespaced_pod(namespace).items == []


def test_a_deleted_namespace_goes_with_all_that_is_in_it(core, namespace):
    """Nobody has to delete its objects one by one."""
    core.create_namespaced_config_map(namespace, {"metadata": {"name": "left"}})

    core.delete_namespace(namespace)

    wait_until(lambda: namespace not in {each.metadata.name for each in core.list_namespace().items})
