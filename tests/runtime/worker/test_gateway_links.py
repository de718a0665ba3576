"""The rank's lines to several gateways, which the test plays over real sockets on loopback addresses."""

import asyncio

import pytest

from runtime.protocol.frames import FrameReader, encode_frame
from runtime.protocol.messages import (
    Abort,
    Dismissed,
    Embed,
    Expect,
    Failed,
    FromRank,
    Hello,
    Load,
    Rejected,
    State,
    StepTime,
    Token,
    gateway_name,
)
from runtime.worker import gateway_links
from runtime.worker.gateway_connection import GatewayAddress
from runtime.worker.gateway_links import GatewayLinks

HELLO = Hello("demo-prefill-0", "prefill", 0, 1, "node-0", 1, "sha256:unit", "sha256:kv", None, None)
HOSTS = ["127.0.0.31", "127.0.0.32"]
LOAD = Load(1, 0, 5, 15, 64, ["one-1"])


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(gateway_links, "LOOK_S", 0.01)
    monkeypatch.setattr(gateway_links, "RETRY_S", 0.01)
    monkeypatch.setattr(gateway_links, "RETRY_OTHER_S", 0.01)
    monkeypatch.setattr("runtime.worker.gateway_connection.RETRY_S", 0.01)


async def wait_until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


class Gateway:
    """A gateway at an address. `heard` has the rank's messages on all connections, unless it `refuses` the rank."""

    def __init__(self, refuses=False):
        self.heard, self.refuses, self.num_refused, self._writers = [], refuses, 0, []

    async def listen(self, host, port=0):
        self._server = await asyncio.start_server(self._serve, host, port)
        return self._server.sockets[0].getsockname()[1]

    def say(self, message):
        self._writers[-1].write(encode_frame(message))

    def requests_heard(self, *kinds):
        return [message for message in self.heard if isinstance(message, kinds)]

    async def leave(self):
        self._server.close()
        self.hang_up()

    def hang_up(self):
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader, writer):
        if self.refuses:
            writer.write(encode_frame(Rejected("its kv_digest is another")))
            writer.close()
            self.num_refused += 1
            return
        self._writers.append(writer)
        frames = FrameReader(reader, FromRank)
        while (frame := await frames.read()) is not None:
            self.heard.append(frame[0])


class Rank:
    """A rank's links, and the messages that came on them."""

    def __init__(self, port, hosts=HOSTS):
        self.received, self._tasks = [], []
        self.links = GatewayLinks(GatewayAddress(",".join(hosts), port), HELLO, self.received.append, self._start)
        self._start(self.links.run)

    def stop(self):
        for task in self._tasks:
            task.cancel()

    def _start(self, work):
        self._tasks.append(asyncio.ensure_future(work()))
        return self._tasks[-1]

    def failures(self):
        """Return the errors that ended the rank."""
        return [task.exception() for task in self._tasks if task.done()]


def run_with_two(use):
    """Run `use(rank, one, two)` once both gateways have heard Hello and have sent a request."""

    async def run():
        one, two = Gateway(), Gateway()
        port = await one.listen(HOSTS[0])
        await two.listen(HOSTS[1], port)
        rank = Rank(port)
        try:
            await wait_until(lambda: one.requests_heard(State) and two.requests_heard(State))
            one.say(Expect("one-1", "ticket"))
            two.say(Embed("two-1", [5]))
            await wait_until(lambda: len(rank.received) == 2)
            return await use(rank, one, two)
        finally:
            rank.stop()
            await one.leave()
            await two.leave()

    return asyncio.run(run())


def test_a_request_is_answered_to_the_gateway_whose_it_is():
    """A message about a request goes to its gateway only; state and load go to both."""

    async def use(rank, one, two):
        rank.links.say(Token("one-1", 0, 4, None))
        rank.links.say(Failed("two-1", "no room"))
        rank.links.say_load(LOAD)
        rank.links.say_to_all(StepTime(5))
        await wait_until(lambda: one.requests_heard(StepTime) and two.requests_heard(StepTime))
        return [
            (gateway.heard[0], gateway.requests_heard(Token, Failed), gateway.requests_heard(Load))
            for gateway in (one, two)
        ]

    assert run_with_two(use) == [
        (HELLO, [Token("one-1", 0, 4, None)], [LOAD]),
        (HELLO, [Failed("two-1", "no room")], [LOAD]),
    ]


