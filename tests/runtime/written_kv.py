"""KV that one process writes into another's memory by NIXL: requests that arrive, and senders that are killed half way.

    python -m tests.runtime.written_kv 2000 50

sends so many requests from one process, which must arrive bit for bit. Then it sends so many each from a process of its
own, which is killed after a random number of bytes, while the decode rank holds the first blocks of some: nothing of
these may arrive or stay taken or held, and each must arrive from the next process. `tests/runtime/kv/test_nixl.py` does
the same with few.

    python -m tests.runtime.written_kv forks

is the process that senders are forked from, so that each has loaded torch and begins with no thread and no agent. It
takes the jobs of one sender a line. The sender says its process id, then of each job `written`, `sent` if part of it
went over TCP, `stopped` or a failure, each on a line.
"""

import asyncio
import json
import os
import random
import signal
import sys
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from types import SimpleNamespace

import torch

from runtime.errors import RuntimeFailure
from runtime.kv.nixl import NixlAgent
from runtime.kv.receiver import KvReceiver
from runtime.kv.sender import KvSender, Outgoing
from runtime.launch import KvLayout, Limits
from runtime.protocol.block_chain import chain_blocks
from runtime.protocol.counting import PAGE_TOKENS
from runtime.protocol.messages import Handover, Offer, Sampling

HOST = "127.0.0.1"
SHAPE = NUM_LAYERS, LATENT_DIM = 4, 576
MAX_TOKENS, VOCAB_SIZE = 600, 9
ROW_BYTES = LATENT_DIM * 2
ROOT = bytes(range(32))  # of block names
LAUNCH = SimpleNamespace(
    kv_digest="sha256:kv",
    limits=Limits(max_requests=64, max_request_tokens=MAX_TOKENS + 9, max_batch_tokens=MAX_TOKENS, kv_tokens=4096),
    kv_cache=KvLayout(10, "bf16", NUM_LAYERS * ROW_BYTES, "nixl"),
)


@dataclass(frozen=True)
class Job:
    """A request to send to a port. The decode rank has its first `num_held` blocks.

    With `stop_after`, the sender stops when it has written so many bytes.
    """

    port: int
    request_id: str
    num_tokens: int
    seed: int
    num_held: int = 0
    stop_after: int | None = None

    @property
    def num_bytes(self):
        """The number of bytes to send."""
        return NUM_LAYERS * (self.num_tokens - self.num_held * PAGE_TOKENS) * ROW_BYTES

    def chain(self):
        """The root and the names of its blocks."""
        return b"".join([ROOT, *chain_blocks(ROOT, self.handover().prompt_ids[:-1])])

    def latents(self):
        """Any bits: NaN and negative zero among them."""
        numbers = torch.randint(-(2**15), 2**15, (NUM_LAYERS, self.num_tokens, LATENT_DIM), generator=self._generator())
        return numbers.to(torch.int16).view(torch.bfloat16)

    def offer(self):
        return Offer(self.request_id, "ticket", LAUNCH.kv_digest, [NUM_LAYERS, self.num_tokens, LATENT_DIM], "bf16")

    def handover(self):
        return Handover(self.request_id, [1] * self.num_tokens, [1], Sampling(9, 0.0, 1.0, 0, []))

    def outgoing(self, chain=b""):
        """The request as a prefill rank computes it: its prompt in two chunks, each layer by layer."""
        outgoing, latents, middle = Outgoing(self.offer(), chain), self.latents(), self.num_tokens // 2
        for start, end in ((0, middle), (middle, self.num_tokens)):
            for layer in range(NUM_LAYERS):
                if start < end:
                    outgoing.put(layer, start, latents[layer, start:end])
        outgoing.finish(self.handover())
        return outgoing

    def _generator(self):
        return torch.Generator().manual_seed(self.seed)


class Decode:
    """A decode rank's receiver behind `port`. `taken` says of each request that came whether it came unchanged."""

    def __init__(self, agent):
        self.taken, self.port = [], 0
        self.receiver = KvReceiver(LAUNCH, SHAPE, VOCAB_SIZE, self._take, agent=agent, holder=self)
        self.held, self._num_held = [], 0
        self._expected = {}

    def expect(self, job):
        """Admit this request once."""
        self._expected[job.request_id] = job
        self._num_held = job.num_held
        self.receiver.expect(job.request_id, "ticket")

    def is_empty(self):
        """Return whether nobody holds anything of what came."""
        self.receiver._staging._collect()
        return (
            not self.held
            and self.receiver._host_memory.reserved_bytes()["arriving"] == 0
            and len(self.receiver._staging._gaps) == 1
        )

    def assert_taken(self, job):
        """The next request that came is this one, bit for bit."""
        assert self.taken.pop(0) == (job.request_id, True)

    def hold(self, prefix, answer):
        """Hold the blocks that this rank has of the request expected last."""
        self.held.append(prefix)
        prefix.num_tokens = self._num_held * PAGE_TOKENS
        answer(prefix.num_tokens)

    def release(self, prefix):
        """Hold a prefix no more: its request does not arrive."""
        self.held.remove(prefix)

    def _take(self, handover, latents, prefix):
        """Compare a request at once: one that waited for that would leave later ones no room."""
        if prefix in self.held:
            self.held.remove(prefix)
        expected = self._expected[handover.request_id].latents()[:, prefix.num_tokens :]
        is_unchanged = torch.equal(latents.view(torch.int16), expected.view(torch.int16))
        self.taken.append((handover.request_id, is_unchanged))


