"""A checkpoint is copied to a node's own disk once, whole and compared."""

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runtime import checkpoint
from runtime.__main__ import main
from runtime.checkpoint import MANIFEST, make_manifest, open_shards, read_shards, write_manifest
from runtime.checkpoint.stage import LOCK, STAGED, stage
from runtime.errors import CheckpointError, RuntimeFailure
from tests.runtime.random_checkpoints import V3, write_checkpoint

DISK_FULL = 28


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Return a checkpoint in three shards, with its manifest and a tokenizer."""
    folder = write_checkpoint(tmp_path_factory.mktemp("stage") / "checkpoint", V3, num_shards=3)
    (folder / "tokenizer.json").write_text("{}")
    with open_shards(folder) as shards:
        write_manifest(make_manifest(folder, shards, 2, lambda _: None), folder / MANIFEST)
    return folder


@pytest.fixture
def source(original, tmp_path):
    """Return a copy to spoil."""
    return shutil.copytree(original, tmp_path / "source")


def contents(folder):
    """Return file name -> bytes, without staging's own files."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def versions(folder):
    """Return the time when each file was written."""
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if not path.name.startswith(".")}


def test_a_copy_is_the_checkpoint(source, tmp_path, capsys):
    """A copy equals the checkpoint byte for byte, all may read it, and the log says that it was compared."""
    stage(str(source), tmp_path / "new" / "copy", 2)

    copy = tmp_path / "new" / "copy"
    assert contents(copy) == contents(source)
    assert {oct(path.stat().st_mode & 0o777) for path in copy.glob("*.safetensors")} == {"0o644"}
    assert f"GB from {source} to {copy}, compared with its manifest\n" in capsys.readouterr().err


def test_a_copy_that_is_there_is_left_alone(source, tmp_path, capsys):
    """A complete copy is left alone."""
    stage(str(source), tmp_path / "copy", 2)
    before = versions(tmp_path / "copy")
    stage(str(source), tmp_path / "copy", 2)

    assert versions(tmp_path / "copy") == before
    assert capsys.readouterr().err.endswith("has the checkpoint already\n")


def test_an_interrupted_copy_goes_on(source, tmp_path, monkeypatch):
    """An interrupted copy keeps its complete files and copies the rest; no file has its name before it is complete."""
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
    """Another checkpoint replaces the old one, even if all sizes are equal."""
    stage(str(source), tmp_path / "copy", 2)
    before = versions(tmp_path / "copy")
    (source / "tokenizer.json").write_text("[]")
    stage(str(source), tmp_path / "copy", 2)

    assert contents(tmp_path / "copy") == contents(source)
    assert not before.items() & versions(tmp_path / "copy").items()


def test_a_tensor_that_is_another_is_refused(source, tmp_path):
    """A tensor that differs from the manifest is refused by name, and its file gets no name on the disk."""
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
    """A change in any tensor of a file is noticed."""
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
    """Without a manifest the files are copied, and the log says that they were not compared."""
    (source / MANIFEST).unlink()
    stage(str(source), tmp_path / "copy", 2)

    assert contents(tmp_path / "copy") == contents(source)
    assert f"not compared: it has no {MANIFEST}" in capsys.readouterr().err


def test_two_pods_of_a_node_copy_once(source, tmp_path):
    """A second pod waits for the first, and finds the copy."""
    with ThreadPoolExecutor(2) as pods:
        for done in [pods.submit(stage, str(source), tmp_path / "copy", 1) for _ in range(2)]:
            done.result()

    assert contents(tmp_path / "copy") == contents(source)
    assert sorted(path.name for path in (tmp_path / "copy").iterdir() if path.name.startswith(".")) == [
        ".tidemill-stage.lock",
        STAGED,
    ]


def test_a_disk_without_room_is_said_before_it_is_full(source, tmp_path, monkeypatch):
    """A disk without enough room is refused beforehand, with the bytes free and needed."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(RuntimeFailure, match=r"has 1,000 bytes free, and \d[\d,]+ are to be copied to it: make room"):
        stage(str(source), tmp_path / "copy", 2)


def test_an_error_of_the_disk_is_a_sentence(source, tmp_path, monkeypatch):
    """A disk's error is one sentence, and does not blame the source."""

    def full(_):
        raise OSError(DISK_FULL, os.strerror(DISK_FULL))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RuntimeFailure, match=r"cannot write .*copy: No space left on device"):
        stage(str(source), tmp_path / "copy", 1)


