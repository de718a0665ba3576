"""The leader gives each node of its unit one place, even if nodes come late, twice, or from elsewhere."""

import asyncio
import contextlib
import gc
import socket
import threading
import time
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import PeerLost, RuntimeFailure
from runtime.launch import read_unit_launch
from runtime.protocol import sockets
from runtime.protocol.frames import FrameReader, encode_frame
from runtime.protocol.messages import Claim, FromLeader, Place, Rejected, Wait
from runtime.worker import membership
from runtime.worker.membership import Membership
from runtime.worker.places import Roll, give_places
from tests.runtime.launch_documents import UNIT, seal, write

PLANNED, SPARES = ["node-0", "node-1", "node-2"], ["node-7", "node-8", "node-9"]
LEADER, WORKER, OTHER = "127.79.9.1", "127.79.9.2", "127.79.9.3"
PATIENCE_S = 60


@pytest.mark.parametrize(
    ("here", "places"),
    [
        (["node-1"], {"node-1": 1}),
        (["node-7"], {}),
        (["node-7", "node-0"], {"node-0": 0}),
        (["node-0", "node-7", "node-2"], {"node-0": 0, "node-7": 1, "node-2": 2}),
        (["node-8", "node-7", "node-2"], {"node-7": 0, "node-8": 1, "node-2": 2}),
        (["node-9", "node-8", "node-7"], {"node-7": 0, "node-8": 1, "node-9": 2}),
        ([*PLANNED, "node-7"], {"node-0": 0, "node-1": 1, "node-2": 2}),
    ],
)
def test_a_planned_node_has_its_own_place_and_a_spare_the_missing_one(here, places):
    """In any order of arrival, a planned node gets its own place, and a spare the missing one."""
    for order in permutations(here):
        given_so_far = {}
        for number in range(len(order)):
            given_so_far = give_places(PLANNED, SPARES, order[: number + 1], given_so_far)

        assert give_places(PLANNED, SPARES, order, {}) == places
        if len(here) <= len(PLANNED):
            assert given_so_far == places


events = st.lists(st.sampled_from([*PLANNED, *SPARES]), max_size=30)


@given(events)
def test_no_place_is_anothers_and_none_is_taken_away(nodes):
    """Places are never shared; a node that stays keeps its place, and one that left has none."""
    here, places = [], {}
    for node in nodes:
        here = [each for each in here if each != node] if node in here else [*here, node]
        after = give_places(PLANNED, SPARES, here, places)

        assert len(set(after.values())) == len(after)
        assert set(after.values()) <= set(range(len(PLANNED)))
        assert after.keys() <= set(here)
        assert all(after[each] == place for each, place in places.items() if each in here)
        places = after


@given(st.sets(st.sampled_from([*PLANNED, *SPARES]), min_size=len(PLANNED), max_size=len(PLANNED)))
def test_as_many_nodes_as_places_have_them_all(here):
    """As many nodes as there are places get all of them."""
    assert set(give_places(PLANNED, SPARES, here, {}).values()) == set(range(len(PLANNED)))


@pytest.fixture
def launch(tmp_path, free_port):
    """Return the launch file of a unit of two places and a spare, on its own port."""
    return read_unit_launch(write(tmp_path, seal(UNIT, ports__places=free_port(LEADER, WORKER, OTHER))))


def run_with_roll(launch, talk):
    """Run `talk(connect)` beside a leader's roll.

    `connect(address)` opens a connection from there, and sends nothing.
    """

    async def run():
        roll = Roll(launch)
        roll.is_leaders = True
        server = await asyncio.start_server(roll.serve, LEADER, launch.ports.places)

        async def connect(address=OTHER):
            return await asyncio.open_connection(LEADER, launch.ports.places, local_addr=(address, 0))

        async with asyncio.timeout(PATIENCE_S), server:
            await talk(connect)

    asyncio.run(run())