@asynccontextmanager
async def decode_rank(agent):
    """A decode rank that listens until the end."""
    decode = Decode(agent)
    async with await asyncio.start_server(decode.receiver.serve, HOST, 0) as server:
        decode.port = server.sockets[0].getsockname()[1]
        yield decode


class Forks:
    """Processes that send, one at a time or several."""

    def __init__(self, process):
        self._process = process

    async def start(self, *jobs):
        """Let one process send these requests one after another; return its id."""
        self._process.stdin.write(json.dumps([asdict(job) for job in jobs]).encode() + b"\n")
        return int(await self.said())

    async def said(self):
        """What was said next."""
        async with asyncio.timeout(60):
            return (await self._process.stdout.readline()).decode().strip()


@asynccontextmanager
async def forks():
    """The process that senders are forked from, until the end."""
    command = [sys.executable, "-m", "tests.runtime.written_kv", "forks"]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        yield Forks(process)
    finally:
        process.stdin.close()
        await process.wait()


async def send_all(decode, senders, num_requests, seed):
    """Send requests of random sizes from one process; each must arrive bit for bit, and leave nothing behind."""
    draw = random.Random(seed)
    jobs = [
        Job(decode.port, f"{seed}-{i}", draw.randint(1, MAX_TOKENS), draw.getrandbits(32)) for i in range(num_requests)
    ]
    for job in jobs:
        decode.expect(job)
    await senders.start(*jobs)
    for job in jobs:
        assert (said := await senders.said()) == "written", said
        decode.assert_taken(job)
    assert decode.is_empty()


async def kill_all(decode, senders, num_kills, seed):
    """Kill senders after random numbers of bytes; nothing arrives or stays taken, and another sender's try succeeds."""
    draw = random.Random(seed)
    for number in range(num_kills):
        num_tokens = draw.randint(1, MAX_TOKENS)
        num_held = draw.randint(0, (num_tokens - 1) // PAGE_TOKENS)
        job = Job(decode.port, f"killed-{number}", num_tokens, draw.getrandbits(32), num_held)
        decode.expect(job)
        pid = await senders.start(Job(**{**asdict(job), "stop_after": draw.randrange(job.num_bytes)}))
        assert await senders.said() == "stopped"
        assert not decode.is_empty()
        assert len(decode.held) == 1
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(10):
            while not decode.is_empty():
                await asyncio.sleep(0.01)
        assert decode.taken == []
        decode.expect(job)
        await senders.start(job)
        assert (said := await senders.said()) == "written", said
        decode.assert_taken(job)


def fork_senders():
    """Fork a sender for each line of jobs."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets them
    for line in sys.stdin:
        if os.fork() == 0:
            say(os.getpid())
            asyncio.run(send_jobs([Job(**job) for job in json.loads(line)]))
            os._exit(0)


async def send_jobs(jobs):
    agent = StoppingAgent()
    sender = KvSender(SimpleNamespace(count_transfer=lambda *_: None), 2**30, agent)
    for job in jobs:
        agent.num_bytes, agent.stop_after = 0, job.stop_after
        try:
            await sender.send(HOST, job.port, job.outgoing(job.chain()))
            say("written" if agent.num_bytes == job.num_bytes else "sent")
        except RuntimeFailure as error:
            say(error)


class StoppingAgent(NixlAgent):
    """An agent that counts what it writes, and stops after so many bytes."""

    num_bytes, stop_after = 0, None

    async def write(self, part, peer, address, is_gone):
        left = len(part) if self.stop_after is None else self.stop_after - self.num_bytes
        if left:
            await super().write(part[:left], peer, address, is_gone)
        self.num_bytes += min(left, len(part))
        if left < len(part):
            say("stopped")
            await asyncio.Event().wait()


def say(sentence):
    print(sentence, flush=True)


async def main(num_requests, num_kills):
    async with forks() as senders, decode_rank(NixlAgent()) as decode:
        await send_all(decode, senders, num_requests, seed=1)
        print(f"{num_requests} requests arrived bit for bit")
        await kill_all(decode, senders, num_kills, seed=2)
        print(f"{num_kills} senders were killed: nothing was lost, and nothing stayed taken")


if __name__ == "__main__":
    if sys.argv[1:] == ["forks"]:
        fork_senders()
    else:
        asyncio.run(main(*map(int, sys.argv[1:])))
