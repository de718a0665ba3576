"""One JSON text for one value, and its digest. The runtime computes the same: `tests/contract/launch.schema.json`."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["canonical_json", "digest_of", "digest_of_bytes", "digest_of_text", "digest_of_texts", "pretty_json"]

_TERSE = json.JSONEncoder(separators=(",", ":"), allow_nan=False)  # made once: a plan has a million values
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def canonical_json(value: Any) -> str:
    """Return the JSON that digests are of: sorted keys, no spaces, ASCII."""
    return _CANONICAL.encode(value)


def digest_of(value: Any) -> str:
    """`sha256:` of canonical JSON."""
    return digest_of_text(canonical_json(value))


def digest_of_texts(texts: Mapping[str, str]) -> str:
    """`digest_of` a mapping whose values are canonical JSON already, as documents have that share a large part."""
    members = (f"{canonical_json(key)}:{texts[key]}" for key in sorted(texts))
    return digest_of_text(f"{{{','.join(members)}}}")


def digest_of_text(text: str) -> str:
    """`sha256:` of the text's UTF-8."""
    return digest_of_bytes(text.encode())


def digest_of_bytes(content: bytes) -> str:
    """`sha256:` of what a file holds."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def pretty_json(value: Any) -> str:
    """JSON as files have it: sorted keys, a space of indent, each list of numbers on one line, a final line end.

    An expert map is a line a layer: so a diff shows which layers changed, and the file is small.
    """
    return _pretty(value, "\n") + "\n"


def _pretty(value: Any, line_end: str) -> str:
    """`value` as JSON; `line_end` starts the line on which it ends."""
    inner = f"{line_end} "
    if isinstance(value, dict) and value:
        parts = [f"{_TERSE.encode(key)}: {_pretty(value[key], inner)}" for key in sorted(value)]
        return f"{{{inner}{f',{inner}'.join(parts)}{line_end}}}"
    if isinstance(value, list | tuple) and not all(isinstance(each, int | float) for each in value):
        return f"[{inner}{f',{inner}'.join([_pretty(each, inner) for each in value])}{line_end}]"
    return _TERSE.encode(value)
