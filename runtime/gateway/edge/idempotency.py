"""`Idempotency-Key`: a caller repeats a call because it does not know whether the first one was answered.

    key -> seed      the answer is computed again and drawn with the same seed; in deterministic mode it is the same
    key -> counted   tokens that the log has counted for the key are not counted again

An API key's limit counts every computed token, also of a repeated call. Otherwise one idempotency key could make ranks
work without end.

The seed follows from the key alone. So it is the same at a gateway that has never seen the key: another replica, or one
that starts after a crash. Only the gateway that counted a call's tokens knows that it did. A gateway that crashed
had not counted them, because a call is counted at its end. A call's log line has the key's digest, for those who add up
the logs of several replicas.

It stores no answers: they would be large, and would exist at one replica only.
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
    """The record of an idempotency key: its seed, and the tokens that were counted for it.

    HTTP requests with the same key share one record. A call without a key has no `digest` and no `seed`.
    """

    digest: str | None = None
    seed: int | None = None
    body: bytes = b""  # the digest of the call's body
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    has_begun: bool = False  # ranks may have worked on it
    num_under_way: int = 0  # HTTP requests that are being answered
    _until: float = 0.0

    def count(self, num_prompt_tokens: int, num_generated_tokens: int) -> tuple[int, int]:
        """Count a call's tokens for the log.

        Return how many were not counted before: (prompt tokens, generated tokens).
        """
        new = (
            max(0, num_prompt_tokens - self.num_prompt_tokens),
            max(0, num_generated_tokens - self.num_generated_tokens),
        )
        self.num_prompt_tokens += new[0]
        self.num_generated_tokens += new[1]
        return new


class IdempotencyKeys:
    """The idempotency keys of the last day, at most MAX_KEPT."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._clock = now
        self._calls: dict[str, IdempotentCall] = {}  # by the digest of account and key, the oldest first

    def begin_request(self, key: str | None, account: str | None, path: str, raw: bytes) -> IdempotentCall:
        """Return the key's record and count one more request under way; end it with `end_request`.

        Without a key the record is not kept. Raises ApiError if the key came with another path or body, or is
        malformed.
        """
        if key is None:
            return IdempotentCall()
        if not (0 < len(key) <= MAX_CHARACTERS and key.isprintable()):
            raise invalid(f"{HEADER} must have 1 to {MAX_CHARACTERS} characters that can be shown")
        self._drop_old()
        identity = hashlib.sha256("\n".join((account or "", key)).encode(errors="replace"))
        body = hashlib.sha256(path.encode() + b"\n" + raw).digest()
        seed = int.from_bytes(identity.digest()[:SEED_BYTES])
        digest = identity.hexdigest()[:32]
        call = self._calls.setdefault(digest, IdempotentCall(digest, seed, body, _until=self._clock() + KEPT_S))
        if call.body != body:
            raise reused_key(HEADER)
        call.num_under_way += 1
        return call

    def end_request(self, call: IdempotentCall) -> None:
        """Record that one of a key's HTTP requests has ended.

        If the request was the last one and nothing was computed, forget the key.
        """
        call.num_under_way -= 1
        if call.digest is None or call.has_begun or call.num_under_way:
            return
        if self._calls.get(call.digest) is call:  # and not a later call, if this one was forgotten meanwhile
            del self._calls[call.digest]

    def _drop_old(self) -> None:
        """Forget the oldest keys while they are too old or too many."""
        now = self._clock()
        while self._calls:
            oldest = next(iter(self._calls))
            if self._calls[oldest]._until > now and len(self._calls) < MAX_KEPT:
                return
            del self._calls[oldest]
