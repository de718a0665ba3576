"""The disk tier: what was offered comes back or is a miss, and nobody waits for a disk or fails by one."""

import errno
import gc
import os
import shutil
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.kv.blocks import block_hashes, root_hash
from runtime.kv.sender import as_bytes
from runtime.kv.tiers import threads
from runtime.kv.tiers.block_file import CUT, DAMAGED, FOREIGN, BlockForm
from runtime.kv.tiers.janitor import Janitor
from runtime.kv.tiers.loading import ABSENT, ERROR, LATE, NO_ROOM, OFF, QUEUE_FULL, TIER_FULL
from runtime.protocol.counting import PAGE_TOKENS
from tests.runtime.kv.tiers.disks import (
    FORM,
    PATIENCE_S,
    TENANT,
    block_files,
    file_of,
    latents_of,
    load,
    mounted,
    name_of,
    same,
    tier_on,
    wait_until,
    write,
)

NAMES = [name_of(number) for number in range(12)]
NOW_S, SOON_S = 0.0, 0.05
ROOT = Path(__file__).parents[4]


@pytest.fixture
def tier(tmp_path):
    """A tier whose first janitor is done: what is written during a walk may be counted twice."""
    with tier_on(tmp_path) as tier:
        wait_until(lambda: not tier._cleans)
        yield tier


@pytest.fixture
def quick(monkeypatch):
    """Disks are tried again soon."""
    monkeypatch.setattr(threads, "REST_S", 0.1)


def fail(code):
    """A function in place of one of `os`."""

    def fail_so(*_, **__):
        raise OSError(code, os.strerror(code))

    return fail_so


@pytest.mark.parametrize(
    ("max_bytes", "max_files", "expected"),
    [(10 * FORM.file_bytes + 999, 1000, 10), (12 * FORM.file_bytes, 4, 4), (999, 1000, 0)],
)
def test_it_says_how_many_blocks_it_has_room_for(tmp_path, max_bytes, max_files, expected):
    """The bound of bytes and the bound of files both hold."""
    with tier_on(tmp_path, max_bytes=max_bytes, max_files=max_files) as tier:
        assert tier.max_blocks == expected


def test_blocks_come_back_in_another_process(tmp_path, tier):
    """Another tier of the same folder finds the blocks: the files are all that it has."""
    write(tier, NAMES)
    with tier_on(tmp_path) as other:
        assert load(other, NAMES) == len(NAMES)
        assert load(other, []) == 0
        assert (other.counters.hits, dict(other.counters.misses)) == (len(NAMES), {})
        assert other.counters.read_bytes == len(NAMES) * FORM.latent_bytes
    assert tier.counters.written_bytes == len(NAMES) * FORM.file_bytes


def test_what_follows_a_missing_block_is_not_loaded(tier):
    """A hit never follows a miss."""
    write(tier, NAMES[:5] + NAMES[6:])

    assert load(tier, NAMES) == 5
    assert load(tier, [name_of(99), *NAMES]) == 0
    assert tier.counters.misses == {ABSENT: 2}


def test_a_block_is_written_once(tmp_path, tier, monkeypatch):
    """Whoever offers it again, here or elsewhere, does not even begin."""
    write(tier, NAMES)
    monkeypatch.setattr(os, "pwritev", fail(errno.EIO))
    with tier_on(tmp_path) as other:
        for _ in range(3):
            write(other, NAMES)

        assert (other.counters.written, dict(other.counters.dropped)) == (0, {})
    assert len(block_files(tmp_path)) == len(NAMES)


tenants, salts, prompts = st.integers(0, 2), st.sampled_from(["", "a", "b"]), st.lists(st.integers(0, 1), max_size=3)


@settings(max_examples=20)
@given(st.lists(st.tuples(tenants, salts, prompts), max_size=5), st.tuples(tenants, salts, prompts))
def test_nobody_gets_anothers_block(tmp_path_factory, written, wanted):
    """Tenants x salts x prompts: what is found is one's own, and all of one's own is found."""

    def chain(tenant, salt, pages):
        tokens = [page for page in pages for _ in range(PAGE_TOKENS)]
        return block_hashes(root_hash(FORM.block_digest, f"{tenant}/{salt}"), tokens)

    with tier_on(tmp_path_factory.mktemp("blocks")) as tier:
        for tenant, salt, pages in written:
            write(tier, chain(tenant, salt, pages), b"tenant%d" % tenant)
        tenant = wanted[0]
        own = [set(chain(*each)) for each in written if each[:2] == wanted[:2]]
        expected = sum(any(name in names for names in own) for name in chain(*wanted))

        assert load(tier, chain(*wanted), b"tenant%d" % tenant) == expected
        for other in {0, 1, 2} - {tenant}:
            found = load(tier, chain(*wanted), b"tenant%d" % other)
            assert found == 0, "a name that somebody learnt finds nothing in another tenant's place"


