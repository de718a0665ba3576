"""The gateway's process: read the checkpoint's tokenizer, bind three ports on one address, serve until told to stop.

All ports are bound before anything is served, so a port in use ends the start with a sentence. On SIGTERM or SIGINT the
gateway accepts no more connections, lets running answers go on for the drain's time, and then closes the ranks'
connections. A second signal ends the drain.
"""

import asyncio
import gc
import logging
import signal
import socket
import time
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path

import uvicorn
from prometheus_client import CollectorRegistry

from runtime.checkpoint import check_config_digest, resolve
from runtime.gateway.core.app import Gateway, create_app
from runtime.gateway.core.calls import ServedModel
from runtime.gateway.core.schemas import Schemas
from runtime.gateway.core.tokenizer_files import load_served_tokenizer
from runtime.gateway.edge.connections import (
    Connections,
    accept_connections,
    connect_client,
    raise_connection_limit,
    serve_clients,
)
from runtime.gateway.edge.http1 import MAX_HEAD_BYTES, Http1, check_heads
from runtime.gateway.edge.input_turns import InputTurns
from runtime.gateway.edge.strangers import Handshakes
from runtime.gateway.ranks.rank_load import RankLimits
from runtime.gateway.ranks.registry import Registry
from runtime.gateway.ranks.router import Policy
from runtime.gateway.ranks.served_tokenizer import ServedTokenizer
from runtime.gateway.telemetry.metrics import GatewayMetrics
from runtime.gateway.telemetry.request_log import JsonLines
from runtime.gateway.telemetry.tracing import configure_traces
from runtime.gateway.tenants.admission import BATCHES_AHEAD, Admission, QueueLimits, num_ahead
from runtime.gateway.tenants.keys import KeyRing
from runtime.gateway.tenants.resumption_queue import ResumptionQueue
from runtime.launch import GatewayLaunch
from runtime.protocol.metrics_server import serve_metrics
from runtime.protocol.sockets import listen
from runtime.protocol.tls import Credentials

__all__ = ["RankPort", "accept_ranks", "run"]

UNREAD_S = 2  # extra time after the drain for clients that are slow to read
GARBAGE_THRESHOLD = 50_000  # new objects; assumed: most of them are alive, some 10 MB

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RankPort:
    """The port for ranks, and the certificate that the gateway shows there, if any."""

    listener: socket.socket
    credentials: Credentials | None


def run(
    launch: GatewayLaunch,
    address: str,
    drain_s: float,
    keys: Path | None = None,
    tls: Path | None = None,
    policy: Policy = Policy.BALANCED,
    num_gateways: int = 1,
    weights_file: Path | None = None,
    tokenizer_file: Path | None = None,
) -> None:
    """Serve on `address` until SIGTERM or SIGINT, then drain for `drain_s`.

    With a file of `keys`, only their holders may call. With a certificate in the folder `tls`, ranks need one as well.
    `policy` chooses ranks. The limits of keys and the places to wait are divided among `num_gateways`, which remember
    in `weights_file` and `tokenizer_file` which weights and which tokenizer they serve with. Raises RuntimeFailure if a
    file cannot be read or a port is taken.
    """
    _log_json_lines()
    key_ring = None if keys is None else KeyRing(keys, num_gateways)
    credentials = None if tls is None else Credentials(tls, "server")
    model, served_tokenizer = _load_model(launch, tokenizer_file)
    measured = CollectorRegistry()
    traces = configure_traces(launch.model.name)
    with (
        nullcontext() if traces is None else closing(traces),
        closing(listen(address, launch.ports.http, "http")) as http,
        closing(listen(address, launch.ports.registry, "registry")) as ranks,
        serve_metrics(measured, address, launch.ports.metrics),
    ):
        units = None if credentials is None else launch.tls.units
        limits, stall_timeout_s = _rank_limits(launch), launch.stall_timeout_s
        registry = Registry(launch.kv_digest, limits, stall_timeout_s, policy, units, weights_file, served_tokenizer)
        metrics = GatewayMetrics(measured, model.name)
        resumptions = ResumptionQueue(registry, metrics, launch.resume_timeout_s)
        admission = Admission(resumptions, metrics, _queue_limits(launch, num_gateways))
        schemas = _make_schemas(launch, model)
        shares_kv = launch.sharing == "all"
        gateway = Gateway(model, schemas, admission, metrics, int(time.time()), key_ring, traces, shares_kv)
        _tune_garbage_collection()
        log.info("serving %s on http://%s:%d", model.name, address, launch.ports.http)
        asyncio.run(_serve(gateway, http, RankPort(ranks, credentials), drain_s))


