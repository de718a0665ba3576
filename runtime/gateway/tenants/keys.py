"""API keys: who may ask, and how much at a time.

    Authorization: Bearer KEY  ->  KeyRing  ->  Account  ->  begins a call within its limits  ->  Spending

The file of keys, which a cluster mounts from a Secret, is JSON:

    {"keys": [{"name": "a", "hash": "sha256:...", "tokens_per_minute": 60000, "max_requests": 8, "max_streams": 4}]}

A key is 256 random bits, so its plain SHA-256 is enough: there is nothing to guess. The file is read again when it has
changed, so that a key can be taken back while answers run.
Tokens are counted as the usage tells them. A call begins while there are tokens left and takes all that it may need;
what it did not need comes back at its end. So a key gets its tokens a minute, and one call beyond them at most.
Of several gateways each gives its share of a key's limits, one at least: they do not ask each other.
A key's name is a tenant's. A prompt finds cached KV of its own tenant alone (`make_salt`): else the time of an answer
would tell what others ask.
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

__all__ = ["Account", "KeyRing", "Limits", "Spending", "make_salt", "read_keys", "share_limits"]

LOOK_S = 5.0  # assumed: Kubernetes takes a minute to renew a Secret's files
RETRY_S = 1
SALT_DIGITS = 32  # of 16: 128 bits, which nobody meets by chance

AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
Hash = Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}$")]

log = logging.getLogger(__name__)


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A key as its file has it. A limit that is absent does not hold.

    `max_requests` counts prompts times choices that run at a time, `max_streams` the streamed calls.
    """

    name: str
    hash: Hash
    tokens_per_minute: AtLeastOne | None = None
    max_requests: AtLeastOne | None = None
    max_streams: AtLeastOne | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: list[Limits]


@dataclass
class Account:
    """One key's use of its limits. Without limits, anybody's."""

    limits: Limits | None = None
    num_requests: int = 0
    num_streams: int = 0
    _num_tokens: float = field(default=0.0, init=False)  # that are taken, beyond what time has given back

    def __post_init__(self) -> None:
        self._counted_at = time.monotonic()

    @property
    def name(self) -> str | None:
        """The key's name; None where no keys are set."""
        return None if self.limits is None else self.limits.name

    def check_tokens(self) -> None:
        """Raise ApiError while the tokens of this minute are spent."""
        limit = self.limits.tokens_per_minute if self.limits is not None else None
        if limit is None:
            return
        self._refill(limit)
        over = self._num_tokens - limit
        if over >= 0:
            raise key_limit_reached(f"{limit:,} tokens a minute", math.floor(over * 60 / limit) + 1)

    def begin(self, num_requests: int, num_tokens: int, *, is_stream: bool) -> "Spending":
        """Begin a call that may need `num_tokens`, its prompts included. Raise ApiError if it is over a limit."""
        self.check_tokens()
        if self.limits is not None:
            if self.limits.tokens_per_minute is None:
                num_tokens = 0  # they are not counted, in case they have a limit later
            limit = self.limits.max_requests
            if limit is not None and num_requests > limit:
                raise oversized_call(num_requests, "this key", limit)
            if limit is not None and self.num_requests + num_requests > limit:
                raise key_limit_reached(f"{limit:,} requests at a time", RETRY_S)
            limit = self.limits.max_streams
            if limit is not None and self.num_streams + is_stream > limit:
                raise key_limit_reached(f"{limit:,} streams at a time", RETRY_S)
        self.num_requests += num_requests
        self.num_streams += is_stream
        self._num_tokens += num_tokens
        return Spending(self, num_requests, num_tokens, is_stream)

    def end(self, spending: "Spending", num_used: int) -> None:
        """Give back what a call had."""
        self.num_requests -= spending.num_requests
        self.num_streams -= spending.is_stream
        if spending.num_tokens:
            self._num_tokens = max(self._num_tokens - (spending.num_tokens - num_used), 0.0)

    def _refill(self, tokens_per_minute: int) -> None:
        """Give back the tokens of the time since this was last asked."""
        now = time.monotonic()
        self._num_tokens = max(self._num_tokens - (now - self._counted_at) * tokens_per_minute / 60, 0.0)
        self._counted_at = now


