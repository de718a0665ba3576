"""The HTTP routes: OpenAI's, vLLM's for token ids, `/openapi.json`, `/health` and `/readyz`.

Every error is OpenAI's JSON, even for a wrong path. Nothing is redirected. The response to a streaming call starts with
the first token, so a request that fails earlier gets an error status. One that fails later gets an error event, and no
`[DONE]`.
It does not interpret bodies (`calls.py` does) or follow requests (`generation.py` does).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from runtime.gateway.core.body import MAX_CHOICES
from runtime.gateway.core.calls import Call, PendingCall, ServedModel, read_chat, read_completion
from runtime.gateway.core.dialects import ChatDialect, CompletionDialect, Dialect, usage
from runtime.gateway.core.embeddings import EmbeddingCall, embeddings_json, read_embeddings
from runtime.gateway.core.generation import Delta, Generation
from runtime.gateway.core.openapi import ROUTES, encoded_description
from runtime.gateway.core.response_items import ResponsesDialect
from runtime.gateway.core.responses import read_responses_request, rename_params
from runtime.gateway.core.schemas import Schemas
from runtime.gateway.core.tokenizing import detokenize, tokenize
from runtime.gateway.edge.client import Bodies, EventStream, run_while_connected
from runtime.gateway.edge.http_errors import ApiError, unknown_model, unusable_schema
from runtime.gateway.edge.idempotency import HEADER, IdempotencyKeys, IdempotentCall
from runtime.gateway.ranks.registry import Registry
from runtime.gateway.telemetry.metrics import GatewayMetrics
from runtime.gateway.telemetry.request_log import CallRecord, RequestLog, peer_address
from runtime.gateway.telemetry.tracing import Traces
from runtime.gateway.tenants.admission import Admission, AdmissionQueue, caller_name
from runtime.gateway.tenants.keys import Account, KeyRing, Spending

__all__ = ["Gateway", "create_app"]

OPEN_PATHS = ("/health", "/readyz", "/openapi.json")  # need no key: probes have none
REQUEST_ID = "X-Request-Id"
# tokenized on the event loop: 1 to 2 ms, measured with digits, the demo tokenizer's slowest text
SMALL_BODY_BYTES = 2**10
LARGE_BODY_BYTES = 2**16  # assumed: the tokenizer takes some tens of milliseconds
LARGE_BODIES_AT_ONCE = 2  # assumed: few enough that the event loop and small bodies keep running
STATUS_CLIENT_LEFT = 499  # nginx's; nobody is there to read it

T = TypeVar("T")


@dataclass(frozen=True)
class Gateway:
    """The objects that all routes share. `started` is in seconds since 1970. Without `keys`, anybody may call.

    Prompts reuse cached KV of their own key alone, or of every key if it `shares_kv`.

    Large bodies are read on threads of their own, so that small ones do not wait behind them.
    """

    model: ServedModel
    schemas: Schemas
    admission: Admission
    metrics: GatewayMetrics
    started: int
    keys: KeyRing | None = None
    traces: Traces | None = None
    shares_kv: bool = False
    log: RequestLog = field(default_factory=RequestLog)
    idempotency: IdempotencyKeys = field(default_factory=IdempotencyKeys)
    bodies: Bodies = field(default_factory=Bodies)
    large_body_threads: Executor = field(
        default_factory=partial(ThreadPoolExecutor, LARGE_BODIES_AT_ONCE, "large-body")
    )

    @property
    def registry(self) -> Registry:
        """The registry of the ranks, which knows the ready units."""
        return self.admission.resumptions.registry


def create_app(gateway: Gateway) -> Starlette:
    """Return the ASGI application."""
    handlers: dict[Any, Any] = {  # starlette's types want handlers that take any exception
        ApiError: _answer_api_error,
        HTTPException: _answer_http_error,
        ClientDisconnect: _answer_client_left,
        500: _answer_our_bug,
    }
    app = Starlette(
        routes=[
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
            Route("/v1/responses", responses, methods=["POST"]),
            Route("/v1/embeddings", embeddings, methods=["POST"]),
            Route("/v1/models", list_models),
            Route("/v1/models/{name:path}", show_model),
            Route("/tokenize", tokenize_text, methods=["POST"]),
            Route("/detokenize", detokenize_tokens, methods=["POST"]),
            Route("/openapi.json", openapi),
            Route("/health", health),
            Route("/readyz", readyz),
        ],
        exception_handlers=handlers,
    )
    # behind a proxy that ends TLS a redirect leads to http://, and the prompt would travel in clear
    app.router.redirect_slashes = False
    app.add_middleware(Authentication, gateway=gateway)
    app.state.gateway = gateway
    return app


class Authentication:
    """Refuses requests without a known key before their body is read.

    Routes find the account in the request's state.
    """

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._keys = gateway.keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on if it needs no key or has a known one; otherwise answer with an error."""
        request = Request(scope)
        try:
            request.state.account = self._find_account(request)
        except ApiError as error:
            await _answer_api_error(request, error)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _find_account(self, request: Request) -> Account:
        # not by the URL, which begins with whatever the Host header says
        if self._keys is None or request.scope["path"] in OPEN_PATHS:
            return Account()
        return self._keys.find_account(request.headers.get("authorization"), peer_address(request))