def test_the_command_copies(tmp_path, capsys):
    """`python -m runtime stage` copies the bundled checkpoint, and names one that is missing."""
    assert main(["stage", "bundled:demo", str(tmp_path / "copy")]) == 0
    assert main(["stage", str(tmp_path / "no"), str(tmp_path / "copy")]) == 1

    assert "there is no checkpoint folder" in capsys.readouterr().err
    assert len(read_shards(tmp_path / "copy")) == len(read_shards(checkpoint.resolve("bundled:demo")))


@pytest.mark.parametrize("way", ["same", "link", "inside", "around"])
def test_a_checkpoint_is_never_copied_over_itself(way, source, tmp_path):
    """A checkpoint is never copied over itself under any name, and nothing of it is removed."""
    (tmp_path / "link").symlink_to(source)
    before = versions(source)
    destination = {"same": source, "link": tmp_path / "link", "inside": source / "new" / "copy", "around": tmp_path}
    with pytest.raises(RuntimeFailure, match=r"are the same folder, or one is in the other: name a folder elsewhere"):
        stage(str(source), destination[way], 1)

    assert versions(source) == before
    assert not (source / "new").exists()


def test_files_that_staging_did_not_copy_are_left_alone(source, tmp_path):
    """A folder with files that staging did not copy is refused, except for the file system's own folder."""
    copy = shutil.copytree(source, tmp_path / "copy")
    before = versions(copy)
    with pytest.raises(RuntimeFailure, match=r"has files that staging did not copy, such as config.json: empty it, or"):
        stage(str(source), copy, 1)
    (tmp_path / "disk" / "lost+found").mkdir(parents=True)
    stage(str(source), tmp_path / "disk", 1)

    assert versions(copy) == before
    assert len(read_shards(tmp_path / "disk")) == 3


def test_nothing_of_the_old_checkpoint_stays_beside_the_new_one(source, tmp_path, monkeypatch):
    """No file of the old checkpoint stays, even after an interrupted removal."""
    stage(str(source), tmp_path / "copy", 2)
    (tmp_path / "copy" / ".gone.safetensors.partial").write_text("of an interrupted copy")
    record = json.loads((tmp_path / "copy" / STAGED).read_text())
    record["files"] |= {"gone.safetensors": 1, "../precious": 1, "..": 1, "\0": 1, "\ud800": 1}
    (tmp_path / "copy" / STAGED).write_text(json.dumps(record))
    (tmp_path / "precious").write_text("")
    new = write_checkpoint(tmp_path / "new", V3, num_shards=1)
    real, removed = Path.unlink, []

    def dies_at_the_second(self, *, missing_ok=False):
        if self.suffix == ".safetensors":
            removed.append(self)
        if len(removed) == 2:
            raise KeyboardInterrupt
        real(self, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", dies_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        stage(str(new), tmp_path / "copy", 2)
    monkeypatch.undo()
    stage(str(new), tmp_path / "copy", 2)

    assert contents(tmp_path / "copy") == contents(new)
    assert not list((tmp_path / "copy").glob(".*.partial"))
    assert (tmp_path / "precious").exists()


def test_what_staging_keeps_for_itself_is_not_copied(source, tmp_path):
    """Staging's own files are not copied, so a copy can be staged again."""
    stage(str(source), tmp_path / "copy", 2)
    (tmp_path / "copy" / ".config.json.partial").write_text("{")
    stage(str(tmp_path / "copy"), tmp_path / "again", 2)
    there = versions(tmp_path / "again")
    stage(str(tmp_path / "copy"), tmp_path / "again", 2)

    assert contents(tmp_path / "again") == contents(source)
    assert versions(tmp_path / "again") == there
    assert not (tmp_path / "again" / ".config.json.partial").exists()


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b"[]", b"{}", b'{"files": [1]}', b"[" * 10**5, None])
def test_a_record_that_staging_did_not_write_is_refused(content, source, tmp_path):
    """A record that staging did not write is refused in one sentence, and nothing is removed."""
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "config.json").write_text("{}")
    if content is None:
        os.mkfifo(tmp_path / "copy" / STAGED)
    else:
        (tmp_path / "copy" / STAGED).write_bytes(content)
    with pytest.raises(RuntimeFailure, match=rf"{STAGED} .*: empty {tmp_path / 'copy'}$"):
        stage(str(source), tmp_path / "copy", 1)

    assert (tmp_path / "copy" / "config.json").exists()


