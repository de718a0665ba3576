"""With a manifest, a checkpoint is loaded as it was when the manifest was written, or not at all."""

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime.checkpoint import MANIFEST, check_weights_digest, make_manifest, open_shards, read_shards, write_manifest
from runtime.errors import CheckpointError
from runtime.expert_parallel.group import GlooGroup, SoloGroup
from runtime.model.engine import Engine, EngineConfig
from tests.runtime.random_checkpoints import FP8, V3, write_checkpoint

CONFIG = V3 | {"quantization_config": FP8}
EXPERTS = [list(range(V3["n_routed_experts"]))] * 2
SHARD = "model-00001-of-00003.safetensors"
EXPERT, SHARED = "model.layers.1.mlp.experts.3.up_proj.weight", "model.layers.1.mlp.gate.weight"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Return a checkpoint in FP8 and three shards, with its manifest."""
    folder = write_checkpoint(tmp_path_factory.mktemp("manifest") / "checkpoint", CONFIG, num_shards=3)
    digest(folder)
    return folder


@pytest.fixture
def folder(original, tmp_path):
    """Return a copy to spoil."""
    return shutil.copytree(original, tmp_path / "copy")


def digest(folder):
    with open_shards(folder) as shards:
        return write_manifest(make_manifest(folder, shards, 2, lambda _: None), folder / MANIFEST)


def load(folder, group=None):
    return Engine(EngineConfig(folder, EXPERTS, torch.bfloat16), group or SoloGroup())


def refusal(folder, group=None):
    with pytest.raises(CheckpointError) as error:
        load(folder, group)
    assert "\n" not in str(error.value)
    return str(error.value)


def locate_tensor(folder, name):
    """Return a tensor's file, and its first and last byte there."""
    (stored,) = [shard.tensors[name] for shard in read_shards(folder) if name in shard.tensors]
    return stored.path, stored.start, stored.start + stored.num_bytes - 1


def flip_bit(path, place):
    """Flip one bit of a file."""
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def test_what_was_digested_is_loaded(folder):
    """A checkpoint that equals its manifest is loaded, whichever thread hashed which part."""
    assert len(load(folder).loaded.tensor_names) > 100


@pytest.mark.parametrize("end", [1, 2], ids=["first byte", "last byte"])
@pytest.mark.parametrize("name", [EXPERT, f"{EXPERT}_scale_inv", SHARED])
def test_a_flipped_bit_is_refused_by_the_tensors_name(folder, name, end):
    """A flipped bit in codes, in scales or in a common tensor is refused with the tensor's name."""
    path, *ends = locate_tensor(folder, name)
    flip_bit(path, ends[end - 1])

    assert refusal(folder) == f"{path}: the bytes of {name} are not those of {MANIFEST}: copy the file again"


def test_a_flipped_bit_in_a_large_tensor_is_refused(tmp_path):
    """A flipped bit in a large tensor is refused, although another thread hashes its last part."""
    folder = write_checkpoint(tmp_path / "large", V3 | {"vocab_size": 50_000})
    digest(folder)
    path, _, last = locate_tensor(folder, "lm_head.weight")
    flip_bit(path, last)

    assert "the bytes of lm_head.weight are not those" in refusal(folder)


def test_a_rank_checks_what_it_reads(folder):
    """Only the rank that holds an expert can see that the expert is wrong."""
    path, start, _ = locate_tensor(folder, EXPERT)
    flip_bit(path, start)

    load(folder, GlooGroup(1, 2))
    assert EXPERT in refusal(folder, GlooGroup(0, 2))


def test_another_version_with_equal_headers_is_refused(folder, tmp_path):
    """A shard of R1 among V3's is refused, although names, shapes and size are right."""
    other = write_checkpoint(tmp_path / "other", CONFIG, seed=1, num_shards=3)
    shutil.copy(other / SHARD, folder)

    assert f"{folder / SHARD}: the bytes of" in refusal(folder)


def test_a_truncated_shard_is_refused(folder):
    """A truncated shard is refused before the manifest is compared."""
    os.truncate(folder / SHARD, (folder / SHARD).stat().st_size - 1)

    assert f"{folder / SHARD} is truncated" in refusal(folder)


