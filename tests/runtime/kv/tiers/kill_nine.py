"""Kill writers of the disk tier, and look at what they leave.

    python -m tests.runtime.kv.tiers.kill_nine NUMBER [SEED]

Each writer is a process that offers blocks of 0.5 MB to a tier. It gets SIGKILL at a moment drawn at random. Half of
them write as on a file system that has no files without a name. After each, every block in the folder must be whole.
A janitor must leave no file of a dead writer, and must know what is used. A writer after all of them must write what
is missing. Exits with 1 if any of this fails, or if no kill came in the middle of a block.
"""

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch

from runtime.kv.sender import as_bytes
from runtime.kv.tiers import folder as folder_module
from runtime.kv.tiers.block_file import BlockForm, read_block
from runtime.kv.tiers.folder import BlockFolder
from runtime.kv.tiers.janitor import Bound, Janitor, Usage
from tests.runtime.kv.tiers.disks import (
    PATIENCE_S,
    TENANT,
    block_files,
    latents_of,
    load,
    name_of,
    same,
    tier_on,
    write,
)

FORM = BlockForm(bytes(32), (16, 64, 256), torch.bfloat16)
MAX_WRITTEN_S = 0.006  # of a writer; a block takes a tenth of it
NUM_BLOCKS = 20
BOUND = Bound(max_bytes=2**30, max_files=2**20)
LATENTS = {name: latents_of(name, FORM) for name in map(name_of, range(NUM_BLOCKS))}


def main(number, seed=0):
    """Kill so many writers; return the exit status."""
    draw, num_in_the_middle = random.Random(seed), 0
    with tempfile.TemporaryDirectory() as place:
        path = Path(place)
        for trial in range(number):
            kill_a_writer(path, draw, is_nameless=trial % 2 == 0)
            num_in_the_middle += look_at(path, draw)
        with tier_on(path, FORM, max_queued_bytes=2**30) as tier:
            write(tier, LATENTS, form=FORM)
            assert load(tier, list(LATENTS), form=FORM) == NUM_BLOCKS
            assert not tier.said
    print(
        f"{number} writers killed, {num_in_the_middle} in the middle of a block: every block is whole, nothing is left"
    )
    return int(not num_in_the_middle)


def kill_a_writer(path, draw, *, is_nameless):
    """Start a writer, and kill it."""
    ready, tell = os.pipe()
    writer = os.fork()
    if not writer:
        os.close(ready)
        write_until_killed(path, tell, is_nameless)
    os.close(tell)
    os.read(ready, 1)
    os.close(ready)
    time.sleep(draw.uniform(0, MAX_WRITTEN_S))
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)


def write_until_killed(path, tell, is_nameless):
    """Write blocks; never return."""
    try:
        if not is_nameless:
            folder_module._open_nameless = lambda folder: None
        with tier_on(path, FORM, max_queued_bytes=2**30) as tier:
            names = random.sample(sorted(LATENTS), NUM_BLOCKS)
            os.write(tell, b"r")
            for name in names:
                tier.offer(name, LATENTS[name], TENANT)
            tier.flush(PATIENCE_S)
            time.sleep(PATIENCE_S)
    finally:
        os._exit(1)


def look_at(path, draw):
    """Test every block and what a janitor leaves; return whether a block was begun. Remove half of the blocks."""
    folder = BlockFolder(path, FORM.block_digest)
    usage = Usage(folder, BOUND)
    begun = usage.change(0) > FORM.file_bytes * len(block_files(path))
    for name in LATENTS:
        assert is_whole_or_absent(folder, name)
    for name in draw.sample(sorted(LATENTS), NUM_BLOCKS // 2):
        folder.remove(TENANT, name)
    (path / "blocks" / "janitor").write_bytes(b"")  # as after an hour
    assert Janitor(folder, BOUND, usage).clean() == 0
    assert usage.change(0) == FORM.file_bytes * len(block_files(path))
    assert not list((path / "blocks").glob("partial/*"))
    return begun


def is_whole_or_absent(folder, name):
    """Whether a block is what was written; NotThisBlock if there is part of it. No thread: writers are forked."""
    latents = torch.empty_like(LATENTS[name])
    try:
        with folder.block(TENANT, name) as file:
            read_block(file, FORM, name, as_bytes(latents))
    except FileNotFoundError:
        return True
    return same(latents, LATENTS[name])


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
