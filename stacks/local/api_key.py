"""A new API key for the gateway, and the hash by which it is known: all that a file of keys holds of it.

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
    """A key, which is shown only once, and its hash."""

    key: str
    hash: str


def new_key() -> NewKey:
    """Make a key."""
    key = PREFIX + secrets.token_urlsafe(KEY_BYTES)
    return NewKey(key, "sha256:" + hashlib.sha256(key.encode()).hexdigest())
