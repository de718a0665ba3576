"""Ranks that read different weights do not serve together, although none of them can see the other's files."""

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime.checkpoint import MANIFEST, check_same_files, make_manifest, read_shards, write_manifest
from runtime.errors import CheckpointError
from runtime.expert_parallel.group import SoloGroup
from runtime.launch import read_unit_launch
from runtime.model.engine import Engine, EngineConfig
from runtime.worker.worker import check_same_weights, for_weights
from tests.runtime.joined_groups import joined_groups
from tests.runtime.launch_documents import UNIT, sealed, write
from tests.runtime.random_checkpoints import V3, write_checkpoint

EXPERTS = [list(range(V3["n_routed_experts"]))] * 2
SHARD = "model-00002-of-00002.safetensors"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A checkpoint in two shards, without a manifest."""
    return write_checkpoint(tmp_path_factory.mktemp("same") / "checkpoint", V3, num_shards=2)


@pytest.fixture
def copy(original, tmp_path):
    """The checkpoint as the other node has it."""
    return shutil.copytree(original, tmp_path / "copy")


@pytest.fixture
def join(free_port):
    """Two ranks load a folder each and meet: what each of them raises, or None."""

    def join(*folders):
        def rank(group, folder):
            engine, raised = Engine(EngineConfig(folder, EXPERTS, torch.float32), group), None
            try:
                check_same_weights(group, f"rank {group.rank} on node-{group.rank}", engine.loaded.files)
            except CheckpointError as error:
                raised = str(error)
            group.any(False)
            return raised

        with ThreadPoolExecutor(2) as ranks:
            return list(ranks.map(rank, joined_groups(2, free_port()), folders))

    return join


def test_equal_copies_join(original, copy, join):
    """A copy is as good as the original."""
    assert join(original, copy) == [None, None]


def test_two_versions_with_equal_headers_do_not_join(original, tmp_path, join):
    """V3 here and R1 there: sizes and headers are equal, the tensors that both read are not."""
    other = write_checkpoint(tmp_path / "other", V3, seed=1, num_shards=2)

    first, second = join(original, other)

    assert first is None
    assert second.startswith("rank 1 on node-1 reads other weights than rank 0 on node-0: model-00001-of-00002")


def test_a_stale_shard_is_named(original, copy, tmp_path, join):
    """The first file that differs, with both nodes."""
    other = write_checkpoint(tmp_path / "other", V3, seed=1, num_shards=2)
    shutil.copy(other / SHARD, copy)

    _, second = join(original, copy)

    assert f"rank 1 on node-1 reads other weights than rank 0 on node-0: {SHARD} is " in second


def test_a_shard_of_another_size_is_named(original, copy, join):
    """With both sizes."""
    tensors = load_file(copy / SHARD)
    save_file(tensors | {"more": torch.zeros(5)}, copy / SHARD)

    _, second = join(original, copy)

    for folder in (copy, original):
        assert f"{(folder / SHARD).stat().st_size:,} bytes" in second


def test_a_shard_that_one_rank_has_alone_is_named(original, copy, join):
    """As after another way to cut the checkpoint."""
    os.rename(copy / SHARD, copy / "moved.safetensors")
    index = copy / "model.safetensors.index.json"
    index.write_text(index.read_text().replace(SHARD, "moved.safetensors"))

    _, second = join(original, copy)

    assert f"{SHARD} is missing, not " in second


def test_another_config_is_another_model(copy, original, join):
    """Also where no plan says its digest: a key that changes no tensor changes what is computed."""
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"rms_norm_eps": config["rms_norm_eps"] * 2}))

    first, second = join(original, copy)

    assert first is None
    assert "config.json is " in second


def test_manifests_stand_for_the_files(original, copy, tmp_path, join):
    """Where both have one, equal ones join; where they differ, or one has none, the manifest is named."""
    with_one = shutil.copytree(original, tmp_path / "with")
    for folder in (copy, with_one):
        write_manifest(make_manifest(folder, read_shards(folder), 1, lambda _: None), folder / MANIFEST)

    assert join(with_one, copy) == [None, None]
    assert f"{MANIFEST} is " in join(original, copy)[1]


@pytest.mark.parametrize("is_named", [False, True])
def test_units_of_different_weights_exchange_no_kv(tmp_path, original, copy, is_named):
    """Prefill and decode share a launch file's digest; where that names no weights, what they loaded is part of it."""
    planned = "sha256:" + "0" * 64 if is_named else None
    launch = read_unit_launch(write(tmp_path, sealed(UNIT, checkpoint__weights_digest=planned)))
    other = write_checkpoint(tmp_path / "other", V3, seed=1, num_shards=2)
    prefill, same, decode = (
        for_weights(launch, Engine(EngineConfig(folder, EXPERTS, torch.float32), SoloGroup()).loaded.files).kv_digest
        for folder in (original, copy, other)
    )

    assert prefill == same
    assert (prefill == launch.kv_digest) == (prefill == decode) == is_named


def test_the_digest_of_what_all_read_is_compared():
    """Also where the size is the same."""
    files = {"a": (5, "sha256:" + "0" * 64), "b": (5, "sha256:" + "1" * 64)}
    check_same_files(files, "rank 1", dict(files), "rank 0")

    with pytest.raises(CheckpointError, match="b is 5 bytes with sha256:111111111111, not 5 bytes with sha256:2222"):
        check_same_files(files, "rank 1", files | {"b": (5, "sha256:" + "2" * 64)}, "rank 0")
