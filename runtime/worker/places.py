"""The leader's choice of a place for each node of its unit, before any rank is started.

The launch file numbers a unit's places, each with the node that was planned for it, and names spares. A place has its
ranks, and so its experts, whichever node takes it.

    a planned node   gets its own place, whenever it comes
    a spare          gets a free place, once there are as many waiting spares as free places; the first gets the first

Spares wait because the planned node of a free place may only be late. A node is here while its connection is open, and
keeps its place that long. After that the node may come back, or another may take its place.

When a pod's process starts again, its connection replaces the earlier one. A caller from elsewhere that uses the name
of a connected node gets nothing: it waits until that node's connection ends.
"""

import asyncio
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from runtime.errors import WireError
from runtime.launch import UnitLaunch
from runtime.protocol.complaints import Complaints
from runtime.protocol.frames import FrameReader, encode_frame
from runtime.protocol.messages import Claim, FromLeader, Place, Rejected, Wait
from runtime.protocol.sockets import detect_vanished_peer, has_peer_address, write_or_hang_up

__all__ = ["Roll", "give_places"]

CLAIM_TIMEOUT_S = 5.0


def give_places(
    planned: Sequence[str], spares: Sequence[str], here: Collection[str], given: Mapping[str, int]
) -> dict[str, int]:
    """Return node -> place for the connected nodes (`here`) that get a place.

    A node keeps the place that it was `given`, and a planned node gets its own. Spares get the places left over once
    enough of them are connected for all of these, and none before.
    """
    places = {node: place for node, place in given.items() if node in here}
    for place, node in enumerate(planned):
        if node in here and place not in places.values():
            places[node] = place
    free = [place for place in range(len(planned)) if place not in places.values()]
    waiting = [spare for spare in spares if spare in here and spare not in places]
    if len(waiting) >= len(free):
        places.update(zip(waiting, free, strict=False))
    return places


@dataclass
class _Member:
    """A connected node of the unit."""

    claim: Claim
    writer: asyncio.StreamWriter
    last_sent: Place | Wait | None = None


class Roll:
    """The leader's list of connected nodes and their places. Used from one event loop.

    Every node listens, and tells callers to wait until it is the leader.
    """

    def __init__(self, launch: UnitLaunch) -> None:
        self.is_leaders = False
        self._launch = launch
        self._members: dict[str, _Member] = {}
        self._places: dict[str, int] = {}
        self._complain = Complaints(_log_sentence)

    @property
    def is_whole(self) -> bool:
        """True if every place has a connected node. May be read from any thread."""
        return len(self._places) == len(self._launch.places)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one node's connection, from its claim to its end."""
        detect_vanished_peer(writer)
        try:
            frames = FrameReader(reader, Claim)
            await self._follow(await frames.read_first("claim", CLAIM_TIMEOUT_S), frames, writer)
        except (WireError, OSError) as error:
            self._complain(f"closed the connection of {writer.get_extra_info('peername')}: {error}")
        finally:
            writer.close()

    async def _follow(self, claim: Claim, frames: FrameReader[Claim], writer: asyncio.StreamWriter) -> None:
        refusal = self._refusal(claim, writer)
        if refusal is not None:
            writer.write(encode_frame(refusal))
            return
        member = self._enter(claim, writer)
        try:
            if await frames.read() is not None:
                raise WireError(f"node {claim.node} claims twice")
        finally:
            if self._members.get(claim.node) is member:
                del self._members[claim.node]
                self._send_answers()

    def _refusal(self, claim: Claim, writer: asyncio.StreamWriter) -> FromLeader | None:
        """Return the answer to a claim that is refused: Wait, or Rejected if no such node can ever be in the unit.

        Return None for a claim to accept.
        """
        launch = self._launch
        if not self.is_leaders:
            return Wait("who was called does not lead the unit")
        if claim.unit_digest != launch.unit_digest:
            return Wait("the leader was launched with another launch file")
        if claim.node not in (*launch.places, *launch.spares):
            return Rejected(f"node {claim.node} is neither planned for unit {launch.unit} nor a spare")
        known = self._members.get(claim.node)
        if known is not None and known.claim.address != claim.address:
            both = f"{claim.address!r} and {known.claim.address!r}"
            self._complain(f"{both} both say that they are on node {claim.node}")
            return Wait(f"another pod is here from node {claim.node}")
        if known is not None and not has_peer_address(writer, claim.address):
            self._complain(f"{writer.get_extra_info('peername')} says that it is {claim.address!r}, which is here")
            return Wait(f"{claim.address} is here, and this connection does not come from there")
        return None

    def _enter(self, claim: Claim, writer: asyncio.StreamWriter) -> _Member:
        """Add the node that makes this claim.

        A pod whose process starts again replaces its earlier connection, even an open one.
        """
        before = self._members.get(claim.node)
        member = self._members[claim.node] = _Member(claim, writer)
        if before is not None:
            before.writer.transport.abort()
        self._send_answers()
        return member

    def _send_answers(self) -> None:
        """Assign places anew, and send each node its new answer if the answer has changed."""
        planned, spares = self._launch.places, self._launch.spares
        self._places = give_places(planned, spares, self._members.keys(), self._places)
        for node, member in self._members.items():
            news = Place(self._places[node]) if node in self._places else Wait(self._explain_wait(node))
            if news != member.last_sent:
                member.last_sent = news
                write_or_hang_up(member.writer, encode_frame(news))

    def _explain_wait(self, node: str) -> str:
        planned = self._launch.places
        if node in planned:
            taken_by = next(other for other, place in self._places.items() if place == planned.index(node))
            return f"spare {taken_by} has the place of node {node}"
        missing = ", ".join(name for place, name in enumerate(planned) if place not in self._places.values())
        return f"a spare waits until all nodes are here; missing are {missing}" if missing else "no place is free"


def _log_sentence(sentence: str) -> None:
    """Log a sentence without the prefix of errors, since nothing ends.

    An unknown peer may have written parts of the sentence.
    """
    print(f"places: {sentence}", file=sys.stderr, flush=True)
