"""Makes a new API key for the gateway, and its hash, which is all that a file of keys contains.

A key is 256 random bits, so that a plain SHA-256 tells nothing of it. `runtime/gateway/tenants/keys.py` reads the file.
"""

import hashlib
import secrets
from dataclasses import dataclass

__all__ = ["NewKey", "new_key"]

PREFIX = "tm-"  # so that a key which has leaked is recognised
KEY_BYTES = 32


@dataclass(frozen=True)
class NewKey:
    """An API key, which is shown only once, and its hash."""

    key: str
    hash: str


def new_key() -> NewKey:
    """Make a random API key."""
    key = PREFIX + secrets.token_urlsafe(KEY_BYTES)
    return NewKey(key, "sha256:" + hashlib.sha256(key.encode()).hexdigest())
