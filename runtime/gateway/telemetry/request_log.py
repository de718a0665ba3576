"""The gateway's log: one JSON object a line, one line for each call that ranks worked on.

A call's line has the id that is in its answer's `X-Request-Id`, the key's name, the tokens and times, and the units
that worked on it with their digests, which cover their expert maps. It never has text of the caller or the model. A
hostile client can cause many refusals, so these are logged at a bounded rate, with the peer's address.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
from starlette.requests import Request

from runtime.gateway.edge.http_errors import ApiError
from runtime.protocol.complaints import Complaints

__all__ = ["CallRecord", "JsonLines", "RequestLog", "peer_address"]

FIELDS = "fields"  # the attribute of a log record that holds fields besides its message

log = logging.getLogger(__name__)


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object, with its traceback if it has one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the log record as one line of JSON."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        line |= getattr(record, FIELDS, {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


@dataclass(frozen=True)
class CallRecord:
    """A call that ranks work on.

    `started_at` is of time.monotonic; `idempotency` is the digest of the call's key, if any.
    """

    request: Request
    request_id: str
    started_at: float
    idempotency: str | None = None


class RequestLog:
    """Logs one line for each call that ranks worked on, and one for each refusal up to a bounded rate."""

    def __init__(self) -> None:
        self._complain = Complaints(log.info)

    def log_call(
        self,
        call: CallRecord,
        units: Mapping[str, str],
        num_prompt_tokens: int,
        num_tokens: int,
        num_hit_tokens: int = 0,
        *,
        is_answered: bool,
    ) -> None:
        """Log a call that is over, with the tokens to count for it.

        `units` are the units that worked on it, with their digests. `num_hit_tokens` of the prompt came from the cache.
        """
        fields = {
            "request_id": call.request_id,
            "path": call.request.scope["path"],
            "key": call.request.state.account.name,
            "answered": is_answered,
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": num_tokens,
            "prompt_cache_hit_tokens": num_hit_tokens,
            "seconds": round(time.monotonic() - call.started_at, 3),
            "units": dict(units),
        }
        if call.idempotency is not None:
            fields["idempotency"] = call.idempotency
        log.info("request", extra={FIELDS: fields})

    def log_refusal(self, request: Request, error: ApiError) -> None:
        """Log a call that was refused or given up, at a bounded rate: a call beyond it gets no line."""
        route = f"{request.method} {request.scope['path']}"
        self._complain(f"refused {peer_address(request)}: {route}: {error.status} {error.code or error.type}")


def peer_address(request: Request) -> str:
    """Return the client's address and port."""
    return ":".join(map(str, request.client)) if request.client else "a client"
