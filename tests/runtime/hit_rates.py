"""Hit rates of the prefix cache beside an LRU of the same size: `python -m tests.runtime.hit_rates TRACE`.

TRACE is Mooncake's `FAST25-release/traces/conversation_trace.jsonl` (kvcache-ai/Mooncake). Its prompts, block by block,
go through the real scheduler and the real tiers; a model that computes nothing stands in for the engine. Mooncake's
blocks have 512 tokens; here each is a page.

    device    pages of the cache
    host      a cache a quarter as large, and host memory behind it
    disk      both of these for a few prompts, and a folder behind them. Blocks are written on their second use

The references are offline. An LRU keeps the blocks that were used last, and forgets a prompt's from its end. The disk's
reference is an LRU of the blocks that were used twice, behind an LRU of the memory's size. Exits with 1 where a tier
differs from its reference by more than a point. Ten minutes, of which the disk takes nine.
"""

import json
import os
import random
import sys
import tempfile
import time
from collections import OrderedDict
from pathlib import Path
from unittest.mock import patch

import torch

from runtime.kernels.device import CPU
from runtime.kv.cache import LatentCache
from runtime.kv.tiers import folder
from runtime.kv.tiers.block_file import BlockForm
from runtime.kv.tiers.disk import DiskSettings, DiskTier
from runtime.launch import Limits
from runtime.protocol.counting import PAGE_TOKENS
from runtime.protocol.messages import Sampling
from runtime.serving.fetches import HASHES_PER_BLOCK
from runtime.serving.request import Request
from runtime.serving.scheduler import Scheduler

AT_ONCE, LONGEST = 2, 14
BLOCK_BYTES = PAGE_TOKENS * 4  # one layer, one number a token
SIZES = (0.01, 0.05, 0.25)  # of the blocks of all prompts
MOST_APART = 1.0  # percent of blocks
NOTHING = Sampling(1, 0.0, 1.0, 0, [])
FLUSH_S = 60.0


def conversations(number, seed=0):
    """The blocks of prompts, in order: each turn says all of its conversation's earlier ones again."""
    draw, live, blocks = random.Random(seed), [], iter(range(10**9))
    systems = [[next(blocks) for _ in range(3)] for _ in range(4)]
    for _ in range(number):
        is_new = not live or draw.random() < 0.4
        chain = draw.choice(systems) if is_new else live.pop(-1 - min(int(draw.expovariate(0.01)), len(live) - 1))
        live.append([*chain, *(next(blocks) for _ in range(draw.randint(1, 6)))])
        yield live[-1]
        if len(live[-1]) > LONGEST:
            live.pop()


def lru_hits(chains, num_blocks):
    """How many blocks an LRU of this size hits: those before the first that is missing."""
    kept, hits = OrderedDict(), 0
    for chain in chains:
        hits += next((number for number, block in enumerate(chain) if block not in kept), len(chain))
        for block in reversed(chain):
            kept[block] = None
            kept.move_to_end(block)
        while len(kept) > num_blocks:
            kept.popitem(last=False)
    return hits


def second_use_hits(chains, num_memory, num_disk):
    """How many blocks two LRUs hit, the second of blocks that were used twice, and how many come to the second.

    A use is remembered in one of so many places, until another block's use is: each block has its place.
    """
    num_places = HASHES_PER_BLOCK * num_disk
    memory, disk, places = OrderedDict(), OrderedDict(), {}
    hits = num_written = 0
    for chain in chains:
        place_of = {block: random.Random(block).randrange(num_places) for block in chain}
        used = [number for number, block in enumerate(chain, 1) if places.get(place_of[block]) == block]
        there = (number for number, block in enumerate(chain) if block not in memory and block not in disk)
        hits += next(there, len(chain))
        for number, block in reversed(list(enumerate(chain))):
            places[place_of[block]] = block
            num_written += number < max(used, default=0) and block not in disk
            for kept, is_kept in ((memory, True), (disk, number < max(used, default=0))):
                if is_kept:
                    kept[block] = None
                    kept.move_to_end(block)
        for kept, size in ((memory, num_memory), (disk, num_disk)):
            while len(kept) > size:
                kept.popitem(last=False)
    return hits, num_written


