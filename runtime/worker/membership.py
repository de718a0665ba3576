"""A node's place in its unit: asked for at the unit's leader, and held for as long as the node's process lives.

The leader is the node to whose address the leader's name leads. It asks itself like any other node. In a cluster that
name has no address before the leader's pod runs, or still that of the pod before it, so it is looked up again until the
leader answers. When the connection breaks, the node asks again: a leader that was made anew must know who is here.

The ranks start with the first answer. Should a later one be another, their place is somebody else's, and they end.
"""

import asyncio
import ipaddress
import queue
import socket
import sys
import threading
from concurrent.futures import Future

from runtime.errors import PeerLost, RuntimeFailure, WireError
from runtime.launch import UnitLaunch
from runtime.protocol.frames import FrameReader, encode_frame
from runtime.protocol.messages import Claim, FromLeader, Place, Rejected, Wait
from runtime.protocol.sockets import detect_vanished_peer, listen, look_up
from runtime.worker.places import Roll

__all__ = ["Membership"]

JOIN_TIMEOUT_S = 3600.0  # assumed: the slowest node has its image by then
CALL_TIMEOUT_S = 10.0  # assumed: whoever is silent for so long is not the leader any more
RETRY_S = 0.5


class Membership:
    """One node's place in its unit. Its connection is on a thread of its own."""

    def __init__(self, launch: UnitLaunch, node: str, address: str, leader: str) -> None:
        self._launch, self._leader = launch, leader
        self._claim = Claim(launch.unit_digest, node, address)
        self._news: queue.SimpleQueue[int | BaseException] = queue.SimpleQueue()
        self._place: int | None = None
        self._is_placed = False  # by a leader that is here
        self._roll = Roll(launch)
        self._said = ""
        self._keeping_up: Future[None] | None = None  # asyncio holds tasks weakly: without it, the place could be lost

    def join(self) -> int:
        """Return this node's place, once the leader has given it one. Raise RuntimeFailure."""
        listener = listen(self._claim.address, self._launch.ports.places, "where the unit's nodes meet")
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="membership", daemon=True).start()
        self._keeping_up = asyncio.run_coroutine_threadsafe(self._keep_connected(listener), loop)
        self._keeping_up.add_done_callback(self._end)
        try:
            self._place = _place(self._news.get(timeout=JOIN_TIMEOUT_S))
        except queue.Empty:
            raise PeerLost(f"unit {self._launch.unit} gave this node no place: {self._said}") from None
        return self._place

    def check(self) -> None:
        """Raise PeerLost when the place is another's now, or raise what ended this thread."""
        while not self._news.empty():
            place = _place(self._news.get())
            if place != self._place:
                raise PeerLost(f"this node's ranks have place {self._place}, and the unit's leader gives it {place}")

    def is_whole(self) -> bool:
        """Return whether the unit has all its nodes. The leader's node sees all of them, every other sees the leader's.

        A node is gone as soon as its process ends, and `VANISHED_AFTER_S` after its machine or network fails. It is
        here however long its ranks take for a step. Read from any thread.
        """
        return self._is_placed and (self._roll.is_whole or not self._roll.is_leaders)

    async def _keep_connected(self, listener: socket.socket) -> None:
        """Hold the place, for ever. Raise RuntimeFailure when there is none for this node."""
        await asyncio.start_server(self._roll.serve, sock=listener)
        while True:
            try:
                leader = await asyncio.to_thread(look_up, self._leader, self._claim.address)
                self._roll.is_leaders = leader == str(ipaddress.ip_address(self._claim.address))
                await self._follow_leader(leader)
            except (OSError, WireError) as error:
                where = f"{self._leader}:{self._launch.ports.places}"
                self._complain(f"waiting for the unit's leader {where}: {error or type(error).__name__}")
            await asyncio.sleep(RETRY_S)

    async def _follow_leader(self, leader: str) -> None:
        """Heed what the leader says, until it goes away."""
        own = (self._claim.address, 0)  # as claimed, so that the leader can see that it is
        async with asyncio.timeout(CALL_TIMEOUT_S):
            stream, writer = await asyncio.open_connection(leader, self._launch.ports.places, local_addr=own)
        try:
            detect_vanished_peer(writer)
            writer.write(encode_frame(self._claim))
            frames: FrameReader[FromLeader] = FrameReader(stream, FromLeader)
            async with asyncio.timeout(CALL_TIMEOUT_S):
                frame = await frames.read()
            while frame is not None:
                self._heed(frame[0])
                frame = await frames.read()
        finally:
            self._is_placed = False
            writer.close()

    def _heed(self, message: FromLeader) -> None:
        match message:
            case Place(number=number):
                self._is_placed = True
                self._news.put(number)
            case Wait(reason=reason):
                self._complain(f"waiting for a place in unit {self._launch.unit}: {reason}")
            case Rejected(reason=reason):
                raise RuntimeFailure(f"the unit's leader refuses this node: {reason}")

    def _complain(self, sentence: str) -> None:
        """Say the sentence once, and only before the ranks have begun: after that they say what is wrong."""
        if self._place is None and sentence != self._said:
            print(f"tidemill: {sentence}", file=sys.stderr, flush=True)
        self._said = sentence

    def _end(self, keeping_up: "Future[None]") -> None:
        error = keeping_up.exception()
        assert error is not None  # it keeps up for ever
        self._news.put(error)


def _place(news: int | BaseException) -> int:
    if isinstance(news, BaseException):
        raise news
    return news
