"""What `tidemill gitops init` writes, and our own release workflow, against actionlint and Flux's own definitions."""

import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

from stacks.cli import main
from tests.cluster.products import ACTIONLINT, FLUX_KUSTOMIZE_CRDS, FLUX_SOURCE_CRDS
from tests.stacks.deployments import REPOSITORY

ADDRESS = "https://git.example/team/deployments.git"


@pytest.fixture(params=[(), ("--environments", "dev,stage,prod")], ids=["one environment", "three environments"])
def written(request, tmp_path, monkeypatch):
    """A repository in which `init` wrote everything, for a spec with a controller."""
    monkeypatch.chdir(tmp_path)
    spec = (REPOSITORY / "stacks" / "specs" / "demo-day.yaml").read_text()
    Path("spec.yaml").write_text(spec.replace("../../runtime", str(REPOSITORY / "runtime")))
    words = ["gitops", "init", "spec.yaml", "deploy", "--github", *request.param]
    assert main([*words, "--argocd", "--flux", "--repository", ADDRESS]) == 0
    assert main([*words, "--loads-from", "http://prometheus.example:9090"]) == 0
    return tmp_path


def test_actionlint_accepts_the_workflows(written, toolchain):
    """Its contexts, its expressions and the names that jobs and steps have for each other."""
    (actionlint,) = toolchain(ACTIONLINT)
    paths = sorted((written / ".github" / "workflows").iterdir())
    done = subprocess.run([actionlint, *paths], check=False, capture_output=True, text=True)

    assert (len(paths), done.returncode, done.stdout) == (4 if (written / "prod.yaml").exists() else 3, 0, "")


def test_actionlint_accepts_our_release(toolchain):
    """The workflow that builds a release from a tag."""
    (actionlint,) = toolchain(ACTIONLINT)
    done = subprocess.run(
        [actionlint, REPOSITORY / ".github" / "workflows" / "release.yml"], check=False, capture_output=True, text=True
    )

    assert (done.returncode, done.stdout) == (0, "")


def test_fluxs_objects_are_what_its_definitions_say(written, toolchain):
    """No field is unknown, and the plan waits for the definitions of its kinds."""
    schemas = {}
    for folder in toolchain(FLUX_KUSTOMIZE_CRDS, FLUX_SOURCE_CRDS):
        for crd in map(yaml.safe_load, (each.read_text() for each in folder.glob("*.yaml"))):
            for version in crd["spec"]["versions"]:
                kind = f"{crd['spec']['group']}/{version['name']}", crd["spec"]["names"]["kind"]
                schemas[kind] = refuse_unknown(version["schema"]["openAPIV3Schema"])
    for path in sorted(written.glob("clusters/*/flux.yaml")):
        source, kinds, plan = yaml.safe_load_all(path.read_text())
        for each in (source, kinds, plan):
            jsonschema.validate(each, schemas[each["apiVersion"], each["kind"]])

        assert plan["spec"]["dependsOn"] == [{"name": kinds["metadata"]["name"]}]
        assert (kinds["spec"]["prune"], plan["spec"]["prune"]) == (False, True)
        assert (written / kinds["spec"]["path"] / "kustomization.yaml").is_file()
        assert plan["spec"]["healthCheckExprs"]


def refuse_unknown(schema):
    """Refuse fields that an object lists nowhere, as the API server does under strict validation."""
    if "properties" in schema:
        inner = {name: refuse_unknown(each) for name, each in schema["properties"].items()}
        inner |= {"metadata": {}} if inner.get("metadata") == {"type": "object"} else {}
        return schema | {"properties": inner, "additionalProperties": False}
    return schema | ({"items": refuse_unknown(schema["items"])} if "items" in schema else {})
