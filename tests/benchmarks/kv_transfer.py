"""KV from a prefill rank to a decode rank over loopback: sent layer by layer, beside a handover at the prompt's end.

    python -m tests.benchmarks.kv_transfer

    late     the prompt's end until the decode rank has the request and may begin: layer by layer / at the end; and
             layer by layer, written / sent
    step     a step of prefill while 100 MB travel / while nothing does: the CPU time of its thread; its time, without
             what it waited for a core; and its time / that beside a process of its own that sends as much
    slow     one request to a quick decode rank, while another decode rank reads nothing / alone
    CPU      of the decode rank's process while 100 MB come: read from a connection; written to its memory by NIXL

The prompt has 1,500 tokens with DeepSeek-V3's latents: 61 layers of 576 numbers in BF16, 105 MB. Matrix products on one
thread stand in for a layer's computation; what sends and what receives is the runtime's own, in two processes, with a
third that reads nothing. The kernel counts how long a thread was ready to run and had no core (`/proc/PID/schedstat`):
that is the machine's doing, which has two cores here for three busy threads. What is left besides CPU time is waiting
for Python's lock, which the step's thread shares with the one that sends. Figures that are compared alternate, and the
median of their runs counts. Exits with 1 when a goal is missed. About a minute.
"""

import asyncio
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from runtime.kernels.device import HostLink
from runtime.kv.host_memory import max_held_bytes
from runtime.kv.nixl import NixlAgent
from runtime.kv.receiver import KvReceiver
from runtime.kv.sender import KvSender
from runtime.launch import KvLayout, Limits
from runtime.protocol.messages import Handover, Hello, Offer, Sampling
from runtime.worker.gateway_connection import GatewayAddress
from runtime.worker.io_thread import Inbox, Network
from tests.benchmarks.goals import Goals

HOST, QUICK_PORT, SLOW_PORT, WRITTEN_PORT = "127.90.3.1", 29610, 29611, 29612
NUM_LAYERS, NUM_TOKENS, LATENT_DIM = 61, 1500, 576
BYTES_PER_TOKEN = NUM_LAYERS * LATENT_DIM * 2
PROMPT_GB = NUM_TOKENS * BYTES_PER_TOKEN / 1e9
NUM_RUNS, NUM_TICKETS = 5, 200
FIRST_OF_OTHER = 100  # the first request of the process that only sends
NUM_PRODUCTS, FACTOR = 3, torch.ones(512, 512)  # of a layer
SAMPLING = Sampling(9, 0.0, 1.0, 0, [])
HELLO = Hello("prefill-0", "prefill", 0, 1, "node-0", 1, "sha256:unit", "sha256:kv", None, None)
LAUNCH = SimpleNamespace(
    kv_digest="sha256:kv",
    limits=Limits(max_requests=64, max_request_tokens=NUM_TOKENS + 9, max_batch_tokens=NUM_TOKENS, kv_tokens=4096),
    kv_cache=KvLayout(8, "bf16", BYTES_PER_TOKEN),
)


def main():
    """Measure all, and hold it against the goals."""
    torch.set_num_threads(1)
    goals = Goals()
    with another_process("receive") as decode, another_process("send") as other:
        prefill = Prefill(decode.stdout)
        measure(prefill, lambda: print(file=other.stdin, flush=True), goals)
        with another_process("be_written") as written:
            measure_writes(prefill, Prefill(written.stdout, port=WRITTEN_PORT, agent=NixlAgent()), goals)
            time.sleep(0.1)  # the last answers are on their way
    sys.exit(goals.report())


