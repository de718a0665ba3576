"""The load of experts, as measured and read from a file; `drawn` has loads that nobody measured.

Loads are token counts, or means of them; `weigh` makes whole numbers of them, so that every later decision compares
integers and comes out alike on any machine.
"""

import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.problems.errors import Violation

__all__ = ["LoadFile", "Loads", "read_loads"]

Loads = tuple[tuple[float, ...], ...]  # [num_moe_layers][num_logical_experts]

MAX_LOAD = 2**53


@dataclass(frozen=True)
class LoadFile:
    """The loads in a file, and the sha256 of its bytes."""

    loads: Loads
    digest: str


def read_loads(path: Path, written: str, option: str = "expert_load.file") -> LoadFile | Violation:
    """The loads at `path`, which the user calls `written` under `option`; or what is wrong with them."""
    try:
        content = path.read_bytes()
        rows = _read_npy(content) if path.suffix == ".npy" else json.loads(content)
    except OSError as error:
        base = "the spec's folder" if option == "expert_load.file" else "the current folder"
        reason, fix = error.strerror or str(error), f"give the path relative to {base}"
        return Violation(option, written, "S603 must be a readable file", reason, fix)
    except (ValueError, RecursionError, OverflowError, MemoryError):  # the last two: a header of absurd sizes
        return Violation(option, written, "S604 must be .npy or JSON", "it cannot be parsed as such", "write it again")
    rows = _sglang_counts(rows)
    if wrong := _what_is_wrong(rows):
        rule = f"S605 must hold token counts from 0 to {MAX_LOAD}, [layers][experts]"
        return Violation(option, written, rule, wrong, "correct the file")
    return LoadFile(tuple(tuple(row) for row in rows), f"sha256:{hashlib.sha256(content).hexdigest()}")


def _read_npy(content: bytes) -> Any:
    import numpy  # only those who have such a file wait for it

    return numpy.lib.format.read_array(io.BytesIO(content), allow_pickle=False).tolist()


def _sglang_counts(document: Any) -> Any:
    """What SGLang calls `logical_count` in a JSON document, its recorded steps added up; any other document as it is.

    Source: sgl-project/sglang 01fec5c2e61f, python/sglang/srt/eplb/expert_location.py: [layers][experts] or
    [steps][layers][experts].
    """
    if not isinstance(document, dict) or "logical_count" not in document:
        return document
    steps = document["logical_count"]
    try:
        return [[sum(counts) for counts in zip(*rows, strict=True)] for rows in zip(*steps, strict=True)]
    except TypeError:  # not that deep
        return steps
    except (ValueError, OverflowError):
        return None


def _what_is_wrong(rows: Any) -> str | None:
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) and row for row in rows):
        return "it is not a list of rows"
    if len({len(row) for row in rows}) > 1:
        return "its rows differ in length"
    for layer, row in enumerate(rows):
        for expert, load in enumerate(row):
            if isinstance(load, list):
                return "it has more than two dimensions"
            if type(load) not in (int, float) or not 0 <= load <= MAX_LOAD:  # NaN is not
                return f"layer {layer}, expert {expert} is {_shown(load)}"
    return None


def _shown(load: Any) -> str:
    return (json.dumps(load) if isinstance(load, int | float | str | dict | None) else repr(load))[:40]
