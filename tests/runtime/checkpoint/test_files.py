"""A checkpoint's file that never ends is refused, and nobody waits for it."""

import os
import shutil

import pytest
import torch

from runtime.checkpoint import folder as small_files
from runtime.checkpoint import index_tensors, open_shards, read_json, read_shards, refuse_holes
from runtime.errors import CheckpointError
from runtime.expert_parallel.group import SoloGroup
from runtime.model.engine import Engine, EngineConfig

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(demo, tmp_path):
    """Return a copy of config and weights."""
    for name in ("config.json", WEIGHTS):
        shutil.copy(demo / name, tmp_path)
    return tmp_path


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize("name", [WEIGHTS, "model.safetensors.index.json"])
def test_what_never_ends_is_refused(folder, name, make):
    """A FIFO, a folder and a device in place of a file are refused."""
    (folder / name).unlink(missing_ok=True)
    make(folder / name)

    with pytest.raises(CheckpointError, match=f"{name} is not a regular file, nor a link to one"):
        read_shards(folder)


def test_a_link_to_a_file_is_that_file(folder):
    """A link to a file is read as the file, as in Hugging Face's cache."""
    (folder / WEIGHTS).rename(folder / "blob")
    (folder / WEIGHTS).symlink_to(folder / "blob")

    assert index_tensors(read_shards(folder))


def test_a_small_file_that_is_huge_is_refused(folder, monkeypatch):
    """A huge file in place of a small one is refused, and not read into memory."""
    monkeypatch.setattr(small_files, "MAX_READ_BYTES", 100)

    with pytest.raises(CheckpointError, match=r"config.json is larger than the 100 bytes that are read"):
        read_json(folder / "config.json")


def test_a_file_with_a_hole_is_refused(folder, redundant_map):
    """A file with a hole is refused: it was created in full length and never filled."""
    size = (folder / WEIGHTS).stat().st_size
    with open_shards(folder) as shards:
        refuse_holes(shards)
    os.truncate(folder / WEIGHTS, size // 2)
    os.truncate(folder / WEIGHTS, size)

    with pytest.raises(CheckpointError, match=f"{WEIGHTS} has a hole at byte .* of {size:,}: copy it again"):
        Engine(EngineConfig(folder, redundant_map, torch.float32), SoloGroup())
