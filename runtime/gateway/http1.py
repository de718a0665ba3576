"""HTTP/1.1 by uvicorn and h11, whose own answer to what is no HTTP is OpenAI's JSON here.

A connection that says no HTTP never reaches the routes (`app.py`); it gets its 400 and is closed.
"""

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from runtime.gateway.http_errors import invalid

__all__ = ["Http1"]


class Http1(H11Protocol):
    """One client's connection."""

    def send_400_response(self, msg: str) -> None:
        """Answer that this is no HTTP, and close."""
        body = msgspec.json.encode(invalid(msg, code="invalid_http").body())
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        answer = (h11.Response(status_code=400, reason="Bad Request", headers=headers), h11.Data(data=body))
        for event in (*answer, h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
