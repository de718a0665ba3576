"""The folder's bound: held, fair between tenants, and kept by one janitor at a time."""

import errno
import inspect
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.kv.tiers import folder as folder_module
from runtime.kv.tiers import janitor
from runtime.kv.tiers.folder import BlockFolder
from runtime.kv.tiers.janitor import UNUSED_S, Bound, Janitor, Usage, choose_removals
from tests.runtime.kv.tiers.disks import FORM, block_files, file_of, name_of

BLOCK = b"x" * 100
A, B, C = b"a", b"b", b"c"

owned = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 9)), min_size=1, max_size=12)


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """Much goes at a time, so that few blocks show which."""
    monkeypatch.setattr(janitor, "HIGH", 0.9)
    monkeypatch.setattr(janitor, "LOW", 0.8)


@pytest.fixture
def folder(tmp_path):
    return BlockFolder(tmp_path, FORM.block_digest)


def clean(folder, bound, **options):
    return Janitor(folder, bound, Usage(folder, bound)).clean(**options)


def used(folder):
    return Usage(folder, Bound(2**40, 1)).change(0)


def fill(folder, bound, *blocks):
    """Write blocks of (tenant, number of the name, seconds since it was used)."""
    usage = Usage(folder, bound)
    for tenant, number, age_s in blocks:
        usage.take(bound.charge(len(BLOCK)))
        folder.publish(tenant, name_of(number), [BLOCK])
        used_at = time.time() - age_s
        os.utime(file_of(folder._path, name_of(number), tenant=tenant), (used_at, used_at))


def left(path, tenant):
    return sum(each.parts[-3] == tenant.hex() for each in block_files(path))


@given(st.lists(owned, min_size=1, max_size=5), st.integers(0, 100), st.integers(0, 60))
def test_what_goes_is_enough_and_taken_from_whoever_has_most(owners, keep, unused_since):
    """What stays fits; who loses used blocks keeps as much as any other, to within one block; the oldest go first."""
    ages = {
        (str(number), ""): tuple(np.array(each, np.int64) for each in zip(*sorted(blocks), strict=True))
        for number, blocks in enumerate(owners)
    }
    until = choose_removals(ages, keep, unused_since)
    stays = {owner: int(charges[when > until.get(owner, 0)].sum()) for owner, (when, charges) in ages.items()}
    largest = max(stays.values())

    assert sum(stays.values()) <= keep or keep == 0
    for owner, (when, charges) in ages.items():
        if owner in until and until[owner] >= unused_since:
            last_taken = charges[when == until[owner]].sum()
            assert stays[owner] + last_taken >= largest, "somebody lost more than he had beyond the others"


@given(st.lists(owned, min_size=1, max_size=5))
def test_nothing_goes_while_all_fits(owners):
    """However old it is."""
    ages = {
        (str(number), ""): tuple(np.array(each, np.int64) for each in zip(*sorted(blocks), strict=True))
        for number, blocks in enumerate(owners)
    }

    assert choose_removals(ages, sum(size for blocks in owners for _, size in blocks), 100) == {}


def test_one_tenant_cannot_drive_out_the_others(folder, tmp_path):
    """The one that fills the folder loses its own blocks, though they are the newest."""
    bound = Bound(max_bytes=2000, max_files=100)
    fill(folder, bound, *((A, n, 500) for n in range(4)), *((B, n, 0) for n in range(4, 20)))

    assert clean(folder, bound) == 4
    assert (left(tmp_path, A), left(tmp_path, B)) == (4, 12)
    assert used(folder) == 1600


def test_blocks_that_nobody_used_for_a_day_go_first(folder, tmp_path):
    """A replaced model's and an absent tenant's, though others have more."""
    bound = Bound(max_bytes=2000, max_files=100)
    old = UNUSED_S + 100
    fill(folder, bound, *((A, n, 0) for n in range(14)), *((B, n, old + n) for n in range(20, 26)))

    assert clean(folder, bound) == 4
    assert (left(tmp_path, A), left(tmp_path, B)) == (14, 2)
    assert file_of(tmp_path, name_of(20), tenant=B).exists()


