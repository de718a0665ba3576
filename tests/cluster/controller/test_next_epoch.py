"""The document of a unit's next epoch on a real API server, written with the rights of the controller's account."""

import json

import pytest
import yaml
from kubernetes import client

from planner.facts import names
from planner.manifests.render import KUSTOMIZATION, render_files
from stacks.controller.act import FIELD_MANAGER, write_next_epoch
from stacks.controller.observe import find_deployment
from stacks.kube.api import Api
from stacks.kube.connection import Connection
from stacks.kube.errors import RefusedError
from stacks.kube.manifest import Reference
from stacks.measured.epochs import next_document
from tests.cluster.controller.day import ACCOUNT, NAME, api_of_account
from tests.cluster.objects import Objects
from tests.stacks.controller.day_spec import day_plan
from tests.stacks.deployments import wait_until

NAMESPACE, UNIT, OTHER = "live-maps-rights", f"{NAME}-decode-0", f"{NAME}-decode-1"
LIVE = {"every": "10min", "min_gain": 0.05, "max_bytes": "1GB"}
NUM_LAYERS, NUM_SLOTS, NUM_NODES = 61, 288, 144  # no unit of DeepSeek-V3 has more: a rank on each node
MOST_BYTES = 2**20  # of all data of a ConfigMap


@pytest.fixture(scope="module")
def account(control_plane, tmp_path_factory):
    """The API as the controller of a plan sees it whose units may change their maps."""
    folder = tmp_path_factory.mktemp("maps")
    sizes = {"cluster": {"nodes": 4, "gpus_per_node": 2}, "phases": {"ep_size": 2, "redundant_experts": 4}}
    plan = day_plan(folder, loads={"alpha": 2, "live": LIVE}, namespace=NAMESPACE, controller={}, **sizes)
    objects = Objects(control_plane.api, str(folder / "discovery.json"))
    for name, text in render_files(plan).items():
        if name != KUSTOMIZATION:
            objects.apply(yaml.safe_load(text))
    return Api(Connection(api_of_account(control_plane, ACCOUNT, NAMESPACE)))


@pytest.fixture
def deployment(account):
    """The plan's object, as the controller reads it."""
    return find_deployment(account, NAMESPACE, NAME)


def document(number):
    """Return a document of DeepSeek-V3's size."""
    rows = [[(layer + slot) % 256 for slot in range(NUM_SLOTS)] for layer in range(NUM_LAYERS)]
    digest, places = f"sha256:{'0' * 64}", [f"node-{index:03}.cluster.example.com" for index in range(NUM_NODES)]
    standing = {"unit": UNIT, "unit_digest": digest, "number": number, "digest": digest, "places": places}
    return json.dumps(next_document(standing, rows))


def test_documents_of_deepseek_v3_replace_each_other(control_plane, account, deployment):
    """The account may write the first one and change it, and an eighth of what a ConfigMap holds is enough."""
    core, stored = client.CoreV1Api(control_plane.api), []
    for number in range(2):
        write_next_epoch(account, deployment, UNIT, document(number))
        stored.append(core.read_namespaced_config_map(names.epoch_config(UNIT), NAMESPACE).data)

    assert stored == [{names.NEXT_EPOCH_FILE: document(number)} for number in range(2)]
    assert len(document(1)) < MOST_BYTES / 8


def test_the_account_may_change_no_other_config(control_plane, account):
    """The launch files of units, which say what runs, are not the controller's to write."""
    core = client.CoreV1Api(control_plane.api)
    found = {each.metadata.name for each in core.list_namespaced_config_map(NAMESPACE).items}
    others = sorted(found - {names.epoch_config(UNIT)})

    assert any(each.startswith(UNIT) for each in others)
    for each in others:
        with pytest.raises(RefusedError):
            account.merge(Reference("v1", "ConfigMap", NAMESPACE, each), {"data": {"a": "b"}}, manager=FIELD_MANAGER)


def test_documents_go_with_the_deployment(control_plane, account, deployment):
    """Whoever deletes the plan's object has the documents collected, which no tool that applies the plan knows."""
    write_next_epoch(account, deployment, OTHER, document(0))
    custom, core = client.CustomObjectsApi(control_plane.api), client.CoreV1Api(control_plane.api)
    custom.delete_namespaced_custom_object("tidemill.dev", "v1alpha1", NAMESPACE, "deployments", NAME)

    def left():
        configs = {each.metadata.name for each in core.list_namespaced_config_map(NAMESPACE).items}
        return configs & {names.epoch_config(each) for each in (UNIT, OTHER)}

    wait_until(lambda: not left())
