"""Canonical JSON and digests. The runtime computes the same digests: `tests/contract/launch.schema.json`."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_TERSE = json.JSONEncoder(separators=(",", ":"), allow_nan=False)  # one for all calls: a plan has a million values
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def canonical_json(value: Any) -> str:
    """Return the JSON text for digests: sorted keys, no spaces, ASCII."""
    return _CANONICAL.encode(value)


def digest_of(value: Any) -> str:
    """Return `sha256:` and the hash of the value's canonical JSON."""
    return digest_of_text(canonical_json(value))


def digest_of_texts(texts: Mapping[str, str]) -> str:
    """Return the `digest_of` a mapping, given as key -> canonical JSON of the value.

    A part that several documents share then needs to be encoded only once.
    """
    members = (f"{canonical_json(key)}:{texts[key]}" for key in sorted(texts))
    return digest_of_text(f"{{{','.join(members)}}}")


def digest_of_text(text: str) -> str:
    """Return `sha256:` and the hash of the text's UTF-8."""
    return digest_of_bytes(text.encode())


def digest_of_bytes(content: bytes) -> str:
    """Return `sha256:` and the hash of `content`."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def pretty_json(value: Any) -> str:
    """Return JSON for files: sorted keys, an indent of one space, each list of numbers on one line, a final newline.

    Each layer of an expert map is one line, so the file is small and a diff shows which layers changed.
    """
    return _pretty(value, "\n") + "\n"


def _pretty(value: Any, line_end: str) -> str:
    """Return `value` as JSON; `line_end` is a newline and the indent of its closing bracket."""
    inner = f"{line_end} "
    if isinstance(value, dict) and value:
        parts = [f"{_TERSE.encode(key)}: {_pretty(value[key], inner)}" for key in sorted(value)]
        return f"{{{inner}{f',{inner}'.join(parts)}{line_end}}}"
    if isinstance(value, list | tuple) and not all(isinstance(each, int | float) for each in value):
        return f"[{inner}{f',{inner}'.join([_pretty(each, inner) for each in value])}{line_end}]"
    return _TERSE.encode(value)
