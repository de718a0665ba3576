"""The gateway's errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}}.

One exception, and a function for each kind of error. Each message is a sentence that the caller can act on.

    400 invalid(...)              the request is wrong
    400 ambiguous_length()        its head gives the body's length in two ways
    400 oversized_call(...)       it makes more requests than may ever run at a time
    400 unsupported(...)          it asks for a feature that this server or its model does not have
    400 unusable_schema(...)      no answer can follow its JSON schema, or it is not read
    401 unknown_key()             no key, or one that is not known
    404 unknown_model(...)        another model's name
    408 body_too_slow(...)        the body took too long to arrive
    408 head_too_slow()           the head took too long to arrive
    413 body_too_large(...)       the body is too large
    413 too_many_values(...)      the body has too many values
    415 compressed_body(...)      the body is compressed
    422 reused_key(...)           another call had this Idempotency-Key
    431 head_too_large(...)       the head is too large
    429 overloaded(...)           every rank has as many requests as it may have
    429 key_limit_reached(...)    the key's own limit is reached
    503 unavailable(...)          nobody can answer right now
    503 too_many_bodies()         there is no memory for another body
    503 too_many_connections()    every connection is being answered
    503 rank_failed(...)          the ranks gave the request up; trying again may help
"""

from dataclasses import dataclass

__all__ = [
    "KEY_LIMIT_REACHED",
    "OVERLOADED",
    "ApiError",
    "ambiguous_length",
    "body_too_large",
    "body_too_slow",
    "compressed_body",
    "head_too_large",
    "head_too_slow",
    "invalid",
    "key_limit_reached",
    "overloaded",
    "oversized_call",
    "rank_failed",
    "reused_key",
    "too_many_bodies",
    "too_many_connections",
    "too_many_values",
    "unavailable",
    "unknown_key",
    "unknown_model",
    "unsupported",
    "unusable_schema",
]

OVERLOADED, KEY_LIMIT_REACHED = "overloaded", "rate_limit_exceeded"  # the codes of status 429
RETRY_AFTER_S = 1
MAX_SHOWN = 500  # assumed: characters of a message. A caller's key or name in it may have millions


