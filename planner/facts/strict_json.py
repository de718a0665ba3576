"""JSON as its standard has it: no key twice, no NaN, no half of a character, and no nesting without end.

Python's reader takes all of these. Of a plan that is not only read by us, it matters what others read.
"""

import json
import math
import re
from typing import Any, NoReturn

__all__ = ["NotStrict", "each_once", "parsed_json"]

MAX_DEPTH = 32  # as of specs; a plan nests seven deep
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # half of a character, which is none by itself


class NotStrict(ValueError):
    """What keeps a text from being JSON, as a reason."""


def parsed_json(content: bytes) -> Any:
    """Return what `content` says. Raises NotStrict."""
    try:
        found = json.loads(content, parse_constant=_not_a_number, parse_float=_finite, object_pairs_hook=each_once)
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


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of `pairs`. Raises NotStrict where a key comes twice: nobody knows which value was meant."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise NotStrict(f"it has two keys {key[:40]}")
        found[key] = value
    return found


def _not_a_number(word: str) -> NoReturn:
    """Refuse what Python would take for JSON: NaN and Infinity."""
    raise ValueError(word)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _is_shallow(value: Any, room: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return room > 0 and all(_is_shallow(each, room - 1) for each in inner if isinstance(each, dict | list))