async def completions(request: Request) -> Response:
    """Answer POST /v1/completions."""
    return await _answer(request, read_completion, CompletionDialect, "cmpl-")


async def chat_completions(request: Request) -> Response:
    """Answer POST /v1/chat/completions."""
    return await _answer(request, read_chat, ChatDialect, "chatcmpl-")


async def responses(request: Request) -> Response:
    """Answer POST /v1/responses."""
    try:
        return await _answer(request, read_responses_request, ResponsesDialect, "resp_")
    except ApiError as error:
        raise rename_params(error) from None


async def embeddings(request: Request) -> Response:
    """Answer POST /v1/embeddings."""
    gateway: Gateway = request.app.state.gateway
    account: Account = request.state.account
    account.check_tokens()
    with ExitStack() as stack:
        async with gateway.bodies.read(request) as raw:
            _refuse_early(1, gateway.admission.embeddings, request)
            idempotent = _find_idempotent_call(request, raw)
            stack.callback(gateway.idempotency.end_request, idempotent)
            embeddings_request = await _process_body(request, len(raw), partial(read_embeddings, raw, gateway.model))
        spending = account.begin(len(embeddings_request.prompts), embeddings_request.num_tokens, is_stream=False)
        stack.callback(spending.end)
        record = CallRecord(request, f"embd-{uuid4().hex}", time.monotonic(), idempotent.digest)
        size = gateway.model.tokenizer.embedding_size
        call = EmbeddingCall(embeddings_request.prompts, size, caller_name(request), gateway.admission, gateway.metrics)
        idempotent.has_begun = True
        stack.callback(call.close)
        found = await run_while_connected(request, call.gather())
        spending.num_used = embeddings_request.num_tokens
        gateway.metrics.prompt_tokens.inc(embeddings_request.num_tokens)
        gateway.log.log_call(record, call.units, *idempotent.count(embeddings_request.num_tokens, 0), is_answered=True)
        answer = embeddings_json(embeddings_request, found, gateway.model.name)
        return JSONResponse(answer, headers={REQUEST_ID: record.request_id})


async def list_models(request: Request) -> Response:
    """Answer GET /v1/models: the one model that is served."""
    return JSONResponse({"object": "list", "data": [_model_card(request.app.state.gateway)]})


async def show_model(request: Request) -> Response:
    """Answer GET /v1/models/NAME; a name may hold slashes."""
    gateway: Gateway = request.app.state.gateway
    if not request.path_params["name"]:
        raise HTTPException(404)
    if request.path_params["name"] != gateway.model.name:
        raise unknown_model(request.path_params["name"], gateway.model.name)
    return JSONResponse(_model_card(gateway))


async def tokenize_text(request: Request) -> Response:
    """Answer POST /tokenize."""
    gateway: Gateway = request.app.state.gateway
    async with gateway.bodies.read(request) as raw:
        return JSONResponse(await _process_body(request, len(raw), partial(tokenize, raw, gateway.model)))


async def detokenize_tokens(request: Request) -> Response:
    """Answer POST /detokenize."""
    gateway: Gateway = request.app.state.gateway
    async with gateway.bodies.read(request) as raw:
        return JSONResponse(await _process_body(request, len(raw), partial(detokenize, raw, gateway.model)))


async def openapi(request: Request) -> Response:
    """Answer GET /openapi.json."""
    return Response(encoded_description(), media_type="application/json")


async def health(request: Request) -> Response:
    """Answer GET /health: this process lives."""
    return JSONResponse({"status": "ok"})


async def readyz(request: Request) -> Response:
    """Answer GET /readyz: whether requests can be answered, and the state of every rank."""
    report = request.app.state.gateway.registry.report()
    return JSONResponse(report, status_code=200 if report["ready"] else 503)


