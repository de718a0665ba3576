"""Measured loads of experts, read from a file; `drawn` has random ones.

Loads are token counts or their means. `weigh` turns them into whole numbers, so that every later comparison is the same
on any machine.

A row is an MoE layer. SGLang records a row for every layer of the model and counts nothing in two kinds of layers:
dense ones, and those that a table routes by token (DeepSeek-V4's first 3 of 43). Both come first. `moe_rows` knows the
model: it drops 3 of DeepSeek-V3's 61 rows, and gives equal loads to 3 of V4's 43. Without a model, leading rows of
zeros in a recording count as dense layers. A row of zeros anywhere else was not recorded.

SGLang's recorder writes its counts with torch.save, which only torch reads; the finding about such a file says how to
make JSON of it.

Source: sgl-project/sglang 01fec5c2e61f, python/sglang/srt/eplb/expert_location.py (`logical_count` is [layers][experts]
or [steps][layers][experts]) and expert_distribution.py (_StatAccumulator.dump; layers that record nothing stay zero).
NVIDIA/TensorRT-LLM 7ce477f3c73b, examples/wide_ep/ep_load_balancer/utils.py: a file a rank, a tensor for each iteration
and layer, to be added up over ranks.
"""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import Any

from planner.facts.digest import digest_of_bytes
from planner.facts.files import explain_unreadable, read_file
from planner.problems.finding import Finding

Loads = tuple[tuple[float, ...], ...]  # [num_moe_layers][num_logical_experts]

MAX_LOAD = 2**53
MAX_LOADS_BYTES = 2**28  # assumed: a thousand recorded steps of DeepSeek-V3 as JSON take less
COUNTS = "logical_count"  # SGLang's key for its token counts
NEITHER = "its content is neither"
ONE_ROW = "it is one row of numbers"
TABLES = {".csv": ",", ".tsv": "\\t"}  # what separates their columns


@dataclass(frozen=True)
class LoadFile:
    """The rows of a load file, the sha256 of its bytes, and whether SGLang recorded it, with a row for every layer."""

    content: bytes = field(repr=False)
    rows: Loads
    digest: str
    is_recorded: bool = False

    @property
    def first_layer(self) -> int | None:
        """Return the index of the first layer with load among the model's layers; None if the file is no recording."""
        return next(layer for layer, row in enumerate(self.rows) if any(row)) if self.is_recorded else None

    @property
    def loads(self) -> Loads:
        """Return the rows of the file. A recording's leading rows of zeros are left out, as rows of dense layers."""
        return self.rows[self.first_layer or 0 :]


def moe_rows(rows: Loads, num_dense: int, is_hashed: Sequence[bool]) -> Loads:
    """Return the rows of a model's MoE layers, from a file with a row per MoE layer or a row per layer of the model.

    `is_hashed` tells for each MoE layer whether a table routes it. A row of zeros for such a layer becomes equal loads.
    `num_dense` is the model's number of dense layers. Rows whose number fits neither form are returned unchanged.
    """
    has_dense = len(rows) == num_dense + len(is_hashed) and not any(map(any, rows[:num_dense]))
    of_moe = rows[num_dense:] if has_dense else rows
    if len(of_moe) != len(is_hashed):
        return rows
    return tuple(
        (1,) * len(row) if hashed and not any(row) else row for row, hashed in zip(of_moe, is_hashed, strict=True)
    )


def row_without_load(rows: Loads) -> int | None:
    """Return the index of the first row of zeros; None without one. Such a row means that nothing was recorded."""
    return next((index for index, row in enumerate(rows) if not any(row)), None)


def read_loads(path: Path, written: str, option: str = "expert_load.file") -> LoadFile | Finding:
    """Return the loads in the file at `path`, or the finding that the file is wrong.

    The user wrote the path as `written` in the field or argument `option`.
    """
    try:
        content = read_file(path, MAX_LOADS_BYTES)
        document = _read_npy(content) if path.suffix == ".npy" else json.loads(content)
    except OSError as error:
        base = "this file's folder" if option == "expert_load.file" else "the current folder"
        return Finding(option, written, "S603 must be a readable file", *explain_unreadable(error, base))
    except (ValueError, RecursionError, OverflowError, MemoryError):  # the last two: a header of absurd sizes
        return Finding(option, written, "S604 must be .npy or JSON", *_explain_other_file(path))
    is_recorded = isinstance(document, dict) and COUNTS in document
    rows = _sum_of_steps(document[COUNTS]) if is_recorded else document
    if wrong := _find_mistake(rows) or (is_recorded and _find_no_record(rows)):
        rule = f"S605 must hold token counts from 0 to {MAX_LOAD}, [layers][experts]"
        fix = f"give one layer as [1][{len(rows)}], a list in a list" if wrong == ONE_ROW else "correct the file"
        return Finding(option, written, rule, wrong, fix)
    return LoadFile(content, tuple(tuple(row) for row in rows), digest_of_bytes(content), is_recorded)


def _explain_other_file(path: Path) -> tuple[str, str]:
    """Return (reason, fix) for a load file that is neither numpy's nor JSON. The fix says how to convert it."""
    if path.suffix == ".safetensors":
        return (
            "TensorRT-LLM records such a file a rank, and a tensor in it for each iteration and layer",
            "add up the tensors of all ranks by layer, as load_expert_statistic of its "
            f'examples/wide_ep/ep_load_balancer does, and write {{"{COUNTS}": [layers][experts]}} as JSON',
        )
    if path.suffix == ".pt":
        load = f"torch.load('{path.name}', weights_only=True)['{COUNTS}']"
        return (
            "only torch reads what torch.save wrote",
            f"make it JSON where torch is: json.dump({{'{COUNTS}': {load}.tolist()}}, open('{path.stem}.json', 'w'))",
        )
    if path.suffix in TABLES:
        table = f"numpy.loadtxt('{path.name}', delimiter='{TABLES[path.suffix]}', ndmin=2)"
        return NEITHER, f"make it .npy: numpy.save('{path.stem}.npy', {table})"
    return NEITHER, "write it again"


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


def _sum_of_steps(counts: Any) -> Any:
    """Return SGLang's counts summed over steps; counts without a dimension for steps are unchanged."""
    try:
        return [[sum(tokens) for tokens in zip(*rows, strict=True)] for rows in zip(*counts, strict=True)]
    except TypeError:  # not that deep
        return counts
    except (ValueError, OverflowError):
        return None


def _find_mistake(rows: Any) -> str | None:
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
                return f"layer {layer}, expert {expert} is {_quote(load)}"
    return None


def _find_no_record(rows: list[list[float]]) -> str | None:
    return None if any(map(any, rows)) else "no token was recorded"


def _quote(load: Any) -> str:
    """Return a number as text, and of anything else only its type, because text may be private and containers huge."""
    is_plain = load is None or isinstance(load, int | float)
    return json.dumps(load)[:40] if is_plain else f"of type {type(load).__name__}"
