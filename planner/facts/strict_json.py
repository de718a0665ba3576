"""Strict JSON: UTF-8, no repeated keys, no NaN, no lone surrogates, bounded nesting and bounded numbers.

Python's own reader accepts all of these. Plans are also read by other programs, which may read them differently.
"""

import json
import re
from typing import Any, NoReturn

MAX_DEPTH = 32  # the same limit as for specs; a plan nests seven deep
MAX_PARTS = 2**20  # lists and objects; a plan of 20,000 nodes has a quarter of that
MAX_VALUES = 2**22  # such a plan has a third of that
MAX_NUMBER = 1e30  # assumed: a day's bytes of the largest fleet are below 1e20
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # the escape of half a character


class NotStrict(ValueError):
    """Raised for text that is not strict JSON; the message says why."""


def parse_json(content: bytes) -> Any:
    """Return the value of `content`, which is JSON. Raises NotStrict if it is not strict JSON."""
    _require_few_parts(content)
    try:
        text = content.decode()  # Python's reader would also take UTF-16 and half characters
        found = json.loads(
            text, parse_constant=_not_a_number, parse_int=_int, parse_float=_float, object_pairs_hook=reject_repeats
        )
        is_deep = not _is_shallow(found, MAX_DEPTH)
        if SURROGATE.search(content) and not is_deep:
            json.dumps(found, ensure_ascii=False).encode()  # ValueError, if it is not one of a pair
    except NotStrict:
        raise
    except (ValueError, RecursionError):
        raise NotStrict("it cannot be parsed as JSON") from None
    if is_deep:
        raise NotStrict(f"it is nested more than {MAX_DEPTH} deep")
    return found


def reject_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object from its pairs of key and value. Raises NotStrict for a repeated key, which is ambiguous."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise NotStrict("an object in it has the same key twice")
        found[key] = value
    return found


def _require_few_parts(content: bytes) -> None:
    """Raise NotStrict for too many lists, objects or values, which take far more time and memory than their bytes."""
    if content.count(b"[") + content.count(b"{") > MAX_PARTS:
        raise NotStrict(f"it has more than {MAX_PARTS:,} lists and objects")
    if content.count(b",") > MAX_VALUES:
        raise NotStrict(f"it has more than {MAX_VALUES:,} values")


def _not_a_number(word: str) -> NoReturn:
    """Raise ValueError for NaN and Infinity, which Python reads as JSON. `parse_json` turns it into NotStrict."""
    raise ValueError(word)


def _int(text: str) -> int:
    number = int(text)
    _require_bounded(text, number)
    return number


def _float(text: str) -> float:
    number = float(text)
    _require_bounded(text, number)
    return number


def _require_bounded(text: str, number: float) -> None:
    """Raise NotStrict if `number`, written as `text`, is so large that sums and products may overflow."""
    if abs(number) > MAX_NUMBER:
        raise NotStrict(f"{text[:20]} is beyond {MAX_NUMBER:g}")


def _is_shallow(value: Any, room: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return room > 0 and all(_is_shallow(each, room - 1) for each in inner if isinstance(each, dict | list))
