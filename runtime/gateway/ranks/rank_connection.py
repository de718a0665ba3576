"""The gateway's end of one rank's connection: its Hello, its state, its load, and the listeners for its tokens.

It sends frames and passes tokens on. It does not decide which ranks are admitted (`registry.py` does) or what becomes
of tokens (`generation.py` does).
"""

import asyncio
import secrets
from collections.abc import Callable
from typing import Literal

import msgspec

from runtime.errors import WireError
from runtime.gateway.ranks.ledger import Ledger
from runtime.gateway.ranks.prefix_index import BlockHashes, PrefixIndex
from runtime.gateway.ranks.rank_load import RankLimits, RankLoad, RequestSize
from runtime.gateway.ranks.sent_prompts import SentPrompts
from runtime.protocol.frames import encode_frame
from runtime.protocol.messages import (
    Abort,
    Dismissed,
    Embedding,
    Failed,
    FromGateway,
    FromRank,
    Hello,
    Load,
    Moved,
    Pong,
    PrefixHit,
    RankState,
    Renewal,
    Renewed,
    State,
    StepTime,
    Token,
    Wait,
)
from runtime.protocol.sockets import write_or_hang_up

__all__ = ["Listener", "Rank", "RankReply"]

MOVE_TIMEOUT_S = 30.0  # assumed: as long as a frame may take

RankReply = PrefixHit | Token | Embedding | Failed
Listener = Callable[["Rank", RankReply], None]


