"""The gateway's process: read the checkpoint's tokenizer, bind three ports on one address, serve until told to stop.

All ports are bound before anything is served, so a taken one is a sentence and not half a gateway. SIGTERM or SIGINT
stops accepting, gives running answers a few seconds, then closes the ranks' connections.
"""

import asyncio
import logging
import signal
import socket
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import uvicorn
from prometheus_client import CollectorRegistry

from runtime.checkpoint import check_config_digest, resolve
from runtime.gateway.app import Gateway, create_app
from runtime.gateway.calls import ServedModel
from runtime.gateway.connections import Connections, most_connections, serve_clients, take_connections
from runtime.gateway.http1 import MAX_HEAD_BYTES, Http1, with_small_heads
from runtime.gateway.keys import KeyRing
from runtime.gateway.metrics import GatewayMetrics
from runtime.gateway.registry import Registry
from runtime.gateway.request_log import JsonLines
from runtime.gateway.schemas import Schemas
from runtime.gateway.tokenizer import load_tokenizer
from runtime.launch import GatewayLaunch
from runtime.protocol.metrics_server import serve_metrics
from runtime.protocol.sockets import listen

__all__ = ["run"]

GRACE_S = 5

log = logging.getLogger(__name__)


def run(launch: GatewayLaunch, address: str, keys: Path | None = None) -> None:
    """Serve on `address` until SIGTERM or SIGINT, whoever has one of `keys`, or anybody.

    Raise RuntimeFailure, one sentence, when that is impossible.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    ring = None if keys is None else KeyRing(keys)
    model = _load_model(launch)
    measured = CollectorRegistry()
    with (
        closing(listen(address, launch.ports.http, "http")) as http,
        closing(listen(address, launch.ports.registry, "registry")) as ranks,
        serve_metrics(measured, address, launch.ports.metrics),
    ):
        registry = Registry(launch.kv_digest, launch.max_requests_per_rank, launch.stall_timeout_s)
        schemas = _schemas(launch, model)
        gateway = Gateway(model, schemas, registry, GatewayMetrics(measured, model.name), int(time.time()), ring)
        log.info("serving %s on http://%s:%d", model.name, address, launch.ports.http)
        asyncio.run(_serve(gateway, http, ranks))


def _load_model(launch: GatewayLaunch) -> ServedModel:
    folder = resolve(launch.checkpoint.uri)
    check_config_digest(folder, launch.checkpoint.config_digest)
    return ServedModel(launch.model.name, launch.limits.max_request_tokens, load_tokenizer(folder))


def _schemas(launch: GatewayLaunch, model: ServedModel) -> Schemas:
    file = resolve(launch.checkpoint.uri) / "tokenizer.json"
    return Schemas(file, model.tokenizer.num_token_ids, next(iter(model.tokenizer.stop_ids), None))


async def _serve(gateway: Gateway, http: socket.socket, ranks: socket.socket) -> None:
    config = uvicorn.Config(
        with_small_heads(create_app(gateway)),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # of warnings there may be a flood; connections complain themselves
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S + 2,  # for a client that does not read its answer
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
    )
    server = uvicorn.Server(config)
    connections = Connections(most_connections())
    try:
        async with asyncio.TaskGroup() as group:
            taking = group.create_task(
                serve_clients(http, connections, lambda: Http1(config, server.server_state, connections))
            )
            joining = group.create_task(take_connections(ranks, gateway.registry, partial(_rank, gateway.registry)))
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, _stop, server, taking, gateway.registry)
            await server.serve(sockets=[])  # it serves the connections that we take
            joining.cancel()
    finally:
        gateway.schemas.close()
        await gateway.registry.close()


def _rank(registry: Registry) -> asyncio.StreamReaderProtocol:
    return asyncio.StreamReaderProtocol(asyncio.StreamReader(), registry.serve)


def _stop(server: uvicorn.Server, taking: asyncio.Task[None], registry: Registry) -> None:
    """Take no more connections. Give running answers a grace, then an error, so that uvicorn finds nothing to cancel.

    uvicorn itself stops at these signals, but raises them again when it is done; without a handler that would kill us.
    """
    taking.cancel()
    server.should_exit = True
    asyncio.get_running_loop().call_later(GRACE_S, registry.give_up, "the gateway is stopping")