@dataclass(eq=False)
class ApiError(Exception):
    """An error that becomes the answer to a call."""

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    retry_after_s: int = RETRY_AFTER_S
    ends_connection: bool = False
    num_requests: int = 1  # how many requests of the call are refused with it

    def body(self) -> dict[str, dict[str, str | None]]:
        """Return the error's JSON document, which is the same in an HTTP answer and in a stream."""
        param = None if self.param is None else _shorten(self.param)
        return {"error": {"message": _shorten(self.message), "type": self.type, "param": param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """Return the headers that go with the status, such as Retry-After."""
        again = {"Retry-After": str(self.retry_after_s)} if self.status in (429, 503) else {}
        challenge = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        plain = {"Accept-Encoding": "identity"} if self.status == 415 else {}  # RFC 9110, section 15.5.16
        return again | challenge | plain | ({"Connection": "close"} if self.ends_connection else {})


def _shorten(text: str) -> str:
    """Return the text. If it is too long, return its beginning and its end: a message ends with what to do."""
    half = MAX_SHOWN // 2
    return text if len(text) <= MAX_SHOWN else f"{text[:half]} ... {text[-half:]}"


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error for a caller's mistake."""
    return ApiError(400, message, param=param, code=code)


def unsupported(message: str, param: str) -> ApiError:
    """Return the error for a feature that this server or its model does not have."""
    return invalid(message, param, "unsupported_parameter")


def ambiguous_length() -> ApiError:
    """Return the error for a head with Content-Length and Transfer-Encoding. The error ends the connection."""
    message = "the request has Content-Length and Transfer-Encoding; send one of them"
    return ApiError(400, message, code="invalid_http", ends_connection=True)


def unusable_schema(reason: str) -> ApiError:
    """Return the error for a JSON schema that no answer can follow, or that is not read at all."""
    return unsupported(f"response_format in JSON is not supported: {reason}", "response_format")


def unknown_model(name: str, served: str) -> ApiError:
    """Return the error for a model that is not served here."""
    message = f"the model {_shorten(name)!r} is not served here, {served!r} is"
    return ApiError(404, message, param="model", code="model_not_found")


def unknown_key() -> ApiError:
    """Return the error for a request without a known key."""
    return ApiError(401, "give a key that is known here: Authorization: Bearer KEY", code="invalid_api_key")


def key_limit_reached(limit: str, retry_after_s: int, num_asked: int = 1) -> ApiError:
    """Return the error for a call that is over its key's `limit`, and say when to try again."""
    message = f"this key may have {limit}; ask again in a while"
    return _try_again(message, KEY_LIMIT_REACHED, retry_after_s, num_asked)


def overloaded(num_asked: int, num_free: int, retry_after_s: int) -> ApiError:
    """Return the error for more requests than there is room for, and say when there may be room."""
    message = f"there is room for {num_free} more requests now, this call makes {num_asked}; ask again in a while"
    return _try_again(message, OVERLOADED, retry_after_s, num_asked)


def _try_again(message: str, code: str, retry_after_s: int, num_requests: int) -> ApiError:
    kind = "rate_limit_error"
    return ApiError(429, message, type=kind, code=code, retry_after_s=retry_after_s, num_requests=num_requests)


def oversized_call(num_asked: int, owner: str, limit: int) -> ApiError:
    """Return the error for a call with more requests than will ever be accepted at a time."""
    return invalid(f"this call makes {num_asked:,} requests at a time; {owner} may have {limit:,}")


def body_too_large(max_bytes: int) -> ApiError:
    """Return the error for a body that is too large.

    The connection stays open. If it were closed while the client sends the rest, the client would lose the answer.
    """
    return ApiError(413, f"the body is over {max_bytes:,} bytes", code="request_too_large")


def compressed_body(encoding: str) -> ApiError:
    """Return the error for a compressed body."""
    message = f"Content-Encoding: {encoding} is not supported by this server; send the body as it is"
    return ApiError(415, message, code="unsupported_content_encoding")


def too_many_values(max_values: int, max_containers: int) -> ApiError:
    """Return the error for a body with too many values."""
    message = f"the body may have {max_values:,} values, {max_containers:,} of them lists or objects"
    return ApiError(413, message, code="request_too_large")


def reused_key(header: str) -> ApiError:
    """Return the error for an idempotency key, in the field `header`, that came with another body before."""
    message = f"this {header} came with another body before; give each call a key of its own"
    return ApiError(422, message, code="idempotency_key_reused")


def body_too_slow(max_s: float) -> ApiError:
    """Return the error for a body that has not ended in time. The rest of it is not read."""
    message = f"the body was not here after {max_s:g} s"
    return ApiError(408, message, code="request_timeout", ends_connection=True)


def too_many_bodies() -> ApiError:
    """Return the error for a body that finds no memory because other bodies are being read."""
    message = "too many requests are being read; ask again in a while"
    return ApiError(503, message, type="server_error", code="overloaded")


def head_too_slow() -> ApiError:
    """Return the error for a request whose head has not ended in time."""
    message = "the head of the request was not here in time"
    return ApiError(408, message, code="request_timeout", ends_connection=True)


def head_too_large(limit: int, unit: str = "bytes") -> ApiError:
    """Return the error for a request whose head has more than `limit` bytes, or other `unit`."""
    message = f"the head of the request has over {limit:,} {unit}"
    return ApiError(431, message, code="request_too_large", ends_connection=True)


def too_many_connections() -> ApiError:
    """Return the error for a connection beyond the limit."""
    message = "every connection of this server is being answered; ask again in a while"
    return ApiError(503, message, type="server_error", code="overloaded", ends_connection=True)


def unavailable(message: str) -> ApiError:
    """Return the error (503) for a request that cannot be served right now."""
    return ApiError(503, message, type="server_error", code="not_ready")


def rank_failed(reason: str) -> ApiError:
    """Return the error (500) for a running request that failed."""
    return ApiError(503, f"the request was given up: {reason}", type="server_error", code="rank_failed")
