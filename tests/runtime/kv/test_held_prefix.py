"""What a decode rank has of a prompt is not sent to it, and stays until its request has it."""

import asyncio

import pytest
import torch

from runtime.kv.cache import LatentCache
from runtime.kv.held_prefix import HeldPrefix, HeldPrefixes
from runtime.kv.host_memory import HostMemory
from runtime.kv.index import HASH_BYTES
from runtime.kv.receiver import KvReceiver
from runtime.kv.sender import Outgoing
from runtime.launch import read_unit_launch
from runtime.protocol.block_chain import chain_blocks
from runtime.protocol.counting import PAGE_TOKENS
from runtime.protocol.frames import FrameReader
from runtime.protocol.messages import FromDecode, Proceed, Sampling
from tests.runtime.kv.test_transfer import (
    BYTES_PER_TOKEN,
    HOST,
    TOKEN_SHAPE,
    VOCAB_SIZE,
    arriving,
    counted,
    encode_frame,
    failure_of,
    listening,
    transfer,
    with_pair,
    with_server,
)
from tests.runtime.launch_documents import UNIT, seal, write

NUM_TOKENS = 2 * PAGE_TOKENS + 22
ROOT = bytes(range(HASH_BYTES))


@pytest.fixture(scope="session")
def launch(tmp_path_factory):
    """A unit that takes prompts of several blocks."""
    sizes = {"limits__max_request_tokens": 200, "limits__kv_tokens": 256}
    return read_unit_launch(write(tmp_path_factory.mktemp("launch"), seal(UNIT, **sizes)))


class Holder:
    """A step loop that has the first blocks of whatever is asked for."""

    def __init__(self, num_blocks):
        self.num_blocks, self.held = num_blocks, []

    def hold(self, prefix, answer):
        self.held.append(prefix)
        prefix.num_tokens = min(self.num_blocks, len(prefix.hashes)) * PAGE_TOKENS
        answer(prefix.num_tokens)

    def release(self, prefix):
        self.held.remove(prefix)


class Agent:
    """An agent whose memory nobody writes to."""

    def share(self, memory):
        pass

    def describe(self):
        return b""


def chain_of(prompt_ids):
    """The payload of an offer of this prompt."""
    return b"".join([ROOT, *chain_blocks(ROOT, prompt_ids[:-1])])


def long_transfer(launch, **changes):
    """A request of several blocks, whose messages are right but for `changes`."""
    prompt = [number % VOCAB_SIZE for number in range(NUM_TOKENS)]
    return transfer(launch, NUM_TOKENS, None, **{"prompt_ids": prompt} | changes)


async def send(pair, sent, chain):
    """Send a request in chunks, none of which ends with a block."""
    pair.issue(sent)
    outgoing = Outgoing(sent.offer, chain)
    for start, end in ((0, 50), (50, 70), (70, NUM_TOKENS)):
        for layer, latent_TC in enumerate(sent.latents):
            outgoing.put(layer, start, latent_TC[start:end])
    outgoing.finish(sent.handover)
    await pair.sender.send(HOST, pair.port, outgoing)


@pytest.mark.parametrize("num_held", [0, 1, 2])
def test_what_the_decode_rank_has_is_not_sent(launch, num_held):
    """The rest arrives bit for bit; bytes that were sent and bytes that were not are counted."""
    sent, holder = long_transfer(launch), Holder(num_held)

    async def use(pair):
        pair.receiver._holder = holder
        await send(pair, sent, chain_of(sent.handover.prompt_ids))

    pair = with_pair(launch, use)

    start = num_held * PAGE_TOKENS
    ((_, latents),) = pair.taken
    assert torch.equal(latents, sent.latents[:, start:])
    assert [prefix.hashes for prefix in holder.held] == [chain_blocks(ROOT, sent.handover.prompt_ids)]
    assert counted(pair.metrics, "payload") == (NUM_TOKENS - start) * BYTES_PER_TOKEN["fp32"]
    assert counted(pair.metrics, "skipped") == start * BYTES_PER_TOKEN["fp32"]


@pytest.mark.parametrize(
    ("chain", "reason"),
    [
        (lambda ids: chain_of(ids)[:-1], "its chain of block names has 95 bytes, that of its tokens 96"),
        (lambda ids: chain_of(ids) + ROOT, "its chain of block names has 128 bytes, that of its tokens 96"),
        (lambda ids: ROOT, "its chain of block names has 32 bytes, that of its tokens 96"),
        (lambda ids: chain_of([0, *ids[1:]]), "its block names are not those of its tokens"),
    ],
    ids=["cut", "a name too many", "no names", "another prompt"],
)
def test_wrong_names_are_refused(launch, chain, reason):
    """Nothing is taken, nothing stays held, and the next request goes on."""
    holder, sentences = Holder(2), []

    async def use(pair):
        pair.receiver._holder = holder
        wrong, right = long_transfer(launch), long_transfer(launch)
        ids = [1, *wrong.handover.prompt_ids[1:]]
        wrong.handover.prompt_ids[:] = ids
        sentences.append(await failure_of(send(pair, wrong, chain(ids))))
        assert holder.held == []
        await send(pair, right, chain_of(right.handover.prompt_ids))

    pair = with_pair(launch, use)

    assert sentences[0].endswith(reason)
    assert len(pair.taken) == len(holder.held) == 1