async def accept_ranks(ranks: RankPort, registry: Registry) -> None:
    """Accept ranks' connections until cancelled. Then close the port."""

    def rank() -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), registry.serve)

    handshakes = None if ranks.credentials is None else Handshakes(rank, ranks.credentials, registry.strangers)
    take = partial(connect_client, rank) if handshakes is None else handshakes.take
    await accept_connections(ranks.listener, registry.strangers, take)


def _log_json_lines() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _tune_garbage_collection() -> None:
    """Make Python collect cycles less often, and never visit the objects that exist now.

    Each token makes some objects. With Python's own threshold, collections came so often that 2,000 streams spent a
    fifth of their time on them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD)


def _load_model(launch: GatewayLaunch, tokenizer_file: Path | None) -> tuple[ServedModel, ServedTokenizer]:
    folder = resolve(launch.checkpoint.uri)
    check_config_digest(folder, launch.checkpoint.config_digest)
    tokenizer, served = load_served_tokenizer(folder, tokenizer_file)
    return ServedModel(launch.model.name, launch.limits.max_request_tokens, tokenizer), served


def _rank_limits(launch: GatewayLaunch) -> RankLimits:
    return RankLimits(launch.limits.max_requests, launch.limits.kv_tokens, _num_ahead(launch))


def _queue_limits(launch: GatewayLaunch, num_gateways: int) -> QueueLimits:
    """Return the limits of one gateway's queues: its share of the requests that may wait at gateways, not at ranks."""
    prompt_tokens_ahead = BATCHES_AHEAD * launch.limits.max_batch_tokens
    num_queued = (launch.max_queued_requests - _num_ahead(launch)) // num_gateways
    return QueueLimits(num_queued, prompt_tokens_ahead, launch.resume_timeout_s)


def _num_ahead(launch: GatewayLaunch) -> int:
    return num_ahead(launch.limits.max_requests, launch.max_queued_requests)


def _make_schemas(launch: GatewayLaunch, model: ServedModel) -> Schemas:
    file = resolve(launch.checkpoint.uri) / "tokenizer.json"
    return Schemas(file, model.tokenizer.num_token_ids, next(iter(model.tokenizer.stop_ids), None))


async def _serve(gateway: Gateway, http: socket.socket, ranks: RankPort, drain_s: float) -> None:
    config = _configure_uvicorn(gateway, drain_s)
    server = uvicorn.Server(config)
    connections, turns = Connections(raise_connection_limit()), InputTurns()
    try:
        async with asyncio.TaskGroup() as group:
            taking = group.create_task(
                serve_clients(http, connections, lambda: Http1(config, server.server_state, connections, turns))
            )
            joining = group.create_task(accept_ranks(ranks, gateway.registry))
            watching = group.create_task(gateway.registry.watch())
            measuring = group.create_task(gateway.metrics.phases.follow(gateway.registry.units))
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, _stop, server, taking, gateway.admission, drain_s)
            await server.serve(sockets=[])  # it serves the connections that we accept
            for task in (joining, watching, measuring):
                task.cancel()
    finally:
        gateway.schemas.close()
        await gateway.registry.close()


def _configure_uvicorn(gateway: Gateway, drain_s: float) -> uvicorn.Config:
    return uvicorn.Config(
        check_heads(create_app(gateway)),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # a client can cause floods of warnings; our connections log their own at a bounded rate
        access_log=False,
        server_header=False,
        proxy_headers=False,  # any client can write anything into X-Forwarded-For
        timeout_graceful_shutdown=ceil(drain_s) + UNREAD_S,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
    )


def _stop(server: uvicorn.Server, taking: asyncio.Task[None], admission: Admission, drain_s: float) -> None:
    """Accept no more connections. Fail the running answers after `drain_s`, or at once at a second signal.

    Since we fail them, uvicorn has no answers to cancel. uvicorn itself stops at SIGTERM and SIGINT, but raises the
    signal again when it is done, which would kill this process without our handler. uvicorn has handled this signal
    already, so uvicorn's state does not show whether it is the second one.
    """
    is_second = taking.done() or taking.cancelling() > 0
    taking.cancel()
    server.should_exit = True
    asyncio.get_running_loop().call_later(0 if is_second else drain_s, _give_up, admission)


def _give_up(admission: Admission) -> None:
    admission.close("the gateway is stopping")
    admission.resumptions.registry.give_up("the gateway is stopping")
