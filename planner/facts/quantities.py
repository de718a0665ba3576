"""Quantities with units: read from specs, and printed in plans.

`80GiB`, `400Gbps`, `50ms` and `2h` are parsed once, at the border of the spec, into bytes, gigabits per second and
seconds. Inside the planner a number has its unit in its name. GB is 1e9 bytes and GiB is 2^30; both may be written, and
they are never mixed. A number without a unit is rejected as ambiguous, and another spelling (Kubernetes' `512Gi`) is
rejected with ours as the fix.
"""

import re
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

Kind = Literal["bytes", "link", "time"]

MS_PER_S = 1e3
US_PER_S = 1e6
US_PER_MS = 1e3
BITS_PER_BYTE = 8
BYTES_PER_GBIT = 1e9 / BITS_PER_BYTE

AMOUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([A-Za-z/]+)")

BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    unit: 2 ** (10 * power) for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), 1)
}
GIGABITS_PER_S = {"Mbps": 1e-3, "Gbps": 1, "Tbps": 1e3, "MB/s": 8e-3, "GB/s": 8, "TB/s": 8e3}
SECONDS = {"ms": 1e-3, "s": 1, "min": 60, "h": 3600}
UNITS: dict[Kind, dict[str, float]] = {"bytes": {**BYTES}, "link": GIGABITS_PER_S, "time": SECONDS}

# Other spellings of the same units: Kubernetes' quantities, `ethtool`, `nvidia-smi`, systemd.
SPELLINGS: dict[Kind, dict[str, str]] = {
    "bytes": {"Ki": "KiB", "Mi": "MiB", "Gi": "GiB", "Ti": "TiB", "k": "kB", "M": "MB", "G": "GB", "T": "TB"},
    "link": {f"{prefix}{unit}": f"{prefix}bps" for prefix in "MGT" for unit in ("b/s", "bit/s", "b", "bit")}
    | {f"{prefix}{unit}": f"{prefix}B/s" for prefix in "MGT" for unit in ("Bps", "BPS", "B")},
    "time": {"m": "min", "mins": "min", "minutes": "min", "sec": "s", "seconds": "s", "hr": "h", "hours": "h"},
}

# kind -> description of valid values, for the message about an invalid one
QUANTITIES: dict[Kind, str] = {
    "bytes": f"a size above 0 in {', '.join(BYTES)}",
    "link": f"a bandwidth above 0 in {', '.join(GIGABITS_PER_S)}",
    "time": f"a time above 0 in {', '.join(SECONDS)}",
}


def quantity(kind: Kind, least: str | None = None, most: str | None = None) -> tuple[Any, Any]:
    """Return (a field's validator, its JSON schema). Users write text, and the planner sees a number.

    The number is in bytes, gigabits per second or seconds, between `least` and `most` if given.
    """
    floor, ceiling = _number(kind, least), _number(kind, most)

    def read(written: Any) -> float:
        number = _number(kind, written)
        if number is None or number <= 0:
            raise PydanticCustomError("quantity", "not a quantity", {"kind": kind})
        if floor is not None and number < floor:
            raise PydanticCustomError("quantity_range", "at {word} {bound}", {"word": "least", "bound": least})
        if ceiling is not None and number > ceiling:
            raise PydanticCustomError("quantity_range", "at {word} {bound}", {"word": "most", "bound": most})
        return number

    pattern = rf"^[0-9]+(\.[0-9]+)? ?({'|'.join(UNITS[kind])})$"
    return BeforeValidator(read), WithJsonSchema({"type": "string", "pattern": pattern})


def read_bytes(written: str) -> int | None:
    """Return the bytes of a size in a spec's form, such as `80GB`; None if it is invalid or 0."""
    number = _number("bytes", written)
    return round(number) if number else None


def read_link(written: str) -> float | None:
    """Return the Gb/s of a bandwidth in a spec's form, such as `50GB/s`; None if it is invalid."""
    return _number("link", written)


def read_seconds(written: str) -> float | None:
    """Return the seconds of a time in a spec's form, such as `10min`; None if it is invalid or 0."""
    return _number("time", written) or None


def respell_quantity(kind: Kind, written: Any) -> str | None:
    """Return a quantity in a spec's spelling, such as `512GiB` for Kubernetes' `512Gi`; None if its unit is unknown."""
    match = AMOUNT.fullmatch(written) if isinstance(written, str) else None
    if match is None or not float(match[1]):
        return None
    amount, unit = match.groups()
    meant = SPELLINGS[kind].get(unit) or {each.casefold(): each for each in UNITS[kind]}.get(unit.casefold())
    return meant and f"{amount}{meant}"


def gb(num_bytes: float) -> str:
    """Write a number of bytes in GB (1e9 bytes): `43.1 GB`."""
    return f"{num_bytes / 1e9:,.1f} GB"


def counted(number: int, thing: str) -> str:
    """Write a number with its noun: `1 node`, `2 nodes` or `1,200 nodes`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def first_of(names: Sequence[str], most: int = 3) -> str:
    """Join names with commas.

    If there are more than `most`, name the first and count the others: `a, b, c, and 4 others`.
    """
    more = [f"and {counted(len(names) - most, 'other')}"] if len(names) > most else []
    return ", ".join([*names[:most], *more])


def _number(kind: Kind, written: Any) -> float | None:
    match = AMOUNT.fullmatch(written) if isinstance(written, str) else None
    if match is None or match[2] not in UNITS[kind]:
        return None
    amount = float(match[1]) * UNITS[kind][match[2]]
    return round(amount) if kind == "bytes" else amount
