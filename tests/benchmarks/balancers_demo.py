"""The balancers before the demo's model: real ranks, a real gateway for each balancer, the same requests for each.

The ranks of `balancers_demo.yaml` stay, and gateways come and go: ranks call the next one. Lengths are those of a
trace, divided so that the longest request is what the demo takes. The rate is LOAD of what is answered when everything
is asked at once, which is measured first. Clients ask for token ids over HTTP and read a stream each.

KV is read from the ranks' metrics ports twice a second (`rank_kv_tokens`), and what prefill computed at the beginning
and at the end (`computed_attention_pairs_total`, `computed_prompt_tokens_total`). KV counts from a third of the
arrivals on, when decode has filled, to the last one, as in the model. Answers are long and slots many, so that a decode
rank has some tens of requests: three or four of skewed lengths cannot be even wherever they go. Eight ranks share this
machine, so times are of a machine that is full, and only their ratios say something.
"""

import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from planner.compiler import compile_plan
from planner.facts import names
from planner.rules.check import check_spec
from runtime.gateway.ranks.router import Policy
from stacks.local.certificates import Certificates, now
from stacks.local.layout import lay_out_locally
from tests.benchmarks import balancers
from tests.benchmarks.balancers_foresight import kv_with_foresight
from tests.stacks.deployments import get_json, samples

SPEC = Path(__file__).with_name("balancers_demo.yaml")
HOST = "127.81.1.1"
LOAD = 0.8
DECODE_RANKS = 4
MAX_REQUEST_TOKENS = 2048
MEAN_ANSWER = 160  # tokens
NUM_PROBED, LEAST_REQUESTS, LEAST_S, LOOK_S = 300, 400, 150, 0.5
STARTING_S = 300
ENDS_WITH_US = ("--parent", str(os.getpid()))


@dataclass
class Asked:
    """A request, and when its tokens came."""

    prompt_tokens: int
    answer_tokens: int
    came_at: float = 0.0
    token_times: list = field(default_factory=list)
    status: int = 0


def demo_figures(sizes):
    """policy -> its figures on the running demo."""
    scaled = scale(sizes)
    with tempfile.TemporaryDirectory() as folder, Demo(Path(folder)) as demo:
        with demo.gateway(Policy.BALANCED):
            asked = [Asked(*size) for size in random.Random(1).sample(scaled, NUM_PROBED)]
            began = time.monotonic()
            asyncio.run(ask_all(asked))
            assert all(each.status == 200 for each in asked), "the demo refused a request of the probe"
            per_s = LOAD * NUM_PROBED / (time.monotonic() - began)
        print(f"{per_s:.2f} requests/s, prompts of {mean(p for p, _ in scaled):.0f} and answers of ", end="")
        print(f"{mean(g for _, g in scaled):.0f} tokens on average, at most {max(p for p, _ in scaled)}", flush=True)
        figures = {policy: measured(demo, policy, scaled, per_s) for policy in Policy}
    print(f"KV spread if the lengths of all answers were known: {known_spread(scaled, per_s, figures):.3f}")
    return figures