async def _answer(
    request: Request,
    read: Callable[[bytes, ServedModel, int | None], PendingCall],
    dialect_type: type[Dialect],
    prefix: str,
) -> Response:
    gateway: Gateway = request.app.state.gateway
    request_id = f"{prefix}{uuid4().hex}"
    headers = {REQUEST_ID: request_id}
    with ExitStack() as stack:
        call, idempotent = await _read_call(request, read, stack)
        generation = await _start_generation(request, call, idempotent, request_id, stack)
        dialect = dialect_type(request_id, int(time.time()), gateway.model.name, call)
        if not call.stream:
            choices = await run_while_connected(request, _read_all(generation, len(call.requests)))
            return JSONResponse(dialect.write_answer(choices, _report_usage(generation)), headers=headers)
        first = await run_while_connected(request, generation.next_delta())
        return EventStream(_stream_events(dialect, generation, first), headers, stack.pop_all().close)


async def _read_call(
    request: Request, read: Callable[[bytes, ServedModel, int | None], PendingCall], stack: ExitStack
) -> tuple[Call, IdempotentCall]:
    """Return the call in the request's body, and the record of its idempotency key, which `stack` ends.

    `read` reads the route's bodies. Raises ApiError if the body is wrong, if the caller's API key is over its limit, or
    if there is no room for the call.
    """
    gateway: Gateway = request.app.state.gateway
    account: Account = request.state.account
    account.check_tokens()
    async with gateway.bodies.read(request) as raw:
        _refuse_early(1, gateway.admission.answers, request)
        idempotent = _find_idempotent_call(request, raw)
        stack.callback(gateway.idempotency.end_request, idempotent)
        pending = await _process_body(request, len(raw), partial(read, raw, gateway.model, idempotent.seed))
        _refuse_early(pending.num_choices, gateway.admission.answers, request)

        def prepare() -> Call:
            return pending.prepare().assign_tenant(None if gateway.shares_kv else account.name)

        call = await _process_body(request, len(raw), prepare)  # tokenizing and hashing a long prompt take a while
        return call, idempotent


async def _start_generation(
    request: Request, call: Call, idempotent: IdempotentCall, request_id: str, stack: ExitStack
) -> Generation:
    """Charge the call to its account, and return the generation, which queues its requests. `stack` ends both.

    Raises ApiError if a limit is reached, if there is no room, or if the schema cannot be followed.
    """
    gateway: Gateway = request.app.state.gateway
    account: Account = request.state.account
    spending = account.begin(len(call.requests), call.max_tokens, is_stream=call.stream)
    stack.callback(spending.end)
    await _check_schema(request, call)
    caller, tokenizer = caller_name(request), gateway.model.tokenizer
    generation = Generation(call, caller, gateway.admission, tokenizer, gateway.metrics)
    idempotent.has_begun = True
    record = CallRecord(request, request_id, time.monotonic(), idempotent.digest)
    stack.callback(_close_call, generation, spending, idempotent, record)
    return generation


async def _check_schema(request: Request, call: Call) -> None:
    """Raises ApiError if no answer can follow the call's JSON schema. All choices share one schema."""
    schema = call.requests[0].sampling.json_schema
    if schema is None:
        return
    schemas: Schemas = request.app.state.gateway.schemas
    reason = await run_while_connected(request, schemas.find_fault(caller_name(request), schema))
    if reason is not None:
        raise unusable_schema(reason)


def _find_idempotent_call(request: Request, raw: bytes) -> IdempotentCall:
    """Return the record of the request's idempotency key, a new one if the key is unknown.

    Raises ApiError if the key is malformed or came with another body.
    """
    gateway: Gateway = request.app.state.gateway
    key = request.headers.get(HEADER)
    return gateway.idempotency.begin_request(key, request.state.account.name, request.scope["path"], raw)


def _close_call(generation: Generation, spending: Spending, idempotent: IdempotentCall, record: CallRecord) -> None:
    generation.close()
    computed = generation.num_prompt_tokens, generation.num_generated_tokens
    spending.num_used = sum(computed)
    gateway: Gateway = record.request.app.state.gateway
    counted = idempotent.count(*computed)
    num_hits = min(generation.num_hit_tokens, counted[0])
    gateway.log.log_call(record, generation.units, *counted, num_hits, is_answered=generation.is_answered)
    if gateway.traces is not None:
        request = record.request
        times = record.request_id, record.started_at, generation.phases, computed
        gateway.traces.record_call(request.scope["path"], request.headers, *times, is_answered=generation.is_answered)


