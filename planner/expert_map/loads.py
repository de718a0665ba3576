"""Where the load of experts comes from: measured and read from a file, or drawn.

Loads are token counts, or means of them; `weigh` makes whole numbers of them, so that every later decision compares
integers and comes out alike on any machine.

What is drawn: the popularity of each expert of each layer independently from the density x^-alpha on [1, 256], the
model that the published measurements of expert-parallel imbalance use (alpha 1.01 resembles DeepSeek-R1's routing). No
sampling noise of a step, no likeness between layers.
"""

import json
import random
from pathlib import Path
from typing import Any

from planner.errors import Violation

__all__ = ["Loads", "draw_loads", "read_loads"]

Loads = tuple[tuple[float, ...], ...]  # [num_moe_layers][num_logical_experts]

MOST_POPULAR = 256.0  # as popular as so many least popular experts
TOKENS_OF_LEAST_POPULAR = 1000
MAX_LOAD = 2**53


def draw_loads(alpha: float, seed: int, num_layers: int, num_experts: int) -> Loads:
    """`[num_layers][num_experts]` token counts; the same for the same arguments, on any machine."""
    generator = random.Random(seed)  # noqa: S311 (its sequence is promised never to change, which numpy's is not)
    return tuple(
        tuple(round(TOKENS_OF_LEAST_POPULAR * _popularity(generator.random(), alpha)) for _ in range(num_experts))
        for _ in range(num_layers)
    )


def _popularity(uniform: float, alpha: float) -> float:
    """The inverse of the distribution with density x^-alpha on [1, 256]."""
    if alpha == 1:
        return float(MOST_POPULAR**uniform)
    exponent = 1 - alpha
    return float((1 + uniform * (MOST_POPULAR**exponent - 1)) ** (1 / exponent))


def read_loads(path: Path, written: str, option: str = "expert_load.file") -> Loads | Violation:
    """The loads at `path`, which the user calls `written` under `option`; or what is wrong with them."""
    try:
        rows = _read_npy(path) if path.suffix == ".npy" else json.loads(path.read_bytes())
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
    return tuple(tuple(row) for row in rows)


def _read_npy(path: Path) -> Any:
    import numpy  # only those who have such a file wait for it

    with path.open("rb") as file:
        return numpy.lib.format.read_array(file, allow_pickle=False).tolist()


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
