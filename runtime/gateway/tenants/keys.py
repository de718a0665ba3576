"""API keys: which clients may call the gateway, and their limits.

    Authorization: Bearer KEY  ->  KeyRing  ->  Account  ->  begins a call within its limits  ->  Spending

The file of keys, which a cluster mounts from a Secret, is JSON:

    {"keys": [{"name": "a", "hash": "sha256:...", "tokens_per_minute": 60000, "max_requests": 8, "max_streams": 4}]}

A key is 256 random bits, so its plain SHA-256 is safe: nobody can guess the key. The file is read again when it has
changed, so that a key can be revoked while answers run.
Tokens are those that the usage reports. A call may begin while tokens are left, and takes as many as it may need. What
it did not use comes back at its end. So a key gets its tokens a minute, and at most one call beyond them.
With several gateways, each grants its share of a key's limits, at least one: they do not ask each other.
A key's name identifies a tenant. A prompt reuses cached KV of its own tenant only (`make_salt`), unless the launch file
has all share it. The time to an answer would show what other tenants ask.
It does not know which routes need a key (`app.py` does).
"""

import hashlib
import hmac
import logging
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from runtime.errors import RuntimeFailure
from runtime.gateway.edge.http_errors import key_limit_reached, oversized_call, unknown_key
from runtime.protocol.complaints import Complaints
from runtime.protocol.messages import TENANT_DIGITS

__all__ = ["Account", "KeyEntry", "KeyRing", "Spending", "make_salt", "read_keys", "share_limits"]

LOOK_S = 5.0  # assumed: Kubernetes takes a minute to renew a Secret's files
RETRY_S = 1
SALT_DIGITS = 32  # hexadecimal, behind the tenant's: 128 bits, so salts do not collide by chance

AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
Hash = Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}$")]

log = logging.getLogger(__name__)


class KeyEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One key in the file of keys, with its limits. An absent limit does not apply.

    `max_requests` counts running requests, one for each choice of each prompt; `max_streams` counts streaming calls.
    """

    name: str
    hash: Hash
    tokens_per_minute: AtLeastOne | None = None
    max_requests: AtLeastOne | None = None
    max_streams: AtLeastOne | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: list[KeyEntry]


@dataclass
class Account:
    """What one key has used of its limits. Without keys, all callers share one account that has no `limits`."""

    limits: KeyEntry | None = None
    num_requests: int = 0
    num_streams: int = 0
    _num_tokens: float = field(default=0.0, init=False)  # tokens taken and not yet given back with time

    def __post_init__(self) -> None:
        self._counted_at = time.monotonic()

    @property
    def name(self) -> str | None:
        """The key's name; None if no keys are set."""
        return None if self.limits is None else self.limits.name

    def check_tokens(self) -> None:
        """Raises ApiError if the tokens of this minute are used up."""
        limit = self.limits.tokens_per_minute if self.limits is not None else None
        if limit is None:
            return
        self._refill(limit)
        excess = self._num_tokens - limit
        if excess >= 0:
            raise key_limit_reached(f"{limit:,} tokens a minute", math.floor(excess * 60 / limit) + 1)

    def begin(self, num_requests: int, num_tokens: int, *, is_stream: bool) -> "Spending":
        """Reserve a call's requests, its stream if it is one, and `num_tokens`, the most that it may use.

        The tokens are those of prompts and answers. Return the reservation. Raises ApiError if no tokens are left
        this minute, or if the requests or streams would exceed their limit. The last call may take more tokens than are
        left.
        """
        self.check_tokens()
        if self.limits is not None:
            if self.limits.tokens_per_minute is None:
                num_tokens = 0  # not counted, so that a limit set later begins unused
            limit = self.limits.max_requests
            if limit is not None and num_requests > limit:
                raise oversized_call(num_requests, "this key", limit)
            if limit is not None and self.num_requests + num_requests > limit:
                raise key_limit_reached(f"{limit:,} requests at a time", RETRY_S, num_requests)
            limit = self.limits.max_streams
            if limit is not None and self.num_streams + is_stream > limit:
                raise key_limit_reached(f"{limit:,} streams at a time", RETRY_S, num_requests)
        self.num_requests += num_requests
        self.num_streams += is_stream
        self._num_tokens += num_tokens
        return Spending(self, num_requests, num_tokens, is_stream)

    def end(self, spending: "Spending", num_used: int) -> None:
        """End a call: give back to the account all that the call reserved, except for `num_used` tokens."""
        self.num_requests -= spending.num_requests
        self.num_streams -= spending.is_stream
        if spending.num_tokens:
            self._num_tokens = max(self._num_tokens - (spending.num_tokens - num_used), 0.0)

    def _refill(self, tokens_per_minute: int) -> None:
        """Give the account the tokens that its limit grants for the time since the last refill."""
        now = time.monotonic()
        self._num_tokens = max(self._num_tokens - (now - self._counted_at) * tokens_per_minute / 60, 0.0)
        self._counted_at = now


