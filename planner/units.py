"""Quantities with their units: as specs write them, and as plans print them.

`80GiB`, `400Gbps`, `50ms`, `2h` are read once, at the border of the spec, into whole bytes, gigabits a second and
seconds; inside the planner a number carries its unit in its name. GB is 1e9 bytes and GiB is 2^30: both can be
written, and neither is ever taken for the other. A number without a unit is refused, since nobody can tell which was
meant.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

__all__ = ["QUANTITIES", "byte_quantity", "gb", "link_quantity", "time_quantity"]

AMOUNT = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([A-Za-z/]+)")

BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    unit: 2 ** (10 * power) for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), 1)
}
GIGABITS_PER_S = {"Mbps": 1e-3, "Gbps": 1, "Tbps": 1e3, "MB/s": 8e-3, "GB/s": 8, "TB/s": 8e3}
SECONDS = {"ms": 1e-3, "s": 1, "min": 60, "h": 3600}

# kind -> what the message of a wrong one says
QUANTITIES = {
    "bytes": f"a size above 0 in {', '.join(BYTES)}",
    "link": f"a bandwidth above 0 in {', '.join(GIGABITS_PER_S)}",
    "time": f"a time above 0 in {', '.join(SECONDS)}",
}


def gb(num_bytes: float) -> str:
    """`43.1 GB`, in units of 1e9."""
    return f"{num_bytes / 1e9:,.1f} GB"


def _reader(kind: str, units: Mapping[str, float], *, whole: bool) -> Callable[[Any], Any]:
    def read(written: Any) -> Any:
        match = AMOUNT.fullmatch(written) if isinstance(written, str) else None
        amount = float(match[1]) * units[match[2]] if match and match[2] in units else 0
        amount = round(amount) if whole else amount
        if amount <= 0:
            raise PydanticCustomError("quantity", "not a quantity", {"kind": kind})
        return amount

    return read


def _annotations(kind: str, units: Mapping[str, float], *, whole: bool = False) -> tuple[Any, Any]:
    """A field's validator, and what editors are told: text, although the planner sees a number."""
    pattern = rf"^[0-9]+(\.[0-9]+)? ?({'|'.join(units)})$"
    return BeforeValidator(_reader(kind, units, whole=whole)), WithJsonSchema({"type": "string", "pattern": pattern})


byte_quantity = _annotations("bytes", BYTES, whole=True)
link_quantity = _annotations("link", GIGABITS_PER_S)
time_quantity = _annotations("time", SECONDS)
