"""The provider's component: its schema, and what is wrong with a call before anything is declared."""

import inspect
import json
from pathlib import Path

import pytest
import yaml
from pulumi.runtime.proto import provider_pb2 as pb

from stacks.kube.errors import ProviderError
from stacks.program import TOKEN
from stacks.program.deployment import Deployment
from stacks.program.plugin import Plugin, _read_source
from stacks.program.source import FIELDS
from stacks.provider.engine import Engine
from stacks.provider.resource import Provider
from stacks.provider.wire import SECRET_SIGNATURE, SIGNATURE_KEY, encode_struct
from tests.stacks.deployments import DEMO_SPEC

STACKS = Path(__file__).parents[3] / "stacks"


@pytest.fixture
def plugin():
    """A configured one, of an engine that nobody hears."""
    made = Plugin(Engine("127.0.0.1:1"))
    made.Configure(pb.ConfigureRequest(), None)
    return made


def test_the_schema_has_what_the_component_takes_and_gives(plugin):
    """A YAML program, and a generated SDK, know no other inputs and outputs."""
    schema = json.loads(plugin.GetSchema(pb.GetSchemaRequest(), None).schema)
    component, provider = schema["resources"][TOKEN], schema["provider"]

    assert component["isComponent"]
    assert set(component["inputProperties"]) == {*FIELDS, "kubeconfig", "context", "adopt"}
    assert set(component["properties"]) == set(component["required"]) == {"endpoint", "planDigest", "units", "verdict"}
    assert set(provider["inputProperties"]) == {"kubeconfig", "context", "adopt", "kinds"}
    assert provider["inputProperties"].keys() <= inspect.signature(Provider.__init__).parameters.keys()
    assert {"kubeconfig", "context", "adopt"} <= inspect.signature(Deployment.__init__).parameters.keys()


def test_our_own_project_declares_the_same_inputs(plugin):
    """The project uses the words that Pulumi takes: it refuses a project with any other key."""
    schema = json.loads(plugin.GetSchema(pb.GetSchemaRequest(), None).schema)
    declared = yaml.safe_load((STACKS / "Pulumi.yaml").read_text())["config"]

    assert declared.keys() == schema["resources"][TOKEN]["inputProperties"].keys()
    assert all(each.keys() - {"items"} == {"type", "default", "description"} for each in declared.values())


@pytest.mark.parametrize(
    ("token", "inputs", "sentence"),
    [
        (TOKEN, {"specc": "a"}, "specc: no input of tidemill:Deployment, which has spec, overlays, previous, plan, "),
        (TOKEN, {}, "tidemill:Deployment: exactly one of spec and plan must be set"),
        (TOKEN, {"spec": "name: demo\n"}, "spec:1:1: version is required"),
        ("tidemill:index:Gateway", {}, "tidemill has no component tidemill:index:Gateway; it has tidemill:index:Depl"),
    ],
)
def test_a_wrong_call_is_one_sentence(plugin, token, inputs, sentence):
    """A program without a schema can make each of these."""
    request = pb.ConstructRequest(type=token, name="x", inputs=encode_struct(inputs))

    with pytest.raises(ProviderError) as error:
        Plugin.Construct.__wrapped__(plugin, request)

    assert str(error.value).startswith(sentence)


@pytest.mark.parametrize("key", ["spec", "overlays"])
def test_what_is_made_from_a_secret_is_secret(key):
    """A spec may have a password of another resource in it, and then manifests do."""
    values = {"spec": str(DEMO_SPEC), "overlays": ["{}"]}
    hidden = {"spec": _secret(str(DEMO_SPEC)), "overlays": [_secret("{}")]}

    assert not _read_source(TOKEN, encode_struct(values)).is_secret
    assert _read_source(TOKEN, encode_struct(values | {key: hidden[key]})).is_secret


def _secret(value):
    return {SIGNATURE_KEY: SECRET_SIGNATURE, "value": value}
