"""A node's place in its unit. The unit's leader gives it, and the node keeps it as long as its process lives.

The leader is the node at the address of the leader's name. It asks itself, as any other node does. In a cluster the
name has no address before the leader's pod runs, or still has the address of an earlier pod. So the name is looked up
again until the leader answers. When the connection breaks, the node asks again, because a restarted leader must learn
who is here.

The ranks start with the first place. If a later answer names another place, the ranks end: another node has theirs.
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
CALL_TIMEOUT_S = 10.0  # assumed: a process that is silent for so long is not the leader any more
RETRY_S = 0.5


class Membership:
    """One node's place in its unit. Its connection to the leader is on a thread of its own."""

    def __init__(self, launch: UnitLaunch, node: str, address: str, leader: str) -> None:
        self._launch, self._leader = launch, leader
        self._claim = Claim(launch.unit_digest, node, address)
        self._news: queue.SimpleQueue[int | BaseException] = queue.SimpleQueue()
        self._place: int | None = None
        self._is_placed = False  # whether a connected leader has given this node a place
        self._roll = Roll(launch)
        self._said = ""
        self._keeping_up: Future[None] | None = None  # kept here, because asyncio has only weak references to tasks

    def join(self) -> int:
        """Wait until the leader has given this node a place, and return the place's number.

        Raises RuntimeFailure if the leader refuses a place, or gives none within `JOIN_TIMEOUT_S`.
        """
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
        """Raises PeerLost if the leader gives this node another place, or the error that ended this object's thread."""
        while not self._news.empty():
            place = _place(self._news.get())
            if place != self._place:
                raise PeerLost(f"this node's ranks have place {self._place}, and the unit's leader gives it {place}")

    def is_whole(self) -> bool:
        """Return whether the unit has all its nodes.

        The leader sees all nodes, every other node sees only the leader.

        A node is gone as soon as its process ends, or `VANISHED_AFTER_S` after its machine or network fails. A long
        step of its ranks does not matter. Read from any thread.
        """
        return self._is_placed and (self._roll.is_whole or not self._roll.is_leaders)

    async def _keep_connected(self, listener: socket.socket) -> None:
        """Keep this node's place until cancelled. Raises RuntimeFailure if the unit has no place for it."""
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
        """Read the leader's answers until its connection ends."""
        own = (self._claim.address, 0)  # the claimed address, so that the leader can verify it
        async with asyncio.timeout(CALL_TIMEOUT_S):
            stream, writer = await asyncio.open_connection(leader, self._launch.ports.places, local_addr=own)
        try:
            detect_vanished_peer(writer)
            writer.write(encode_frame(self._claim))
            frames: FrameReader[FromLeader] = FrameReader(stream, FromLeader)
            async with asyncio.timeout(CALL_TIMEOUT_S):
                frame = await frames.read()
            while frame is not None:
                self._obey(frame[0])
                frame = await frames.read()
        finally:
            self._is_placed = False
            writer.close()

    def _obey(self, message: FromLeader) -> None:
        match message:
            case Place(number=number):
                self._is_placed = True
                self._news.put(number)
            case Wait(reason=reason):
                self._complain(f"waiting for a place in unit {self._launch.unit}: {reason}")
            case Rejected(reason=reason):
                raise RuntimeFailure(f"the unit's leader refuses this node: {reason}")

    def _complain(self, sentence: str) -> None:
        """Log a sentence once, and only before the ranks start: after that they log problems themselves."""
        if self._place is None and sentence != self._said:
            print(f"tidemill: {sentence}", file=sys.stderr, flush=True)
        self._said = sentence

    def _end(self, keeping_up: "Future[None]") -> None:
        error = keeping_up.exception()
        assert error is not None  # it never ends by itself
        self._news.put(error)


def _place(news: int | BaseException) -> int:
    if isinstance(news, BaseException):
        raise news
    return news