def write_other(path, name, form=FORM):
    path.write_bytes(b"".join(form.parts(name, as_bytes(latents_of(name, form)))))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"?"), DAMAGED),
        (lambda path: path.write_bytes(path.read_bytes()[:300]), CUT),
        (lambda path: path.write_bytes(b""), CUT),
        (lambda path: write_other(path, NAMES[1]), FOREIGN),
        (lambda path: write_other(path, NAMES[2], BlockForm(bytes(32), FORM.shape, FORM.dtype)), FOREIGN),
    ],
    ids=["flipped", "cut", "empty", "another name's", "another model's"],
)
def test_a_file_that_is_not_its_block_is_a_miss_and_goes(tmp_path, tier, spoil, reason):
    """It is counted by its reason, said once, and can be written again. The sum of bytes stays right."""
    write(tier, NAMES)
    spoil(file_of(tmp_path, NAMES[2]))
    (tmp_path / "blocks" / "janitor").write_bytes(b"")  # nobody knows when all was counted
    wait_until(lambda: tier._janitor.clean() == 0)

    assert load(tier, NAMES) == 2
    assert tier.counters.misses == {reason: 1}
    assert tier.said == [
        f"prefix cache: reading from {tmp_path} fails: block {NAMES[2].hex()} is {reason}; "
        "what it would have saved is computed"
    ]
    wait_until(lambda: tier._usage.change(0) == FORM.file_bytes * (len(NAMES) - 1))
    write(tier, NAMES)
    assert load(tier, NAMES) == len(NAMES)


def test_a_folder_deleted_under_it_is_a_miss_and_is_made_again(tmp_path, tier):
    """No restart is needed."""
    write(tier, NAMES)
    shutil.rmtree(tmp_path / "blocks")

    assert load(tier, NAMES) == 0
    write(tier, NAMES)
    assert load(tier, NAMES) == len(NAMES)
    assert tier.said == []


def test_a_folder_that_is_gone_is_said_once(tmp_path, quick):
    """And it is used again when it comes back."""
    path = tmp_path / "disk"
    with tier_on(path) as tier:
        wait_until(lambda: tier.said)
        assert load(tier, NAMES) == 0
        offered_until(tier, lambda: tier.counters.dropped[ERROR] > 1)
        assert tier.said == [
            f"prefix cache: writing to {path} fails: {path}: No such file or directory; "
            "what it would have saved is computed"
        ]

        path.mkdir()
        offered_until(tier, lambda: len(tier.said) > 1)
        assert tier.said[1:] == [f"prefix cache: writing to {path} works again"]


def offered_until(tier, holds):
    """Offer new blocks until something holds."""
    number = iter(range(1000, 10**9))

    def offer():
        name = name_of(next(number))
        tier.offer(name, latents_of(name), TENANT)
        tier.flush(PATIENCE_S)
        return holds()

    wait_until(offer)


def test_a_full_disk_loses_its_oldest_blocks(tmp_path, quick):
    """Though the bound allows more: the disk is what it is."""
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=256k", "none") as path, tier_on(path) as tier:
        offered_until(tier, lambda: tier.counters.dropped[ERROR])
        offered_until(tier, lambda: tier.counters.evicted and len(tier.said) > 1)

        assert "No space left on device" in tier.said[0]
        assert tier.said[1] == f"prefix cache: writing to {path} works again"
        assert list((path / "blocks").glob("partial/*")) == []


