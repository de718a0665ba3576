"""The load of experts, as measured and read from a file; `drawn` has loads that nobody measured.

Loads are token counts, or means of them; `weigh` makes whole numbers of them, so that every later decision compares
integers and comes out alike on any machine.

A row is an MoE layer. SGLang records a row for every layer of the model, and nothing is routed in a dense one: the rows
of zeros that its file begins with are the dense layers, and are left out. DeepSeek-V3's 61 rows become 58, of which the
first is layer 3. Its recorder writes such files with torch.save in the modes `stat` and `stat_approx`; by hand they are
written as JSON.

Source: sgl-project/sglang 01fec5c2e61f, python/sglang/srt/eplb/expert_location.py (`logical_count` is [layers][experts]
or [steps][layers][experts]) and expert_distribution.py (_StatAccumulator.dump; layers that record nothing stay zero).
"""

import io
import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import Any

from planner.facts.digest import digest_of_bytes
from planner.facts.files import read_file
from planner.problems.errors import Violation

__all__ = ["LoadFile", "Loads", "read_loads"]

Loads = tuple[tuple[float, ...], ...]  # [num_moe_layers][num_logical_experts]

MAX_LOAD = 2**53
MAX_LOADS_BYTES = 2**28  # a thousand steps that SGLang recorded of a DeepSeek-V3 have half of it
COUNTS = "logical_count"  # what SGLang calls them
ONE_ROW = "it is one row of numbers"
TABLES = {".csv": ",", ".tsv": "\\t"}  # what separates their columns


@dataclass(frozen=True)
class LoadFile:
    """The MoE layers' loads in a file, the sha256 of its bytes, and the first row's layer in the model, if it tells."""

    loads: Loads
    digest: str
    first_layer: int | None = None


def read_loads(path: Path, written: str, option: str = "expert_load.file") -> LoadFile | Violation:
    """Return the loads at `path`, which the user calls `written` under `option`; or what is wrong with them."""
    try:
        content = read_file(path, MAX_LOADS_BYTES)
        document = _read(path.suffix, content)
    except OSError as error:
        base = "the spec's folder" if option == "expert_load.file" else "the current folder"
        reason, fix = error.strerror or str(error), f"give the path relative to {base}"
        return Violation(option, written, "S603 must be a readable file", reason, fix)
    except (ValueError, RecursionError, OverflowError, MemoryError) as error:  # the last two: a header of absurd sizes
        reason, fix = "its content is none of these", "write it again"
        if path.suffix == ".pt":
            reason, fix = str(error), f'write {{"{COUNTS}": [layers][experts]}} as JSON'
        elif path.suffix in TABLES:
            table = f"numpy.loadtxt('{path.name}', delimiter='{TABLES[path.suffix]}', ndmin=2)"
            fix = f"make it .npy: numpy.save('{path.stem}.npy', {table})"
        return Violation(option, written, "S604 must be .npy, .pt or JSON", reason, fix)
    is_recorded = isinstance(document, dict) and COUNTS in document
    rows = _sum_of_steps(document[COUNTS]) if is_recorded else document
    if wrong := _what_is_wrong(rows) or (is_recorded and _records_nothing(rows)):
        rule = f"S605 must hold token counts from 0 to {MAX_LOAD}, [layers][experts]"
        fix = f"give one layer as [1][{len(rows)}], a list in a list" if wrong == ONE_ROW else "correct the file"
        return Violation(option, written, rule, wrong, fix)
    first_layer = next(layer for layer, row in enumerate(rows) if any(row)) if is_recorded else None
    digest = digest_of_bytes(content)
    return LoadFile(tuple(tuple(row) for row in rows[first_layer:]), digest, first_layer)


def _read(suffix: str, content: bytes) -> Any:
    if suffix == ".npy":
        return _read_npy(content)
    return _read_torch(content) if suffix == ".pt" else json.loads(content)


def _read_npy(content: bytes) -> Any:
    import numpy  # only those who have such a file wait for it

    file = io.BytesIO(content)
    shape, dtype = _npy_header(file)
    num_bytes = prod(shape) * dtype.itemsize
    if num_bytes == 0 or num_bytes != len(content) - file.tell():
        raise ValueError("its header does not fit the numbers that follow")  # else they are made before they are missed
    file.seek(0)
    return numpy.lib.format.read_array(file, allow_pickle=False).tolist()


def _npy_header(file: io.BytesIO) -> tuple[tuple[int, ...], Any]:
    from numpy.lib import format as npy

    version = npy.read_magic(file)
    try:
        shape, _, dtype = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(file)
    except (TypeError, SyntaxError, TokenError) as error:  # numpy reads it as Python, and lets these through
        raise ValueError("its header is not numpy's") from error
    if not all(type(length) is int for length in shape):
        raise ValueError("its shape is not of whole numbers")  # numpy lets True through
    return shape, dtype


def _read_torch(content: bytes) -> Any:
    """Return what torch.save wrote, with lists for tensors. A thousand steps are added up while they are no lists."""
    import numpy

    from planner.facts.torch_file import read_torch_file

    document = read_torch_file(io.BytesIO(content))
    if isinstance(document, numpy.ndarray):
        return document.tolist()
    counts = document.get(COUNTS) if isinstance(document, dict) else None
    if isinstance(counts, numpy.ndarray):
        return {COUNTS: (counts.sum(axis=0) if counts.ndim == 3 else counts).tolist()}
    return document


def _sum_of_steps(counts: Any) -> Any:
    """Add up what SGLang recorded in each of several steps; anything that is not so deep stays as it is."""
    try:
        return [[sum(tokens) for tokens in zip(*rows, strict=True)] for rows in zip(*counts, strict=True)]
    except TypeError:  # not that deep
        return counts
    except (ValueError, OverflowError):
        return None


def _what_is_wrong(rows: Any) -> str | None:
    if isinstance(rows, dict) and "records" in rows:
        return "SGLang recorded it in another mode than stat"
    if isinstance(rows, list) and rows and all(isinstance(load, int | float) for load in rows):
        return ONE_ROW
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


def _records_nothing(rows: list[list[float]]) -> str | None:
    return None if any(map(any, rows)) else "no token was recorded"


def _shown(load: Any) -> str:
    """Return a value for a message, or what kind of value it is: a container may be of any size, or hold itself."""
    is_plain = load is None or isinstance(load, int | float | str)
    return json.dumps(load)[:40] if is_plain else f"of type {type(load).__name__}"
