"""Compare a document with what was expected of it, key by key."""

from collections.abc import Iterator
from typing import Any

__all__ = ["differences"]


def differences(written: Any, expected: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The path and value of what is written otherwise than expected, or is not expected; digests of it come last."""
    if isinstance(written, dict) and isinstance(expected, dict):
        for key in sorted(written.keys() | expected.keys(), key=lambda key: (key.endswith("_digest"), key)):
            yield from differences(written.get(key), expected.get(key), f"{path}.{key}".lstrip("."))
    elif type(written) is not type(expected) or written != expected:
        yield path, written