def test_the_oldest_of_a_tenant_go_first(folder, tmp_path):
    """Those that were read since stay."""
    bound = Bound(max_bytes=1000, max_files=100)
    fill(folder, bound, *((A, n, 1000 - 10 * n) for n in range(10)))
    with folder.block(A, name_of(0)):
        pass

    assert clean(folder, bound) == 2
    assert {n for n in range(10) if not file_of(tmp_path, name_of(n), tenant=A).exists()} == {1, 2}


def test_small_files_are_bounded_in_number(folder, tmp_path):
    """A file is charged what its share of the number is worth."""
    bound = Bound(max_bytes=10**9, max_files=10)
    fill(folder, bound, *((A, n, 0) for n in range(10)))

    assert Usage(folder, bound).take(bound.charge(100)) is None
    assert clean(folder, bound) is not None
    assert len(block_files(tmp_path)) <= 8


def test_a_writer_without_room_is_told_so(folder):
    """It must not write; what it takes back is free again."""
    usage = Usage(folder, Bound(max_bytes=250, max_files=10))

    assert [usage.take(100), usage.take(100), usage.take(100)] == [100, 200, None]
    assert usage.change(-100) == 100
    assert usage.take(100) == 200


def test_a_block_being_written_is_not_counted_away(folder, tmp_path, monkeypatch):
    """A walk cannot see it yet. Without it the bound would be exceeded by one block for each writer."""
    bound = Bound(max_bytes=2000, max_files=100)
    fill(folder, bound, *((A, n, 0) for n in range(3)))
    monkeypatch.setattr(janitor, "LOCK_WAIT_S", 0.05)
    usage = Usage(folder, bound)
    with usage.writing():
        usage.take(bound.charge(len(BLOCK)))

        assert clean(folder, bound) == 0
        assert used(folder) == 400

    (tmp_path / "blocks" / "janitor").unlink()  # nobody knows when all was counted

    assert clean(folder, bound) == 0
    assert used(folder) == 300


def test_what_is_used_is_counted_anew(folder, tmp_path):
    """Killed writers leave it too high, and whoever deletes files or the sum itself leaves it wrong."""
    bound = Bound(max_bytes=2000, max_files=100)
    fill(folder, bound, *((A, n, 0) for n in range(3)))
    for wrong in (b"", b"\xff" * 8, (1950).to_bytes(8, "little")):
        (tmp_path / "blocks" / "usage").write_bytes(wrong)
        (tmp_path / "blocks" / "janitor").unlink(missing_ok=True)  # nobody knows when all was counted

        assert clean(folder, bound) == 0
        assert used(folder) == 300


def test_only_one_janitor_works(folder, tmp_path):
    """The other finds the lock, and lets it be; the lock of a dead process is none."""
    bound = Bound(max_bytes=1000, max_files=100)
    fill(folder, bound, *((A, n, 0) for n in range(10)))
    code = "import fcntl, sys; file = open(sys.argv[1], 'a'); fcntl.flock(file, 2); print(flush=True); sys.stdin.read()"
    call = [sys.executable, "-c", code, tmp_path / "blocks" / "janitor"]
    with subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()

        assert clean(folder, bound) is None
        other.kill()
    assert clean(folder, bound) > 0


def test_two_janitors_at_a_time_do_no_harm(folder, tmp_path, monkeypatch):
    """As on a mount without locks: both walk and remove, and the next sets right what is used."""
    bound = Bound(max_bytes=100 * 400, max_files=10**6)
    fill(folder, bound, *((A, n, 400 - n) for n in range(400)))
    with monkeypatch.context() as patched, ThreadPoolExecutor(2) as janitors:
        patched.setattr(janitor, "_lock", lambda *_: True)
        removed = list(janitors.map(lambda _: clean(folder, bound), range(2)))
    (tmp_path / "blocks" / "janitor").write_bytes(b"")

    assert sum(removed) == 80
    assert clean(folder, bound) == 0
    assert used(folder) == 100 * len(block_files(tmp_path)) == 100 * 320