def test_a_disk_that_others_fill_is_a_block_less(tmp_path, quick):
    """What is there is still read."""
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=256k", "none") as path, tier_on(path) as tier:
        write(tier, NAMES)
        with (path / "others").open("wb") as other, pytest.raises(OSError, match="No space"):
            other.write(bytes(2**20))
        offered_until(tier, lambda: tier.counters.dropped[OFF] > 3)

        assert len(tier.said) == 1
        assert tier.counters.misses == {}
        (path / "others").unlink()
        offered_until(tier, lambda: len(tier.said) > 1)
        assert tier.said[1] == f"prefix cache: writing to {path} works again"


def test_a_disk_made_read_only_is_read(tmp_path, quick):
    """Nothing is written to it, and one line says so."""
    with mounted(tmp_path / "disk", "-t", "tmpfs", "none") as path, tier_on(path) as tier:
        write(tier, NAMES)
        then = time.time() - 1000
        os.utime(file_of(path, NAMES[0]), (then, then))
        subprocess.run(["mount", "-o", "remount,ro", path], check=True)
        offered_until(tier, lambda: tier.counters.dropped[ERROR] > 1)

        assert load(tier, NAMES) == len(NAMES)
        assert len(tier.said) == 1
        assert "Read-only file system" in tier.said[0]


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_failing_read_is_a_miss(tmp_path, tier, quick, monkeypatch, code):
    """The file stays: the disk may be well again."""
    write(tier, NAMES)
    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", fail(code))
        for _ in range(3):
            assert load(tier, NAMES) == 0

    assert tier.counters.misses == {ERROR: 3}
    assert len(tier.said) == 1
    assert os.strerror(code) in tier.said[0]
    wait_until(lambda: load(tier, NAMES) == len(NAMES) and len(tier.said) == 2)
    assert tier.said[1] == f"prefix cache: reading from {tmp_path} works again"


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EFBIG])
def test_a_failing_write_is_a_block_less(tmp_path, quick, monkeypatch, code):
    """It takes no room, and the next blocks are not tried for a while."""
    with tier_on(tmp_path) as tier, monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", fail(code))
        offered_until(tier, lambda: tier.counters.dropped[ERROR] > 1 and tier.counters.dropped[OFF])
        patched.undo()

        assert len(tier.said) == 1
        assert os.strerror(code) in tier.said[0]
        assert tier._usage.change(0) == 0
        assert block_files(tmp_path) == []


def test_a_disk_that_lost_its_sectors_is_a_miss(tmp_path, quick):
    """The kernel's own EIO: what the file system lies on is cut."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(2**24)
    if subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", image], check=False).returncode:
        pytest.skip("mkfs.ext4 fails")
    with mounted(tmp_path / "disk", "-o", "loop", str(image)) as path, tier_on(path) as tier:
        write(tier, NAMES)
        for name in NAMES:
            with file_of(path, name).open("rb") as file:
                os.fsync(file)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.truncate(image, 2**20)

        assert [load(tier, [name]) for name in NAMES] == [0] * len(NAMES)
        assert tier.counters.misses == {ERROR: len(NAMES)}
        assert len(tier.said) == 1
        assert "Input/output error" in tier.said[0]


@pytest.fixture
def hanging(monkeypatch):
    """Let one of `os`'s functions wait for an event, which is set in the end."""
    events = []

    def hang(name):
        events.append(goes_on := threading.Event())
        call = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *arguments: goes_on.wait(PATIENCE_S) and call(*arguments))
        return goes_on

    yield hang
    for each in events:
        each.set()


def test_a_disk_that_does_not_answer_is_asked_no_more(tmp_path, tier, quick, hanging, monkeypatch):
    """Loads end at their deadline, later ones at once. No thread is made for them, and none of them is kept."""
    write(tier, NAMES)
    monkeypatch.setattr(threads, "STUCK_S", SOON_S)
    num_threads = threading.active_count()
    answers = hanging("preadv")
    stuck = tier.begin_load(NAMES, TENANT, deadline_s=0.1)
    stuck.wait()

    assert stuck.blocks() == []
    assert tier.counters.misses == {LATE: 1}
    wait_until(tier._readers.rest)
    for _ in range(100):
        assert tier.begin_load(NAMES, TENANT, deadline_s=PATIENCE_S).is_done()
    assert tier.counters.misses == {LATE: 1, OFF: 100}
    assert tier._readers._tasks.empty()
    assert threading.active_count() == num_threads
    assert tier.said == [too_slow(tmp_path)]

    monkeypatch.setattr(threads, "STUCK_S", PATIENCE_S)
    answers.set()
    wait_until(lambda: load(tier, NAMES) == len(NAMES))
    wait_until(lambda: load(tier, NAMES) and len(tier.said) == 2)