def test_a_lock_that_staging_did_not_make_is_refused(source, tmp_path):
    """A FIFO or a link in place of the lock is refused."""
    precious = tmp_path / "precious"
    precious.write_text("kept")
    for name, make in {"fifo": os.mkfifo, "link": lambda path: path.symlink_to(precious)}.items():
        (tmp_path / name).mkdir()
        make(tmp_path / name / LOCK)
        with pytest.raises(RuntimeFailure, match=LOCK):
            stage(str(source), tmp_path / name, 1)

    assert precious.read_text() == "kept"


def test_links_in_the_destination_are_replaced_not_followed(source, tmp_path):
    """Links in the destination are replaced, and their targets are not written to."""
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "precious").chmod(0o600)
    stage(str(source), tmp_path / "copy", 1)
    shutil.copy(tmp_path / "copy" / "config.json", tmp_path / "other")
    (tmp_path / "copy" / "config.json").unlink()
    (tmp_path / "copy" / "config.json").symlink_to(tmp_path / "other")
    (tmp_path / "copy" / ".config.json.partial").symlink_to(tmp_path / "precious")
    stage(str(source), tmp_path / "copy", 1)

    assert not (tmp_path / "copy" / "config.json").is_symlink()
    assert (tmp_path / "precious").read_text() == "kept"
    assert (tmp_path / "precious").stat().st_mode & 0o777 == 0o600


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
        ("model-00001-of-00003.safetensors", lambda path: flip_bit(path, 3), "its header's length is sha256"),
        ("model-00001-of-00003.safetensors", lambda path: flip_bit(path, 20), "its header is sha256"),
    ],
)
def test_a_file_that_changes_after_it_was_looked_at_is_refused(name, change, words, source, tmp_path, monkeypatch):
    """A file that changes after its header was read is refused, and gets no name."""
    usage = shutil.disk_usage

    def changes(path):  # asked for between the look and the copy
        change(source / name)
        return usage(path)

    monkeypatch.setattr(shutil, "disk_usage", changes)
    with pytest.raises(CheckpointError, match=words):
        stage(str(source), tmp_path / "copy", 1)

    assert not (tmp_path / "copy" / name).exists()


def test_a_shard_that_changes_between_two_looks_is_refused(source, tmp_path, monkeypatch):
    """A shard whose size changes after its header was read is refused."""
    shards = read_shards(source)
    os.truncate(shards[0].path, 5000)
    monkeypatch.setattr("runtime.checkpoint.stage.read_shards", lambda _: shards)
    with pytest.raises(CheckpointError, match=r"changed from [\d,]+ bytes to 5,000 while it was read"):
        stage(str(source), tmp_path / "copy", 1)


def test_links_out_of_the_checkpoint_are_refused(source, tmp_path):
    """Links out of the checkpoint are refused; those inside it, and to the cache's blobs, are not."""
    (tmp_path / "secret").write_text("x")
    (source / "LICENSE").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match=rf"LICENSE is a link to {tmp_path / 'secret'}, outside the checkpoint's"):
        stage(str(source), tmp_path / "copy", 1)
    (source / "LICENSE").unlink()
    (source / "LICENSE").symlink_to("tokenizer.json")
    stage(str(source), tmp_path / "copy", 1)

    assert (tmp_path / "copy" / "LICENSE").read_text() == "{}"


def test_a_checkpoint_in_hugging_faces_cache_is_copied(source, tmp_path):
    """A snapshot of links to blobs is copied; a blob that is a link is refused."""
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "0a1b", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(sorted(source.iterdir())):
        path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    stage(str(snapshot), tmp_path / "copy", 2)
    expected = contents(snapshot)
    (tmp_path / "secret").write_text("x")
    (blobs / "secret").symlink_to(tmp_path / "secret")
    (snapshot / "LICENSE").symlink_to("../../blobs/secret")
    with pytest.raises(CheckpointError, match="outside the checkpoint's folder"):
        stage(str(snapshot), tmp_path / "copy", 2)

    assert contents(tmp_path / "copy") == expected


def test_a_source_that_cannot_be_read_is_a_sentence(source, tmp_path, monkeypatch):
    """A source that cannot be listed, or a file that vanishes, is reported in one sentence."""

    def closed(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", closed)
    with pytest.raises(CheckpointError, match=rf"cannot read {source}: Permission denied"):
        stage(str(source), tmp_path / "copy", 1)
    monkeypatch.undo()
    monkeypatch.setattr(Path, "is_file", lambda self: not self.name.startswith("."))
    (source / "vanished.json").symlink_to("nowhere")
    with pytest.raises(CheckpointError, match=r"cannot read .*vanished.json: No such file or directory"):
        stage(str(source), tmp_path / "copy", 1)


def flip_bit(path, at):
    """Change one bit of the byte at `at`."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