def test_a_shard_of_another_size_is_refused(folder):
    """A shard that fits its header but not the manifest's size is refused."""
    expected = (folder / SHARD).stat().st_size
    save_file(load_file(folder / SHARD) | {"more": torch.zeros(3)}, folder / SHARD)
    found = (folder / SHARD).stat().st_size

    assert refusal(folder) == (f"{folder / SHARD} has {found:,} bytes, and {expected:,} in {MANIFEST}: copy it again")


def test_a_shard_with_another_header_is_refused(folder):
    """A shard whose tensors lie elsewhere, as after a repack, is refused."""
    tensors = load_file(folder / SHARD)
    size = (folder / SHARD).stat().st_size
    content = bytearray((folder / SHARD).read_bytes())
    header = int.from_bytes(content[:8], "little")
    one, other = sorted(tensors)[:2]
    text = bytes(content[8 : 8 + header])
    swapped = text.replace(one.encode(), b"@").replace(other.encode(), one.encode()).replace(b"@", other.encode())
    content[8 : 8 + header] = swapped.ljust(header)[:header]
    (folder / SHARD).write_bytes(content)

    assert (folder / SHARD).stat().st_size == size
    assert "has another header than" in refusal(folder)


def test_files_that_one_side_has_alone_are_named(folder):
    """A file that only the folder or only the manifest has is named."""
    document = json.loads((folder / MANIFEST).read_text())
    del document["files"][SHARD]
    (folder / MANIFEST).write_text(json.dumps(document))

    assert refusal(folder) == f"{folder}: {SHARD} is in the folder only: copy the checkpoint again"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is no manifest that this version reads"),
        ("[]", "is no manifest that this version reads"),
        ('{"version": 2, "config_digest": "", "files": {}}', "is no manifest that this version reads"),
        ('{"version": 1, "config_digest": "", "files": {}, "more": 1}', "is no manifest that this version reads"),
        ('{"version": 1, "config_digest": "", "files": {}}', "is the manifest of another config.json"),
        ("[" * 100_000, "is no manifest that this version reads"),
    ],
    ids=lambda value: value[:20],
)
def test_what_is_no_manifest_is_refused(folder, content, words):
    """A manifest that is torn, of another version or of another config is refused."""
    (folder / MANIFEST).write_text(content)

    assert words in refusal(folder)
    assert "write it again with tidemill checkpoint digest" in refusal(folder)


def test_a_manifest_without_one_tensor_is_refused(folder):
    """A manifest that lacks a tensor is refused."""
    document = json.loads((folder / MANIFEST).read_text())
    path, _, _ = locate_tensor(folder, EXPERT)
    del document["files"][path.name]["tensors"][EXPERT]
    (folder / MANIFEST).write_text(json.dumps(document))

    assert f"{path} has another header than {MANIFEST} says" in refusal(folder)


def test_equal_checkpoints_have_equal_manifests(original, folder):
    """Equal checkpoints have equal manifests, byte for byte, in any folder and through links."""
    links = folder.with_name("links")
    links.mkdir()
    for path in folder.iterdir():
        (links / path.name).symlink_to(path)
    (links / MANIFEST).unlink()

    assert digest(links) == digest(original)
    assert (links / MANIFEST).read_bytes() == (original / MANIFEST).read_bytes()
    assert load(links).loaded.digests == load(original).loaded.digests


def test_weights_that_were_not_planned_for_are_refused(folder):
    """Weights other than the plan's are refused with both digests; a plan without a digest asks for none."""
    planned = digest(folder)
    check_weights_digest(folder, planned)
    path, start, _ = locate_tensor(folder, EXPERT)
    flip_bit(path, start)
    found = digest(folder)

    check_weights_digest(folder, None)
    with pytest.raises(CheckpointError) as error:
        check_weights_digest(folder, planned)
    assert f"{folder / MANIFEST} is {found}, the plan was made for {planned}" in str(error.value)

    (folder / MANIFEST).unlink()
    with pytest.raises(CheckpointError, match="is not there, and the plan was made for weights sha256:"):
        check_weights_digest(folder, planned)
