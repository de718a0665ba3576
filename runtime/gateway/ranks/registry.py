"""The ranks behind the gateway: it takes their connections, checks who they are, and knows which units are ready.

    connection -> Hello (within a deadline) -> admitted as loading -> State ... -> ready -> connection gone -> lost

The invariants: a unit is ready when all its `num_ranks` ranks are connected and ready; the known ranks of a unit
have one unit_digest and one `num_ranks`; every connected rank has the gateway's kv_digest; ready units have loaded the
same weights (`served_weights.py`). So any ready prefill unit and any ready decode unit exchange KV.
Whoever breaks the protocol loses the connection, with one line in the log, and nobody else is touched. A process that
calls again, because its end of the connection broke first, takes its own place: it says the same Hello, digest and
process id included, from the same address. Whoever has copied a Hello takes nothing from its rank. A rank whose
certificate ends soon calls once more, and goes on there with what it has to do (Renewal); one whose certificate has
expired loses its connection.
A rank that serves and is silent is given up, though its connection may stand: a process that hangs or is stopped closes
nothing (`silence.py`).
It does not start, stop or reconnect ranks: they come by themselves.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

from runtime.errors import WireError, WireVersionError
from runtime.gateway.edge.strangers import Strangers
from runtime.gateway.ranks.rank_connection import Rank
from runtime.gateway.ranks.rank_load import RankLimits, RankLoad, RequestSize
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
from runtime.gateway.ranks.served_tokenizer import ServedTokenizer
from runtime.gateway.ranks.served_weights import ServedWeights
from runtime.gateway.ranks.silence import watch_ranks
from runtime.gateway.ranks.stragglers import find_straggler
from runtime.protocol.bounds import why_no_address
from runtime.protocol.frames import FrameReader, encode_frame
from runtime.protocol.messages import FromRank, Hello, Moved, Rejected, Renewal, State
from runtime.protocol.sockets import notice_a_vanished_peer
from runtime.protocol.tls import identity, seconds_valid

__all__ = ["SMALLEST", "Registry", "Unit"]

HELLO_TIMEOUT_S = 5.0
SMALLEST = RequestSize(1, 1)
MAX_SHOWN = 63  # characters of a unit that is refused
MAX_RANKS = 2**16  # of a unit. assumed: more than any model has experts
MAX_NAME = 253  # as Kubernetes' names of nodes; a unit's is shorter. Whoever is admitted is named in the log

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Unit:
    """The ranks of one unit that have presented themselves, in order."""

    name: str
    phase: Literal["prefill", "decode", "mixed"]
    num_ranks: int
    ranks: tuple[Rank, ...]

    @property
    def is_ready(self) -> bool:
        """True if all ranks are here and ready, and none is refused."""
        return len(self.ranks) == self.num_ranks and all(rank.serves for rank in self.ranks)

    @property
    def refusal(self) -> str | None:
        """Why a unit whose ranks are here gets no requests; None if it may have some."""
        return next((rank.refusal for rank in self.ranks if rank.refusal and rank.state != "lost"), None)

    @property
    def straggler(self) -> tuple[int, float] | None:
        """The place of a rank that holds up the others of a ready unit, and how many times longer it takes; or None."""
        return find_straggler([rank.own_step_us for rank in self.ranks]) if self.is_ready else None


class Registry:
    """All ranks that are connected, or were lately."""

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
        """Take the ranks of units whose certificates name `units_identity` and the unit; None asks for no certificate.

        A rank whose steps stand still for `stall_timeout_s` is given up. `weights_file` outlives this process. Ranks
        that say which tokenizer they read must have read `tokenizer`. Raise RuntimeFailure.
        """
        self.strangers = Strangers()
        self._kv_digest, self._units_identity = kv_digest, units_identity
        self._limits, self._policy = limits, policy
        self._stall_timeout_s = stall_timeout_s
        self._weights, self._tokenizer = ServedWeights(weights_file), tokenizer
        self._roster = Roster()
        self._units: list[Unit] | None = None  # of its ranks, until one comes or is forgotten
        self._turns = count()
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._is_closing = False
        self._on_room: Callable[[], None] = lambda: None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one rank's connection, from Hello to its end."""
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        host, *_ = writer.get_extra_info("peername") or ("",)  # nothing of one that has left
        self.strangers.add(writer, host, writer.transport.abort)
        notice_a_vanished_peer(writer)
        try:
            await self._follow(FrameReader(reader, FromRank), writer)
        except (WireError, OSError) as error:
            if isinstance(error, WireVersionError):  # any frame will do: its prefix tells the rank our version
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
        """Give up ranks that are silent, for ever."""
        await watch_ranks(lambda: self._roster, self._stall_timeout_s, log.warning)

    def units(self) -> list[Unit]:
        """Return every known unit, by name."""
        if self._units is None:
            self._units = self._group_ranks()
        return self._units

    def _group_ranks(self) -> list[Unit]:
        return [
            Unit(name, ranks[0].hello.phase, ranks[0].hello.num_ranks, tuple(ranks))
            for name, ranks in self._roster.group_by_unit()
        ]

    def choose_ranks(self, size: RequestSize) -> tuple[Rank, Rank] | None:
        """Return the rank for the next request's prompt and the rank for its tokens: the same rank in a mixed unit.

        It is None while no unit of a phase is ready, or no rank takes a request of this size.
        """
        chosen = choose_ranks(self._loads(), size, next(self._turns), self._policy)
        return None if chosen is None else (self._roster[chosen.first.key], self._roster[chosen.rest.key])

    def room(self, size: RequestSize = SMALLEST) -> int | None:
        """Return how many more requests of this size may come; None while no unit of a phase is ready."""
        return room(self._loads(), size)

    def choose_embedding_rank(self, size: RequestSize) -> Rank | None:
        """Return the rank for a prompt that only wants its embedding; None while no unit of a phase is ready."""
        chosen = choose_embedding_rank(self._loads(), size, next(self._turns), self._policy)
        return None if chosen is None else self._roster[chosen.key]

    def embedding_room(self, size: RequestSize = SMALLEST) -> int | None:
        """Return how many more such prompts, of any size, may come; None while no unit of a phase is ready."""
        return embedding_room(self._loads())

    def num_requests(self) -> int:
        """Return how many requests there are, each counted where it stays to its end."""
        return num_requests(self._loads())

    def num_prompt_ranks(self) -> int:
        """Return how many ranks of ready units compute prompts."""
        return num_ranks(self._loads())[0]

    def num_answer_ranks(self) -> int:
        """Return with how many ranks of ready units requests stay."""
        return num_ranks(self._loads())[1]

    def least_prompt_tokens(self) -> int | None:
        """Return what the rank has left to compute that has least; None while no unit of a phase is ready."""
        return least_prompt_tokens(self._loads())

    def call_on_room(self, call: Callable[[], None]) -> None:
        """Call `call` after whatever may have freed a place, or made units ready or not."""
        self._on_room = call

    def report(self) -> dict[str, Any]:
        """Return the body of /readyz.

        Its `pid` tells whoever started a gateway here that this is the one that answers.
        """
        units = self.units()
        ready_phases = {unit.phase for unit in units if unit.is_ready}
        is_ready = {"prefill", "decode"} <= ready_phases or "mixed" in ready_phases
        return {"ready": is_ready, "pid": os.getpid(), "units": [_report_unit(unit) for unit in units]}

    def give_up(self, reason: str) -> None:
        """Fail every request that is still running, for good."""
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
                self._roster.lose(rank)
                self._units = None
                self._weights.lose(rank, self._roster)
                if self._tokenizer is not None:
                    self._tokenizer.lose(rank, list(self._roster))

    async def _identify(self, frames: FrameReader[FromRank], writer: asyncio.StreamWriter) -> Rank:
        """Return the rank whose connection this is from now on: a new one, or one that goes on here."""
        first = await frames.first("Hello", HELLO_TIMEOUT_S)
        if isinstance(first, Renewal):
            return await self._renew(first.hello, writer)
        if not isinstance(first, Hello):
            raise WireError(f"its first message is {type(first).__name__}, not Hello")
        rank = self._admit(first, writer)
        log.info("%s on %s joined", rank, _describe_node(rank))
        return rank

    async def _renew(self, hello: Hello, writer: asyncio.StreamWriter) -> Rank:
        """Return the rank that said this Hello, once it has moved here."""
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
            unit = hello.unit[:MAX_SHOWN]  # so that a line that is cut has the reason
            raise WireError(f"rank {hello.rank} of unit {unit} is refused: {refusal.log_message}")
        self._drop_predecessors(hello)
        rank = Rank(hello, writer, self._limits, lambda: self._on_room())
        self._roster.add(rank)
        self._units = None
        return rank

    async def _read_messages(self, frames: FrameReader[FromRank], rank: Rank) -> bool:
        """Let the rank take what it says, to the end. Return whether it goes on, on another connection."""
        while (message := frames.whole_here() or await _read_message(frames)) is not None:
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
        """Refuse whoever has proven to be somebody else than a rank of the unit that it names. Raise WireError."""
        if self._units_identity is None:
            return
        proven = identity(writer)
        if proven != self._units_identity + hello.unit:
            writer.write(encode_frame(Rejected("its certificate is not of the unit that it names")))
            unit, shown = ascii(hello.unit[:MAX_SHOWN]), ascii(proven)[:MAX_NAME]
            raise WireError(f"it says that it is of unit {unit}, its certificate is of {shown}")

    def _hang_up_predecessor(self, hello: Hello, writer: asyncio.StreamWriter) -> None:
        """Hang up an earlier connection of the same process, which calls again before its breaking was noticed here."""
        known = self._roster.get(hello.unit, hello.rank)
        if known is not None and known.state != "lost" and known.hello == hello and known.shares_host(writer):
            log.info("%s on %s calls again", known, hello.node)
            known.hang_up(f"{known} lost its connection")

    def _drop_predecessors(self, hello: Hello) -> None:
        """Drop the lost ranks of an earlier launch of this unit, which all are of one: they are nobody's peers now."""
        known = next(iter(self._roster.unit_ranks(hello.unit)), None)
        if known is not None and _launch_identity(known.hello) != _launch_identity(hello):
            self._roster.drop_unit(hello.unit)


