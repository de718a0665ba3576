"""The time zones that the IANA names, and which of them was probably meant.

Names come from the package `tzdata`, which has the IANA's data on every machine alike; `zoneinfo` would ask the
machine's own data first. `UTC+8` is no name, and nobody can tell which way it counts: POSIX and the IANA's `Etc` zones
count hours that a place is behind, people those that it is ahead.

Source: tz database, file `etcetera`, on the signs.
"""

import re
from difflib import get_close_matches
from functools import cache
from importlib.resources import files

from planner.facts.counted import counted
from planner.problems.fix import HERE, Fix, for_example

__all__ = ["is_timezone", "nearest_timezone"]

OFFSET = re.compile(r"(?:UTC|GMT|Z|Etc/UTC)?([+-])([0-9]{1,2}?)(?::?([0-5][0-9]))?", re.IGNORECASE)
AHEAD, BEHIND = 14, 12  # the most hours that a place is, and that an Etc zone has
EXAMPLE = "Asia/Shanghai"
COMMON = {  # what people call a zone; CST and IST have several meanings
    **dict.fromkeys(("pst", "pdt", "pt", "pacific time"), "America/Los_Angeles"),
    **dict.fromkeys(("mdt", "mountain time"), "America/Denver"),
    **dict.fromkeys(("cdt", "central time"), "America/Chicago"),
    **dict.fromkeys(("edt", "eastern time"), "America/New_York"),
    "bst": "Europe/London",
    "cest": "CET",
    "eest": "EET",
    "msk": "Europe/Moscow",
    "jst": "Asia/Tokyo",
    "kst": "Asia/Seoul",
    "hkt": "Asia/Hong_Kong",
    "sgt": "Asia/Singapore",
    **dict.fromkeys(("aest", "aedt"), "Australia/Sydney"),
}


def is_timezone(name: str) -> bool:
    """Return whether the IANA has a zone of that name."""
    return name in _zones()


def nearest_timezone(written: str) -> Fix:
    """Offer the zone that `written` is like, or that has its offset, else an example."""
    if offset := OFFSET.fullmatch(written):
        sign, hours, minutes = offset.groups()
        return _at_offset(sign, int(hours)) if int(minutes or 0) == 0 else _example()  # Etc has whole hours only
    plain = {name.casefold(): name for name in sorted(_zones())} | COMMON
    has_offset = re.search(r"[+-][0-9]", written)  # CET+1 is none of CET's clocks
    close = (
        get_close_matches(written.casefold().replace(" ", "_"), plain, n=1, cutoff=0.75)
        if len(written) > 3 and not has_offset
        else []
    )
    meant = plain.get(written.casefold()) or next((plain[each] for each in close), None)
    return Fix(f"did you mean {meant}?", ({HERE: meant},)) if meant else _example()


def _at_offset(sign: str, hours: int) -> Fix:
    """Offer the zone at an offset as people write it: + is ahead of UTC."""
    if hours > (AHEAD if sign == "+" else BEHIND):
        return _example()
    name = "UTC" if hours == 0 else f"Etc/GMT{'-' if sign == '+' else '+'}{hours}"
    count = counted(hours, "hour")
    signs = "" if hours == 0 else f", which is {count} {'ahead of' if sign == '+' else 'behind'} UTC"
    return Fix(f"did you mean {name}{signs}?", ({HERE: name},))


def _example() -> Fix:
    return for_example(f"timezone: {EXAMPLE}")


@cache
def _zones() -> frozenset[str]:
    return frozenset(files("tzdata").joinpath("zones").read_text(encoding="ascii").split())