def test_a_block_that_cannot_be_removed_stops_nobody(folder, tmp_path, monkeypatch):
    """The others go. Only where none can be removed it is an error."""
    bound = Bound(max_bytes=1000, max_files=100)
    fill(folder, bound, *((A, n, 1000 - 10 * n) for n in range(10)))
    stays, unlink = {name_of(0).hex()[2:]}, os.unlink

    def refuse(name, **options):
        if name in stays:
            raise OSError(errno.EPERM, "Operation not permitted")
        unlink(name, **options)

    monkeypatch.setattr(os, "unlink", refuse)

    assert clean(folder, bound) == 1
    assert used(folder) == 900
    stays |= {path.name for path in block_files(tmp_path)}
    Usage(folder, bound).change(100)
    with pytest.raises(OSError, match="not permitted"):
        clean(folder, bound, disk_is_full=True)


def test_what_cannot_be_removed_from_partial_stops_nobody(folder, tmp_path):
    """Blocks go as they must, and the dead writer's file beside it."""
    bound = Bound(max_bytes=1000, max_files=100)
    fill(folder, bound, *((A, n, 1000 - 10 * n) for n in range(10)))
    (tmp_path / "blocks" / "partial").mkdir(0o700)
    (tmp_path / "blocks" / "partial" / "folder").mkdir()
    (tmp_path / "blocks" / "partial" / "written").touch()

    assert clean(folder, bound) == 2
    assert [path.name for path in (tmp_path / "blocks" / "partial").iterdir()] == ["folder"]


def test_empty_folders_go_and_a_strangers_file_stays(folder, tmp_path):
    """The janitor removes what it made, and nothing that has no name of ours."""
    bound = Bound(max_bytes=100, max_files=100)
    fill(folder, bound, (A, 1, UNUSED_S + 1), (B, 2, UNUSED_S + 1))
    stranger = file_of(tmp_path, name_of(2), tenant=B).with_name("README")
    stranger.write_text("not a block")

    assert clean(folder, bound) == 2
    assert clean(folder, bound, disk_is_full=True) == 0
    assert stranger.exists()
    assert not file_of(tmp_path, name_of(1), tenant=A).parent.parent.exists()


@pytest.mark.parametrize("used_at", [-(10**18), -1, 253402300800, 10413792000], ids=str)
def test_a_time_that_cannot_be_true_counts_as_the_oldest(folder, tmp_path, used_at):
    """Whatever its file system can hold: more than 64 bits of ns, or a year that keeps the block for ever."""
    bound = Bound(max_bytes=1000, max_files=100)
    fill(folder, bound, *((A, n, 1000 - 10 * n) for n in range(10)))
    os.utime(file_of(tmp_path, name_of(7), tenant=A), ns=(0, used_at * 10**9))

    assert clean(folder, bound) == 1 + (used_at != 7)
    assert {n for n in range(10) if not file_of(tmp_path, name_of(n), tenant=A).exists()} == {0, 7}


def test_a_janitor_of_the_future_does_not_keep_others_from_counting(folder, tmp_path):
    """The time of the last full count can be wrong as well."""
    bound = Bound(max_bytes=2000, max_files=100)
    fill(folder, bound, (A, 1, 0))
    clean(folder, bound)
    Usage(folder, bound).change(500)
    os.utime(tmp_path / "blocks" / "janitor", (2**33, 2**33))

    assert clean(folder, bound) == 0
    assert used(folder) == 100


def make_socket(path):
    """A socket: nobody can open it as a file. Its name is too long for `bind`, so it is moved there."""
    short = path.parent.parent.parent.parent.parent / "s"
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(short))
    short.rename(path)