def too_slow(path):
    return (
        f"prefix cache: reading from {path} fails: the disk takes over {SOON_S:g} s to answer; "
        "what it would have saved is computed"
    )


def test_a_disk_that_answers_late_is_asked_now_and_then(tmp_path, tier, hanging, monkeypatch):
    """Nobody asked while it took so long. Else each prompt would wait to its deadline for nothing."""
    write(tier, NAMES)
    monkeypatch.setattr(threads, "STUCK_S", SOON_S)
    for number in range(2):
        answers = hanging("preadv")
        loading = tier.begin_load(NAMES[:1], TENANT, PATIENCE_S)
        wait_until(lambda: tier._readers._began)
        time.sleep(2 * SOON_S)
        answers.set()
        loading.wait()
        wait_until(lambda: not tier._readers._began)

        assert tier.begin_load(NAMES, TENANT, PATIENCE_S).is_done()
        assert tier.counters.misses == {OFF: number + 1}
        tier._reading._rests_until = 0.0
    assert tier.said == [too_slow(tmp_path)]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["FIFO", "folder"])
def test_what_is_no_file_is_a_miss(tmp_path, tier, make):
    """Opening a FIFO does not wait for somebody who writes to it."""
    write(tier, NAMES)
    strange = file_of(tmp_path, NAMES[3])
    strange.unlink()
    make(strange)

    assert load(tier, NAMES) == 3
    assert tier.counters.misses == {FOREIGN: 1}


def test_a_writer_that_hangs_keeps_one_block(tmp_path, quick, hanging, monkeypatch):
    """What waited behind it is dropped, and offers are refused."""
    monkeypatch.setattr(threads, "STUCK_S", SOON_S)
    answers = hanging("pwritev")
    with tier_on(tmp_path) as tier:
        latents = [latents_of(name) for name in NAMES]
        kept = [weakref.ref(each) for each in latents]
        for name, each in zip(NAMES[:-1], latents, strict=False):
            tier.offer(name, each, TENANT)
        wait_until(tier._writer.rest)
        tier.offer(NAMES[-1], latents[-1], TENANT)
        del latents, each
        gc.collect()

        assert tier.counters.dropped == {OFF: len(NAMES) - 1}
        assert sum(each() is not None for each in kept) == 1
        assert tier.flush(0.01) == 1
        answers.set()
        assert tier.flush(PATIENCE_S) == 0
        assert load(tier, NAMES) == 1


def test_a_queue_that_is_full_drops_blocks(tmp_path, hanging):
    """The caller goes on at once."""
    starts = hanging("pwritev")
    with tier_on(tmp_path, max_queued_bytes=3 * FORM.latent_bytes) as tier:
        for name in (*NAMES[:3], *NAMES[:5]):
            tier.offer(name, latents_of(name), TENANT)

        assert tier.counters.dropped == {QUEUE_FULL: 2}
        assert tier.flush(NOW_S) == 3
        starts.set()
        assert tier.flush(PATIENCE_S) == 0
        assert load(tier, NAMES) == 3


def test_a_tier_that_is_full_makes_room(tmp_path):
    """What the janitor has not made room for yet is dropped. The bound holds at any time."""
    with tier_on(tmp_path, max_bytes=20 * FORM.file_bytes) as tier:
        for number in range(200):
            write(tier, [name_of(number)])
            assert len(block_files(tmp_path)) <= 20

        wait_until(lambda: not tier._cleans)
        assert tier.counters.written + tier.counters.dropped[TIER_FULL] == 200
        assert tier.counters.written - tier.counters.evicted == len(block_files(tmp_path))
        assert tier.said == []


def test_a_janitor_that_fails_is_said_and_tried_again(tmp_path, quick, monkeypatch):
    """Whatever goes wrong in it. Its thread would be gone for ever, and with it all room for new blocks."""
    clean = Janitor.clean

    def fail_once(self, **options):
        monkeypatch.setattr(Janitor, "clean", clean)
        raise OverflowError("int too big to convert")

    monkeypatch.setattr(Janitor, "clean", fail_once)
    with tier_on(tmp_path, max_bytes=20 * FORM.file_bytes) as tier:
        wait_until(lambda: tier.said)
        offered_until(tier, lambda: tier.counters.evicted)

        assert tier.said[0] == (
            f"prefix cache: writing to {tmp_path} fails: OverflowError: int too big to convert; "
            "what it would have saved is computed"
        )
        assert tier.said[1:] in ([], [f"prefix cache: writing to {tmp_path} works again"])


