"""The prefix cache's disk tier beside plain reading and writing of the same files.

    python -m tests.benchmarks.kv_disk [FOLDER] [--quick]

    write    blocks offered until all are files / os.open, os.write and os.close of as many bytes
    load     begin_load until all have come / os.open, os.preadv and os.close of the same files on one thread, and on as
             many as the tier has, both into ready memory; from the page cache, and from the disk
    check    reads from the page cache with the checksum / without
    caller   what offer, begin_load and is_done take on the caller's thread
    step     a step while blocks are written and loaded / while none is: CPU time of its thread, its time without what
             it waited for a core, and its time

Blocks are DeepSeek-V3's, 4.5 MB each, in a folder of its own in FOLDER, or where temporary files go. Figures that are
compared alternate, and the median of their runs counts. CPU is the process's, of all threads; a busy machine changes it
less than the time. Files are not synced, as the tier's are not; before they are read from the disk, they are, and leave
the page cache. Exits with 1 when a goal is missed. About two minutes.
"""

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from runtime.kv.sender import as_bytes
from runtime.kv.tiers.block_file import BlockForm, read_block
from runtime.kv.tiers.disk import NUM_READERS
from tests.benchmarks.goals import Goals
from tests.benchmarks.kv_transfer import alternate, step_times
from tests.runtime.kv.tiers.disks import TENANT, block_files, file_of, name_of, tier_on

FORM = BlockForm(bytes(32), (61, 64, 576), torch.bfloat16)
LONG_S = 600.0


def main(folder, num_blocks):
    """Measure all, and hold it against the goals."""
    torch.set_num_threads(1)
    goals = Goals()
    with tempfile.TemporaryDirectory(dir=folder) as place:
        blocks = Blocks(Path(place), num_blocks)
        measure_writing(blocks, goals)
        measure_loading(blocks, goals)
        measure_caller(blocks, goals)
        measure_step(blocks, goals)
    return goals.report()


def measure_writing(blocks, goals):
    """Write-behind beside plain writes."""
    tier, plain = alternate(blocks.write, blocks.write_plainly)
    print(f"write  {blocks.rate(tier)} by the tier, {blocks.rate(plain)} plainly")
    goals.check("write: CPU by the tier / plainly", tier[1] / plain[1], "<=", 2)


def measure_loading(blocks, goals):
    """Loads beside plain reads, and what the checksum takes."""
    blocks.write()
    for where, prepare in (("page cache", lambda: None), ("disk", blocks.leave_page_cache)):
        cases = [blocks.load, lambda: blocks.read_plainly(1), lambda: blocks.read_plainly(NUM_READERS)]
        tier, one, many = alternate(*(after(prepare, case) for case in cases))
        print(f"load   {where}: {blocks.rate(tier)} by the tier, {blocks.rate(one)} plainly on one thread,")
        print(f"       {blocks.rate(many)} on {NUM_READERS}")
        goals.check(f"load, {where}: CPU by the tier / plainly on one thread", tier[1] / one[1], "<=", 1.7)
        if prepare == blocks.leave_page_cache:
            goals.check(f"load, {where}: time by the tier / plainly on one thread", tier[0] / one[0], "<=", 1.3)
    checked, unchecked = alternate(blocks.read_checked, lambda: blocks.read_plainly(1))
    print(f"check  {blocks.rate(checked)} on one thread with the checksum, {blocks.rate(unchecked)} without")
    goals.check("check: CPU of reads with / without", checked[1] / unchecked[1], "<=", 1.5)


def measure_caller(blocks, goals):
    """What the caller's thread pays."""
    offer_s, begin_s, done_s = blocks.caller_times()
    print(f"caller {1e6 * offer_s:.1f} us to offer a block, {1e6 * begin_s:.1f} to begin a load")
    print(f"       {1e6 * done_s:.2f} us to ask whether it is done")
    goals.check("caller: us to offer a block", 1e6 * offer_s, "<=", 100)
    goals.check("caller: us to begin a load", 1e6 * begin_s, "<=", 200)


def measure_step(blocks, goals):
    """A step beside the tier's threads."""
    beside, alone = alternate(blocks.step_beside_tier, step_times)
    for name, first, second in zip(("CPU", "time without waiting for a core", "time"), beside, alone, strict=True):
        print(f"step   {1e3 * first:8.1f} ms while blocks move, {1e3 * second:8.1f} while none does: {name}")
    goals.check("step: CPU time while blocks move / while none does", beside[0] / alone[0], "<=", 1.05)