def make_folder(path):
    """A folder that is not empty, and has a link in it that leads out."""
    (path / "deeper").mkdir(parents=True)
    (path / "deeper" / "file").touch()
    (path / "deeper" / "link").symlink_to(path.parents[4])


def make_huge(path):
    """A file whose size is more than any sum can hold beside another's."""
    with path.open("wb") as file:
        try:
            file.truncate(2**63 - 1)
        except OSError:  # where a file system has a smaller bound
            file.truncate(2**43)


MAKERS = {
    "link": lambda path: path.symlink_to(path.parents[4] / "outside"),
    "link to nowhere": lambda path: path.symlink_to("nowhere"),
    "FIFO": os.mkfifo,
    "socket": make_socket,
    "folder": make_folder,
    "huge": make_huge,
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_what_cannot_be_a_block_leaves_its_place(folder, tmp_path, make):
    """Its block can be written again. The others are counted right, and nothing outside is touched."""
    bound = Bound(max_bytes=2**60, max_files=2**60)
    fill(folder, bound, *((A, n, 0) for n in range(3)))
    (tmp_path / "outside").write_text("not ours")
    strange = [file_of(tmp_path, name_of(n), tenant=A) for n in range(2)]
    for path in strange:
        path.unlink()
        make(path)

    assert clean(folder, bound) == 0
    assert used(folder) == 100
    assert not any(map(os.path.lexists, strange))
    assert (tmp_path / "outside").read_text() == "not ours"
    assert folder.publish(A, name_of(0), [BLOCK])


@pytest.mark.parametrize("level", [1, 2, 3], ids=["of files", "of a tenant", "of a model"])
def test_what_is_no_folder_leaves_its_place(folder, tmp_path, level):
    """A link where one of our folders belongs: no block below it could be written or found."""
    bound, outside = Bound(max_bytes=2000, max_files=100), tmp_path / "outside"
    fill(folder, bound, (A, 1, 0))
    place = file_of(tmp_path, name_of(1), tenant=A).parents[level - 1]
    place.rename(outside)
    place.symlink_to(outside)

    assert clean(folder, bound) == 0
    assert used(folder) == 0
    assert len([each for each in outside.rglob("*") if each.is_file()]) == 1
    assert folder.publish(A, name_of(1), [BLOCK])


def test_a_folder_too_deep_to_remove_stops_nobody(folder, tmp_path):
    """It stays; what must go goes. The interpreter's limit is lowered, since a folder so deep takes seconds to make."""
    bound, limit = Bound(max_bytes=1000, max_files=100), sys.getrecursionlimit()
    fill(folder, bound, *((A, n, 1000 - 10 * n) for n in range(11)))
    deep = file_of(tmp_path, name_of(3), tenant=A)
    deep.unlink()
    deep.joinpath(*"d" * 100).mkdir(parents=True)
    sys.setrecursionlimit(len(inspect.stack(0)) + 70)
    try:
        assert clean(folder, bound) == 2
    finally:
        sys.setrecursionlimit(limit)
    assert not file_of(tmp_path, name_of(0), tenant=A).exists()
    assert deep.exists()


def test_files_of_dead_writers_go_and_those_of_live_ones_stay(folder, tmp_path, monkeypatch):
    """Where files are written under a name. The kernel knows who is dead."""
    monkeypatch.setattr(folder_module, "_open_nameless", lambda folder: None)
    partial, bound = tmp_path / "blocks" / "partial", Bound(10**9, 10**6)
    write_parts = folder_module.write_parts

    def write_while_it_is_cleaned(file, parts):
        (partial / ("0" * 32)).write_bytes(b"of a dead writer")
        clean(folder, bound)
        assert len(list(partial.iterdir())) == 1
        write_parts(file, parts)

    monkeypatch.setattr(folder_module, "write_parts", write_while_it_is_cleaned)

    assert folder.publish(A, name_of(0), [BLOCK])
    assert list(partial.iterdir()) == []
    assert file_of(tmp_path, name_of(0), tenant=A).read_bytes() == BLOCK