async def _read_message(frames: FrameReader[FromRank]) -> FromRank | None:
    frame = await frames.read()
    return None if frame is None else frame[0]


@dataclass(frozen=True)
class _Refusal:
    """The reason why a rank cannot serve here. A caller is told less than the log: no digest or name but its own."""

    message: str
    log_message: str


def _find_refusal(hello: Hello, kv_digest: str, peers: Iterable[Hello]) -> _Refusal | None:
    """Return why this rank cannot serve here, or None. `peers` are the connected ranks of its unit."""
    if hello.kv_digest != kv_digest:
        said = f"its kv_digest is {hello.kv_digest}, "
        return _Refusal(said + "the gateway's is another", said + f"the gateway's is {kv_digest}")
    wrong = _find_fault(hello)
    if wrong is not None:
        return _Refusal(wrong, wrong)
    for peer in peers:
        if peer.rank == hello.rank:
            who = f"process {peer.pid} on {peer.node}"
            return _Refusal("another process is connected as that rank", f"{who} is connected as that rank")
        if _launch_identity(peer) != _launch_identity(hello):
            said = f"it was launched as {_launch_identity(hello)}, "
            detail = f"rank {peer.rank} as {_launch_identity(peer)}"
            return _Refusal(said + f"rank {peer.rank} otherwise", said + detail)
    return None