def test_a_huge_file_under_a_blocks_name_frees_no_more_than_the_block(tmp_path, tier):
    """Nobody has counted it, so a hole of a terabyte must not let a terabyte be written."""
    write(tier, NAMES)
    os.truncate(file_of(tmp_path, NAMES[2]), 2**40)

    assert load(tier, NAMES) == 2
    wait_until(lambda: tier._usage.change(0) == FORM.file_bytes * (len(NAMES) - 1))


def test_a_deadline_ends_a_loading_with_what_is_there(tmp_path, tier):
    """One block has come where the budget is one a minute. Nobody waits for the next one's turn."""
    write(tier, NAMES)
    with tier_on(tmp_path, bytes_per_s=FORM.file_bytes / PATIENCE_S) as slow:
        assert load(slow, NAMES, deadline_s=0.2) == 1
        assert load(slow, [name_of(99)], deadline_s=PATIENCE_S / 2) == 0
        assert slow.counters.misses == {LATE: 1, ABSENT: 1}
        assert slow.said == []


def test_missing_blocks_take_none_of_the_bandwidth(tmp_path):
    """Most prompts have none on the disk."""
    with tier_on(tmp_path, bytes_per_s=FORM.file_bytes / PATIENCE_S) as slow:
        for number in range(100):
            assert load(slow, [name_of(number)]) == 0

        assert slow.counters.misses == {ABSENT: 100}


def test_a_canceled_loading_counts_nothing_and_keeps_nothing(tmp_path, tier):
    """Its memory is free, unless all had come by then."""
    write(tier, NAMES)
    loading = tier.begin_load(NAMES, TENANT, PATIENCE_S)
    loading.cancel()

    assert loading.is_done()
    assert loading.blocks() == []
    assert tier.counters.hits in (0, len(NAMES))


def test_a_loading_ends_where_memory_does(tmp_path, tier):
    """Whoever allocates says how much there is, and memory that is not handed out is free."""
    write(tier, NAMES)
    rooms = deque(torch.empty(FORM.shape, dtype=FORM.dtype) for _ in range(4))  # several threads take from it
    made = [weakref.ref(room) for room in rooms]

    def allocate():
        with suppress(IndexError):
            return rooms.pop()

    with tier_on(tmp_path, allocate=allocate) as bounded:
        loading = bounded.begin_load(NAMES, TENANT, PATIENCE_S)
        loading.wait()
        blocks = loading.blocks()

        assert 1 <= len(blocks) <= 4
        assert bounded.counters.misses == {NO_ROOM: 1}
        assert all(same(block, latents_of(name)) for name, block in zip(NAMES, blocks, strict=False))
        del blocks, loading
        wait_until(lambda: gc.collect() is not None and not any(room() is not None for room in made))


def test_many_threads_read_and_write_at_a_time(tmp_path):
    """Two tiers of one folder, whose blocks are also evicted meanwhile: each block is right or missing."""
    with (
        tier_on(tmp_path, max_bytes=60 * FORM.file_bytes) as one,
        tier_on(tmp_path, max_bytes=60 * FORM.file_bytes) as other,
    ):
        for round_ in range(6):
            for tier in (one, other):
                for number in range(40 * round_, 40 * round_ + 50):
                    tier.offer(name_of(number), latents_of(name_of(number)), TENANT)
                for first in range(0, 40 * round_ + 50, 7):
                    load(tier, [name_of(number) for number in range(first, first + 7)])
        assert one.flush(PATIENCE_S) == other.flush(PATIENCE_S) == 0

        assert one.counters.misses.keys() | other.counters.misses.keys() <= {ABSENT}
        assert one.said == other.said == []
        assert len(block_files(tmp_path)) <= 61


def test_killed_writers_leave_nothing_that_is_read():
    """A few of the command's thousand, each at a moment of its own."""
    call = [sys.executable, "-m", "tests.runtime.kv.tiers.kill_nine", "30"]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