def test_an_abort_releases_a_prefix_before_its_sender_reacts(launch):
    """The sender may still write to its place, but never to pages of the cache."""
    sent, holder = long_transfer(launch), Holder(1)
    chain = chain_of(sent.handover.prompt_ids)

    async def use(pair):
        pair.receiver = KvReceiver(launch, TOKEN_SHAPE, VOCAB_SIZE, pair._take, agent=Agent(), holder=holder)
        async with listening(pair.receiver.serve) as (port, _):
            pair.issue(sent)
            stream, writer = await asyncio.open_connection(HOST, port)
            replies = FrameReader(stream, FromDecode)
            writer.write(encode_frame(sent.offer, len(chain)) + chain)
            proceed, _ = await replies.read()
            held = len(holder.held)
            pair.receiver.abort(sent.offer.request_id)
            kept = len(holder.held)
            refused, _ = await replies.read()
            writer.close()
        assert proceed.address is not None
        assert (held, kept, refused.reason) == (1, 0, "it was aborted")

    assert with_pair(launch, use).taken == []


@pytest.mark.parametrize("ended", ["aborted", "closed", "refused"])
def test_a_prefix_is_released_if_its_request_does_not_arrive(launch, ended):
    """Its gateway gives the request up, its sender dies, or it is refused at its end."""
    holder = Holder(1)
    wrong = {"sampling": Sampling(1, 0.0, 1.0, 0, [])} if ended == "refused" else {}
    sent = long_transfer(launch, **wrong)

    async def use(pair):
        pair.receiver._holder = holder
        pair.issue(sent)
        outgoing = Outgoing(sent.offer, chain_of(sent.handover.prompt_ids))
        sending = asyncio.ensure_future(pair.sender.send(HOST, pair.port, outgoing))
        await arriving(pair, sent)
        while not holder.held:
            await asyncio.sleep(0.01)
        if ended == "aborted":
            pair.receiver.abort(sent.offer.request_id)
        elif ended == "closed":
            sending.cancel()
        else:
            for layer, latent_TC in enumerate(sent.latents):
                pair.sender.put(outgoing, layer, 0, latent_TC)
            outgoing.finish(sent.handover)
        await asyncio.wait({sending})
        while holder.held:
            await asyncio.sleep(0.01)

    assert with_pair(launch, use).taken == []


@pytest.mark.parametrize("start", [1, PAGE_TOKENS + 1, 3 * PAGE_TOKENS, 2**62])
@pytest.mark.parametrize("has_chain", [True, False])
def test_a_decode_rank_cannot_have_what_it_was_not_offered(launch, start, has_chain):
    """More tokens than were offered, or a part of a block, end the transfer."""
    sent = long_transfer(launch)
    chain = chain_of(sent.handover.prompt_ids) if has_chain else b""

    async def serve(stream, writer):
        writer.write(encode_frame(Proceed(sent.offer.request_id, start)))
        await stream.read(-1)

    async def use(sender, port):
        return await failure_of(sender.send(HOST, port, Outgoing(sent.offer, chain)))

    assert f"the decode rank has {start:,} tokens of" in with_server(launch, serve, use)


def cache_with(names, num_pages=4, memory=None):
    """A cache whose first pages have these names, and numbers of their own."""
    device = torch.device("cpu")
    cache = LatentCache(2, 3, num_pages * PAGE_TOKENS, torch.float32, device, memory=memory)
    table = []
    cache.allocate(table, len(names) * PAGE_TOKENS)
    for layer in cache.layers:
        layer.pages.copy_(torch.randn_like(layer.pages))
    cache.publish(table, 0, names, b"tenant")
    cache.free(table)
    return cache


def test_held_pages_are_not_evicted():
    """What is promised stays, and what gives way keeps its latents in host memory, the newest prefix first."""
    names = chain_blocks(ROOT, range(3 * PAGE_TOKENS))
    cache = cache_with(names)
    before = torch.stack([layer.pages.clone() for layer in cache.layers])
    prefixes, old, new = HeldPrefixes(cache), HeldPrefix(ROOT, names[:1]), HeldPrefix(ROOT, names)

    assert (prefixes.hold(old), prefixes.hold(new)) == (PAGE_TOKENS, 3 * PAGE_TOKENS)
    assert cache.num_free_pages == 1
    pages = list(new.table)
    assert prefixes.give_way()
    assert (new.table, cache.num_free_pages) == ([], 3)
    assert torch.equal(new.latents, before[:, pages].flatten(1, 2))
    assert not prefixes.give_way(keep=old)
    prefixes.release(new)
    prefixes.release(old)
    assert cache.num_free_pages == 4


def test_a_prefix_is_lost_where_host_memory_is_full():
    """It gives way all the same: requests in the cache come first."""
    names = chain_blocks(ROOT, range(PAGE_TOKENS))
    prefixes, prefix = HeldPrefixes(cache_with(names, memory=HostMemory(1))), HeldPrefix(ROOT, names)

    prefixes.hold(prefix)
    assert not prefix.is_lost
    assert prefixes.give_way()
    assert prefix.is_lost