class Node:
    """A node that has sent its claim, as the leader sees it."""

    def __init__(self, stream, writer):
        self.writer = writer
        self.frames = FrameReader(stream, FromLeader)

    @classmethod
    async def claim(cls, connect, launch, node, address=WORKER, *, calls_from=None, **changes):
        stream, writer = await connect(calls_from or address)
        writer.write(
            encode_frame(Claim(**({"unit_digest": launch.unit_digest, "node": node} | changes), address=address))
        )
        return cls(stream, writer)

    async def next_message(self):
        """Return the next message, or None when the leader closes the connection."""
        try:
            frame = await self.frames.read()
        except RuntimeFailure:
            return None
        return frame and frame[0]


def test_a_spare_is_told_when_the_others_are_here(launch):
    """A spare waits until the last other node's claim, and then both get places."""

    async def talk(connect):
        spare = await Node.claim(connect, launch, "node-7", OTHER)
        first = await spare.next_message()
        planned = await Node.claim(connect, launch, "node-1")

        assert first == Wait("a spare waits until all nodes are here; missing are node-0, node-1")
        assert await planned.next_message() == Place(1)
        assert await spare.next_message() == Place(0)

    run_with_roll(launch, talk)


def test_a_pod_that_starts_again_has_its_place_again(launch):
    """A pod that starts again gets its place, even before the leader notices that its old connection has ended."""

    async def talk(connect):
        first = await Node.claim(connect, launch, "node-7")
        other = await Node.claim(connect, launch, "node-0", LEADER)
        assert await first.next_message() == Wait("a spare waits until all nodes are here; missing are node-0, node-1")
        assert (await first.next_message(), await other.next_message()) == (Place(1), Place(0))

        again = await Node.claim(connect, launch, "node-7")

        assert await again.next_message() == Place(1)
        assert await first.next_message() is None

    run_with_roll(launch, talk)


def test_who_only_says_that_it_is_a_node_takes_nothing_from_it(launch, capsys):
    """A caller from another address that names a connected node waits until that node's connection ends."""

    async def talk(connect):
        first = await Node.claim(connect, launch, "node-1")
        assert await first.next_message() == Place(1)
        second = await Node.claim(connect, launch, "node-1", calls_from=OTHER)

        assert await second.next_message() == Wait(f"{WORKER} is here, and this connection does not come from there")
        assert await second.next_message() is None

        first.writer.close()
        while await (await Node.claim(connect, launch, "node-1", calls_from=OTHER)).next_message() != Place(1):
            await asyncio.sleep(0.01)

    run_with_roll(launch, talk)

    assert f"says that it is '{WORKER}', which is here" in capsys.readouterr().err


def test_another_pod_on_the_same_node_waits_until_the_first_is_gone(launch, capsys):
    """A second pod of a node waits until the first is gone, and the leader logs both addresses."""

    async def talk(connect):
        first = await Node.claim(connect, launch, "node-1")
        assert await first.next_message() == Place(1)
        second = await Node.claim(connect, launch, "node-1", OTHER)

        assert await second.next_message() == Wait("another pod is here from node node-1")
        assert await second.next_message() is None

        first.writer.close()
        while await (await Node.claim(connect, launch, "node-1", OTHER)).next_message() != Place(1):
            await asyncio.sleep(0.01)

    run_with_roll(launch, talk)

    assert f"'{OTHER}' and '{WORKER}' both say that they are on node node-1" in capsys.readouterr().err


def test_a_planned_node_that_comes_back_too_late_waits(launch):
    """A planned node whose place a spare has waits until the spare leaves."""

    async def talk(connect):
        leader = await Node.claim(connect, launch, "node-0", LEADER)
        spare = await Node.claim(connect, launch, "node-7", OTHER)
        assert (await leader.next_message(), await spare.next_message()) == (Place(0), Place(1))
        late = await Node.claim(connect, launch, "node-1")

        assert await late.next_message() == Wait("spare node-7 has the place of node node-1")
        spare.writer.close()
        assert await late.next_message() == Place(1)

    run_with_roll(launch, talk)