class Cache:
    """A rank's scheduler and tiers, with room for so many blocks on the device and in host memory."""

    def __init__(self, longest, num_device, num_host=0):
        host_bytes = num_host * BLOCK_BYTES
        num_device = max(num_device, AT_ONCE * (longest + 1))
        tokens = PAGE_TOKENS * (longest + 1)
        limits = Limits(AT_ONCE, tokens, AT_ONCE * tokens, num_device * PAGE_TOKENS, host_bytes=host_bytes)
        self.cache = LatentCache(1, 1, limits.kv_tokens, torch.float32, CPU, host_bytes=host_bytes)
        self.scheduler = Scheduler(self.cache, limits)

    def hits(self, chains):
        """How many blocks of these prompts are found."""
        for number, chain in enumerate(chains):
            prompt = [block for block in chain for _ in range(PAGE_TOKENS)] + [number]
            self.scheduler.add(Request(str(number), prompt, NOTHING, block_root=b"root", cache_salt="tenant"))
            while len(self.scheduler.running) + len(self.scheduler.waiting) >= AT_ONCE or self.scheduler.fetching:
                self.step()
        while self.scheduler.has_work():
            self.step()
        return sum(self.scheduler.hit_tokens.values()) // PAGE_TOKENS

    def step(self):
        batch = self.scheduler.schedule()
        for request, chunk in zip(batch.requests, (*batch.prefilling, *batch.decoding), strict=True):
            self.scheduler.advance(request, chunk.end)
            if request.is_computed:
                self.scheduler.end(request)


def disk_hits(path, num_host, num_blocks, times, chains):
    """How many blocks are hit with a folder for so many, and how many are written. A file's time is the trace's."""
    began = time.time() - max(times)
    cache = Cache(max(map(len, chains)), 0, num_host)
    form = BlockForm(bytes(32), cache.cache.host.shape, torch.float32)
    settings = DiskSettings(path, num_blocks * form.file_bytes, num_blocks, 2**30, None)
    disk = DiskTier(settings, form, print, cache.cache.host.lend_blank)
    cache.scheduler.use(disk)
    now_ns, write_parts = [0], folder.write_parts

    def note_use(file):
        os.utime(file, ns=(now_ns[0], now_ns[0]))

    def write(file, parts):
        write_parts(file, parts)
        note_use(file)

    def in_time():
        for at, chain in zip(times, chains, strict=True):
            disk.flush(FLUSH_S)
            now_ns[0] = int((began + at) * 1e9)
            yield chain

    with patch.object(folder, "_note_use", note_use), patch.object(folder, "write_parts", write):
        hits = cache.hits(in_time())
        disk.flush(FLUSH_S)
    disk.close()
    return hits, disk.counters.written


def main(trace):
    """Print the hit rates of the hour."""
    requests = [json.loads(line) for line in Path(trace).read_text().splitlines()]
    chains, times = [each["hash_ids"] for each in requests], [each["timestamp"] / 1e3 for each in requests]
    total, different = sum(map(len, chains)), len({block for chain in chains for block in chain})
    longest = max(map(len, chains))
    print(f"{len(chains)} prompts, {total} blocks, {different} different, at most {longest} a prompt")
    num_far = 0
    for size in (round(share * different) for share in SIZES):
        lru = 100 * lru_hits(chains, size) / total
        device = 100 * Cache(longest, size).hits(chains) / total
        host = 100 * Cache(longest, size // 4, size).hits(chains) / total
        print(f"{size} blocks: LRU {lru:.2f} %, device {device:.2f} %, host {host:.2f} %", end="", flush=True)
        expected = second_use_hits(chains, AT_ONCE * longest, size)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as path:
            found = disk_hits(Path(path), AT_ONCE * longest, size, times, chains)
        (twice, _), (disk, written) = ([100 * number / total for number in pair] for pair in (expected, found))
        print(f"; used twice {twice:.2f} %, disk {disk:.2f} % with {written:.2f} % written", flush=True)
        num_far += sum(abs(one - other) > MOST_APART for one, other in ((device, lru), (host, lru), (disk, twice)))
    return int(num_far > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
