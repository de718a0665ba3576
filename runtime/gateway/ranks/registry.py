"""The registry of ranks: it accepts their connections, checks who they are, and knows which units are ready.

    connection -> Hello (within a deadline) -> admitted as loading -> State ... -> ready -> connection gone -> lost

The invariants: a unit is ready when all its `num_ranks` ranks are connected and ready. The known ranks of a unit have
the same unit_digest and `num_ranks`. Every connected rank has the gateway's kv_digest. Ready units have loaded the same
weights (`served_weights.py`). So any ready prefill unit can send KV to any ready decode unit.

A peer that breaks the protocol loses its connection, with one line in the log, and nobody else is affected. A process
whose end of the connection broke first connects again and takes its own place. It is recognised by the same Hello,
process id included, from the same address, so a copied Hello is worth nothing elsewhere. A rank whose certificate ends
soon connects again and moves there with all its requests (Renewal). A rank whose certificate has expired loses its
connection. A serving rank that falls silent is given up even if its connection stands, because a process that hangs
closes nothing (`silence.py`).
It does not start, stop or reconnect ranks: they connect by themselves.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

from runtime.errors import WireError, WireVersionError
from runtime.gateway.edge.strangers import Strangers
from runtime.gateway.ranks.prefix_index import NO_HASHES, BlockHashes, PrefixIndex
from runtime.gateway.ranks.rank_connection import Rank
from runtime.gateway.ranks.rank_load import HeldPrefix, RankLimits, RankLoad, RequestSize
from runtime.gateway.ranks.roster import Roster
from runtime.gateway.ranks.router import (
    Policy,
    choose_embedding_rank,
    choose_ranks,
    embedding_room,
    least_prompt_tokens,
    num_ranks,
    num_requests,
    room,
)
from runtime.gateway.ranks.sent_prompts import find_held
from runtime.gateway.ranks.served_tokenizer import ServedTokenizer
from runtime.gateway.ranks.served_weights import ServedWeights
from runtime.gateway.ranks.silence import watch_ranks
from runtime.gateway.ranks.stragglers import find_straggler
from runtime.protocol.bounds import explain_bad_address
from runtime.protocol.counting import PAGE_TOKENS
from runtime.protocol.frames import FrameReader, encode_frame
from runtime.protocol.messages import FromRank, Hello, Moved, Rejected, Renewal, State
from runtime.protocol.sockets import detect_vanished_peer
from runtime.protocol.tls import identity, seconds_valid

__all__ = ["SMALLEST", "Registry", "Unit"]

HELLO_TIMEOUT_S = 5.0
SMALLEST = RequestSize(1, 1)
MAX_SHOWN = 63  # characters of a refused unit's name, so that the log line has room for the reason
MAX_RANKS = 2**16  # the most ranks of a unit; assumed: more than any model has experts
MAX_NAME = 253  # as for Kubernetes' nodes; names of units are shorter. The log names every admitted rank

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Unit:
    """One unit with its known ranks, sorted by number."""

    name: str
    phase: Literal["prefill", "decode", "mixed"]
    num_ranks: int
    ranks: tuple[Rank, ...]

    @property
    def is_ready(self) -> bool:
        """True if all ranks are connected and ready, and none is refused."""
        return len(self.ranks) == self.num_ranks and all(rank.serves for rank in self.ranks)

    @property
    def refusal(self) -> str | None:
        """The reason why a connected unit gets no requests; None if it may get them."""
        return next((rank.refusal for rank in self.ranks if rank.refusal and rank.state != "lost"), None)

    @property
    def straggler(self) -> tuple[int, float] | None:
        """(number of a rank that slows a ready unit down, how many times longer that rank's steps take).

        None if no rank slows the unit down.
        """
        return find_straggler([rank.own_step_us for rank in self.ranks]) if self.is_ready else None


class Registry:
    """The registry of the ranks that are connected, or were until recently."""

    def __init__(
        self,
        kv_digest: str,
        limits: RankLimits,
        stall_timeout_s: float,
        policy: Policy = Policy.BALANCED,
        units_identity: str | None = None,
        weights_file: Path | None = None,
        tokenizer: ServedTokenizer | None = None,
    ) -> None:
        """Accept ranks whose certificates name `units_identity` and their unit. With None they need no certificate.

        A rank without a step for `stall_timeout_s` is given up. `weights_file` keeps the digest of the weights that are
        served, for a gateway that starts again. A rank that reports its tokenizer must have read `tokenizer`. Raises
        RuntimeFailure if `weights_file` cannot be read.
        """
        self.strangers = Strangers()
        self._kv_digest, self._units_identity = kv_digest, units_identity
        self._limits, self._policy = limits, policy
        self._stall_timeout_s = stall_timeout_s
        self._weights, self._tokenizer = ServedWeights(weights_file), tokenizer
        self._roster = Roster()
        self._prompt_index, self._decode_index = PrefixIndex(), PrefixIndex(limits.kv_tokens // PAGE_TOKENS)
        self._units: list[Unit] | None = None  # cached until a rank comes or is forgotten
        self._turns = count()
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._is_closing = False
        self._on_room: Callable[[], None] = lambda: None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one rank's connection, from Hello to its end."""
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        host, *_ = writer.get_extra_info("peername") or ("",)  # "" if the peer has left
        self.strangers.add(writer, host, writer.transport.abort)
        detect_vanished_peer(writer)
        try:
            await self._follow(FrameReader(reader, FromRank), writer)
        except (WireError, OSError) as error:
            if isinstance(error, WireVersionError):  # any frame will do, because its prefix has our version
                writer.write(encode_frame(Rejected(str(error))))
            if not self._is_closing:
                self.strangers.complain(
                    f"closed the registry connection of {writer.get_extra_info('peername')}: {error}"
                )
        finally:
            writer.close()
            del self._connections[task]
            self.strangers.forget(writer)

    async def watch(self) -> None:
        """Give up ranks that have fallen silent, until cancelled."""
        await watch_ranks(lambda: self._roster, self._stall_timeout_s, log.warning)

    def units(self) -> list[Unit]:
        """Return the known units, sorted by name."""
        if self._units is None:
            self._units = self._group_ranks()
        return self._units

    def _group_ranks(self) -> list[Unit]:
        return [
            Unit(name, ranks[0].hello.phase, ranks[0].hello.num_ranks, tuple(ranks))
            for name, ranks in self._roster.group_by_unit()
        ]

    def choose_ranks(self, size: RequestSize, hashes: BlockHashes = NO_HASHES) -> tuple[Rank, Rank] | None:
        """Return the ranks for the next request's first token and for its later tokens.

        In a mixed unit both are the same rank. `hashes` are the hashes of the prompt's blocks. If no rank for
        later tokens has room now, one at which the request may wait is chosen. The result is None if there is none
        either, or while a phase has no ready unit.
        """

        def find(loads: Sequence[RankLoad]) -> Sequence[HeldPrefix]:
            ranks = [self._roster[load.key].prompts for load in loads]
            return find_held(ranks, hashes, size.prompt_tokens)

        chosen = choose_ranks(self._loads(), size, next(self._turns), self._policy, find)
        return None if chosen is None else (self._roster[chosen.first.key], self._roster[chosen.rest.key])

    def room(self, size: RequestSize = SMALLEST) -> int | None:
        """Return how many more requests of this size may come; None while a phase has no ready unit."""
        return room(self._loads(), size)

    def choose_embedding_rank(self, size: RequestSize) -> Rank | None:
        """Return the rank for a prompt to embed; None while a phase has no ready unit."""
        chosen = choose_embedding_rank(self._loads(), size, next(self._turns), self._policy)
        return None if chosen is None else self._roster[chosen.key]

    def embedding_room(self, size: RequestSize = SMALLEST) -> int | None:
        """Return how many more prompts to embed the ranks take; None while a phase has no ready unit.

        `size` is ignored: `AdmissionQueue` passes one to every function of this kind.
        """
        return embedding_room(self._loads())

    def num_requests(self) -> int:
        """Return the number of requests at all ranks, each counted at the rank where it stays to its end."""
        return num_requests(self._loads())

    def num_prompt_ranks(self) -> int:
        """Return how many ranks of ready units compute prompts."""
        return num_ranks(self._loads())[0]

    def num_answer_ranks(self) -> int:
        """Return how many ranks of ready units keep requests to their end."""
        return num_ranks(self._loads())[1]

    def least_prompt_tokens(self) -> int | None:
        """Return the fewest prompt tokens that a rank has left to compute; None while a phase has no ready unit."""
        return least_prompt_tokens(self._loads())

    def call_on_room(self, call: Callable[[], None]) -> None:
        """Call `call` after every event that may have freed room or changed which units are ready."""
        self._on_room = call

    def report(self) -> dict[str, Any]:
        """Return the body of /readyz.

        The body has the `pid` by which the process that started a gateway knows that this gateway answers.
        """
        units = self.units()
        ready_phases = {unit.phase for unit in units if unit.is_ready}
        is_ready = {"prefill", "decode"} <= ready_phases or "mixed" in ready_phases
        return {"ready": is_ready, "pid": os.getpid(), "units": [_report_unit(unit) for unit in units]}

    def give_up(self, reason: str) -> None:
        """Fail every running request, without a retry."""
        for rank in self._roster:
            rank.fail_all(reason, may_retry=False)

    async def close(self) -> None:
        """End every connection."""
        self._is_closing = True
        for writer in self._connections.values():
            writer.close()
        if self._connections:
            await asyncio.wait(self._connections)

    def _loads(self) -> list[RankLoad]:
        """Return the loads of the ranks of ready units."""
        return [rank.load for unit in self.units() if unit.is_ready for rank in unit.ranks]

    async def _follow(self, frames: FrameReader[FromRank], writer: asyncio.StreamWriter) -> None:
        rank = await self._identify(frames, writer)
        self.strangers.forget(writer)
        has_moved = False
        try:
            async with asyncio.timeout(seconds_valid(writer)):
                has_moved = await self._read_messages(frames, rank)
            if not (has_moved or self._is_closing or rank.state == "lost"):
                log.warning("%s on %s was lost: its connection closed", rank, rank.hello.node)
        except TimeoutError:
            raise WireError(f"the certificate of {rank} has expired") from None
        finally:
            if not has_moved:
                rank.fail_all(f"{rank} was lost")
                self._roster.mark_lost(rank)
                self._units = None
                self._weights.mark_lost(rank, self._roster)
                if self._tokenizer is not None:
                    self._tokenizer.mark_lost(rank, list(self._roster))

    async def _identify(self, frames: FrameReader[FromRank], writer: asyncio.StreamWriter) -> Rank:
        """Return the rank at this connection: a new one, or one that moves here from its old connection.

        Raises WireError if the peer does not begin as a rank does, or may not join.
        """
        first = await frames.read_first("Hello", HELLO_TIMEOUT_S)
        if isinstance(first, Renewal):
            return await self._renew(first.hello, writer)
        if not isinstance(first, Hello):
            raise WireError(f"its first message is {type(first).__name__}, not Hello")
        rank = self._admit(first, writer)
        log.info("%s on %s joined", rank, _describe_node(rank))
        return rank

    async def _renew(self, hello: Hello, writer: asyncio.StreamWriter) -> Rank:
        """Return the connected rank with this Hello, once the rank has moved to this connection.

        Raises WireError if the rank is not connected, has another certificate, or does not move in time.
        """
        self._require_own_certificate(hello, writer)
        rank = self._roster.get(hello.unit, hello.rank)
        if rank is None or rank.state == "lost" or rank.hello != hello:
            raise WireError("it renews the connection of a rank that is not connected")
        await rank.move_to(writer)
        return rank

    def _admit(self, hello: Hello, writer: asyncio.StreamWriter) -> Rank:
        self._require_own_certificate(hello, writer)
        self._hang_up_predecessor(hello, writer)
        peers = [rank for rank in self._roster.unit_ranks(hello.unit) if rank.state != "lost"]
        refusal = _find_refusal(hello, self._kv_digest, [rank.hello for rank in peers])
        if refusal is not None:
            writer.write(encode_frame(Rejected(refusal.message)))
            unit = hello.unit[:MAX_SHOWN]  # a long line is cut, and the reason comes last
            raise WireError(f"rank {hello.rank} of unit {unit} is refused: {refusal.log_message}")
        self._drop_predecessors(hello)
        index = self._decode_index if hello.phase == "decode" else self._prompt_index
        rank = Rank(hello, writer, self._limits, index, lambda: self._on_room())
        self._roster.add(rank)
        self._units = None
        return rank

    async def _read_messages(self, frames: FrameReader[FromRank], rank: Rank) -> bool:
        """Let the rank handle its messages until the connection ends.

        Return whether the rank moved to another connection.
        """
        while (message := frames.read_buffered() or await _read_message(frames)) is not None:
            rank.handle(message)
            if isinstance(message, Hello) and self._tokenizer is not None:
                self._tokenizer.check(rank, list(self._roster))
            if isinstance(message, State | Hello):
                is_ready = any(unit.is_ready for unit in self.units() if unit.name == rank.hello.unit)
                self._weights.check(rank, self._roster, unit_is_ready=is_ready)
            elif isinstance(message, Moved):
                return True
        return False

    def _require_own_certificate(self, hello: Hello, writer: asyncio.StreamWriter) -> None:
        """Raises WireError if the peer's certificate is not of the unit that its Hello names."""
        if self._units_identity is None:
            return
        proven = identity(writer)
        if proven != self._units_identity + hello.unit:
            writer.write(encode_frame(Rejected("its certificate is not of the unit that it names")))
            unit, shown_identity = ascii(hello.unit[:MAX_SHOWN]), ascii(proven)[:MAX_NAME]
            raise WireError(f"it says that it is of unit {unit}, its certificate is of {shown_identity}")

    def _hang_up_predecessor(self, hello: Hello, writer: asyncio.StreamWriter) -> None:
        """Close the earlier connection of the process with this Hello, if there is one.

        That connection has broken without being noticed here. A connection from another host is left alone.
        """
        known = self._roster.get(hello.unit, hello.rank)
        if known is not None and known.state != "lost" and known.hello == hello and known.shares_host(writer):
            log.info("%s on %s calls again", known, hello.node)
            known.hang_up(f"{known} lost its connection")

    def _drop_predecessors(self, hello: Hello) -> None:
        """Drop the unit's known ranks if they are of an earlier launch. Known ranks of a unit are all of one launch."""
        known = next(iter(self._roster.unit_ranks(hello.unit)), None)
        if known is not None and _launch_identity(known.hello) != _launch_identity(hello):
            self._roster.drop_unit(hello.unit)


async def _read_message(frames: FrameReader[FromRank]) -> FromRank | None:
    frame = await frames.read()
    return None if frame is None else frame[0]


@dataclass(frozen=True)
class _Refusal:
    """The reason why a rank cannot serve here. Digests and other ranks are named only in the log, not to the rank."""

    message: str
    log_message: str


def _find_refusal(hello: Hello, kv_digest: str, peers: Iterable[Hello]) -> _Refusal | None:
    """Return the reason why a rank cannot serve here; None if it can. `peers` are its unit's connected ranks."""
    if hello.kv_digest != kv_digest:
        prefix = f"its kv_digest is {hello.kv_digest}, "
        return _Refusal(prefix + "the gateway's is another", prefix + f"the gateway's is {kv_digest}")
    wrong = _find_fault(hello)
    if wrong is not None:
        return _Refusal(wrong, wrong)
    for peer in peers:
        if peer.rank == hello.rank:
            process = f"process {peer.pid} on {peer.node}"
            return _Refusal("another process is connected as that rank", f"{process} is connected as that rank")
        if _launch_identity(peer) != _launch_identity(hello):
            prefix = f"it was launched as {_launch_identity(hello)}, "
            detail = f"rank {peer.rank} as {_launch_identity(peer)}"
            return _Refusal(prefix + f"rank {peer.rank} otherwise", prefix + detail)
    return None


def _find_fault(hello: Hello) -> str | None:
    """Return what is wrong with a Hello by itself; None if nothing is wrong."""
    for field, name in (("unit", hello.unit), ("node", hello.node), ("for_node", hello.for_node or "")):
        if len(name) > MAX_NAME or not name.isprintable():
            return f"its {field} is no name of at most {MAX_NAME} characters that can be shown"
    if not 0 <= hello.rank < hello.num_ranks <= MAX_RANKS:
        return f"it counts {hello.num_ranks} ranks"
    if hello.phase != "decode":
        return None
    if hello.kv_host is None or hello.kv_port is None:
        return "it is a decode rank and takes no KV"
    unreachable = explain_bad_address(hello.kv_host, hello.kv_port)
    return None if unreachable is None else f"it takes KV where nobody can send it: {unreachable}"


def _launch_identity(hello: Hello) -> str:
    """Return phase, number of ranks and unit_digest as one text, which is equal for all ranks of a unit."""
    return f"{hello.phase} of {hello.num_ranks} with unit_digest {hello.unit_digest}"


def _describe_node(rank: Rank) -> str:
    """Return the rank's node as text: `node-7`, or `spare node-7 for node-2`."""
    hello = rank.hello
    return f"spare {hello.node} for {hello.for_node}" if hello.for_node else hello.node


def _report_unit(unit: Unit) -> dict[str, Any]:
    """Return one unit's part of the body of /readyz.

    The part has `straggler` if a rank of the unit slows the others down, and `refused` if the unit gets no requests.
    """
    ranks = [_report_rank(rank) for rank in unit.ranks]
    found = unit.straggler
    slow = {} if found is None else {"straggler": {**ranks[found[0]], "times": round(found[1], 1)}}
    refused = {} if unit.refusal is None else {"refused": unit.refusal}
    return {"unit": unit.name, "phase": unit.phase, "ranks": ranks, **slow, **refused}


def _report_rank(rank: Rank) -> dict[str, Any]:
    """Return one rank's part of the body of /readyz, with `for_node` if `node` is a spare that replaces that node."""
    hello = rank.hello
    node = {"node": hello.node} | ({"for_node": hello.for_node} if hello.for_node else {})
    return {
        "rank": hello.rank,
        **node,
        "pid": hello.pid,
        "state": "refused" if rank.refusal and rank.state in ("joining", "ready") else rank.state,
        "loaded": round(rank.loaded, 3),
    }