def after(prepare, case):
    """A case that begins with what is not measured."""

    def prepared():
        prepare()
        return case()

    return prepared


class Blocks:
    """As many blocks as are moved at a time, in memory and in a folder."""

    def __init__(self, path, number):
        self._path = path
        self._names = [name_of(each) for each in range(number)]
        draw = torch.Generator().manual_seed(0)
        self._latents = [torch.randn(FORM.shape, generator=draw).to(FORM.dtype) for _ in range(min(number, 8))]
        self._rooms = [torch.zeros(FORM.shape, dtype=FORM.dtype) for _ in range(number)]

    def rate(self, times):
        seconds, cpu_s = times
        num_gb = len(self._names) * FORM.file_bytes / 1e9
        return f"{num_gb / seconds:.2f} GB/s ({num_gb / cpu_s:.2f} GB a CPU second)"

    def tier(self):
        """A tier with ready memory for all blocks, as pinned memory is."""
        return tier_on(self._path, FORM, max_queued_bytes=2**40, max_bytes=2**40, allocate=iter(self._rooms).__next__)

    def offer_all(self, tier):
        for number, name in enumerate(self._names):
            tier.offer(name, self._latents[number % len(self._latents)], TENANT)

    def write(self):
        shutil.rmtree(self._path / "blocks", ignore_errors=True)
        with self.tier() as tier:
            began = now()
            self.offer_all(tier)
            assert tier.flush(LONG_S) == 0
            taken = since(began)
        assert len(block_files(self._path)) == len(self._names)
        return taken

    def write_plainly(self):
        plain = self._path / "plain"
        shutil.rmtree(plain, ignore_errors=True)
        plain.mkdir()
        began = now()
        for number, name in enumerate(self._names):
            with (plain / name.hex()).open("wb", buffering=0) as file:
                file.write(bytes(128))
                file.write(as_bytes(self._latents[number % len(self._latents)]))
        return since(began)

    def load(self):
        with self.tier() as tier:
            began = now()
            loading = tier.begin_load(self._names, TENANT, LONG_S)
            loading.wait()
            taken = since(began)
            assert len(loading.blocks()) == len(self._names)
        return taken

    def read_plainly(self, num_threads):
        with ThreadPoolExecutor(num_threads) as threads:
            began = now()
            list(threads.map(self._read_plainly, self._names, self._rooms))
            return since(began)

    def _read_plainly(self, name, room):
        file = os.open(file_of(self._path, name, FORM), os.O_RDONLY)
        header = bytearray(128)
        assert os.preadv(file, [header, as_bytes(room)], 0) == FORM.file_bytes
        os.close(file)

    def read_checked(self):
        began = now()
        for name, room in zip(self._names, self._rooms, strict=True):
            file = os.open(file_of(self._path, name, FORM), os.O_RDONLY)
            read_block(file, FORM, name, as_bytes(room))
            os.close(file)
        return since(began)

    def leave_page_cache(self):
        for name in self._names:
            file = os.open(file_of(self._path, name, FORM), os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)

    def caller_times(self):
        """Seconds to offer a block, to begin a load of all, and to ask it."""
        with self.tier() as tier:
            offer_s = timed(lambda: self.offer_all(tier)) / len(self._names)
            tier.flush(LONG_S)
            begin_s = timed(lambda: loadings.append(tier.begin_load(self._names, TENANT, LONG_S)), loadings := [])
            done_s = timed(loadings[0].is_done)
            loadings[0].wait()
        return offer_s, begin_s, done_s

    def step_beside_tier(self):
        """The times of a step, while all blocks are written and loaded again and again."""
        ends = threading.Event()

        def move():
            while not ends.is_set():
                self.write()
                self.load()

        mover = threading.Thread(target=move)
        mover.start()
        times = step_times()
        ends.set()
        mover.join()
        return times


def now():
    """The time, and the CPU time of this process."""
    return time.perf_counter(), time.process_time()


def since(began):
    return tuple(after - before for before, after in zip(began, now(), strict=True))


def timed(call, _=None):
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    sys.exit(main(asked.folder, 8 if asked.quick else 64))
