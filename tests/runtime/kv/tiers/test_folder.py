"""The folder of blocks: nobody else's, no way out of it, and no half file in it."""

import errno
import os

import pytest

from runtime.kv.tiers import folder as folder_module
from runtime.kv.tiers.folder import BlockFolder
from tests.runtime.kv.tiers.disks import FORM, TENANT, block_files, file_of, name_of

NAME = name_of(0)
NO_WAY = "symbolic links|Not a directory"


@pytest.fixture(params=["nameless", "renamed"])
def folder(request, tmp_path, monkeypatch):
    """A folder of either kind of file system."""
    if request.param == "renamed":
        monkeypatch.setattr(folder_module, "_open_nameless", lambda folder: None)
    return BlockFolder(tmp_path, FORM.block_digest)


def content_of(folder, name=NAME):
    with folder.block(TENANT, name) as file:
        return os.pread(file, 100, 0)


def test_a_published_block_is_there(folder, tmp_path):
    """Under its name in hex, alone, and nothing else is left."""
    assert folder.publish(TENANT, NAME, [b"la", b"tents"])

    assert content_of(folder) == b"latents"
    assert block_files(tmp_path) == [file_of(tmp_path, NAME)]
    assert list((tmp_path / "blocks" / "partial").glob("*")) == []
    assert folder.has(TENANT, [NAME, name_of(1), NAME]) == 1
    assert folder.has(b"another", [NAME]) == 0


def test_only_its_owner_can_look_into_it(folder, tmp_path):
    """Folders have mode 0700 and files 0600, whatever the umask allows."""
    before = os.umask(0)
    try:
        folder.publish(TENANT, NAME, [b"latents"])
    finally:
        os.umask(before)

    for path in (tmp_path / "blocks", *(tmp_path / "blocks").rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_a_folder_that_others_can_look_into_is_refused(folder, tmp_path):
    """And the reason says what to do."""
    (tmp_path / "blocks").mkdir(mode=0o750)

    with pytest.raises(PermissionError, match="chmod 700"):
        folder.publish(TENANT, NAME, [b"latents"])
    assert list((tmp_path / "blocks").iterdir()) == []


def test_no_symbolic_link_is_followed(folder, tmp_path):
    """Neither in place of a block nor of any folder above it, to read, to write or to remove."""
    folder.publish(TENANT, NAME, [b"latents"])
    place, elsewhere = file_of(tmp_path, NAME), tmp_path / "elsewhere"
    elsewhere.mkdir()
    for path in (place, place.parent, place.parent.parent, place.parent.parent.parent, tmp_path / "blocks"):
        moved = elsewhere / "moved"
        path.rename(moved)
        path.symlink_to(moved)
        with pytest.raises(OSError, match=NO_WAY):
            content_of(folder)
        if path != place:
            with pytest.raises(OSError, match=NO_WAY):
                folder.publish(TENANT, NAME, [b"latents"])
            with pytest.raises(OSError, match=NO_WAY):
                folder.remove(TENANT, NAME)
        path.unlink()
        moved.rename(path)
    assert content_of(folder) == b"latents"


def test_a_write_that_fails_leaves_nothing(folder, tmp_path, monkeypatch):
    """No block, and no file on the way to one."""

    def fill_up(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", fill_up)
    with pytest.raises(OSError, match="No space"):
        folder.publish(TENANT, NAME, [b"latents"])

    assert [path for path in (tmp_path / "blocks").rglob("*") if path.is_file()] == []


def test_the_second_writer_of_a_block_changes_nothing(tmp_path):
    """Two ranks may compute the same block at a time."""
    folder = BlockFolder(tmp_path, FORM.block_digest)
    folder.publish(TENANT, NAME, [b"first"])

    assert not folder.publish(TENANT, NAME, [b"other"])
    assert content_of(folder) == b"first"


def test_reading_renews_a_blocks_time_now_and_then(folder, tmp_path):
    """Not each time, since that is a write."""
    folder.publish(TENANT, NAME, [b"latents"])
    path = file_of(tmp_path, NAME)
    for age_s, is_renewed in ((10, False), (1000, True)):
        then = path.stat().st_mtime - age_s
        os.utime(path, (then, then))
        content_of(folder)

        assert (path.stat().st_mtime > then) == is_renewed


def test_a_folder_whose_disk_is_gone_is_not_filled(folder, tmp_path):
    """Where a disk was mounted lies a folder of another one. Blocks that are there all the same can be read."""
    folder.publish(TENANT, NAME, [b"latents"])
    folder._device = 2**40
    assert content_of(folder) == b"latents"

    (tmp_path / "blocks").rename(tmp_path / "gone")
    with pytest.raises(FileNotFoundError):
        folder.publish(TENANT, NAME, [b"latents"])
    assert not (tmp_path / "blocks").exists()


def test_a_removed_folder_is_made_again(folder, tmp_path):
    """The janitor removes empty ones, and somebody may remove all."""
    folder.publish(TENANT, NAME, [b"latents"])
    (tmp_path / "blocks").rename(tmp_path / "gone")

    assert folder.has(TENANT, [NAME]) == 0
    assert folder.publish(TENANT, NAME, [b"latents"])
    assert folder.remove(TENANT, NAME) == len(b"latents")
    assert folder.remove(TENANT, NAME) is None


def test_a_folder_that_goes_before_its_block_is_made_again(folder, tmp_path, monkeypatch):
    """The janitor finds it empty while a block of it is being written."""
    open_nameless, place = folder_module._open_nameless, file_of(tmp_path, NAME).parent
    times = iter(range(2))

    def open_after_janitor(below):
        if next(times) == 0:
            place.rmdir()
        return open_nameless(below)

    monkeypatch.setattr(folder_module, "_open_nameless", open_after_janitor)

    assert folder.publish(TENANT, NAME, [b"latents"])
    assert content_of(folder) == b"latents"
