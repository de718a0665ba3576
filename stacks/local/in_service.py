"""The expert maps that units on this machine follow, as their first ranks say it.

A file beside the launch files holds the epoch with which a unit starts again. It may be lost, edited, or on a full disk
while the unit serves, so it says nothing about the map in service, and only the ranks are asked for that.
"""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from planner.facts.digest import digest_of
from planner.facts.files import read_file
from stacks.local.hand_over import epoch_file
from stacks.local.record import Record, UnitRecord
from stacks.measured.epochs import InService, fetch_epoch, read_in_service

__all__ = ["with_maps"]

ASK_S = 2.0  # assumed: a rank answers at once; one that hangs is shown without its map
WRITTEN_S = 0.2  # assumed: a rank is in its epoch a moment before it writes the document
SERVING = ("ready", "draining", "unknown")


def with_maps(record: Record, folder: Path) -> Record:
    """Return a deployment's record with the map that each unit follows. `folder` has the launch files."""
    with ThreadPoolExecutor(max(1, len(record.units))) as pool:
        return replace(record, units=tuple(pool.map(partial(_with_map, folder=folder), record.units)))


def _with_map(unit: UnitRecord, folder: Path) -> UnitRecord:
    unit = replace(unit, epoch=0, epoch_digest=None, map_in_service="")
    if unit.state not in SERVING or not unit.metrics:
        return unit
    try:
        found = read_in_service(fetch_epoch(f"http://{unit.metrics[0]}/metrics", unit.name, ASK_S))
    except (OSError, ValueError) as error:
        return replace(unit, unread=f"its map cannot be read: {error}")
    digest = found.digest if found.epoch else None
    kept, followed = folder / epoch_file(unit.name), digest_of(found.rows)
    forgets = None if _is_kept(kept, found) else f"{kept} does not hold this one"
    return replace(unit, epoch=found.epoch, epoch_digest=digest, map_in_service=followed, forgets=forgets)


def _is_kept(kept: Path, found: InService) -> bool:
    """Return whether a unit in the epoch `found` begins in it when it starts again, by the document `kept`."""
    if _next_start(kept, found) == found.digest:
        return True
    time.sleep(WRITTEN_S)
    return _next_start(kept, found) == found.digest


def _next_start(kept: Path, found: InService) -> str:
    """Return the digest of the epoch in which a unit starts again: the document's or, if it is refused, epoch 0's."""
    try:
        document = json.loads(read_file(kept))
        digest = str(document.pop("digest"))
        return digest if digest == digest_of(document) else found.unit_digest
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return found.unit_digest