@dataclass
class Spending:
    """What a call that runs has of its account. Whoever has one ends it; `num_used` tokens stay spent."""

    account: Account
    num_requests: int
    num_tokens: int
    is_stream: bool
    num_used: int = 0

    def end(self) -> None:
        """Give back the rest."""
        self.account.end(self, self.num_used)


class KeyRing:
    """All keys that are known, as the file at `path` has them now, with this gateway's share of their limits."""

    def __init__(self, path: Path, num_gateways: int = 1) -> None:
        """Read the file. Raise RuntimeFailure."""
        self._path, self._num_gateways = path, num_gateways
        self._seen = _file_version(path)
        self._accounts = {limits.hash: Account(share_limits(limits, num_gateways)) for limits in read_keys(path)}
        self._looked_at = time.monotonic()
        self._complain = Complaints(log.warning)

    def find_account(self, authorization: str | None, peer: str) -> Account:
        """Return the account of the header's key. Raise ApiError; `peer` is named in the log then.

        Every hash is compared in full, so that the time does not tell how much of one was right.
        """
        self._reload_if_changed()
        scheme, _, key = (authorization or "").partition(" ")
        digest = "sha256:" + hashlib.sha256(key.strip().encode(errors="replace")).hexdigest()
        account_found = None
        for known, account in self._accounts.items():
            if hmac.compare_digest(known, digest):
                account_found = account
        if account_found is None or scheme.lower() != "bearer":
            self._complain(f"refused {peer}: {'no key' if authorization is None else 'an unknown key'}")
            raise unknown_key()
        return account_found

    def _reload_if_changed(self) -> None:
        """Read the file again if it has changed. A file that cannot be used changes nothing."""
        if time.monotonic() - self._looked_at < LOOK_S:
            return
        self._looked_at = time.monotonic()
        try:
            version = _file_version(self._path)
            if version == self._seen:
                return
            keys = read_keys(self._path)
        except RuntimeFailure as error:
            self._complain(f"the keys stay as they are: {error}")
            return
        self._seen = version
        self._accounts = {limits.hash: self._renew_account(limits) for limits in keys}
        log.info("read %d keys again", len(keys))

    def _renew_account(self, limits: Limits) -> Account:
        """Return the account of a key that may be known: what runs goes on to count."""
        account = self._accounts.get(limits.hash) or Account()
        account.limits = share_limits(limits, self._num_gateways)
        return account


def share_limits(limits: Limits, num_gateways: int) -> Limits:
    """Return the limits that one of so many gateways holds. All together never hold less than one each."""

    def share(limit: int | None) -> int | None:
        return None if limit is None else max(limit // num_gateways, 1)

    return msgspec.structs.replace(
        limits,
        tokens_per_minute=share(limits.tokens_per_minute),
        max_requests=share(limits.max_requests),
        max_streams=share(limits.max_streams),
    )


def read_keys(path: Path) -> list[Limits]:
    """Return the keys of a file. Raise RuntimeFailure."""
    try:
        keys = msgspec.json.decode(path.read_bytes(), type=_File).keys
    except OSError as error:
        raise RuntimeFailure(f"cannot read the keys {path}: {error.strerror}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise RuntimeFailure(f"{path} is no file of keys: {error}") from None
    for what in ("name", "hash"):
        values = [getattr(limits, what) for limits in keys]
        if len(set(values)) < len(values):
            raise RuntimeFailure(f"{path} has two keys of one {what}")
    return keys


def make_salt(tenant: str | None, asked: str | None) -> str:
    """Return the salt of a tenant's KV, with what the call itself has asked for: a hash, of no key and no hash of one.

    Without keys there is no tenant. Nobody can ask for another's salt: what he asks for is told from his name.
    """
    return hashlib.sha256(msgspec.json.encode([tenant, asked])).hexdigest()[:SALT_DIGITS]


def _file_version(path: Path) -> tuple[int, int]:
    try:
        account_found = path.stat()
    except OSError as error:
        raise RuntimeFailure(f"cannot read the keys {path}: {error.strerror}") from None
    return account_found.st_ino, account_found.st_mtime_ns
