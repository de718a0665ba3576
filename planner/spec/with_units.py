"""Numbers that were written with the unit that their field already has: `2s` of ms, `60%`, `$2`, `EP8`, `2 nodes`.

For the fix of a message only, as all of `meant.py`. A unit that the field does not have says nothing: 16 GPUs are no
number of nodes.
"""

import re
from collections.abc import Mapping

__all__ = ["MORE_THAN_ALL", "number_with_unit", "words_of"]

MORE_THAN_ALL = ("schedule.headroom",)  # shares that may be more than 1, and are no numbers of something else

AMOUNT = re.compile(r"(?P<number>[0-9]{1,15}(?:\.[0-9]{1,9})?) ?(?P<unit>[A-Za-z%]+)")
DOLLARS = re.compile(r"(?:US)?\$? ?([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(?:\$|USD|usd)?(?: ?/ ?(h|hr|hour|M|1M))?")
COUNT = re.compile(r"(?P<before>[A-Za-z]*) ?(?P<number>[0-9]{1,15}) ?(?P<after>[A-Za-z]*)")

# How the last part of a field's name ends -> units that it is written with, in its own.
SCALES: Mapping[str, Mapping[str, float]] = {
    "_ms": {"ms": 1, "s": 1e3, "sec": 1e3, "us": 1e-3},
    "_tflops": {"TFLOPS": 1, "PFLOPS": 1e3, "GFLOPS": 1e-3},
    "put_tokens": {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12, "tokens": 1},
}
# Fields that count something -> what it is called beside the number.
WORDS: Mapping[str, frozenset[str]] = {
    "nodes": frozenset(("node", "nodes")),
    "gpus_per_node": frozenset(("gpu", "gpus", "x")),
    "ep_size": frozenset(("ep", "gpu", "gpus", "x")),
    "attention_tp": frozenset(("tp", "gpu", "gpus", "x")),
    "units": frozenset(("unit", "units", "replicas", "x")),
    "redundant_experts": frozenset(("expert", "experts")),
    "max_requests": frozenset(("request", "requests", "seqs")),
    "max_request_tokens": frozenset(("token", "tokens")),
    "max_batch_tokens": frozenset(("token", "tokens")),
}
PER = {"usd_per_gpu_hour": ("h", "hr", "hour")}
OF_A_MILLION = ("M", "1M")
PRICES = ("input_hit", "input_miss", "output")


def number_with_unit(path: str, value: str, most: float | None) -> float | None:
    """Return what `value` says in the unit of the field at `path`, whose largest number is `most`; else None."""
    name = path.rpartition(".")[2]
    match = AMOUNT.fullmatch(value)
    if match and match["unit"] == "%":
        return (
            None
            if most is None or (most > 1 and path not in MORE_THAN_ALL)
            else round(float(match["number"]) / 100, 12)
        )
    scales = next((units for end, units in SCALES.items() if name.endswith(end)), {})
    if match and match["unit"] in scales:
        return round(float(match["number"]) * scales[match["unit"]], 9)
    return _dollars(name, value) if name in PER or (name in PRICES and "prices" in path) else None


def words_of(path: str, value: str) -> int | None:
    """Return the number of `EP8`, `8x` or `2 nodes`, where the field at `path` counts those."""
    match, words = COUNT.fullmatch(value), WORDS.get(path.rpartition(".")[2], frozenset())
    said = [each for each in (match["before"], match["after"]) if each] if match else []
    return int(match["number"]) if match and len(said) == 1 and said[0].casefold() in words else None


def _dollars(name: str, value: str) -> float | None:
    match = DOLLARS.fullmatch(value)
    per = PER.get(name, OF_A_MILLION)
    return float(match[1]) if match and (match[2] is None or match[2] in per) else None