@dataclass
class Spending:
    """What a running call has reserved from its account. Its holder must end it; `num_used` tokens stay used."""

    account: Account
    num_requests: int
    num_tokens: int
    is_stream: bool
    num_used: int = 0

    def end(self) -> None:
        """Give back to the account what the call did not use."""
        self.account.end(self, self.num_used)


class KeyRing:
    """The keys in the file at `path`, with this gateway's share of their limits.

    When the file changes, the keys change too.
    """

    def __init__(self, path: Path, num_gateways: int = 1) -> None:
        """Read the file. Raises RuntimeFailure if it cannot be read or is no file of keys."""
        self._path, self._num_gateways = path, num_gateways
        self._version = _file_version(path)
        self._accounts = {limits.hash: Account(share_limits(limits, num_gateways)) for limits in read_keys(path)}
        self._looked_at = time.monotonic()
        self._complain = Complaints(log.warning)

    def find_account(self, authorization: str | None, peer: str) -> Account:
        """Return the account of the key in the Authorization header.

        Raises ApiError if the key is unknown; the log then names `peer`. Every hash is compared in full, so that the
        time taken does not show how much of a hash was right.
        """
        self._reload_if_changed()
        scheme, _, key = (authorization or "").partition(" ")
        digest = "sha256:" + hashlib.sha256(key.strip().encode(errors="replace")).hexdigest()
        account_found = None
        for known_hash, account in self._accounts.items():
            if hmac.compare_digest(known_hash, digest):
                account_found = account
        if account_found is None or scheme.lower() != "bearer":
            self._complain(f"refused {peer}: {'no key' if authorization is None else 'an unknown key'}")
            raise unknown_key()
        return account_found

    def _reload_if_changed(self) -> None:
        """Read the file again if it has changed. If it is broken then, keep the present keys.

        Do nothing if the last look at the file was less than `LOOK_S` ago.
        """
        if time.monotonic() - self._looked_at < LOOK_S:
            return
        self._looked_at = time.monotonic()
        try:
            version = _file_version(self._path)
            if version == self._version:
                return
            keys = read_keys(self._path)
        except RuntimeFailure as error:
            self._complain(f"the keys stay as they are: {error}")
            return
        self._version = version
        self._accounts = {limits.hash: self._renew_account(limits) for limits in keys}
        log.info("read %d keys again", len(keys))

    def _renew_account(self, limits: KeyEntry) -> Account:
        """Return an account with a key's new limits, in which the key's running calls still count."""
        account = self._accounts.get(limits.hash) or Account()
        account.limits = share_limits(limits, self._num_gateways)
        return account


def share_limits(limits: KeyEntry, num_gateways: int) -> KeyEntry:
    """Return one gateway's share of the limits: an equal part, but at least one."""

    def share(limit: int | None) -> int | None:
        return None if limit is None else max(limit // num_gateways, 1)

    return msgspec.structs.replace(
        limits,
        tokens_per_minute=share(limits.tokens_per_minute),
        max_requests=share(limits.max_requests),
        max_streams=share(limits.max_streams),
    )


def read_keys(path: Path) -> list[KeyEntry]:
    """Return the keys in a file. Raises RuntimeFailure if it cannot be read, is no file of keys, or repeats one."""
    try:
        keys = msgspec.json.decode(path.read_bytes(), type=_File).keys
    except OSError as error:
        raise RuntimeFailure(f"cannot read the keys {path}: {error.strerror}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise RuntimeFailure(f"{path} is no file of keys: {error}") from None
    for field_name in ("name", "hash"):
        values = [getattr(limits, field_name) for limits in keys]
        if len(set(values)) < len(values):
            raise RuntimeFailure(f"{path} has two keys of one {field_name}")
    return keys


def make_salt(tenant: str | None, body_salt: str | None) -> str:
    """Return the salt of a tenant's KV: a hash of the tenant's name, then a hash of the name and the body's own salt.

    Without keys all callers are one tenant. Nobody can ask for another tenant's salt, because the name is part of both
    hashes. By the first hash, a rank knows to which tenant's share of its cache a prompt's blocks count.
    """
    return _hash(tenant)[:TENANT_DIGITS] + _hash([tenant, body_salt])[:SALT_DIGITS]


def _hash(value: str | list[str | None] | None) -> str:
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()


def _file_version(path: Path) -> tuple[int, int]:
    try:
        account_found = path.stat()
    except OSError as error:
        raise RuntimeFailure(f"cannot read the keys {path}: {error.strerror}") from None
    return account_found.st_ino, account_found.st_mtime_ns