def test_who_does_not_belong_here_gets_no_place(launch):
    """A node of another unit is rejected. One with another launch file must wait."""

    async def talk(connect):
        foreign = await Node.claim(connect, launch, "node-5")
        stranger = await Node.claim(connect, launch, "node-1", unit_digest="sha256:other")

        assert await foreign.next_message() == Rejected(
            "node node-5 is neither planned for unit demo-decode-0 nor a spare"
        )
        assert await stranger.next_message() == Wait("the leader was launched with another launch file")
        assert await foreign.next_message() is None
        assert await stranger.next_message() is None

    run_with_roll(launch, talk)


@pytest.mark.parametrize(
    "bytes_sent",
    [b"", b"GET / HTTP/1.1\r\n\r\n", encode_frame(Place(0)), encode_frame(Claim("x", "y", "z"))[:-3]],
    ids=["nothing", "HTTP", "a leader's message", "half a claim"],
)
def test_whatever_else_comes_costs_its_connection_alone(launch, bytes_sent, capsys):
    """Any other message closes its connection, and the other nodes keep their places."""

    async def talk(connect):
        member = await Node.claim(connect, launch, "node-1")
        assert await member.next_message() == Place(1)
        stream, writer = await connect()
        writer.write(bytes_sent)
        writer.write_eof()

        assert await stream.read() == b""
        member.writer.write(encode_frame(Claim(launch.unit_digest, "node-1", WORKER)))
        assert await member.next_message() is None  # it may claim once

    run_with_roll(launch, talk)

    complaint = capsys.readouterr().err
    assert "closed the connection of" in complaint
    assert not complaint.startswith("tidemill: ")  # which would be taken for the node's own last word


def test_a_silent_connection_is_closed(launch, monkeypatch, capsys):
    """A connection without a claim is closed after a few seconds."""
    monkeypatch.setattr("runtime.worker.places.CLAIM_TIMEOUT_S", 0.1)

    async def talk(connect):
        stream, _ = await connect()
        assert await stream.read() == b""

    run_with_roll(launch, talk)

    assert "no claim within 0.1 s" in capsys.readouterr().err


@pytest.fixture
def quick_retries(monkeypatch):
    """Shorten retries, and end the membership threads after the test."""
    loops, new_loop = [], asyncio.new_event_loop
    monkeypatch.setattr(membership.asyncio, "new_event_loop", lambda: loops.append(new_loop()) or loops[-1])
    monkeypatch.setattr(membership, "RETRY_S", 0.02)
    monkeypatch.setattr(membership, "CALL_TIMEOUT_S", 1.0)
    yield
    for loop in loops:
        asyncio.run_coroutine_threadsafe(end_all_tasks(), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)


async def end_all_tasks():
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def start_membership(launch, node, address, leader=LEADER):
    """Join from a thread of its own. Return the membership and the places that it gets."""
    member, places = Membership(launch, node, address, leader), []
    thread = threading.Thread(target=lambda: places.append(member.join()), daemon=True)
    thread.start()
    return member, places, thread


@pytest.mark.usefixtures("quick_retries")
def test_a_leader_is_found_that_has_no_address_at_first_and_then_a_stale_one(launch, monkeypatch, capsys):
    """A node finds its leader although its name has no address at first, and then a stale one."""
    answers = [socket.gaierror("Name or service not known"), OTHER, WORKER, LEADER]

    def look_up(name, _):
        if name != "leader":
            return name
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(membership, "look_up", look_up)
    _, places, leader = start_membership(launch, "node-0", LEADER)
    leader.join(PATIENCE_S)
    member = Membership(launch, "node-1", WORKER, "leader")

    assert (places, member.join()) == ([0], 1)
    said = capsys.readouterr().err
    assert "waiting for the unit's leader leader:" in said
    assert answers == [LEADER]


@pytest.mark.usefixtures("quick_retries")
def test_a_spare_takes_the_place_of_a_node_that_does_not_come(launch):
    """A spare, which may be the leader itself, takes the place of a missing node."""
    spare, of_spare, first = start_membership(launch, "node-7", LEADER)
    _, of_planned, second = start_membership(launch, "node-1", WORKER)
    for thread in (first, second):
        thread.join(PATIENCE_S)

    assert (of_spare, of_planned) == ([0], [1])
    spare.check()


