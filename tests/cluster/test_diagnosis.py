"""What a failed wait says beyond the logs."""

import pytest
from kubernetes import client

from tests.cluster.diagnosis import diagnose


@pytest.fixture
def core(api_server):
    """The core API."""
    return client.CoreV1Api(api_server.api)


@pytest.fixture
def add_pod(core):
    """Add a pod that says of itself whether it is ready; gone afterwards."""
    core.create_namespaced_service_account("default", {"metadata": {"name": "default"}})
    names = []

    def add(name, ready):
        spec = {"containers": [{"name": "main", "image": "none"}]}
        core.create_namespaced_pod("default", {"metadata": {"name": name}, "spec": spec})
        names.append(name)
        condition = {"type": "Ready", "status": ready, "reason": "Unwell", "message": "no such image"}
        container = {"name": "main", "image": "none", "imageID": "", "ready": False, "restartCount": 0}
        waiting = container | {"state": {"waiting": {"reason": "ErrImagePull"}}}
        status = {"conditions": [condition], "containerStatuses": [waiting]}
        core.patch_namespaced_pod_status(name, "default", {"status": status})

    yield add
    for name in names:
        core.delete_namespaced_pod(name, "default", grace_period_seconds=0)
    core.delete_namespaced_service_account("default", "default")


def test_a_pod_that_is_not_ready_is_described(api_server, add_pod):
    """With its conditions and its container's state; a ready one is not mentioned."""
    add_pod("well", "True")
    add_pod("ill", "False")

    said = diagnose(api_server.api)

    assert "default/ill on None: Pending" in said
    assert "not Ready: Unwell no such image" in said
    assert "ErrImagePull" in said
    assert "default/well" not in said


def test_an_api_server_that_does_not_answer_is_not_another_failure():
    """The logs, which say why, are printed after it."""
    settings = client.Configuration(host="http://127.0.0.1:1")
    settings.retries = False

    assert diagnose(client.ApiClient(settings)).startswith("--- the API server does not say how its pods are")
