"""KV that is written into a decode rank's memory: it arrives bit for bit, and late writes meet nobody else's."""

import asyncio
import importlib.util
import itertools
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from runtime.errors import RuntimeFailure
from runtime.kv import nixl
from runtime.kv import sender as kv_sender
from runtime.kv.nixl import NixlAgent
from runtime.kv.sender import KvSender, _PeerMemory, as_bytes
from runtime.protocol.counting import PAGE_TOKENS
from runtime.protocol.frames import FrameReader, encode_frame
from runtime.protocol.messages import FromDecode, Piece, Proceed, Refused
from tests.runtime.kv.test_held_prefix import Holder, chain_of
from tests.runtime.written_kv import HOST, NUM_LAYERS, ROW_BYTES, Job, decode_rank, forks, kill_all, send_all

is_missing = importlib.util.find_spec("nixl_cu13") is None and not os.environ.get("CI")
needs_nixl = pytest.mark.skipif(is_missing, reason="nixl-cu13 is not installed: pip install -e '.[runtime,test]'")


seeds = itertools.count()


@pytest.fixture(scope="module")
def agents():
    """The agents of a decode and of a prefill rank."""
    return NixlAgent(), NixlAgent()


class Pair:
    """A decode rank, and a sender of this process."""

    def __init__(self, decode, agent):
        self.decode = decode
        self.sender = KvSender(SimpleNamespace(count_transfer=lambda *_: None), 2**30, agent)

    def expect(self, name, num_tokens=100):
        """A request that the decode rank expects."""
        job = Job(self.decode.port, name, num_tokens, seed=next(seeds))
        self.decode.expect(job)
        return job

    async def send(self, job):
        await self.sender.send(HOST, job.port, job.outgoing())

    async def send_next(self, name):
        """Send a request that must arrive."""
        await self.send(job := self.expect(name))
        self.decode.assert_taken(job)

    async def emptied(self):
        """Wait until nobody holds anything of what came."""
        async with asyncio.timeout(10):
            while not self.decode.is_empty():
                await asyncio.sleep(0.005)


def with_pair(agents, use):
    """Run `use(pair)` against a decode rank and a sender."""

    async def run():
        async with decode_rank(agents[0]) as decode:
            pair = Pair(decode, agents[1])
            await use(pair)
            for kept in pair.sender._idle.values():
                for connection in kept:
                    connection.abort()
            await pair.emptied()

    asyncio.run(asyncio.wait_for(run(), 60))


class Writes:
    """Counts the writes of an agent, and does what `before` says first."""

    def __init__(self, monkeypatch, agent, before=None):
        self.num, self.num_bytes, write = 0, 0, agent.write

        async def counted(part, *where):
            self.num += 1
            self.num_bytes += len(part)
            if before is not None:
                await before(part)
            await write(part, *where)

        monkeypatch.setattr(agent, "write", counted)


@needs_nixl
def test_requests_arrive_from_another_process_and_killed_senders_leave_nothing():
    """Bit for bit, of any size. A sender that dies half way leaves no memory taken, and its request can come again."""

    async def run():
        async with forks() as senders, decode_rank(NixlAgent()) as decode:
            await send_all(decode, senders, 50, seed=1)
            await kill_all(decode, senders, 3, seed=2)

    asyncio.run(run())


@needs_nixl
def test_an_agent_opens_no_port():
    """No socket of its process belongs to a network, whatever the environment tells UCX."""
    script = (
        "import os\n"
        "from runtime.kv.nixl import NixlAgent\n"
        "agent = NixlAgent()\n"
        "opened = {os.readlink(entry.path) for entry in os.scandir('/proc/self/fd') if os.path.islink(entry.path)}\n"
        "for kind in ('tcp', 'tcp6', 'udp', 'udp6'):\n"
        "    lines = open(f'/proc/self/net/{kind}').readlines()[1:]\n"
        "    print(*(line for line in lines if f'socket:[{line.split()[9]}]' in opened))\n"
    )
    environment = {**os.environ, "UCX_TLS": "all", "UCX_NET_DEVICES": "all"}

    ports = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)

    assert ports.stdout.strip() == ""


@needs_nixl
@pytest.mark.parametrize("ended", ["aborted", "refused", "broken off"])
def test_a_place_stays_with_its_sender_until_that_ends(agents, ended):
    """A write that comes after its request's end hits memory that nobody else got. Without its sender, all is free."""

    async def use(pair):
        late = pair.expect("late")
        latents = late.latents()
        stream, writer = await asyncio.open_connection(HOST, late.port)
        replies = FrameReader(stream, FromDecode)
        writer.write(encode_frame(late.offer()))
        proceed, _ = await replies.read()
        if ended == "aborted":
            pair.decode.receiver.abort("late")
        else:
            writer.write(encode_frame(Piece(0, 0 if ended == "refused" else 1, late.num_tokens, 0)))
        if ended != "broken off":
            assert isinstance((await replies.read())[0], Refused)
        others = [pair.expect(f"other-{number}") for number in range(4)]
        for other in others:
            await pair.send(other)
        peer = agents[1].meet(proceed.agent)
        await agents[1].write(as_bytes(latents), peer, proceed.address, lambda: False)
        for other in others:
            pair.decode.assert_taken(other)
        assert pair.decode.receiver._host_memory.reserved_bytes()["arriving"] == late.num_bytes
        writer.close()
        await pair.emptied()

    with_pair(agents, use)


