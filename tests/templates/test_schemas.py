"""Every kind of object we render, against Kubernetes' own published schemas, without a cluster.

LeaderWorkerSet is not Kubernetes': `tests/cluster` holds its objects against the schema of its CRD, and all of them
against a real API server.
"""

import copy
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from planner.compiler import compile_plan
from planner.manifests.render import KUSTOMIZATION, render_files
from planner.rules.check import check_spec

DEMO = Path(__file__).parents[2] / "stacks" / "specs" / "demo.yaml"
VERSION = "1.36"  # of the test cluster
EVERYTHING = """
kubernetes:
  volumes: [{host_path: /mnt/models, mount_path: /models}, {claim: tables, mount_path: /tables}]
  resources: {unit: {cpus: 0.5, memory: 1.5GiB}, gateway: {cpus: 2, memory: 1GiB}}
"""


def rendered(folder, more):
    """File name -> object, for the demo with `more` text in its spec."""
    path = folder / "spec.yaml"
    path.write_text(DEMO.read_text().replace("../../", f"{DEMO.parents[2]}/") + more)
    files = render_files(compile_plan(check_spec(path)))
    return {name: yaml.load(text, Loader=yaml.CSafeLoader) for name, text in files.items() if name != KUSTOMIZATION}


@pytest.mark.parametrize("more", ["", EVERYTHING], ids=["the demo", "with volumes and resources"])
def test_every_object_is_of_its_kind(tmp_path, more):
    """No field that Kubernetes does not know, none of another type, none missing."""
    for document in rendered(tmp_path, more).values():
        if document["kind"] != "LeaderWorkerSet":
            kubernetes_validate.validate(document, VERSION, strict=True)


def test_an_unknown_field_is_noticed(tmp_path):
    """So that the test above can fail."""
    (deployment,) = (each for each in rendered(tmp_path, "").values() if each["kind"] == "Deployment")
    wrong = copy.deepcopy(deployment)
    wrong["spec"]["template"]["spec"]["containers"][0]["imagePullPolcy"] = "Never"

    with pytest.raises(kubernetes_validate.ValidationError, match="imagePullPolcy"):
        kubernetes_validate.validate(wrong, VERSION, strict=True)
