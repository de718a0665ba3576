"""The rank's connections to all gateways: one to each address to which the gateway's name resolves.

    names -> addresses, looked up again now and then -> a GatewayLink for each -> one inbox for all messages
    a message about a request   goes to that request's gateway, which its id names (`messages.gateway_name`)
    a message about this rank   goes to all gateways

A new gateway is called when the name leads to it. A gateway that is gone is forgotten when the name no longer leads to
it. No gateway needs another. When a gateway is gone, its requests are aborted here as soon as they have a token to
send: the gateway has failed them, and nobody else knows of them. A rank ends when every gateway refuses it, not before.
While gateways are replaced, old and new ones run side by side, and a rank that the new ones refuse still answers
requests of the old ones. `gateway_connection.py` keeps each connection up.
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

LOOK_S = 5.0  # assumed: how long a new gateway may have no ranks; a thousand ranks send DNS 200 queries a second

Start = Callable[[Callable[[], Coroutine[Any, Any, None]]], asyncio.Task[None]]


class GatewayLinks:
    """All connections to gateways. Used from one event loop.

    `start` starts a task whose failure ends the rank.
    """

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
        """True if this draining rank owes no answer to a connected gateway."""
        return all(link.is_dismissed for link in list(self._links.values()) if link.is_connected)

    @property
    def is_admitted(self) -> bool:
        """True if a gateway is connected, and no connected one refuses the weights that this rank loaded."""
        listening = [link for link in self._links.values() if link.is_connected]
        return bool(listening) and not any(link.is_refused for link in listening)

    async def run(self) -> None:
        """Keep a connection to each gateway until cancelled."""
        while True:
            self._follow(await self._look_up_addresses())
            are_up = bool(self._links) and all(link.is_connected for link in self._links.values())
            await asyncio.sleep(LOOK_S if are_up else RETRY_S)

    def say_state(self, state: State) -> None:
        """Send this rank's state to every gateway. A gateway that connects later gets it then."""
        self._state = state
        for link in self._links.values():
            link.say_state(state)

    def say_hello_again(self, loaded: Hello) -> None:
        """Send what this rank has loaded to every gateway. A gateway that connects later gets it then."""
        self._loaded_hello = loaded
        for link in self._links.values():
            link.say_hello_again(loaded)

    def say_load(self, load: Load) -> None:
        """Send this rank's load to every gateway. A gateway that connects later gets it then."""
        self._load = load
        for link in self._links.values():
            link.say_load(load)

    def repeat_state(self) -> None:
        """Send the state again, as a sign that this rank's steps go on."""
        self.say_state(self._state)

    def say_to_all(self, message: msgspec.Struct) -> None:
        """Send a message to every connected gateway."""
        for link in self._links.values():
            link.send(message)

    def say(self, message: PrefixHit | Token | Embedding | Failed) -> None:
        """Send a message about a request to the request's gateway.

        If that gateway is not connected, and the message is a token but not the last, abort the request on this rank.
        """
        gateway = gateway_name(message.request_id)
        for link in self._links.values():
            if link.is_connected and link.gateway == gateway:
                link.send(message)
                return
        if isinstance(message, Token) and message.finish_reason is None:
            self._receive(Abort(message.request_id))

    def _follow(self, addresses: set[str]) -> None:
        """Connect to gateways at new addresses, and give up unconnected ones whose address is no longer found."""
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
        """Keep one gateway's connection open until cancelled. Raises Refused if every gateway refuses this rank."""
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
        """Return the addresses of all gateways. If a name cannot be resolved now, return the earlier addresses too."""
        found: set[str] = set()
        for name in self._gateway.host.split(","):
            try:
                answers = await asyncio.get_running_loop().getaddrinfo(
                    name, self._gateway.port, type=socket.SOCK_STREAM
                )
            except OSError:
                found |= set(self._links)
            else:  # one address family only: to a gateway, calls to two of its addresses look like two processes
                found |= {str(address[0]) for family, _, _, _, address in answers if family == answers[0][0]}
        return found