@needs_nixl
@pytest.mark.parametrize("ended", ["cancelled", "too slow"])
def test_a_request_that_ends_closes_its_connection_after_its_last_write(agents, monkeypatch, ended):
    """The decode rank takes the end of the connection for the end of writes, so the sender must not hang up before."""
    begun, may_go_on = asyncio.Event(), asyncio.Event()

    async def wait(_):
        begun.set()
        await may_go_on.wait()

    async def use(pair):
        Writes(monkeypatch, agents[1], wait)
        sending = asyncio.create_task(pair.send(pair.expect("ends")))
        await begun.wait()
        if ended == "cancelled":
            sending.cancel()
        with pytest.raises(asyncio.CancelledError if ended == "cancelled" else RuntimeFailure):
            await sending
        pair.decode.receiver.abort("ends")
        await asyncio.sleep(0.1)
        assert not pair.decode.is_empty()
        may_go_on.set()
        await pair.emptied()

    monkeypatch.setattr(kv_sender, "REPLY_TIMEOUT_S", 30 if ended == "cancelled" else 0.5)
    with_pair(agents, use)


@needs_nixl
def test_damage_costs_its_own_request(agents, monkeypatch):
    """A bit that flips in written memory is noticed; the ranks go on with the next request, by writes."""

    async def flip_once(part):
        if writes.num == 1:
            part[7] ^= 1

    async def use(pair):
        with pytest.raises(RuntimeFailure, match="damaged on its way"):
            await pair.send(pair.expect("damaged"))
        await pair.send_next("next")
        assert pair.decode.taken == []

    writes = Writes(monkeypatch, agents[1], flip_once)
    with_pair(agents, use)

    assert writes.num > 2 * NUM_LAYERS


@needs_nixl
def test_what_the_decode_rank_holds_is_not_written(agents, monkeypatch):
    """The rest of the latents is written to its place, of which there is less."""
    writes = Writes(monkeypatch, agents[1])

    async def use(pair):
        pair.decode.receiver._holder = Holder(2)
        job = pair.expect("held", num_tokens=200)
        chain = chain_of(job.handover().prompt_ids)
        await pair.sender.send(HOST, job.port, job.outgoing(chain))
        pair.decode.assert_taken(job)

    with_pair(agents, use)

    assert writes.num_bytes == NUM_LAYERS * (200 - 2 * PAGE_TOKENS) * ROW_BYTES


@needs_nixl
def test_requests_go_over_tcp_where_there_is_no_room_to_write(agents, monkeypatch):
    """Memory that may be written is bounded; beyond that, pieces bring their payloads to other memory."""
    writes = Writes(monkeypatch, agents[1])

    async def use(pair):
        monkeypatch.setattr(pair.decode.receiver._staging, "take", lambda shape, dtype: None)
        await pair.send_next("no-room")

    with_pair(agents, use)

    assert writes.num == 0


@needs_nixl
def test_requests_go_over_tcp_where_memory_cannot_be_reached(agents, monkeypatch):
    """Ranks in other containers cannot be, and what they describe may be anything."""
    writes = Writes(monkeypatch, agents[1])
    monkeypatch.setattr(agents[0], "describe", lambda: "AAAA")

    with_pair(agents, lambda pair: pair.send_next("unreachable"))

    assert writes.num == 0


@needs_nixl
def test_a_write_that_fails_costs_its_own_request(agents, monkeypatch):
    """The next ones to that decode rank go over TCP."""
    writes = Writes(monkeypatch, agents[1])

    async def use(pair):
        with monkeypatch.context() as patch:
            patch.setattr(_PeerMemory, "find", lambda *_: 8)
            with pytest.raises(RuntimeFailure, match="its memory cannot be written"):
                await pair.send(pair.expect("fails"))
        await pair.send_next("next")

    with_pair(agents, use)

    assert writes.num == 1


@needs_nixl
def test_a_piece_without_a_payload_has_to_be_expected(agents):
    """Whoever was named no place cannot claim to have written: whatever lay in that memory would be taken for KV."""

    async def use(pair):
        pair.decode.receiver._agent = None
        job = pair.expect("claims")
        stream, writer = await asyncio.open_connection(HOST, job.port)
        replies = FrameReader(stream, FromDecode)
        writer.write(encode_frame(job.offer()) + encode_frame(Piece(0, 0, job.num_tokens, 0)))
        assert isinstance((await replies.read())[0], Proceed)
        assert await replies.read() is None
        writer.close()

    with_pair(agents, use)


def test_a_launch_file_may_ask_for_what_is_not_installed(monkeypatch):
    """The rank does not start, and says what to install."""
    monkeypatch.setattr(nixl, "PACKAGE", "no_such_package")

    with pytest.raises(RuntimeFailure, match="no package nixl-cu13; install tidemill\\[nixl\\]"):
        NixlAgent()
