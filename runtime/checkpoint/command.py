"""`tidemill checkpoint digest`: read a whole checkpoint once, and write its manifest."""

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from runtime.checkpoint.folder import resolve
from runtime.checkpoint.manifest import MANIFEST, make_manifest, write_manifest
from runtime.checkpoint.tensors import index_tensors, open_shards, refuse_holes

__all__ = ["write_digests"]


def write_digests(checkpoint: str, output: Path | None, num_threads: int, *, as_json: bool) -> None:
    """Write the manifest beside `config.json`, or to `output`, and print what it covers.

    Raises RuntimeFailure if the checkpoint cannot be read or the manifest cannot be written.
    """
    folder = resolve(checkpoint)
    path = output or folder / MANIFEST
    with open_shards(folder) as shards, _new_bars() as bars:
        num_tensors = len(index_tensors(shards))
        refuse_holes(shards)
        num_bytes = sum(shard.num_bytes for shard in shards)
        task = bars.add_task("", total=num_bytes)
        manifest = make_manifest(folder, shards, num_threads, lambda more: bars.advance(task, more))
    digest = write_manifest(manifest, path)
    if as_json:
        found = {"manifest": str(path), "weights_digest": digest, "files": len(shards), "tensors": num_tensors}
        print(json.dumps(found | {"bytes": num_bytes}, sort_keys=True, indent=1))
    else:
        print(f"{path}: {num_tensors:,} tensors in {len(shards):,} files of {num_bytes:,} bytes, weights {digest}")


def _new_bars() -> Progress:
    """Return a progress bar for a terminal: reading a checkpoint takes minutes."""
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True)