class Rank:
    """A rank, from its Hello on. Once its connection is gone its state is "lost", so that /readyz can show it."""

    def __init__(
        self,
        hello: Hello,
        writer: asyncio.StreamWriter,
        limits: RankLimits,
        index: PrefixIndex,
        on_room: Callable[[], None] = lambda: None,
    ) -> None:
        """Call `on_room` after every event that may have freed room here. All ranks of a phase share an `index`."""
        self.hello = hello
        self.state: RankState | Literal["lost"] = "loading"
        self.loaded = 0.0  # the loaded share of its tensors, 0 to 1
        self.looks_since_message = self.looks_since_step = 0  # counted by `silence.py`
        self.own_step_us = 0  # for `stragglers.py`; 0 before the first report
        self.loaded_digest: str | None = None  # for `served_weights.py`; None before the rank reports one
        self.tokenizer_digest: str | None = None  # of its tokenizer.json; None before the rank reports one
        self.refusal: str | None = None  # why it gets no requests even if it is ready
        self._has_loaded = False
        self._writer, self._on_room = writer, on_room
        self._moves: dict[str, tuple[asyncio.StreamWriter, asyncio.Future[None]]] = {}  # by ticket
        self._listeners: dict[str, Listener] = {}
        self._ledger = Ledger(hello.unit, hello.rank, hello.phase, limits)
        self.prompts = SentPrompts(index, says_found=hello.phase != "decode")

    def __str__(self) -> str:
        return f"rank {self.hello.rank} of unit {self.hello.unit}"

    @property
    def serves(self) -> bool:
        """True if the rank is ready and may get requests."""
        return self.state == "ready" and self.refusal is None

    @property
    def load(self) -> RankLoad:
        """This rank's load, including requests that are on their way to the rank."""
        return self._ledger.load

    def subscribe(
        self, request_id: str, size: RequestSize, listener: Listener, hashes: BlockHashes | None = None
    ) -> int:
        """Add a request to this rank's load. `listener` gets every message of the rank about the request.

        `hashes` are the hashes of the prompt's blocks, if the rank computes the prompt or receives its KV. Return how
        many tokens of the prompt the rank is expected to have in its cache.
        """
        self._listeners[request_id] = listener
        num_held = 0
        if hashes is not None:
            num_held = self.prompts.record_sent(request_id, hashes, size.prompt_tokens).num_tokens
        self._ledger.give(request_id, size, num_held)
        return num_held

    def unsubscribe(self, request_id: str) -> bool:
        """Stop listening to the request. Return whether there was a listener."""
        did = self._listeners.pop(request_id, None) is not None
        self._ledger.end(request_id)
        self.prompts.give_up(request_id)
        self._dismiss_if_free()
        self._on_room()
        return did

    def send(self, message: FromGateway) -> None:
        """Queue a message for the rank. Nothing is sent to a lost rank."""
        if self.state != "lost":
            write_or_hang_up(self._writer, encode_frame(message))

    def refuse(self, reason: str) -> None:
        """Send the rank no more requests while its process lives, and tell it the reason."""
        self.refusal = reason
        self.send(Wait(reason))

    def handle(self, message: FromRank) -> None:
        """Act on a message of the rank. Raises WireError if it breaks the protocol."""
        self.looks_since_message = 0
        if not isinstance(message, Pong):
            self.looks_since_step = 0
        match message:
            case State(state=state, loaded=loaded):
                self.state, self.loaded = state, loaded
                self._dismiss_if_free()
                self._on_room()
            case Load():
                self._ledger.apply_report(message)
                self._on_room()
            case StepTime(own_us=own_us):
                self.own_step_us = own_us
            case PrefixHit() | Token() | Embedding() | Failed():
                self._pass_on(message)
            case Moved(ticket=ticket):
                self._move(ticket)
            case Hello():
                self._note_loaded(message)
            case Renewal():
                raise WireError(f"{self} said Hello twice")

    def fail_all(self, reason: str, *, may_retry: bool = True) -> None:
        """Mark the rank as lost, and fail its requests. If `may_retry`, they continue at other ranks."""
        self.state = "lost"
        for _, moved in self._moves.values():
            if not moved.done():
                moved.set_exception(WireError(f"{self} was lost before it moved"))
        for request_id, listener in list(self._listeners.items()):
            listener(self, Failed(request_id, reason, may_retry))
        self.prompts.close()
        self._on_room()  # the room has changed, if only to less

    async def move_to(self, writer: asyncio.StreamWriter) -> None:
        """Move the rank, with all its requests, to the connection of `writer`. Returns when the rank has moved.

        The rank announces the move on its old connection, so that nobody else can take its place. All messages on the
        old connection are read before those on the new one. Raises WireError if the rank does not move in time.
        """
        ticket = secrets.token_hex(16)
        moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._moves[ticket] = writer, moved
        write_or_hang_up(writer, encode_frame(Renewed(ticket)))
        try:
            async with asyncio.timeout(MOVE_TIMEOUT_S):
                await moved
        except TimeoutError:
            raise WireError(f"{self} did not move within {MOVE_TIMEOUT_S:g} s") from None
        finally:
            del self._moves[ticket]

    def shares_host(self, writer: asyncio.StreamWriter) -> bool:
        """Return whether a connection comes from this rank's address."""
        host, *_ = self._writer.get_extra_info("peername")
        return bool(host == writer.get_extra_info("peername")[0])

    def hang_up(self, reason: str) -> None:
        """Abort the connection, and fail the rank's requests."""
        self.fail_all(reason)
        self._writer.transport.abort()

    def _note_loaded(self, hello: Hello) -> None:
        is_same = msgspec.structs.replace(hello, kv_digest=self.hello.kv_digest) == self.hello
        if not is_same or hello == self.hello or self._has_loaded:
            raise WireError(f"{self} said Hello twice")
        self._has_loaded = True
        kv_digest, self.tokenizer_digest = hello.loaded_digests()
        if kv_digest != self.hello.kv_digest:
            self.loaded_digest = kv_digest

    def _move(self, ticket: str) -> None:
        if ticket not in self._moves:
            raise WireError(f"{self} moves to a connection that is not there")
        self._writer, moved = self._moves[ticket]
        moved.set_result(None)

    def _dismiss_if_free(self) -> None:
        """Dismiss a draining rank once it has none of this gateway's requests left.

        New requests go to other units already.
        """
        if self.state == "draining" and not self._listeners:
            self.send(Dismissed())

    def _pass_on(self, message: RankReply) -> None:
        if isinstance(message, PrefixHit):
            self.prompts.note_found(message.request_id, message.num_tokens)
        elif isinstance(message, Token) and self._ledger.count_token(message.request_id):
            self.prompts.end(message.request_id)
            self._on_room()  # for the next prompt
        listener = self._listeners.get(message.request_id)
        if listener is not None:
            listener(self, message)
        elif isinstance(message, Token) and message.finish_reason is None:
            # our Abort may have overtaken the handover that brought the request here
            self.send(Abort(message.request_id))
