"""The gateway's errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}}.

One exception with six ways to make it; each message is a sentence that the caller can act on.

    400 invalid(...)          the request is wrong
    400 unsupported(...)      it asks for what this server, or its model, does not do
    404 unknown_model(...)    another model's name
    429 overloaded(...)       every rank has as many requests as it may have
    503 unavailable(...)      nobody can answer right now
    503 rank_failed(...)      the ranks gave the request up; asking again may help
"""

from dataclasses import dataclass

__all__ = ["ApiError", "invalid", "overloaded", "rank_failed", "unavailable", "unknown_model", "unsupported"]

RETRY_AFTER_S = 1
MAX_SHOWN = 500  # assumed: characters of a message. A caller's key or name in it may have millions


@dataclass(eq=False)
class ApiError(Exception):
    """An answer that is an error."""

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    retry_after_s: int = RETRY_AFTER_S

    def body(self) -> dict[str, dict[str, str | None]]:
        """Return the JSON document, the same in an HTTP answer and in a stream."""
        param = None if self.param is None else _shown(self.param)
        return {"error": {"message": _shown(self.message), "type": self.type, "param": param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """Return Retry-After where asking again may help."""
        return {"Retry-After": str(self.retry_after_s)} if self.status in (429, 503) else {}


def _shown(text: str) -> str:
    """Return the text without its middle if it is too long: its end says what to do."""
    half = MAX_SHOWN // 2
    return text if len(text) <= MAX_SHOWN else f"{text[:half]} ... {text[-half:]}"


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error for a caller's mistake."""
    return ApiError(400, message, param=param, code=code)


def unsupported(message: str, param: str) -> ApiError:
    """Return the error for a wish that this server, or its model, does not grant."""
    return invalid(message, param, "unsupported_parameter")


def unknown_model(asked: str, served: str) -> ApiError:
    """Return the error for a model that is not served here."""
    message = f"the model {_shown(asked)!r} is not served here, {served!r} is"
    return ApiError(404, message, param="model", code="model_not_found")


def overloaded(num_asked: int, num_free: int, retry_after_s: int) -> ApiError:
    """Return the error for more requests than the ranks may have at a time, with when there may be room."""
    message = f"there is room for {num_free} more requests now, this call makes {num_asked}; ask again in a while"
    return ApiError(429, message, type="rate_limit_error", code="overloaded", retry_after_s=retry_after_s)


def unavailable(message: str) -> ApiError:
    """Return the error when no unit can take the request."""
    return ApiError(503, message, type="server_error", code="not_ready")


def rank_failed(reason: str) -> ApiError:
    """Return the error for a request that was running and ended without an answer."""
    return ApiError(503, f"the request was given up: {reason}", type="server_error", code="rank_failed")
