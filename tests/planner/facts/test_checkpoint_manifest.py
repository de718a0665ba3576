"""A manifest beside the config names the weights in every launch file, and a stale one is refused."""

import hashlib
import json
import shutil

import pytest

from planner.compiler import compile_plan
from planner.facts.checkpoint_manifest import MANIFEST
from planner.problems.errors import SpecError
from planner.rules.check import check_spec
from runtime.checkpoint import make_manifest, open_shards, resolve, write_manifest
from tests.planner.conftest import SPEC


@pytest.fixture
def folder(tmp_path):
    """A spec, and in `weights` the demo's checkpoint without a manifest."""
    (tmp_path / "spec.yaml").write_text(SPEC.replace("config: config.json", "config: weights/config.json"))
    (tmp_path / "weights").mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(resolve("bundled:demo") / name, tmp_path / "weights")
    return tmp_path


def write(weights):
    """As `tidemill checkpoint digest` does."""
    with open_shards(weights) as shards:
        return write_manifest(make_manifest(weights, shards, 1, lambda _: None), weights / MANIFEST)


def test_without_a_manifest_no_weights_are_named(folder):
    """Such a plan runs with whatever the ranks of a unit agree on."""
    plan = compile_plan(check_spec(folder / "spec.yaml"))

    assert {document["checkpoint"]["weights_digest"] for document in plan.launch_documents.values()} == {None}


def test_a_manifest_names_the_weights(folder):
    """In each launch file, in the inputs of the plan, and so in its digest and in that of the KV."""
    without = compile_plan(check_spec(folder / "spec.yaml"))
    digest = write(folder / "weights")
    plan = compile_plan(check_spec(folder / "spec.yaml"))

    assert {document["checkpoint"]["weights_digest"] for document in plan.launch_documents.values()} == {digest}
    assert digest == "sha256:" + hashlib.sha256((folder / "weights" / MANIFEST).read_bytes()).hexdigest()
    assert plan.inputs[f"weights/{MANIFEST}"] == digest
    kv_digests = [document["kv_digest"] for each in (without, plan) for document in each.launch_documents.values()]
    assert len(set(kv_digests)) == 2
    assert plan.digest != without.digest


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"version": 1}', b'{"version": 1, "files": {}}'])
def test_what_the_message_says_mends_it(folder, content):
    """The manifest is written again, or removed."""
    manifest = folder / "weights" / MANIFEST
    manifest.write_bytes(content)
    with pytest.raises(SpecError, match="S308"):
        check_spec(folder / "spec.yaml")

    manifest.unlink()
    assert check_spec(folder / "spec.yaml").weights_digest is None

    config = json.loads((folder / "weights" / "config.json").read_text())
    write(folder / "weights")
    (folder / "weights" / "config.json").write_text(json.dumps(config))
    with pytest.raises(SpecError, match=r"is of another config\.json"):
        check_spec(folder / "spec.yaml")

    digest = write(folder / "weights")
    assert check_spec(folder / "spec.yaml").weights_digest == digest


def test_a_manifest_that_is_no_file_is_not_waited_for(folder):
    """A folder of that name, for example."""
    (folder / "weights" / MANIFEST).mkdir()

    with pytest.raises(SpecError, match=f"{MANIFEST} cannot be read: it is not a file"):
        check_spec(folder / "spec.yaml")