def scale(sizes):
    """The sizes, divided: answers of MEAN_ANSWER tokens on average, and the longest prompt just fits."""
    by = mean(answer for _, answer in sizes) / MEAN_ANSWER
    answers = [max(2, round(answer / by)) for _, answer in sizes]
    room = MAX_REQUEST_TOKENS - max(answers)
    longest = max(prompt for prompt, _ in sizes)
    return [(max(1, prompt * room // longest), answer) for (prompt, _), answer in zip(sizes, answers, strict=True)]


def known_spread(sizes, per_s, figures):
    """The KV spread of a balancer with foresight, at the pace that the demo had."""
    seconds, tpot_s = seconds_at(per_s), statistics.median(figures[Policy.BALANCED].tpot_s)
    looks = kv_with_foresight(balancers.arrivals(sizes, per_s, seconds), tpot_s, DECODE_RANKS, seconds)
    return mean(balancers.spread(kv) for kv in looks)


def seconds_at(per_s):
    """For how long requests come."""
    return max(LEAST_S, LEAST_REQUESTS / per_s)


def measured(demo, policy, sizes, per_s):
    """The figures of one balancer."""
    seconds = seconds_at(per_s)
    with demo.gateway(policy):
        asked = [
            Asked(request.prompt_tokens, request.answer_tokens, request.came_at)
            for request in balancers.arrivals(sizes, per_s, seconds)
        ]
        before = demo.computed()
        looks = asyncio.run(ask_and_look(asked, demo))
        pairs, tokens = (
            [b - a for a, b in zip(*both, strict=True)] for both in zip(before, demo.computed(), strict=True)
        )
    full = [look for at, *look in looks if seconds / 3 < at < seconds]
    refused = sum(each.status != 200 for each in asked)
    running = mean(mean(requests) for _, requests in full)
    print(f"{policy.value}: {len(asked)} requests, {refused} refused, {running:.0f} at a decode rank", flush=True)
    answered = [each for each in asked if each.status == 200]
    return balancers.Figures(
        [each.token_times[0] - each.came_at for each in answered],
        [(each.token_times[-1] - each.token_times[0]) / (len(each.token_times) - 1) for each in answered],
        mean(balancers.spread(kv) for kv, _ in full),
        mean(balancers.max_over_mean(kv) for kv, _ in full),
        mean(balancers.spread(requests) for _, requests in full),
        balancers.spread(pairs),
        balancers.max_over_mean(pairs),
        balancers.spread(tokens),
    )


class Demo:
    """The ranks of the spec, and a gateway when one is wanted."""

    def __init__(self, folder):
        self._folder, self._processes = folder, []

    def __enter__(self):
        plan = compile_plan(check_spec(SPEC))
        for name, text in plan.launch_files().items():
            (self._folder / name).write_text(text)
        self._layout = lay_out_locally(plan, self._folder, self._folder / "tls", self._folder / "kv", HOST)
        Certificates(self._layout.identities, now())
        self._ports = {"prefill": [], "decode": []}
        for node in self._layout.nodes:
            launch = json.loads((self._folder / names.launch_file(node.unit)).read_text())
            address = node.command[node.command.index("--address") + 1]
            self._ports[launch["phase"]] += [(address, launch["ports"]["metrics"] + rank) for rank in range(2)]
            self._start(node.command)
        return self

    def __exit__(self, *_):
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            process.wait()

    @contextmanager
    def gateway(self, policy):
        """A gateway that chooses so, from when all units are ready."""
        process = self._start([*self._layout.gateways[0].process.command, "--balancer", policy.value])
        try:
            deadline = time.monotonic() + STARTING_S
            while not self._all_ready():
                assert time.monotonic() < deadline, f"the demo is not ready; its log is in {self._folder}"
                time.sleep(0.5)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
            self._processes.remove(process)

    def computed(self):
        """(attention pairs, prompt tokens) that each prefill rank computed so far."""
        shown = [samples(*port) for port in self._ports["prefill"]]
        return tuple(
            [value(each, f"tidemill_computed_{what}_total") for each in shown]
            for what in ("attention_pairs", "prompt_tokens")
        )

    def look(self):
        """(KV tokens, requests) of each decode rank now."""
        shown = [samples(*port) for port in self._ports["decode"]]
        requests = [value(each, "tidemill_rank_requests_running", "tidemill_rank_requests_waiting") for each in shown]
        return [value(each, "tidemill_rank_kv_tokens") for each in shown], requests

    def _all_ready(self):
        with suppress(OSError):
            units = get_json(f"{self._layout.gateways[0].endpoint}/readyz")["units"]
            states = [rank["state"] for unit in units for rank in unit["ranks"]]
            return states == ["ready"] * 8
        return False

    def _start(self, command):
        with (self._folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [*command, *ENDS_WITH_US], stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"}
            )
        self._processes.append(process)
        return process


async def ask_and_look(asked, demo):
    """Ask each when it is due, and look at the ranks until all are answered; return each look behind its seconds."""
    asking, looks, began = asyncio.create_task(ask_all(asked)), [], time.monotonic()
    while not asking.done():
        looks.append((time.monotonic() - began, *await asyncio.to_thread(demo.look)))
        await asyncio.sleep(LOOK_S)
    await asking
    return looks


async def ask_all(asked, host=HOST):
    """Ask each at its time from now, which then becomes that of the clock."""
    began = time.monotonic()
    for each in asked:
        each.came_at += began
    await asyncio.gather(*(ask(each, host) for each in asked))


async def ask(asked, host):
    """Read one answer, noting when each token came."""
    await asyncio.sleep(max(0.0, asked.came_at - time.monotonic()))
    prompt = [random.Random(asked.came_at).randrange(10, 4000) for _ in range(asked.prompt_tokens)]
    wish = {"max_tokens": asked.answer_tokens, "min_tokens": asked.answer_tokens, "ignore_eos": True}
    body = json.dumps({"model": "tidemill-demo", "prompt": prompt, "stream": True, **wish})
    reader, writer = await asyncio.open_connection(host, 8000, limit=2**20)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write((head + body).encode())
    asked.status = int((await reader.readline()).split()[1])
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            asked.token_times.append(time.monotonic())
    writer.close()


def value(shown, *names):
    """The sum of these metrics, which a rank shows once each."""
    return sum(sample.value for sample in shown if sample.name in names)


def mean(values):
    return statistics.mean(list(values))
