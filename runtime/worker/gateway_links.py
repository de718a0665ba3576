"""The rank's lines to all gateways: one to each address that the gateway's name leads to.

    names -> addresses, asked again now and then -> a GatewayLink for each -> messages of all gateways, in one inbox
    what is said of a request      -> the gateway whose request it is, which its id tells (`messages.gateway_name`)
    what is said of this rank      -> all gateways

A gateway that comes later is called when the name leads to it, one that is gone is forgotten when the name no longer
does. No gateway is needed for another's requests. Those of a gateway that is gone are aborted here when they have a
token to tell: it has failed them, and nobody else knows of them.
One that refuses this rank ends it only when all others do: while gateways are replaced, old and new ones stand side by
side, and a rank that the new ones refuse has answers of the old ones to give.
It does not keep a line up (`gateway_connection.py` does).
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from runtime.protocol.messages import (
    Abort,
    Embedding,
    Failed,
    FromGateway,
    Hello,
    Load,
    PrefixHit,
    State,
    Token,
    gateway_name,
)
from runtime.worker.gateway_connection import (
    RETRY_OTHER_S,
    RETRY_S,
    GatewayAddress,
    GatewayLink,
    Refused,
    complain,
)

__all__ = ["GatewayLinks"]

LOOK_S = 5.0  # assumed: a new gateway has no ranks for so long, and a thousand ranks ask DNS 200 times a second

Start = Callable[[Callable[[], Coroutine[Any, Any, None]]], asyncio.Task[None]]


class GatewayLinks:
    """Used from one event loop, as each link is. `start` runs a task, and ends the rank when it fails."""

    def __init__(
        self, gateway: GatewayAddress, hello: Hello, receive: Callable[[FromGateway], None], start: Start
    ) -> None:
        self._gateway, self._hello, self._receive, self._start = gateway, hello, receive, start
        self._loaded_hello = hello
        self._links: dict[str, GatewayLink] = {}  # by address
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._refused: set[str] = set()  # addresses of gateways that have just refused this rank
        self._state = State("loading", 0.0)
        self._load: Load | None = None

    @property
    def is_dismissed(self) -> bool:
        """True if no gateway that listens waits for anything from this rank, which is draining."""
        return all(link.is_dismissed for link in list(self._links.values()) if link.is_connected)

    @property
    def is_admitted(self) -> bool:
        """True if somebody listens, and nobody who does refuses what this rank loaded."""
        listening = [link for link in self._links.values() if link.is_connected]
        return bool(listening) and not any(link.is_refused for link in listening)

    async def run(self) -> None:
        """Keep a line to each gateway, for ever."""
        while True:
            self._follow(await self._look_up_addresses())
            are_up = bool(self._links) and all(link.is_connected for link in self._links.values())
            await asyncio.sleep(LOOK_S if are_up else RETRY_S)

    def say_state(self, state: State) -> None:
        """Tell every gateway this rank's state, now and when it comes."""
        self._state = state
        for link in self._links.values():
            link.say_state(state)

    def say_hello_again(self, loaded: Hello) -> None:
        """Tell every gateway what this rank has loaded, now and when it comes."""
        self._loaded_hello = loaded
        for link in self._links.values():
            link.say_hello_again(loaded)

    def say_load(self, load: Load) -> None:
        """Tell every gateway this rank's load, now and when it comes."""
        self._load = load
        for link in self._links.values():
            link.say_load(load)

    def repeat_state(self) -> None:
        """Tell the state again, which tells that this rank's steps go on."""
        self.say_state(self._state)

    def say_to_all(self, message: msgspec.Struct) -> None:
        """Tell every gateway that listens."""
        for link in self._links.values():
            link.send(message)

    def say(self, message: PrefixHit | Token | Embedding | Failed) -> None:
        """Tell something of a request to the gateway whose it is."""
        gateway = gateway_name(message.request_id)
        for link in self._links.values():
            if link.is_connected and link.gateway == gateway:
                link.send(message)
                return
        if isinstance(message, Token) and message.finish_reason is None:
            self._receive(Abort(message.request_id))

    def _follow(self, addresses: set[str]) -> None:
        """Call gateways that are new, and give up those that are gone."""
        for address in addresses - set(self._links):
            link = self._links[address] = GatewayLink(replace(self._gateway, host=address), self._hello, self._receive)
            link.say_hello_again(self._loaded_hello)
            link.say_state(self._state)
            if self._load is not None:
                link.say_load(self._load)
            self._tasks[address] = self._start(partial(self._keep_connected, address, link))
        for address in [each for each in self._links if each not in addresses]:
            if not self._links[address].is_connected:
                del self._links[address]
                self._refused.discard(address)
                self._tasks.pop(address).cancel()

    async def _keep_connected(self, address: str, link: GatewayLink) -> None:
        """Keep the line up, for ever. Raise Refused when every gateway refuses this rank."""
        complained = False
        while True:
            try:
                await link.run()
            except Refused as refusal:
                self._refused.add(address)
                if self._refused == set(self._links):
                    raise
                complained = complained or complain(str(refusal))
            await asyncio.sleep(RETRY_OTHER_S)
            self._refused.discard(address)

    async def _look_up_addresses(self) -> set[str]:
        """Return where the names lead; while one is not known, where they led before, too."""
        found: set[str] = set()
        for name in self._gateway.host.split(","):
            try:
                answers = await asyncio.get_running_loop().getaddrinfo(
                    name, self._gateway.port, type=socket.SOCK_STREAM
                )
            except OSError:
                found |= set(self._links)
            else:  # of one family: a gateway has one address, and would take a second call for another process
                found |= {str(address[0]) for family, _, _, _, address in answers if family == answers[0][0]}
        return found
