"""The gateway alone on one core: ranks that compute nothing behind it, clients that only count and hostile ones before.

    python -m tests.benchmarks.gateway

    held         2,000 streams with a token every 100 ms each
    paced        400 streams with a token every 20 ms each, and the same with ranks that show certificates
    hostile      50 such streams, beside prompts of 7.6 MB, bodies of 9 MB, bodies in chunks of one byte, bodies that
                 never come, and answers that nobody reads
    overloaded   three times the requests that the ranks have room for, at a steady rate

The gateway has core 0 for itself, everything else shares core 1. Tokens/s are those that clients got. A CPU second is
the gateway's own, from /proc. Exits with 1 when a goal is missed. About 2 minutes; on a busy machine the gaps are its.
"""

import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from stacks.local.certificates import Certificates, now
from stacks.local.layout import Identity
from tests.benchmarks.gateway_stubs import GATEWAY, KV_DIGEST, UNIT, Stream
from tests.benchmarks.goals import Goals
from tests.runtime.launch_documents import gateway_launch
from tests.stacks.deployments import CHECKPOINT

HOST = "127.79.2.1"
UNITS = "spiffe://test/unit/"
PORTS = {"http": 8000, "registry": 29400, "metrics": 29500}
NUM_RANKS, MAX_REQUESTS = 8, 512
MAX_REQUEST_TOKENS = 2048
START_S, WARM_UP_S, MEASURED_S = 20, 4, 10
DAY_TOKENS_PER_S = 168e9 / 86_400  # DeepSeek's, of a day's output
CAPACITY, ANSWER_TOKENS = 64, 25  # of the overloaded run: requests at a time, half a second each
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main():
    """Run all, and hold it against the goals."""
    goals = Goals()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with gateway(MAX_REQUESTS) as process:
        for name, num_streams, step_ms in (("held", 2000, 100), ("paced", 400, 20)):
            num_running, rate, per_cpu_s, gap_s = asyncio.run(streams(process.pid, num_streams, step_ms))
            offered = num_streams * 1000 / step_ms
            print(f"{name}: {num_streams:,} streams, {rate:,.0f} of {offered:,.0f} tokens/s, worst gap {gap_s:.3f} s")
            print(f"  {per_cpu_s:,.0f} tokens a CPU second: a day takes {DAY_TOKENS_PER_S / per_cpu_s:,.0f} cores")
            goals.check(f"{name}: streams that run", num_running, "==", num_streams)
            goals.check(f"{name}: share of the tokens passed on", rate / offered, ">=", 0.98)
        before = resident_mib(process.pid)
        gap_s, answered = asyncio.run(beside_hostile())
        goals.check("hostile: worst gap of a neighbour, s", gap_s, "<=", 0.1 + 0.02)
        goals.check("hostile: neighbours answered", answered, "==", 50)
        goals.check("hostile: MiB that stay", resident_mib(process.pid) - before, "<=", 64)
    with gateway(MAX_REQUESTS, shows_certificates=True) as process:
        _, _, over_tls, _ = asyncio.run(streams(process.pid, 400, 20))
        goals.check("paced with certificates: tokens a CPU second, of those without", over_tls / per_cpu_s, ">=", 0.9)
    with gateway(CAPACITY // NUM_RANKS):
        once, _ = asyncio.run(offered_rate(1))
        thrice, refused_s = asyncio.run(offered_rate(3))
        goals.check("overloaded: goodput at 3 times the capacity, of that at once", thrice / once, ">=", 0.9)
        goals.check("overloaded: median time of a refusal, s", refused_s, "<=", 0.1)
    return goals.report()


@contextmanager
def gateway(max_requests, *, shows_certificates=False):
    """The gateway on core 0, with its ranks on core 1, where we are too."""
    os.sched_setaffinity(0, {1})
    launch = gateway_launch(
        CHECKPOINT,
        PORTS,
        kv_digest=KV_DIGEST,
        tls={"units": UNITS},
        model__name="m",
        limits__max_requests=max_requests,
        limits__max_request_tokens=MAX_REQUEST_TOKENS,
        limits__max_batch_tokens=MAX_REQUEST_TOKENS,
        limits__kv_tokens=MAX_REQUEST_TOKENS * max_requests,
        max_queued_requests=0,
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gateway.json"
        file.write_text(json.dumps(launch))
        words = [sys.executable, "-m", "runtime", "gateway", "--launch", file, "--address", HOST]
        stub = [sys.executable, "-m", "tests.benchmarks.gateway_stubs", HOST, PORTS["registry"], NUM_RANKS]
        if shows_certificates:
            write_certificates(Path(folder))
            words, stub = [*words, "--tls", Path(folder) / "gateway"], [*stub, Path(folder) / "unit"]
        process = subprocess.Popen(["taskset", "-c", "0", *words], stderr=subprocess.DEVNULL)
        ranks = None
        try:
            until_listening(PORTS["registry"])
            ranks = subprocess.Popen([str(word) for word in stub], stderr=subprocess.DEVNULL)
            until_listening(PORTS["http"])
            time.sleep(2)  # the ranks join
            yield process
        finally:
            for each in filter(None, (process, ranks)):
                each.terminate()
                each.wait()


def write_certificates(folder):
    gateway = Identity(GATEWAY, "server", folder / "gateway")
    Certificates([gateway, Identity(UNITS + UNIT, "client", folder / "unit")], now())


def until_listening(port, patience_s=30):
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        with suppress(OSError):
            asyncio.run(asyncio.open_connection(HOST, port))
            return
        time.sleep(0.1)
    raise SystemExit(f"nothing listens on {port}")


async def streams(pid, num_streams, step_ms, port=PORTS["http"]):
    """(streams that run, tokens/s, tokens a CPU second of the gateway, worst gap in seconds) at that pace."""
    opened = await open_streams(num_streams, step_ms, port=port)
    until = time.monotonic() + START_S
    while any(stream.status is None for stream in opened) and time.monotonic() < until:
        await asyncio.sleep(0.1)
    await asyncio.sleep(WARM_UP_S)
    for stream in opened:
        stream.worst_gap_s = 0.0
    tokens, cpu_s, began = sum(stream.num_events for stream in opened), cpu_seconds(pid), time.monotonic()
    await asyncio.sleep(MEASURED_S)
    tokens = sum(stream.num_events for stream in opened) - tokens
    cpu_s, seconds = cpu_seconds(pid) - cpu_s, time.monotonic() - began
    num_running = sum(stream.status == 200 and not stream.ended.done() for stream in opened)
    gap_s = max(stream.worst_gap_s for stream in opened)
    await close(opened)
    return num_running, tokens / seconds, tokens / max(cpu_s, 0.01), gap_s


async def open_streams(num_streams, step_ms, max_tokens=MAX_REQUEST_TOKENS - 8, port=PORTS["http"]):
    loop, opened = asyncio.get_running_loop(), []
    for number in range(num_streams):
        _, stream = await loop.create_connection(lambda: Stream(step_ms, max_tokens), HOST, port)
        opened.append(stream)
        if number % 50 == 49:
            await asyncio.sleep(0.05)
    return opened


async def close(opened):
    for stream in opened:
        stream.transport.abort()
    await asyncio.gather(*(stream.ended for stream in opened))
    await asyncio.sleep(1)


async def beside_hostile():
    """(worst gap in seconds, how many still run) of 50 streams while hostile clients do what they can."""
    opened = await open_streams(50, 20)
    await asyncio.sleep(7)
    print(f"hostile: worst gap before, {max(stream.worst_gap_s for stream in opened):.3f} s: the machine's own")
    for stream in opened:
        stream.worst_gap_s = 0.0
    words = [sys.executable, "-m", "tests.benchmarks.gateway_hostile", HOST, str(PORTS["http"])]
    others = await asyncio.create_subprocess_exec(*words)
    assert await others.wait() == 0
    await asyncio.sleep(1)
    result = max(stream.worst_gap_s for stream in opened), sum(not stream.ended.done() for stream in opened)
    await close(opened)
    return result


async def offered_rate(times):
    """(answered requests/s, median seconds of a refusal) at so many times the rate that the ranks can answer."""
    per_s = times * CAPACITY / (ANSWER_TOKENS * 0.02)
    loop, asked, due = asyncio.get_running_loop(), [], time.monotonic()
    for _ in range(int(per_s * MEASURED_S)):
        due += 1 / per_s
        await asyncio.sleep(max(0, due - time.monotonic()))
        _, stream = await loop.create_connection(lambda: Stream(20, ANSWER_TOKENS), HOST, PORTS["http"])
        asked.append(stream)
    answered = await asyncio.gather(*(stream.ended for stream in asked))
    refusals = [stream.answered_at - stream.asked_at for stream in asked if stream.status == 429]
    strange = {stream.status for stream in asked} - {200, 429}
    assert not strange, f"answers with {strange}"
    print(f"offered {per_s:,.0f} requests/s: {sum(answered) / MEASURED_S:,.0f} answered, {len(refusals):,} refused")
    return sum(answered) / MEASURED_S, statistics.median(refusals) if refusals else 0.0


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def resident_mib(pid):
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) // 1024


if __name__ == "__main__":
    sys.exit(main())
