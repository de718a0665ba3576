"""One JSON text for one value, and its digest. The runtime computes the same: `tests/contract/launch.schema.json`."""

import hashlib
import json
from typing import Any

__all__ = ["digest_of", "pretty_json"]


def digest_of(value: Any) -> str:
    """`sha256:` of canonical JSON: sorted keys, no spaces, ASCII."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def pretty_json(value: Any) -> str:
    """JSON as files have it: sorted keys, a space of indent, a final line end."""
    return json.dumps(value, sort_keys=True, indent=1, allow_nan=False) + "\n"
