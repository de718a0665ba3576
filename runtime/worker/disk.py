"""The disk tier of a rank's prefix cache, as its launch file says.

A rank starts and serves whatever its disk does. What the tier cannot do it says in a line of the rank's log.
"""

import sys
from pathlib import Path

from runtime.kv.tiers.block_file import BlockForm
from runtime.kv.tiers.disk import DiskSettings, DiskTier
from runtime.kv.tiers.host import HostTier
from runtime.launch import Limits

__all__ = ["close_disk", "open_disk"]

QUEUED_SHARE = 4  # assumed: at most 1 / 4 of `host_bytes` waits to be written; it gives way to no request
FLUSH_S = 3.0  # assumed: a part of the drain; nodes that leave together end within 5 s (`draining.BROKEN_S`)


def open_disk(limits: Limits, block_digest: bytes, host: HostTier | None, who: str) -> DiskTier | None:
    """Return the disk tier behind `host`; None if the launch file has none. `who` names this rank in the log."""
    if limits.disk is None:
        return None
    assert host is not None  # the launch file was checked
    settings = DiskSettings(
        path=Path(limits.disk.path),
        max_bytes=limits.disk.max_bytes,
        max_files=limits.disk.max_files or limits.disk.max_bytes,  # no file has less than a byte
        max_queued_bytes=limits.host_bytes // QUEUED_SHARE,
        bytes_per_s=limits.disk.bytes_per_s,
    )

    def say(line: str) -> None:
        print(f"tidemill: {who}: {line}", file=sys.stderr, flush=True)

    return DiskTier(settings, BlockForm(block_digest, host.shape, host.dtype), say, host.lend_blank)


def close_disk(disk: DiskTier | None) -> None:
    """Write queued blocks for at most `FLUSH_S` after the rank's last request, and close the tier."""
    if disk is not None:
        disk.flush(FLUSH_S)
        disk.close()
