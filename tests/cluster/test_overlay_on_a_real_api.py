"""An overlay before a real API server: what it takes, and what it refuses in its own words with our path.

Nothing runs here. `doctor` looks, as a user would let it, and previews foresee.
"""

import json

import pytest
import yaml

from planner.compiler import compile_plan
from planner.rules.check import check_spec
from stacks.doctor.checks import findings
from stacks.doctor.needs import read_needs
from stacks.doctor.reading import read_facts
from stacks.kube import object_set
from stacks.kube.api import Api
from stacks.kube.connection import Connection
from stacks.kube.errors import ProviderError
from tests.cluster.objects import Objects
from tests.stacks.deployments import DEMO_SPEC

NAMESPACE = "overlaid"
SIDECAR = {
    "name": "sidecar",
    "image": "example.com/sidecar:1",
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}
SIZE = {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}}
ACCEPTED = {
    "unit_pod": {
        "metadata": {"annotations": {"example.com/rail": "aligned"}},
        "spec": {"runtimeClassName": "overlaid", "containers": [SIDECAR], "volumes": [SIZE]},
    },
    "gateway_pod": {"spec": {"nodeSelector": {"pool": "cpu"}, "tolerations": [{"operator": "Exists"}]}},
    "objects": [{"kind": "Service", "name": "demo-gateway", "patch": {"spec": {"type": "LoadBalancer"}}}],
}
UNIT_POD, GATEWAY_POD = "kubernetes.overlay.unit_pod", "kubernetes.overlay.gateway_pod"
# What the server's schemas refuse, and what only its validation does: overlay -> the server's words, our path.
GATEWAY = {"name": "gateway", "env": [{"name": "A", "value": 5}]}
BY_SCHEMA = (
    {"unit_pod": {"spec": {"tolerationz": []}}, "gateway_pod": {"spec": {"containers": [GATEWAY]}}},
    {
        "spec.tolerationz: field not declared in schema": f"{UNIT_POD}.spec.tolerationz",
        'env[name="A"].value: expected string': f"{GATEWAY_POD}.spec.containers.0.env.0.value",
    },
)
BY_VALIDATION = (
    {
        "unit_pod": {"spec": {"containers": [{"name": "sidecar"}]}},
        "gateway_pod": {"spec": {"tolerations": [{"key": "a", "operator": "Exits"}]}},
        "objects": [{"kind": "Service", "name": "demo-gateway", "patch": {"spec": {"type": "Loud"}}}],
    },
    {
        "spec.containers[1].image: Required value": f"{UNIT_POD}.spec.containers.0",
        "spec.tolerations[0].operator: Unsupported value": f"{GATEWAY_POD}.spec.tolerations.0.operator",
        'spec.type: Unsupported value: "Loud"': "kubernetes.overlay.objects.0.patch.spec.type",
    },
)


@pytest.fixture(scope="module")
def objects(api_server, tmp_path_factory):
    """Our way of writing to the API server, which has the namespace, its account, and the runtime class."""
    writer = Objects(api_server.api, str(tmp_path_factory.mktemp("discovery") / "cache.json"))
    writer.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    account = {"name": "default", "namespace": NAMESPACE}  # which a controller would make
    writer.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "overlaid"}}
    writer.apply(runtime | {"handler": "overlaid"})
    return writer


def needs_with(overlay, folder):
    """What the demo needs with an overlay, in the namespace that is there."""
    spec = yaml.safe_load(DEMO_SPEC.read_text())
    for section, key in (("model", "config"), ("expert_load", "file")):
        spec[section][key] = str((DEMO_SPEC.parent / spec[section][key]).resolve())
    spec["kubernetes"] = {"namespace": NAMESPACE, "create_namespace": False, "overlay": overlay}
    path = folder / "spec.json"
    path.write_text(json.dumps(spec))
    return read_needs(compile_plan(check_spec(path)))


def looked(api_server, needs):
    """The findings about objects and pods: nobody has nodes here."""
    found = findings(needs, read_facts(Api(Connection(api_server.api)), needs))
    return [each for each in found if each.check not in ("node", "gateway")]


def foreseen(api_server, needs):
    """What previews of each object hear."""
    for each in needs.objects:
        try:
            object_set.foresee(Api(Connection(api_server.api)), {}, {"": each})
        except ProviderError as error:
            yield str(error)


def test_what_kubernetes_takes_is_stored(api_server, objects, tmp_path):
    """Annotations, a further container, a runtime class, a size, and a Service for clients from outside."""
    needs = needs_with(ACCEPTED, tmp_path)

    assert looked(api_server, needs) == []
    assert list(foreseen(api_server, needs)) == []
    for each in needs.objects:
        objects.apply(each)
    stored = {each["metadata"]["name"]: objects.read(each) for each in needs.objects if each["kind"] != "Service"}
    (service,) = (objects.read(each) for each in needs.objects if each["kind"] == "Service" and "-gateway" in str(each))
    template = stored["demo-decode-0"]["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    assert template["metadata"]["annotations"] == {"example.com/rail": "aligned"}
    assert [each["name"] for each in template["spec"]["containers"]] == ["runtime", "sidecar"]
    assert template["spec"]["runtimeClassName"] == "overlaid"
    assert service["spec"]["type"] == "LoadBalancer"


@pytest.mark.parametrize(("overlay", "places"), [BY_SCHEMA, BY_VALIDATION], ids=["schema", "validation"])
@pytest.mark.usefixtures("objects")
def test_what_kubernetes_refuses_is_named_in_the_overlay(api_server, overlay, places, tmp_path):
    """`doctor` quotes the server and names our path, whichever pods or objects are refused; previews quote it too."""
    needs = needs_with(overlay, tmp_path)
    found, heard = looked(api_server, needs), list(foreseen(api_server, needs))

    for words, place in places.items():
        assert {each.fix for each in found if words in each.reason} == {f"correct {place}"}
        assert any(words in each for each in heard)
    assert all(any(words in each for words in places) for each in [*heard, *(each.reason for each in found)])
