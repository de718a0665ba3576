"""Messages to Pulumi's engine, besides the provider's answers: progress, warnings, and details of our own bugs.

What libraries write to stderr needs no care: the engine hides it, unless the provider crashes.
"""

import contextlib

import grpc
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc

__all__ = ["Engine"]


class Engine:
    """A connection to Pulumi's engine on this machine, for messages to the user."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._stub = engine_pb2_grpc.EngineStub(grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]))

    def progress(self, urn: str, text: str) -> None:
        """Show a message beside the resource `urn`, until the next message."""
        self._log(engine_pb2.LogRequest(severity=engine_pb2.INFO, urn=urn, message=text, ephemeral=True))

    def warn(self, urn: str, text: str) -> None:
        """Show a lasting warning about the resource `urn` below the list of resources."""
        self._log(engine_pb2.LogRequest(severity=engine_pb2.WARNING, urn=urn, message=text))

    def debug(self, text: str) -> None:
        """Show a message, but only if the user runs `pulumi --debug`."""
        self._log(engine_pb2.LogRequest(severity=engine_pb2.DEBUG, message=text))

    def _log(self, request: engine_pb2.LogRequest) -> None:
        with contextlib.suppress(grpc.RpcError):  # the engine may be gone
            self._stub.Log(request)
