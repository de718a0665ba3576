"""A checkpoint on a node's own disk: whole, compared, and copied once."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runtime import checkpoint
from runtime.__main__ import main
from runtime.checkpoint import MANIFEST, make_manifest, read_shards, write_manifest
from runtime.checkpoint.stage import STAGED, stage
from runtime.errors import CheckpointError, RuntimeFailure
from tests.runtime.random_checkpoints import V3, write_checkpoint

DISK_FULL = 28


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A checkpoint in three shards, with its manifest and a tokenizer."""
    folder = write_checkpoint(tmp_path_factory.mktemp("stage") / "checkpoint", V3, num_shards=3)
    (folder / "tokenizer.json").write_text("{}")
    write_manifest(make_manifest(folder, read_shards(folder), 2, lambda _: None), folder / MANIFEST)
    return folder


@pytest.fixture
def source(original, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(original, tmp_path / "source")


def contents(folder):
    """File name -> bytes, without what staging keeps there for itself."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def versions(folder):
    """When each file was written: another time after each copy."""
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if not path.name.startswith(".")}


def test_a_copy_is_the_checkpoint(source, tmp_path, capsys):
    """Every file byte for byte, readable by all; the log says how much, and that it was compared."""
    stage(str(source), tmp_path / "new" / "copy", 2)

    copy = tmp_path / "new" / "copy"
    assert contents(copy) == contents(source)
    assert {oct(path.stat().st_mode & 0o777) for path in copy.glob("*.safetensors")} == {"0o644"}
    assert f"GB from {source} to {copy}, compared with its manifest\n" in capsys.readouterr().err


def test_a_copy_that_is_there_is_left_alone(source, tmp_path, capsys):
    """A pod that starts again waits for nothing."""
    stage(str(source), tmp_path / "copy", 2)
    before = versions(tmp_path / "copy")
    stage(str(source), tmp_path / "copy", 2)

    assert versions(tmp_path / "copy") == before
    assert capsys.readouterr().err.endswith("has the checkpoint already\n")


def test_an_interrupted_copy_goes_on(source, tmp_path, monkeypatch):
    """What was whole stays, what was not is copied anew; no file has its name before it is whole."""
    destination, real, renamed = tmp_path / "copy", Path.replace, []

    def dies_at_the_third(self, target):
        if Path(target).suffix == ".safetensors":
            renamed.append(target)
        if len(renamed) > 2:
            raise KeyboardInterrupt
        return real(self, target)

    monkeypatch.setattr(Path, "replace", dies_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        stage(str(source), destination, 1)
    monkeypatch.undo()
    there = versions(destination)
    stage(str(source), destination, 1)

    assert len([name for name in there if name.endswith(".safetensors")]) == 2
    assert contents(destination) == contents(source)
    assert there.items() <= versions(destination).items()


def test_another_checkpoint_takes_the_place_of_the_old_one(source, tmp_path):
    """Of the same sizes, too: nothing of the old one stays."""
    stage(str(source), tmp_path / "copy", 2)
    before = versions(tmp_path / "copy")
    (source / "tokenizer.json").write_text("[]")
    stage(str(source), tmp_path / "copy", 2)

    assert contents(tmp_path / "copy") == contents(source)
    assert not before.items() & versions(tmp_path / "copy").items()


def test_a_tensor_that_is_another_is_refused(source, tmp_path):
    """It gets no name on the disk; the sentence says which tensor."""
    shard = read_shards(source)[1]
    name, tensor = max(shard.tensors.items(), key=lambda named: named[1].start)
    with shard.path.open("r+b") as file:
        file.seek(tensor.start)
        byte = file.read(1)
        file.seek(tensor.start)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(CheckpointError, match=rf"{shard.path.name}: {name} is sha256:\w+, and sha256:\w+ in "):
        stage(str(source), tmp_path / "copy", 2)

    assert not (tmp_path / "copy" / shard.path.name).exists()


def test_every_tensor_is_compared(source, tmp_path):
    """Whichever of a file changes; a fourth of them here."""
    shard = read_shards(source)[0]
    for name, tensor in sorted(shard.tensors.items())[::4]:
        content = bytearray((source / shard.path.name).read_bytes())
        content[tensor.start + tensor.num_bytes - 1] ^= 1
        (source / shard.path.name).write_bytes(content)
        with pytest.raises(CheckpointError, match=f": {name} is sha256"):
            stage(str(source), tmp_path / "copy", 1)
        content[tensor.start + tensor.num_bytes - 1] ^= 1
        (source / shard.path.name).write_bytes(content)


def test_without_a_manifest_nothing_is_compared_and_the_log_says_so(source, tmp_path, capsys):
    """It is copied all the same: ranks compare what they read with each other."""
    (source / MANIFEST).unlink()
    stage(str(source), tmp_path / "copy", 2)

    assert contents(tmp_path / "copy") == contents(source)
    assert f"not compared: it has no {MANIFEST}" in capsys.readouterr().err


def test_two_pods_of_a_node_copy_once(source, tmp_path):
    """The second waits, and finds it there."""
    with ThreadPoolExecutor(2) as pods:
        for done in [pods.submit(stage, str(source), tmp_path / "copy", 1) for _ in range(2)]:
            done.result()

    assert contents(tmp_path / "copy") == contents(source)
    assert sorted(path.name for path in (tmp_path / "copy").iterdir() if path.name.startswith(".")) == [
        ".tidemill-stage.lock",
        STAGED,
    ]


def test_a_disk_without_room_is_said_before_it_is_full(source, tmp_path, monkeypatch):
    """With the bytes that are there and those that are needed."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(RuntimeFailure, match=r"has 1,000 bytes free, and \d[\d,]+ are to be copied to it: make room"):
        stage(str(source), tmp_path / "copy", 2)


def test_an_error_of_the_disk_is_a_sentence(source, tmp_path, monkeypatch):
    """Not a traceback, and not taken for one of the source."""

    def full(_):
        raise OSError(DISK_FULL, os.strerror(DISK_FULL))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RuntimeFailure, match=r"cannot write .*copy: No space left on device"):
        stage(str(source), tmp_path / "copy", 1)