@pytest.mark.usefixtures("quick_retries")
def test_the_leader_misses_a_node_that_has_left(launch):
    """The leader misses a node from the end of its connection until it is connected again."""
    leader, _, thread = start_membership(launch, "node-0", LEADER)
    thread.join(PATIENCE_S)
    alone = leader.is_whole()
    for _ in range(2):
        with socket.create_connection((LEADER, launch.ports.places), source_address=(WORKER, 0)) as node:
            node.sendall(encode_frame(Claim(launch.unit_digest, "node-1", WORKER)))
            wait_until(leader.is_whole)
        wait_until(lambda: not leader.is_whole())

    assert not alone


@pytest.mark.usefixtures("quick_retries")
def test_every_other_node_misses_the_leader(launch):
    """Every other node misses the leader when its own connection ends."""
    with scripted_leader(launch, [Place(1)]):
        member = Membership(launch, "node-1", WORKER, LEADER)
        member.join()
        wait_until(member.is_whole)
    wait_until(lambda: not member.is_whole())


@pytest.mark.usefixtures("quick_retries")
def test_a_broken_connection_costs_nothing(launch):
    """After a broken connection a node claims its place again."""
    with scripted_leader(launch, [Place(1)], [Place(1)], [Wait("all is well")]) as asked:
        member = Membership(launch, "node-1", WORKER, LEADER)

        assert member.join() == 1
        assert asked.wait(PATIENCE_S)
        member.check()


@pytest.mark.usefixtures("quick_retries")
def test_a_place_is_held_whatever_python_collects(launch, caplog):
    """A garbage collection does not end the task that keeps a node's place."""
    with scripted_leader(launch, [Place(1)]):
        member = Membership(launch, "node-1", WORKER, LEADER)
        member.join()
        gc.collect()
        time.sleep(0.2)

        assert caplog.records == []


@pytest.mark.usefixtures("quick_retries")
def test_another_place_ends_the_ranks(launch):
    """If the leader gives the node another place later, its ranks end."""
    with scripted_leader(launch, [Place(1)], [Place(0)]):
        member = Membership(launch, "node-1", WORKER, LEADER)

        assert member.join() == 1
        with pytest.raises(PeerLost, match="have place 1, and the unit's leader gives it 0"):
            wait_for_failure(member)


@pytest.mark.usefixtures("quick_retries")
def test_a_refused_node_ends(launch):
    """A rejected node ends with the leader's reason."""
    with (
        scripted_leader(launch, [Rejected("no place for such")], []),
        pytest.raises(RuntimeFailure, match="the unit's leader refuses this node: no place for such"),
    ):
        Membership(launch, "node-1", WORKER, LEADER).join()


@pytest.mark.usefixtures("quick_retries")
def test_nobody_waits_for_ever(launch, monkeypatch):
    """After the time-out a node ends, and says what it waited for."""
    monkeypatch.setattr(membership, "JOIN_TIMEOUT_S", 0.5)

    with pytest.raises(PeerLost, match=f"gave this node no place: waiting for the unit's leader {OTHER}:"):
        Membership(launch, "node-1", WORKER, OTHER).join()


@pytest.mark.usefixtures("quick_retries")
def test_it_listens_on_its_own_address_alone(launch):
    """A node listens on its own address only."""
    start_membership(launch, "node-0", LEADER)[2].join(PATIENCE_S)

    with contextlib.closing(sockets.listen(WORKER, launch.ports.places, "a test")):
        pass


@contextlib.contextmanager
def scripted_leader(launch, *answers):
    """Serve as a leader that gives each connection the next of `answers`. Close all connections but the last."""
    done, rest = threading.Event(), list(answers)
    listener = sockets.listen(LEADER, launch.ports.places, "a test")

    def serve():
        open_connections = []
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.recv(2**16)
                for message in rest.pop(0) if rest else []:
                    connection.sendall(encode_frame(message))
                if rest:
                    connection.close()
                else:
                    open_connections.append(connection)
                    done.set()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield done
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(PATIENCE_S)


def wait_until(is_so):
    """Wait until `is_so()` is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_for_failure(member):
    """Call `check` until it raises."""
    for _ in range(PATIENCE_S * 100):
        member.check()
        threading.Event().wait(0.01)