def _find_fault(hello: Hello) -> str | None:
    """Return what no rank may say of itself, whoever else is there; or None."""
    for field, name in (("unit", hello.unit), ("node", hello.node), ("for_node", hello.for_node or "")):
        if len(name) > MAX_NAME or not name.isprintable():
            return f"its {field} is no name of at most {MAX_NAME} characters that can be shown"
    if not 0 <= hello.rank < hello.num_ranks <= MAX_RANKS:
        return f"it counts {hello.num_ranks} ranks"
    if hello.phase != "decode":
        return None
    if hello.kv_host is None or hello.kv_port is None:
        return "it is a decode rank and takes no KV"
    unreachable = why_no_address(hello.kv_host, hello.kv_port)
    return None if unreachable is None else f"it takes KV where nobody can send it: {unreachable}"


def _launch_identity(hello: Hello) -> str:
    """Return what the ranks of one unit have in common, in words."""
    return f"{hello.phase} of {hello.num_ranks} with unit_digest {hello.unit_digest}"


def _describe_node(rank: Rank) -> str:
    """Return `node-7`, or `spare node-7 for node-2`."""
    hello = rank.hello
    return f"spare {hello.node} for {hello.for_node}" if hello.for_node else hello.node


def _report_unit(unit: Unit) -> dict[str, Any]:
    """Return the unit's part of the report.

    `find_straggler` is there when one of its ranks holds up the others, `refused` when it gets no requests.
    """
    ranks = [_report_rank(rank) for rank in unit.ranks]
    found = unit.straggler
    slow = {} if found is None else {"straggler": {**ranks[found[0]], "times": round(found[1], 1)}}
    refused = {} if unit.refusal is None else {"refused": unit.refusal}
    return {"unit": unit.name, "phase": unit.phase, "ranks": ranks, **slow, **refused}


def _report_rank(rank: Rank) -> dict[str, Any]:
    """Return the rank's part of the report. `for_node` is there when `node` is a spare that stands in for it."""
    hello = rank.hello
    where = {"node": hello.node} | ({"for_node": hello.for_node} if hello.for_node else {})
    return {
        "rank": hello.rank,
        **where,
        "pid": hello.pid,
        "state": "refused" if rank.refusal and rank.state in ("joining", "ready") else rank.state,
        "loaded": round(rank.loaded, 3),
    }