def test_a_gateway_that_dies_ends_its_own_requests_only():
    """When a gateway dies, the rank drops its requests and goes on with the other's."""

    async def use(rank, one, two):
        await one.leave()
        rank.received.clear()
        while not rank.received:  # until the end of the line is noticed
            rank.links.say(Token("one-1", 0, 4, None))
            await asyncio.sleep(0.01)
        rank.links.say(Token("one-1", 1, 4, "stop"))
        rank.links.say(Token("two-1", 0, 4, None))
        await wait_until(lambda: two.requests_heard(Token))
        return rank.received, two.requests_heard(Token)

    assert run_with_two(use) == ([Abort("one-1")], [Token("two-1", 0, 4, None)])


def test_a_rank_may_leave_when_each_gateway_that_listens_has_let_it_go():
    """A rank may leave when every connected gateway has dismissed it; one that is gone does not count."""

    async def use(rank, one, two):
        told = [rank.links.is_dismissed]
        one.say(Dismissed())
        two.say(Abort("two-1"))  # read after what `one` said, or soon
        await wait_until(lambda: rank.received[-1] == Abort("two-1"))
        told.append(rank.links.is_dismissed)
        await two.leave()
        await wait_until(lambda: rank.links.is_dismissed)
        return told

    assert run_with_two(use) == [False, False]


def test_gateways_are_found_as_the_name_leads_to_them(monkeypatch):
    """A gateway that comes later gets the present state and load; one that is gone is not called again."""
    leads_to = [HOSTS[0]]

    async def run():
        one, two = Gateway(), Gateway()
        port = await one.listen(HOSTS[0])
        await two.listen(HOSTS[1], port)

        async def getaddrinfo(name, port, **_):
            return [(2, 1, 6, "", (host, port)) for host in leads_to] + [(10, 1, 6, "", ("::1", port, 0, 0))]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        rank = Rank(port, ["gateway"])
        rank.links.say_state(State("ready"))
        rank.links.say_load(LOAD)
        await wait_until(lambda: one.requests_heard(State))
        leads_to[:] = [HOSTS[1]]
        await wait_until(lambda: two.requests_heard(Load))
        assert set(rank.links._links) == set(HOSTS)  # it still listens, and may wait for answers
        await one.leave()
        await wait_until(lambda: set(rank.links._links) == {HOSTS[1]})
        rank.stop()
        await two.leave()
        return two.heard

    assert asyncio.run(run()) == [HELLO, State("ready"), Load(1, 0, 5, 15, 64, [])]


def test_a_rank_that_one_gateway_refuses_answers_the_other(capsys):
    """A rank that one gateway refuses still serves the other, and calls the first again."""

    async def run():
        old, new = Gateway(), Gateway(refuses=True)
        port = await old.listen(HOSTS[0])
        await new.listen(HOSTS[1], port)
        rank = Rank(port)
        await wait_until(lambda: old.requests_heard(State) and new.num_refused > 1)
        old.say(Embed("one-1", [5]))
        await wait_until(lambda: rank.received)
        rank.links.say(Failed("one-1", "no room"))
        await wait_until(lambda: old.requests_heard(Failed))
        new.refuses = False
        await wait_until(lambda: new.requests_heard(State))
        rank.stop()
        await old.leave()
        await new.leave()
        return rank.failures()

    assert asyncio.run(run()) == []
    said = "tidemill: waiting for another gateway: the gateway refuses this rank: its kv_digest is another\n"
    assert capsys.readouterr().err == said


def test_a_rank_that_every_gateway_refuses_ends():
    """A rank ends when every gateway refuses it, also when an accepting one was replaced by a refusing one."""

    async def run():
        one, two = Gateway(), Gateway(refuses=True)
        port = await one.listen(HOSTS[0])
        await two.listen(HOSTS[1], port)
        rank = Rank(port)
        await wait_until(lambda: one.requests_heard(State) and two.num_refused > 1)
        one.refuses = True
        one.hang_up()
        await wait_until(rank.failures)
        rank.stop()
        await one.leave()
        await two.leave()
        return {str(failure) for failure in rank.failures()}

    assert asyncio.run(run()) == {"the gateway refuses this rank: its kv_digest is another"}


def test_a_name_that_nobody_knows_for_a_while_costs_no_line(monkeypatch):
    """While DNS fails, the rank keeps its lines."""

    async def use(rank, one, two):
        async def getaddrinfo(*_, **__):
            raise OSError("no answer")

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        for _ in range(10):
            await asyncio.sleep(0.01)
        rank.links.say(Token("one-1", 0, 4, None))
        await wait_until(lambda: one.requests_heard(Token))
        return len(rank.links._links)

    assert run_with_two(use) == 2


@pytest.mark.parametrize(("request_id", "gateway"), [("ab12-cd34", "ab12"), ("cd34", ""), ("a-b-c", "a-b")])
def test_an_id_tells_whose_request_it_is(request_id, gateway):
    """A request's gateway is everything before the last dash of its id."""
    assert gateway_name(request_id) == gateway
