"""The process that Pulumi's engine starts: `pulumi-resource-tidemill ENGINE_ADDRESS`.

It binds a port on 127.0.0.1 only, writes the number to stdout, and serves until the engine ends it or ends itself. Each
request has a thread of its own, since most of them wait; threads are made as they are needed.
"""

import argparse
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import grpc
from pulumi.runtime.proto import provider_pb2_grpc

from stacks.provider.engine import Engine
from stacks.provider.servicer import Servicer

__all__ = ["serve"]

MAX_THREADS = 1024  # more requests would queue behind those that wait, even `Cancel`
ENGINE_CHECK_S = 1.0
MAX_BYTES = 400 * 1024 * 1024  # of one message; the engine's own limit


def serve(make: Callable[[Engine], Servicer]) -> NoReturn:
    """Serve Pulumi's engine with the servicer from `make` until a signal says to stop, then end the process.

    The engine's address is the command line's argument. A killed engine ends the process, too.
    """
    parent = os.getppid()
    parser = argparse.ArgumentParser(prog="pulumi-resource-tidemill", description=__doc__, allow_abbrev=False)
    parser.add_argument("engine", help="address of Pulumi's engine")
    arguments, _ = parser.parse_known_args()  # the engine adds flags for its own logging

    # The Kubernetes client writes keys of kubeconfigs into temporary files, and removes them in a way that we skip.
    with tempfile.TemporaryDirectory(prefix="tidemill-", ignore_cleanup_errors=True) as tempfile.tempdir:
        _serve_until_told(make(Engine(arguments.engine)), parent)
    os._exit(0)  # without joining the threads that still wait: the engine is gone


def _serve_until_told(servicer: Servicer, parent: int) -> None:
    server = grpc.server(
        ThreadPoolExecutor(MAX_THREADS),
        options=[("grpc.max_receive_message_length", MAX_BYTES), ("grpc.max_send_message_length", MAX_BYTES)],
    )
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    stop = _stop_event()
    server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    while not stop.wait(ENGINE_CHECK_S) and os.getppid() == parent:
        pass  # if the engine is killed, our parent changes


def _stop_event() -> threading.Event:
    """Return an event that SIGINT or SIGTERM sets. The engine sends one of them at the end of each command."""
    stop = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: stop.set())
    return stop