def test_the_command_copies(tmp_path, capsys):
    """`python -m runtime stage` of the bundled checkpoint, and of one that is not there."""
    assert main(["stage", "bundled:demo", str(tmp_path / "copy")]) == 0
    assert main(["stage", str(tmp_path / "no"), str(tmp_path / "copy")]) == 1

    assert "there is no checkpoint folder" in capsys.readouterr().err
    assert len(read_shards(tmp_path / "copy")) == len(read_shards(checkpoint.resolve("bundled:demo")))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("tokenizer.json", lambda path: path.write_text("{} "), "grew while it was copied: it had 2 bytes"),
        ("tokenizer.json", lambda path: path.write_text("{"), "became shorter while it was copied: it had 2 bytes"),
        (
            "model-00001-of-00003.safetensors",
            lambda path: os.truncate(path, 5000),
            "became shorter while it was copied",
        ),
        ("model-00001-of-00003.safetensors", lambda path: flip(path, 3), "its header's length is sha256"),
        ("model-00001-of-00003.safetensors", lambda path: flip(path, 20), "its header is sha256"),
    ],
)
def test_a_file_that_changes_after_it_was_looked_at_is_refused(name, change, words, source, tmp_path, monkeypatch):
    """No log says that it was compared, and it gets no name."""
    usage = shutil.disk_usage

    def changes(path):  # asked for between the look and the copy
        change(source / name)
        return usage(path)

    monkeypatch.setattr(shutil, "disk_usage", changes)
    with pytest.raises(CheckpointError, match=words):
        stage(str(source), tmp_path / "copy", 1)

    assert not (tmp_path / "copy" / name).exists()


def flip(path, at):
    """Change one bit of the byte at `at`."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
