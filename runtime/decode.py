"""What a decode rank does with a step: one more token for each running request.

Requests arrive with their KV, wait until the cache has room, then run until they finish or nobody wants them.
ask: `has_work`. act: `step`, which may work on nothing, because another rank of the unit has something to do.
"""

from collections import deque
from dataclasses import dataclass

from torch import Tensor

from runtime.engine import Engine
from runtime.kv_cache import PAGE_TOKENS, PageTable, num_pages
from runtime.launch import UnitLaunch
from runtime.messages import Abort, Handover, Sampling, Token
from runtime.model.step import Chunk
from runtime.network import Network
from runtime.sampling import finish_reason, sample

__all__ = ["Arrival", "DecodePhase"]


@dataclass(frozen=True)
class Arrival:
    """A request as it came from prefill; `latents` is `[num_layers, num_tokens, latent_dim]`."""

    handover: Handover
    latents: Tensor


@dataclass
class _Request:
    """`generated[-1]` stands at `position` and is the next step's input."""

    request_id: str
    sampling: Sampling
    position: int
    generated: list[int]
    table: PageTable


class DecodePhase:
    """The decode policy of one rank."""

    def __init__(self, engine: Engine, launch: UnitLaunch, network: Network) -> None:
        self._engine, self._network = engine, network
        self._cache = engine.new_cache(
            launch.limits.max_requests * num_pages(launch.limits.max_request_tokens) * PAGE_TOKENS
        )
        self._max_requests = launch.limits.max_requests
        self._waiting: deque[Arrival] = deque()
        self._running: list[_Request] = []

    def take(self, message: Arrival | Abort) -> None:
        """A request comes, or is no longer wanted."""
        match message:
            case Arrival():
                self._waiting.append(message)
            case Abort(request_id=request_id):
                self._abort(request_id)

    def has_work(self) -> bool:
        """A request runs or waits."""
        return bool(self._running or self._waiting)

    def step(self) -> None:
        """Admit what fits; compute one token for each running request; say it."""
        while self._waiting and self._has_room(self._waiting[0].handover):
            self._running.append(self._admit(self._waiting.popleft()))
        tokens = [Chunk(request.generated[-1:], request.position, request.table) for request in self._running]
        logits = self._engine.step([], tokens, self._cache)
        for request, logits_V in zip(list(self._running), logits, strict=True):
            self._advance(request, logits_V)

    def _has_room(self, handover: Handover) -> bool:
        return len(self._running) < self._max_requests and self._cache.can_allocate([], _most_tokens(handover))

    def _admit(self, arrival: Arrival) -> _Request:
        handover = arrival.handover
        request = _Request(handover.request_id, handover.sampling, handover.num_tokens, [handover.first_token_id], [])
        self._cache.allocate(request.table, _most_tokens(handover))
        self._cache.bring_in(request.table, arrival.latents)
        return request

    def _advance(self, request: _Request, logits_V: Tensor) -> None:
        token_id = sample(logits_V, request.sampling, request.position, request.generated)
        request.position += 1
        request.generated.append(token_id)
        reason = finish_reason(token_id, len(request.generated), request.sampling)
        self._network.say(Token(request.request_id, token_id, reason))
        if reason is not None:
            self._end(request)

    def _abort(self, request_id: str) -> None:
        self._waiting = deque(arrival for arrival in self._waiting if arrival.handover.request_id != request_id)
        for request in [request for request in self._running if request.request_id == request_id]:
            self._end(request)

    def _end(self, request: _Request) -> None:
        self._running.remove(request)
        self._cache.free(request.table)


def _most_tokens(handover: Handover) -> int:
    return handover.num_tokens + handover.sampling.max_tokens
