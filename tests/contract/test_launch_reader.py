"""What the planner writes the runtime reads: the demo's plan goes through the only seam between them."""

import json
from pathlib import Path

import pytest
import torch
from jsonschema import Draft202012Validator

from planner.compiler import compile_plan
from planner.layout.memory import KV_PAGE_TOKENS
from planner.plan.launch import KV_WIRE_VERSION
from planner.rules.check import check_spec
from runtime.checkpoint import check_config_digest, check_weights_digest, resolve
from runtime.errors import LaunchError
from runtime.expert_parallel.group import STEP_TIMEOUT
from runtime.kernels.precision import DTYPES
from runtime.kv.receiver import check_layout
from runtime.launch import KV_DIGEST_KEYS, UNIT_DIGEST_KEYS, Disk, read_gateway_launch, read_unit_launch
from runtime.model.config import read_model_config
from runtime.protocol.counting import PAGE_TOKENS
from runtime.protocol.frames import VERSION as WIRE_VERSION
from runtime.worker.pulse import TELL_S
from tests.contract.test_launch_schema import UNIT_DIGEST_KEYS as SCHEMAS_UNIT_DIGEST_KEYS
from tests.runtime.launch_documents import GATEWAY, UNIT, change_leaf, leaf_paths, seal
from tests.runtime.test_launch import WITH_DISK, WRITTEN

HERE = Path(__file__).parent
DEMO = HERE.parents[1] / "stacks" / "specs" / "demo.yaml"
VALIDATOR = Draft202012Validator(json.loads((HERE / "launch.schema.json").read_text()))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """File name -> path of the demo's launch files, as the planner writes them."""
    folder = tmp_path_factory.mktemp("plan")
    for name, text in compile_plan(check_spec(DEMO)).launch_files().items():
        (folder / name).write_text(text)
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def units(files):
    """Phase -> launch."""
    launches = [read_unit_launch(path) for name, path in files.items() if name != "gateway.launch.json"]
    return {launch.phase: launch for launch in launches}


def test_the_runtime_reads_every_file(files, units):
    """A prefill unit of two ranks, a decode unit of four, and a gateway; one KV digest for all."""
    gateway = read_gateway_launch(files["gateway.launch.json"])

    assert {phase: len(launch.ranks) for phase, launch in units.items()} == {"prefill": 2, "decode": 4}
    assert {launch.kv_digest for launch in (*units.values(), gateway)} == {gateway.kv_digest}
    assert {launch.ports.registry for launch in (*units.values(), gateway)} == {gateway.ports.registry}


def test_a_silent_rank_is_waited_for_longer_than_a_collective(files):
    """Else a rank whose peers still wait for it would be given up before they are."""
    assert read_gateway_launch(files["gateway.launch.json"]).stall_timeout_s > STEP_TIMEOUT.total_seconds() + 2 * TELL_S


def test_the_wires_version_is_in_the_kv_digest(units):
    """What planner and runtime call it is one number, so units of two versions never pair."""
    assert KV_WIRE_VERSION == WIRE_VERSION
    assert {launch.kv_cache.wire_version for launch in units.values()} == {WIRE_VERSION}


def test_precision_travels_from_the_spec_to_the_runtime(tmp_path):
    """Under fp8, which the runtime can run on CPUs too, matrices are in FP8 and latent KV in BF16."""
    spec = tmp_path / "fp8.yaml"
    text = DEMO.read_text().replace("precision: fp32", "precision: fp8")
    spec.write_text(text.replace("../../runtime/demo", str(HERE.parents[1] / "runtime" / "demo")))
    plan = compile_plan(check_spec(spec))
    (tmp_path / "unit.json").write_text(next(iter(plan.launch_files().values())))
    launch = read_unit_launch(tmp_path / "unit.json")

    assert plan.refusals == ()
    VALIDATOR.validate(json.loads((tmp_path / "unit.json").read_text()))
    assert (launch.precision, launch.kv_cache.dtype) == ("fp8", "bf16")
    assert DTYPES[launch.precision] == torch.float8_e4m3fn


def test_ranks_that_compute_prompts_read_where_to_keep_kv(tmp_path, units):
    """Memory, and on a disk each rank's share of what its node may write; on this machine the disk is another folder.

    Decode ranks keep none, the gateway reads who shares KV, and KV still goes from one phase to the other.
    """
    spec = tmp_path / "keeps.yaml"
    kept = "kv_cache: {memory: 1GiB, disk: {path: /kv, size: 1TB, bandwidth: 6GB/s}, sharing: all}\n"
    spec.write_text(DEMO.read_text().replace("../../runtime/demo", str(HERE.parents[1] / "runtime" / "demo")) + kept)
    files = {}
    for name, text in compile_plan(check_spec(spec)).launch_files(disk="/home/kv").items():
        files[name] = tmp_path / name
        files[name].write_text(text)
        VALIDATOR.validate(json.loads(text))
    prefill, decode = (read_unit_launch(files[f"demo-{phase}-0.launch.json"]) for phase in ("prefill", "decode"))

    assert (prefill.limits.host_bytes, prefill.limits.disk) == (2**30, Disk("/home/kv", 10**12, bytes_per_s=3 * 10**9))
    assert decode.unit_digest == units["decode"].unit_digest
    assert read_gateway_launch(files["gateway.launch.json"]).sharing == "all"
    assert prefill.kv_digest == units["prefill"].kv_digest


def test_the_plan_fits_the_checkpoint(units):
    """The config's digest, the KV bytes of a token and the map's layers are the bundled model's."""
    for launch in units.values():
        folder = resolve(launch.checkpoint.uri)
        config = read_model_config(folder)
        check_config_digest(folder, launch.checkpoint.config_digest)
        check_weights_digest(folder, launch.checkpoint.weights_digest)
        check_layout(launch.kv_cache, (config.num_hidden_layers, config.latent_dim))
        assert len(launch.expert_map.physical_to_logical) == config.num_moe_layers
        assert launch.expert_map.num_logical_experts == config.n_routed_experts


def test_any_changed_value_is_refused(files, tmp_path):
    """No single value of the planner's files can be edited without the runtime noticing."""
    path = tmp_path / "edited.json"
    for name, original in files.items():
        read = read_gateway_launch if name == "gateway.launch.json" else read_unit_launch
        document = json.loads(original.read_text())
        for leaf in leaf_paths(document):
            path.write_text(json.dumps(change_leaf(document, leaf)))
            with pytest.raises(LaunchError):
                read(path)


@pytest.mark.parametrize(
    "document",
    [UNIT, GATEWAY, WITH_DISK, WRITTEN],
    ids=["unit", "gateway", "unit with a disk", "unit whose KV is written"],
)
def test_the_runtimes_own_test_documents_are_of_the_schema(document):
    """What tests/runtime feeds the reader is what the schema allows, so its refusals are about the contract."""
    VALIDATOR.validate(seal(document))


def test_the_digests_are_over_the_same_keys():
    """The reader's lists are the ones which the schema describes."""
    assert UNIT_DIGEST_KEYS == SCHEMAS_UNIT_DIGEST_KEYS
    assert KV_DIGEST_KEYS == ("kv_cache", "model", "checkpoint")


def test_pages_of_kv_are_of_one_size():
    """The planner's room for a request of full length is whole pages of the runtime."""
    assert KV_PAGE_TOKENS == PAGE_TOKENS
