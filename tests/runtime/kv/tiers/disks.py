"""Small blocks, tiers on a disk of the test's own, and disks on which something is wrong."""

import hashlib
import os
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from runtime.kv.tiers.block_file import BlockForm
from runtime.kv.tiers.disk import DiskSettings, DiskTier

FORM = BlockForm(bytes(range(32)), (2, 64, 8), torch.bfloat16)
TENANT = b"tenant"
PATIENCE_S = 60.0  # of tests, which time nothing


def name_of(number):
    """The name of a block."""
    return hashlib.sha256(str(number).encode()).digest()


def latents_of(name, form=FORM):
    """The latents of the block of this name, and of no other."""
    content = bytearray(hashlib.shake_128(name).digest(form.latent_bytes))
    return torch.frombuffer(content, dtype=form.dtype).view(*form.shape)


def same(one, other):
    """Whether two tensors have the same bits."""
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@contextmanager
def tier_on(path, form=FORM, allocate=None, **changes):
    """A tier that is closed in the end; `tier.said` has its lines of the log."""
    bounds = {"max_bytes": 2**30, "max_files": 2**20, "max_queued_bytes": 2**20, "bytes_per_s": None}
    said = []
    tier = DiskTier(DiskSettings(path, **bounds | changes), form, said.append, allocate)
    tier.said = said
    try:
        yield tier
    finally:
        tier.close()


def write(tier, names, tenant=TENANT, form=FORM):
    """Write the blocks of these names."""
    for name in names:
        tier.offer(name, latents_of(name, form), tenant)

    assert tier.flush(PATIENCE_S) == 0


def load(tier, names, tenant=TENANT, deadline_s=PATIENCE_S, form=FORM):
    """Load these blocks, and see that each is the right one; return how many there were."""
    loading = tier.begin_load(names, tenant, deadline_s)
    loading.wait()
    blocks = loading.blocks()

    assert all(same(block, latents_of(name, form)) for name, block in zip(names, blocks, strict=False))
    return len(blocks)


def file_of(path, name, form=FORM, tenant=TENANT):
    """The file of a block."""
    place = path / "blocks" / form.block_digest.hex() / tenant.hex() / name.hex()[:2]
    return place / name.hex()[2:]


def block_files(path):
    """All blocks' files, also while a janitor removes folders."""
    return [Path(folder, name) for folder, _, names in os.walk(path / "blocks") for name in names if len(name) == 62]


def wait_until(holds):
    """Wait until something holds."""
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.002)


@contextmanager
def mounted(path, *arguments):
    """A file system on `path`; skips where the machine does not allow it."""
    path.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *arguments, str(path)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"mount {' '.join(arguments)}: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
