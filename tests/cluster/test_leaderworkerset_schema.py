"""Units' objects against the schema of LeaderWorkerSet's CRD, without a server, and with unknown fields refused.

An API server prunes what the schema does not know unless asked to be strict; a schema alone lets it pass. So each
object of the schema that lists its properties is closed first.
"""

import copy
from pathlib import Path

import jsonschema
import pytest
import yaml

from planner.compiler import compile_plan
from planner.manifests.render import render_files
from planner.rules.check import check_spec
from tests.cluster.products import LWS_CRDS
from tests.templates.gpu_plans import gpu_plan, rendered, unit_of
from tests.templates.test_gpu_manifests import EVERYTHING

DEMO = Path(__file__).parents[2] / "stacks" / "specs" / "demo.yaml"
DOCUMENTS = {
    name: yaml.safe_load(text)
    for name, text in render_files(compile_plan(check_spec(DEMO))).items()
    if name.startswith("leaderworkerset-")
}


@pytest.fixture(scope="module")
def schema(toolchain):
    """Of the served version, closed."""
    (folder,) = toolchain(LWS_CRDS)
    for path in folder.glob("*leaderworkersets.yaml"):
        definition = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
    (version,) = (each for each in definition["spec"]["versions"] if each["served"])
    return closed(version["schema"]["openAPIV3Schema"], is_root=True)


def closed(schema, is_root=False):
    """`schema` with `additionalProperties: false` wherever properties are listed, but for `metadata`, which is open."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: closed(value) for key, value in schema.items()}
    if "properties" in result and not schema.get("x-kubernetes-preserve-unknown-fields"):
        result.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        result.pop("type", None)
    if is_root:
        result["properties"]["metadata"] = {"type": "object"}
    return result


@pytest.mark.parametrize("name", DOCUMENTS)
def test_units_are_of_their_kind(schema, name):
    """Every field is known, of its type, and none is missing."""
    jsonschema.validate(DOCUMENTS[name], schema)


def test_units_on_gpus_are_of_their_kind(schema, tmp_path):
    """The same with everything that a spec can say of their pods. One of them: validation takes seconds."""
    jsonschema.validate(unit_of(rendered(gpu_plan(tmp_path), **EVERYTHING)), schema)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_an_unknown_field_is_noticed(schema, name):
    """So that the test above can fail: at the top, and deep in the pod template."""
    for path in (["spec"], ["spec", "leaderWorkerTemplate", "workerTemplate", "spec", "containers", 0]):
        wrong = copy.deepcopy(DOCUMENTS[name])
        place = wrong
        for key in path:
            place = place[key]
        place["replicsa"] = 2
        with pytest.raises(jsonschema.ValidationError, match="replicsa"):
            jsonschema.validate(wrong, schema)
