"""`tidemill:Deployment` in programs of Pulumi's other languages, under its real engine: what each preview shows.

No node is here; `test_pulumi_up.py` has such a program on a cluster that runs pods.
"""

import copy
import json

import pytest
import yaml
from kubernetes.client import CoreV1Api

from planner.manifests.render import render_files
from stacks.program.source import Source
from tests.cluster.products import PULUMI, PULUMI_YAML
from tests.cluster.pulumi import PLUGIN, Pulumi
from tests.stacks.deployments import DEMO_SPEC

SPEC = DEMO_SPEC.read_text().replace("../../", f"{DEMO_SPEC.parents[2]}/")

# A program in Python that makes the inputs named in `later` by itself: nobody knows them in a preview.
PROJECT = f"name: later\nruntime: python\nplugins: {{providers: [{{name: tidemill, path: {PLUGIN}}}]}}\n"
PROGRAM = """
import json
from pathlib import Path

import pulumi

from stacks.provider.resource import Object, Provider

given = json.loads((Path(__file__).parent / "program.json").read_text())
made = Object("made", given["manifest"], pulumi.ResourceOptions(provider=Provider("here")))
inputs = given["inputs"] | {key: made.id.apply(lambda _, key=key: given["inputs"][key]) for key in given["later"]}


class Deployment(pulumi.ComponentResource):
    def __init__(self, name, args):
        super().__init__("tidemill:index:Deployment", name, args | {"endpoint": None}, remote=True)


pulumi.export("answer", Deployment("llm", inputs).endpoint.apply(lambda url: url + "/v1"))
"""


@pytest.fixture
def yaml_stack(control_plane, toolchain, tmp_path):
    """Makes a stack of a YAML program with these inputs; the kubeconfig of this machine is of no use."""
    executable, host = toolchain(PULUMI, PULUMI_YAML)

    def make(**inputs):
        inputs = {"kubeconfig": control_plane.kubeconfig.read_text()} | inputs
        return Pulumi.of_yaml(executable, host, tmp_path / "stack", "/nonexistent", inputs)

    return make


def create_as_kubectl(api, namespace):
    """Make the first two objects of what `tidemill render` writes."""
    overlay = json.dumps({"kubernetes": {"namespace": namespace}})
    rendered = render_files(Source(spec=SPEC, overlays=(overlay,)).deployed)
    space, account = (
        yaml.safe_load(next(text for name, text in rendered.items() if name.startswith(kind)))
        for kind in ("namespace", "serviceaccount")
    )
    CoreV1Api(api).create_namespace(space, field_manager="kubectl")
    CoreV1Api(api).create_namespaced_service_account(namespace, account, field_manager="kubectl")


def test_a_preview_names_every_object(yaml_stack):
    """Each is a step of its own, or a key of a unit's; the outputs are known."""
    foreseen = yaml_stack(spec=SPEC).preview()

    assert foreseen.errors == []
    assert set(foreseen.steps.values()) == {"create"}
    assert foreseen.steps.keys() >= {
        "llm",
        "llm-cluster",
        "llm-runtime",
        "llm-gateway",
        "llm-prefill-0",
        "llm-decode-0",
    }
    unit = next(each for each in foreseen.document["steps"] if each["urn"].endswith("::llm-decode-0"))
    assert set(unit["newState"]["inputs"]) == {"ConfigMap", "LeaderWorkerSet", "NetworkPolicy", "Service"}


def test_what_kubectl_has_applied_is_adopted_on_request_alone(yaml_stack, control_plane):
    """Otherwise two tools would apply the same objects; the refusal says how."""
    create_as_kubectl(control_plane.api, "adopted")
    stack = yaml_stack(spec=SPEC, overlays=[json.dumps({"kubernetes": {"namespace": "adopted"}})])
    refused = stack.preview().errors
    program = stack.program / "Pulumi.yaml"
    document = json.loads(program.read_text())
    document["resources"]["llm"]["properties"]["adopt"] = True
    program.write_text(json.dumps(document))

    assert (
        "Namespace adopted exists already and is not Tidemill's (its fields are managed by: kubectl); "
        "set adopt: true to take it over, once nothing else applies the plan, or delete it"
    ) in refused
    assert stack.preview().errors == []


@pytest.mark.parametrize(
    ("later", "warning", "is_planned"),
    [
        ("kubeconfig", "the cluster is not known before `up`, so nothing was checked against it", True),
        ("spec", "what is deployed is not known before `up`, so this preview neither plans it nor shows", False),
    ],
)
def test_a_preview_says_what_it_could_not_know(control_plane, toolchain, tmp_path, later, warning, is_planned):
    """A program may make its cluster, or write its spec, in the same run."""
    (executable,) = toolchain(PULUMI)
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"made-{later}", "namespace": "default"}}
    inputs = {"spec": SPEC, "kubeconfig": control_plane.kubeconfig.read_text()}
    stack = Pulumi(executable, tmp_path / "program", tmp_path / "home", control_plane.kubeconfig)
    stack.program.mkdir()
    (stack.program / "Pulumi.yaml").write_text(PROJECT)
    (stack.program / "__main__.py").write_text(PROGRAM)
    given = {"manifest": manifest, "inputs": copy.deepcopy(inputs), "later": [later]}
    (stack.program / "program.json").write_text(json.dumps(given))
    stack.init()

    foreseen = stack.preview()

    assert foreseen.errors == []
    assert any(each.startswith(warning) for each in foreseen.warnings)
    assert ("llm-decode-0" in foreseen.steps) is is_planned