async def _process_body(request: Request, num_bytes: int, work: Callable[[], T]) -> T:
    """Return the result of `work` on a body of `num_bytes`.

    `work` is never called if the client leaves before it begins.

    A small body gets no thread: while the event loop is busy, switching threads takes longer than the work.
    """
    if num_bytes <= SMALL_BODY_BYTES:
        return work()
    executor = request.app.state.gateway.large_body_threads if num_bytes > LARGE_BODY_BYTES else None

    async def done() -> T:
        return await asyncio.get_running_loop().run_in_executor(executor, work)

    return await run_while_connected(request, done())


def _refuse_early(num_choices: int, queue: AdmissionQueue, request: Request) -> None:
    """Raises ApiError if there is no room for so many choices, before they cost the tokenizer time or memory.

    While no unit is ready, a call of at most `MAX_CHOICES` choices is not refused here. It is checked first, so that
    its client still learns of mistakes in it.
    """
    caller = caller_name(request)
    if num_choices > MAX_CHOICES or queue.room(caller) is not None:
        queue.check(caller, num_choices)


async def _read_all(generation: Generation, num_choices: int) -> list[Delta]:
    """Wait for the whole answer, and return every choice as one delta."""
    deltas: list[list[Delta]] = [[] for _ in range(num_choices)]
    while (delta := await generation.next_delta()) is not None:
        deltas[delta.index].append(delta)
    return [_join_deltas(parts) for parts in deltas]


def _join_deltas(deltas: list[Delta]) -> Delta:
    last = deltas[-1]
    logprobs = [token for delta in deltas for token in delta.logprobs or ()]
    parts = [part for delta in deltas for part in delta.parts or ()]
    return msgspec.structs.replace(
        last,
        text="".join(delta.text for delta in deltas),
        logprobs=None if last.logprobs is None else logprobs,
        parts=None if last.parts is None else parts,
    )


async def _stream_events(dialect: Dialect, generation: Generation, first: Delta | None) -> AsyncIterator[bytes]:
    """Yield the stream's events. The last one is its end or an error.

    `first` is the delta that the caller has already awaited; None if the answer has no delta.

    Tokens that have arrived together are yielded together, so that a busy gateway writes once for all of them.
    """
    current_usage, delta = partial(_report_usage, generation), first
    try:
        while delta is not None:
            events = dialect.write_event(delta, current_usage)
            while (delta := generation.poll_delta()) is not None:
                events += dialect.write_event(delta, current_usage)
            if events:
                yield events
            delta = await generation.next_delta()
    except ApiError as error:
        yield dialect.write_failure(error)
    else:
        yield dialect.write_end(current_usage())


def _report_usage(generation: Generation) -> dict[str, Any]:
    counts = generation.num_prompt_tokens, generation.num_generated_tokens, generation.num_hit_tokens
    return usage(*counts, generation.num_thinking_tokens)


def _model_card(gateway: Gateway) -> dict[str, Any]:
    return {"id": gateway.model.name, "object": "model", "created": gateway.started, "owned_by": "tidemill"}


def _answer_api_error(request: Request, error: ApiError) -> Response:
    gateway: Gateway = request.app.state.gateway
    gateway.metrics.count_refusal(error)
    if error.code != "invalid_api_key":  # the key ring has logged it
        gateway.log.log_refusal(request, error)
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers())


def _answer_http_error(request: Request, error: HTTPException) -> Response:
    """Answer a call of an unknown path, or with a method that the path does not have.

    The status is 404 or 405. For an unknown path, the error lists the known ones.
    """
    message = f"{request.method} {request.scope['path']}: {error.detail.lower()}"
    if error.status_code == 404:
        message += f"; there are {', '.join(ROUTES)}"
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    return JSONResponse(
        ApiError(error.status_code, message, code=code).body(), status_code=error.status_code, headers=error.headers
    )


def _answer_client_left(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=STATUS_CLIENT_LEFT)


def _answer_our_bug(request: Request, error: Exception) -> Response:
    """Answer status 500 in OpenAI's form. The traceback goes to the log."""
    request.app.state.gateway.metrics.failed.inc()
    body = ApiError(500, "the gateway failed; its log says why", type="server_error", code="internal_error").body()
    return JSONResponse(body, status_code=500)
