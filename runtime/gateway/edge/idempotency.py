"""`Idempotency-Key`: the same call again, by a caller who could not know whether the first was answered.

    key -> seed      the answer is computed again, and drawn as the first was: in deterministic mode it is the same
    key -> counted   the tokens that the log has counted for it are not counted again

A key's limit counts what is computed, so the same tokens again: else one key would have ranks work without end.

The seed follows from the key alone, so it is the same at a gateway that has never seen the key: the one that starts
after a crash, or another replica. What was counted is known to the gateway that counted it. One that died had not: a
call is counted at its end. For whoever adds up the logs of several replicas, a call's line has the key's digest.

It keeps no answers: they would be large, and whoever waits for one would wait at one replica.
Source: IETF draft-ietf-httpapi-idempotency-key-header, section 2: another body under the same key is a 422; Stripe's
API reference, "Idempotent requests": at most 255 characters, kept for 24 hours.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from runtime.gateway.edge.http_errors import invalid, reused_key

__all__ = ["HEADER", "MAX_CHARACTERS", "IdempotencyKeys", "IdempotentCall"]

HEADER = "Idempotency-Key"
MAX_CHARACTERS = 255
KEPT_S = 24 * 3600.0
MAX_KEPT = 100_000  # assumed: some 30 MB
SEED_BYTES = 7  # fewer than a seed has, so that every one is positive


@dataclass
class IdempotentCall:
    """A call with its key: how it draws, and what the log counts of it. Without a key, `digest` and `seed` are None.

    Requests that are alike share one while they are under way together.
    """

    digest: str | None = None
    seed: int | None = None
    body: bytes = b""  # its digest
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    has_begun: bool = False  # ranks may have it, or had it
    num_under_way: int = 0  # requests that have it now
    _until: float = 0.0

    def count(self, num_prompt_tokens: int, num_generated_tokens: int) -> tuple[int, int]:
        """Count a call's tokens for the log. Return how many are new: of prompts, and generated."""
        new = (
            max(0, num_prompt_tokens - self.num_prompt_tokens),
            max(0, num_generated_tokens - self.num_generated_tokens),
        )
        self.num_prompt_tokens += new[0]
        self.num_generated_tokens += new[1]
        return new


class IdempotencyKeys:
    """The keys of the last day, and of as many calls as there is room for."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._calls: dict[str, IdempotentCall] = {}  # by the digest of account and key, the oldest first

    def find_call(self, key: str | None, account: str | None, path: str, raw: bytes) -> IdempotentCall:
        """Return the call of this key, which may be known. Raise ApiError for another body, or no key that can be."""
        if key is None:
            return IdempotentCall()
        if not (0 < len(key) <= MAX_CHARACTERS and key.isprintable()):
            raise invalid(f"{HEADER} must have 1 to {MAX_CHARACTERS} characters that can be shown")
        self._drop_old()
        identity = hashlib.sha256("\n".join((account or "", key)).encode(errors="replace"))
        body = hashlib.sha256(path.encode() + b"\n" + raw).digest()
        seed = int.from_bytes(identity.digest()[:SEED_BYTES])
        digest = identity.hexdigest()[:32]
        call = self._calls.setdefault(digest, IdempotentCall(digest, seed, body, _until=self._now() + KEPT_S))
        if call.body != body:
            raise reused_key(HEADER)
        call.num_under_way += 1
        return call

    def end_request(self, call: IdempotentCall) -> None:
        """End a request of the call. If none of the call's ever began, nobody has computed it, and its key is free."""
        call.num_under_way -= 1
        if call.digest is None or call.has_begun or call.num_under_way:
            return
        if self._calls.get(call.digest) is call:  # and not another that has its key since it was forgotten
            del self._calls[call.digest]

    def _drop_old(self) -> None:
        """Forget what is too old, or too much."""
        now = self._now()
        while self._calls:
            oldest = next(iter(self._calls))
            if self._calls[oldest]._until > now and len(self._calls) < MAX_KEPT:
                return
            del self._calls[oldest]
