"""Hand the next epoch to a unit that serves on this machine, and wait until its ranks have switched.

    rank   -> us     {"unit", "unit_digest", "number", "digest", "places"}, a line of JSON: the unit's epoch
    us     -> rank   the document of the next epoch, with the map
    rank   -> us     the epoch at the end of the switch, and the reason if it is not the next one

The unit's first rank listens beside its launch file. It checks the document and moves the experts; we ask and wait.
`runtime/expert_parallel/epochs/document.py` describes the document.
"""

import json
import os
import socket
from pathlib import Path
from typing import Any, BinaryIO

from stacks.measured.epochs import Rows, next_document

__all__ = ["epoch_file", "hand_over"]


def epoch_file(unit: str) -> str:
    """Return the name of the file, beside a unit's launch file, with the epoch in which the unit starts again."""
    return f"{unit}.epoch.json"


def hand_over(folder: Path, unit: str, physical_to_logical: Rows, after: str | None = None) -> dict[str, Any]:
    """Ask the first rank of a unit, whose launch file is in `folder`, to follow a map. Return its final answer.

    The answer has the unit's epoch, and a reason if that is not the next one. Raises OSError or ValueError if the rank
    does not answer, and ValueError if the unit is in another epoch than that with the digest `after`, if given.
    """
    with _connect(folder, f"{unit}.epoch") as rank, rank.makefile("rb") as said:
        standing = _read_line(said)
        if after is not None and standing["digest"] != after:
            raise ValueError("somebody else has changed its map meanwhile")
        rank.sendall(json.dumps(next_document(standing, physical_to_logical)).encode() + b"\n")
        return _read_line(said)


def _connect(folder: Path, name: str) -> socket.socket:
    """Connect to the Unix socket `name` in a folder, however long the path is.

    Raises OSError if nobody listens there.
    """
    rank, here = socket.socket(socket.AF_UNIX), os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        rank.connect(f"/proc/self/fd/{here}/{name}")  # the path of a socket has at most 107 characters (unix(7))
    except OSError:
        rank.close()
        raise
    finally:
        os.close(here)
    return rank


def _read_line(said: BinaryIO) -> dict[str, Any]:
    line = said.readline()
    if not line:
        raise ValueError("it closed the connection")
    found: dict[str, Any] = json.loads(line)
    return found