@contextmanager
def another_process(part):
    """A process of this file that is ready, until the end."""
    command = [sys.executable, "-m", "tests.benchmarks.kv_transfer", part]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def measure(prefill, send_elsewhere, goals):
    """Run the cases that are compared in turns, and print the medians."""
    prefill.transfer(layer_by_layer=True)  # warms up
    layered, at_end = alternate(
        lambda: prefill.transfer(layer_by_layer=True), lambda: prefill.transfer(layer_by_layer=False)
    )
    print(f"late   {1e3 * layered:.1f} ms layer by layer, {1e3 * at_end:.1f} ms at the end")
    goals.check("late: layer by layer / at the end", layered / at_end, "<=", 0.5)
    beside, elsewhere, alone = alternate(
        prefill.step_beside_transfer, lambda: prefill.step_beside_others(send_elsewhere), step_times
    )
    print("step   ms while 105 MB travel, while another process sends them, while nothing does")
    for name, *times_s in zip(
        ("CPU", "time without waiting for a core", "time"), beside, elsewhere, alone, strict=True
    ):
        print("step  ", *(f"{1e3 * time_s:8.1f}" for time_s in times_s), f"  {name}")
    goals.check("step: CPU time while KV travels / while none does", beside[0] / alone[0], "<=", 1.05)
    goals.check("step: time without waiting for a core, the same", beside[1] / alone[1], "<=", 1.1)
    goals.check("step: time while KV travels / while others send it", beside[2] / elsewhere[2], "<=", 1.1)
    beside, alone = alternate(prefill.transfer_beside_slow, lambda: prefill.transfer(layer_by_layer=False))
    print(f"slow   {1e3 * beside:.1f} ms beside a rank that reads nothing, {1e3 * alone:.1f} ms alone")
    goals.check("slow: beside a slow rank / alone", beside / alone, "<=", 1.3)


def measure_writes(prefill, writer, goals):
    """Compare KV that is sent, which the decode rank reads, and KV that is written to its memory."""
    writer.transfer(layer_by_layer=True)  # warms up
    sent, written = alternate(
        lambda: prefill.transfer(layer_by_layer=True), lambda: writer.transfer(layer_by_layer=True)
    )
    print(f"late   {1e3 * sent:.1f} ms sent, {1e3 * written:.1f} ms written")
    goals.check("late: written / sent", written / sent, "<=", 1.5)
    read, written = alternate(prefill.receive, writer.receive)
    for name, (cpu_s, taken_s) in (("read", read), ("written", written)):
        print(f"CPU    {1e3 * cpu_s:.1f} ms {name}, in {1e3 * taken_s:.0f} ms ({PROMPT_GB / taken_s:.2f} GB/s)")
    goals.check("CPU: ms of the decode rank, written", 1e3 * written[0], "<=", 60)


def alternate(*cases):
    """The medians of each case; of each number, where it returns several."""
    figures = [[case() for case in cases] for _ in range(NUM_RUNS)]
    return [np.median(column, axis=0) for column in zip(*figures, strict=True)]


