"""With a manifest beside it, a checkpoint is loaded as it was when the manifest was written, or not at all."""

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
    """A checkpoint in FP8 and three shards, with its manifest."""
    folder = write_checkpoint(tmp_path_factory.mktemp("manifest") / "checkpoint", CONFIG, num_shards=3)
    digest(folder)
    return folder


@pytest.fixture
def folder(original, tmp_path):
    """A copy to spoil."""
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


def where(folder, name):
    """The file that holds a tensor, and its first and last byte there."""
    (stored,) = [shard.tensors[name] for shard in read_shards(folder) if name in shard.tensors]
    return stored.path, stored.start, stored.start + stored.num_bytes - 1


def flip(path, place):
    """One bit of a file."""
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def test_what_was_digested_is_loaded(folder):
    """Whatever thread hashed which part."""
    assert len(load(folder).loaded.tensor_names) > 100


@pytest.mark.parametrize("end", [1, 2], ids=["first byte", "last byte"])
@pytest.mark.parametrize("name", [EXPERT, f"{EXPERT}_scale_inv", SHARED])
def test_a_flipped_bit_is_refused_by_the_tensors_name(folder, name, end):
    """In codes, in their scales, and in a tensor that every rank reads."""
    path, *ends = where(folder, name)
    flip(path, ends[end - 1])

    assert refusal(folder) == f"{path}: the bytes of {name} are not those of {MANIFEST}: copy the file again"


def test_a_flipped_bit_in_a_large_tensor_is_refused(tmp_path):
    """Its last part is hashed on another thread, and waited for."""
    folder = write_checkpoint(tmp_path / "large", V3 | {"vocab_size": 50_000})
    digest(folder)
    path, _, last = where(folder, "lm_head.weight")
    flip(path, last)

    assert "the bytes of lm_head.weight are not those" in refusal(folder)


def test_a_rank_checks_what_it_reads(folder):
    """Only that of two ranks which holds the expert can see that it is wrong."""
    path, start, _ = where(folder, EXPERT)
    flip(path, start)

    load(folder, GlooGroup(1, 2))
    assert EXPERT in refusal(folder, GlooGroup(0, 2))


def test_another_version_with_equal_headers_is_refused(folder, tmp_path):
    """One shard of R1 among those of V3 has the right names, shapes and size."""
    other = write_checkpoint(tmp_path / "other", CONFIG, seed=1, num_shards=3)
    shutil.copy(other / SHARD, folder)

    assert f"{folder / SHARD}: the bytes of" in refusal(folder)


def test_a_truncated_shard_is_refused(folder):
    """Before the manifest is asked."""
    os.truncate(folder / SHARD, (folder / SHARD).stat().st_size - 1)

    assert f"{folder / SHARD} is truncated" in refusal(folder)


def test_a_shard_of_another_size_is_refused(folder):
    """Its header fits it, and not the manifest."""
    expected = (folder / SHARD).stat().st_size
    save_file(load_file(folder / SHARD) | {"more": torch.zeros(3)}, folder / SHARD)
    found = (folder / SHARD).stat().st_size

    assert refusal(folder) == (f"{folder / SHARD} has {found:,} bytes, and {expected:,} in {MANIFEST}: copy it again")


def test_a_shard_with_another_header_is_refused(folder):
    """Its tensors lie elsewhere in it, as after a repack."""
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
    """A manifest of fewer files is another checkpoint's."""
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
    """Torn, of another version, of another config: nobody loads without the check that somebody asked for."""
    (folder / MANIFEST).write_text(content)

    assert words in refusal(folder)
    assert "write it again with tidemill checkpoint digest" in refusal(folder)


def test_a_manifest_without_one_tensor_is_refused(folder):
    """Somebody edited it."""
    document = json.loads((folder / MANIFEST).read_text())
    path, _, _ = where(folder, EXPERT)
    del document["files"][path.name]["tensors"][EXPERT]
    (folder / MANIFEST).write_text(json.dumps(document))

    assert f"{path} has another header than {MANIFEST} says" in refusal(folder)


def test_equal_checkpoints_have_equal_manifests(original, folder):
    """Byte for byte, whatever the folder, also when the files are links, as in Hugging Face's cache."""
    links = folder.with_name("links")
    links.mkdir()
    for path in folder.iterdir():
        (links / path.name).symlink_to(path)
    (links / MANIFEST).unlink()

    assert digest(links) == digest(original)
    assert (links / MANIFEST).read_bytes() == (original / MANIFEST).read_bytes()
    assert load(links).loaded.digests == load(original).loaded.digests


def test_weights_that_were_not_planned_for_are_refused(folder):
    """With both digests; a plan that was made without a manifest asks for none."""
    planned = digest(folder)
    check_weights_digest(folder, planned)
    path, start, _ = where(folder, EXPERT)
    flip(path, start)
    found = digest(folder)

    check_weights_digest(folder, None)
    with pytest.raises(CheckpointError) as error:
        check_weights_digest(folder, planned)
    assert f"{folder / MANIFEST} is {found}, the plan was made for {planned}" in str(error.value)

    (folder / MANIFEST).unlink()
    with pytest.raises(CheckpointError, match="is not there, and the plan was made for weights sha256:"):
        check_weights_digest(folder, planned)
