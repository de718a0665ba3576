"""Objects of JSON that have a key twice: Python's reader takes the last value, and nobody knows which was meant."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

__all__ = ["repeated_key"]


def repeated_key(pairs: Iterable[tuple[str, Any]]) -> str | None:
    """Return the first key that comes twice in an object's pairs, if one does."""
    counts = Counter(key for key, _ in pairs)
    return next((key for key, count in counts.items() if count > 1), None)
