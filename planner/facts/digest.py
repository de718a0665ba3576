"""One JSON text for one value, and its digest. The runtime computes the same: `tests/contract/launch.schema.json`."""

import hashlib
import json
from typing import Any

__all__ = ["digest_of", "digest_of_bytes", "digest_of_text", "pretty_json"]


def digest_of(value: Any) -> str:
    """`sha256:` of canonical JSON: sorted keys, no spaces, ASCII."""
    return digest_of_text(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False))


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
        parts = [f"{json.dumps(key)}: {_pretty(value[key], inner)}" for key in sorted(value)]
        return f"{{{inner}{f',{inner}'.join(parts)}{line_end}}}"
    if isinstance(value, list | tuple) and not all(isinstance(each, int | float) for each in value):
        return f"[{inner}{f',{inner}'.join(_pretty(each, inner) for each in value)}{line_end}]"
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