class Prefill:
    """A prefill rank's network. `accepted` has a line when the decode rank has a request."""

    def __init__(self, accepted, number=0, port=QUICK_PORT, agent=None):
        self._accepted, self._number, self._other_number = accepted, number, FIRST_OF_OTHER
        self._port, self._decode_cpu_s = port, 0.0  # until the last request arrived
        counters = SimpleNamespace(count_transfer=lambda *_: None)
        self._network = Network(
            GatewayAddress(HOST, 1), HELLO, Inbox(), KvSender(counters, max_held_bytes(LAUNCH), agent)
        )
        self._latents = [torch.randn(NUM_TOKENS, LATENT_DIM).to(torch.bfloat16) for _ in range(NUM_LAYERS)]

    def transfer(self, *, layer_by_layer):
        """Seconds from the prompt's end until the decode rank has it."""
        request, put_later = self._open(self._port), []
        for layer, latent_TC in enumerate(self._latents):
            compute_layer()
            put_later.append((layer, 0, latent_TC))
            if layer_by_layer:
                request.put(*put_later.pop())
        ended = time.monotonic()
        self._finish(request, put_later)
        return self._arrival() - ended

    def receive(self):
        """Seconds of the decode rank's CPU, and in all, for a request whose prompt has been computed."""
        began, cpu_before_s = time.monotonic(), self._decode_cpu_s
        self.send_all(self._port)
        arrived = self._arrival()
        return self._decode_cpu_s - cpu_before_s, arrived - began

    def step_beside_transfer(self):
        """The times of a step, while KV that it did not compute travels."""
        self.send_all(self._port)
        taken = step_times()
        self._arrival()
        return taken

    def step_beside_others(self, send_elsewhere):
        """The times of a step, while another process sends as much to the same decode rank."""
        send_elsewhere()
        taken = step_times()
        self._other_number += 1
        assert self._next_accepted()[0] == str(self._other_number)
        return taken

    def send_all(self, port):
        """Begin to send a request whose prompt has been computed."""
        request = self._open(port)
        self._finish(request, [(layer, 0, latent_TC) for layer, latent_TC in enumerate(self._latents)])
        return request

    def transfer_beside_slow(self):
        """Seconds of a transfer, while as much waits for a rank that does not read."""
        slow = self.send_all(SLOW_PORT)
        taken = self.transfer(layer_by_layer=False)
        slow.cancel()
        return taken

    def _open(self, port):
        self._number += 1
        name, shape = str(self._number), [NUM_LAYERS, NUM_TOKENS, LATENT_DIM]
        offer = Offer(name, "ticket", "sha256:kv", shape, "bf16")
        return self._network.open_transfer(HOST, port, offer, HostLink())

    def _finish(self, request, puts):
        for put in puts:
            request.put(*put)
        request.finish(Handover(request.request_id, [1] * NUM_TOKENS, [1], SAMPLING))

    def _arrival(self):
        name, arrived = self._next_accepted()
        assert name == str(self._number)
        return float(arrived)

    def _next_accepted(self):
        name, arrived, cpu_s = self._accepted.readline().split()
        self._decode_cpu_s = float(cpu_s)
        return name, arrived


def step_times():
    """Seconds of CPU on its thread, without waiting for a core, and in all, of a step."""
    cpu_s, waited_s, began = time.thread_time(), seconds_without_core(), time.perf_counter()
    for _ in range(NUM_LAYERS):
        compute_layer()
    taken_s = time.perf_counter() - began
    return time.thread_time() - cpu_s, taken_s - (seconds_without_core() - waited_s), taken_s


def seconds_without_core():
    """How long this thread was ready to run and did not, since it began (Documentation/scheduler/sched-stats.rst)."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def compute_layer():
    """Stand in for a layer's computation."""
    for _ in range(NUM_PRODUCTS):
        torch.mm(FACTOR, FACTOR)


async def receive():
    """A decode rank that reads requests, and one that reads nothing. All clocks are the machine's."""

    async def read_nothing(_, __):
        await asyncio.Event().wait()

    await asyncio.start_server(read_nothing, HOST, SLOW_PORT, limit=2**10)
    await take_requests(QUICK_PORT)


async def take_requests(port, agent=None):
    """A decode rank that says when it has a request, and its CPU time until then."""

    def accept(handover, latents, prefix):
        print(handover.request_id, time.monotonic(), time.process_time(), flush=True)

    receiver = KvReceiver(LAUNCH, (NUM_LAYERS, LATENT_DIM), 9, accept, agent=agent)
    for number in range(NUM_TICKETS):
        receiver.expect(str(number), "ticket")
    await asyncio.start_server(receiver.serve, HOST, port, limit=2**20)
    print("ready", flush=True)
    await asyncio.to_thread(threading.Event().wait)


def send():
    """Send a request for each line that comes in."""
    prefill = Prefill(None, FIRST_OF_OTHER)
    print("ready", flush=True)
    for _ in sys.stdin:
        prefill.send_all(QUICK_PORT)


if __name__ == "__main__":
    parts = {
        "receive": lambda: asyncio.run(receive()),
        "be_written": lambda: asyncio.run(take_requests(WRITTEN_PORT, NixlAgent())),
        "send": send,
    }
    parts.get("".join(sys.argv[1:]), main)()
