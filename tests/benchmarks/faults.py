"""A running demo under load while its processes are killed and stopped at random moments: who notices?

    python -m tests.benchmarks.faults --faults 100 [--drains 20] [--seed 0]

Half of the faults hit the demo's prefill and decode units, half two mixed units behind two gateways. Each kills
(SIGKILL) or freezes (SIGSTOP) a rank, a node or a gateway while answers are streamed, and waits until everything is
ready again. A drain asks one to end (SIGTERM), as a rolling restart does. Callers ask without a pause, greedy and
drawn, each at a gateway of its own, and every answer must be the text of a day without faults. A call is made again
under the same `Idempotency-Key`, at the next gateway if there is one, as clients do, when it finds no gateway or no
unit ready, or when its stream breaks off and it was its gateway that was killed or frozen. A stream that breaks off for
any other reason, such as the end of another gateway, is wrong.

Exits with 1 when an answer was wrong, or when a deployment did not recover. It prints times, and holds none to a limit.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from urllib.parse import urlsplit

from rich.progress import Progress

from tests.events import DONE, data_of
from tests.stacks.deployments import HOSTS, Tidemill, get_json

__all__ = ["Load", "expected_texts", "hosts_of", "kinds_of", "restarts", "strike"]

SPEC = Path(__file__).with_name("faults.yaml")
CALLS = [
    {"prompt": "Return a list of", "max_tokens": 120, "temperature": 0},
    {"prompt": "Write a function that", "max_tokens": 120, "temperature": 1},  # drawn by its key
    {"prompt": "def mean(values):", "max_tokens": 160, "temperature": 0},
    {"prompt": "Why is the sea salt?", "max_tokens": 90, "temperature": 0.7, "seed": 11},
]
KEYS = ["first", "second", "third", "fourth"]  # of the calls: the texts that are expected are those of these keys
RECOVERED_S = 240.0  # restarts wait up to a minute, and a busy machine loads slowly
PAUSE_S = 0.2
FAULTS = (signal.SIGKILL, signal.SIGSTOP)


@dataclass
class Findings:
    """What callers saw. `wrong` has a sentence for each answer that was not as expected."""

    num_answers: int = 0
    num_asked_again: int = 0
    wrong: list[str] = field(default_factory=list)


class Load:
    """Callers that ask one after another from `with` to its end, and compare every text with the expected one.

    Each has a gateway of `hosts` that it asks first. `cut_host` is the one whose streams may break off.
    """

    def __init__(self, hosts: Sequence[str], expected: list[str]) -> None:
        self.findings = Findings()
        self.cut_host: str | None = None
        self._hosts, self._expected = hosts, expected
        self._is_over = threading.Event()
        self._said = threading.Semaphore(0)
        self._callers = [threading.Thread(target=self._ask_on, args=(number,)) for number in range(len(expected))]

    def __enter__(self) -> "Load":
        for caller in self._callers:
            caller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for caller in self._callers:
            caller.join()

    def wait_for_tokens(self, number: int) -> None:
        """Return once so many tokens have come from now on: answers are under way."""
        while self._said.acquire(blocking=False):
            pass
        for _ in range(number):
            if not self._said.acquire(timeout=RECOVERED_S):
                raise TimeoutError("no token came")

    def _ask_on(self, number: int) -> None:
        while not self._is_over.is_set():
            try:
                text = self._answer(number)
            except (ValueError, TimeoutError) as error:
                self.findings.wrong.append(f"call {number}: {error}")
                continue
            self.findings.num_answers += 1
            if text != self._expected[number]:
                self.findings.wrong.append(f"call {number}: {text!r}, not {self._expected[number]!r}")

    def _answer(self, number: int) -> str:
        """The text of one call, made again while there is no gateway or no unit. Raise ValueError if it is cut."""
        until = time.monotonic() + RECOVERED_S
        own = number % len(self._hosts)
        hosts = cycle([*self._hosts[own:], *self._hosts[:own]])
        while True:
            pieces: list[str] = []
            host = next(hosts)
            try:
                pieces.extend(self._pieces(host, number))  # as they come: what was read before it is cut stays
                return "".join(pieces)
            except (OSError, http.client.HTTPException, _NotReadyError) as error:
                if pieces and host != self.cut_host:
                    raise ValueError(f"cut after {''.join(pieces)!r}: {error!r}") from None
            self.findings.num_asked_again += 1
            if time.monotonic() > until:
                raise TimeoutError("no answer, however often it was asked for")
            time.sleep(PAUSE_S)

    def _pieces(self, host: str, number: int) -> Iterator[str]:
        body = json.dumps({"model": "tidemill-demo", "stream": True, **CALLS[number]})
        with contextlib.closing(http.client.HTTPConnection(host, 8000, timeout=RECOVERED_S)) as connection:
            connection.request("POST", "/v1/completions", body, _headers(number))
            response = connection.getresponse()
            if response.status == 503:
                raise _NotReadyError
            if response.status != 200:
                raise ValueError(f"{response.status}: {response.read().decode()}")
            for data in data_of(response):
                if data == DONE:
                    return
                yield self._piece(json.loads(data))
            raise http.client.IncompleteRead(b"")

    def _piece(self, event: dict) -> str:
        if "error" in event:
            raise ValueError(event["error"]["message"])
        self._said.release()
        return event["choices"][0]["text"]


class _NotReadyError(Exception):
    """No unit was ready, before the answer's first token."""


def expected_texts(host: str, num_calls: int = len(CALLS)) -> list[str]:
    """The text of each call, while nothing happens."""
    return [_whole_text(host, number) for number in range(num_calls)]


def _headers(number: int) -> dict[str, str]:
    return {"Idempotency-Key": KEYS[number], "Content-Type": "application/json"}


def _whole_text(host: str, number: int) -> str:
    body = json.dumps({"model": "tidemill-demo", "stream": True, **CALLS[number]})
    request = urllib.request.Request(f"http://{host}:8000/v1/completions", body.encode(), _headers(number))
    with urllib.request.urlopen(request, timeout=RECOVERED_S) as response:
        events = [json.loads(data) for data in data_of(response) if data != DONE]
    return "".join(event["choices"][0]["text"] for event in events)


def restarts(status: dict) -> int:
    """How often units and gateways were started again."""
    return sum(part.get("restarts", 0) for part in (*status["units"], *status["gateways"]))


def hosts_of(tidemill: Tidemill) -> list[str]:
    """The address of each gateway."""
    return [str(urlsplit(gateway["endpoint"]).hostname) for gateway in tidemill.status()["gateways"]]


def kinds_of(tidemill: Tidemill) -> dict[str, list[int]]:
    """Kind of process -> the process ids that are of it, as the gateways know them, which come in order."""
    reports = [get_json(f"http://{host}:8000/readyz") for host in hosts_of(tidemill)]
    kinds = {"gateway": [report["pid"] for report in reports]}
    for unit in reports[0]["units"]:
        pids = [rank["pid"] for rank in unit["ranks"] if rank["state"] != "lost"]
        kinds.setdefault(f"{unit['phase']} rank", []).extend(pids)
        kinds.setdefault(f"{unit['phase']} node", []).extend(sorted({_parent(pid) for pid in pids}))
    return kinds


def strike(tidemill: Tidemill, load: Load, kind: str, number: signal.Signals, draw: random.Random) -> float:
    """Send the signal to a process of this kind while answers are under way. Return the seconds until all is ready."""
    before = restarts(tidemill.status())
    kinds, hosts = kinds_of(tidemill), hosts_of(tidemill)
    victim = draw.choice(kinds[kind])
    load.wait_for_tokens(draw.randrange(1, 100))
    if kind == "gateway" and number != signal.SIGTERM:
        load.cut_host = hosts[kinds[kind].index(victim)]
    struck = time.monotonic()
    os.kill(victim, number)
    while not _is_as_before(tidemill.status(), before):
        if time.monotonic() - struck > RECOVERED_S:
            raise TimeoutError(f"not ready within {RECOVERED_S:g} s after {number.name} of a {kind}")
        time.sleep(PAUSE_S)
    recovered = time.monotonic() - struck
    load.wait_for_tokens(50)
    load.cut_host = None
    return recovered


def _is_as_before(status: dict, restarts_before: int) -> bool:
    is_ready = all(part["state"] == "ready" for part in (*status["units"], *status["gateways"]))
    return is_ready and restarts(status) > restarts_before


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _signals(num_faults: int, num_drains: int, num_kinds: int) -> list[signal.Signals]:
    """The signal of each strike: kinds are struck in turn, so faults alternate after each round of them."""
    faults = [FAULTS[index // num_kinds % len(FAULTS)] for index in range(num_faults)]
    return faults + [signal.SIGTERM] * num_drains


def _struck(
    spec: list[Path], shares: tuple[int, int], draw: random.Random, progress: Progress
) -> tuple[Findings, dict[tuple[str, signal.Signals], list[float]]]:
    """Strike one deployment with its share of faults and of drains.

    Return what callers saw, and (kind, signal) -> the seconds to recover.
    """
    times = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        tidemill = Tidemill(next(HOSTS), Path(folder))
        done = tidemill.up(*spec)
        if done.returncode:
            raise SystemExit(done.stderr)
        try:
            bar = progress.add_task(spec[0].stem if spec else "demo", total=sum(shares))
            kinds = sorted(kinds_of(tidemill))
            with Load(hosts_of(tidemill), expected_texts(tidemill.host)) as load:
                for index, number in enumerate(_signals(*shares, len(kinds))):
                    kind = kinds[index % len(kinds)]
                    times[kind, number].append(strike(tidemill, load, kind, number, draw))
                    found = f"{load.findings.num_answers} answers, {len(load.findings.wrong)} wrong"
                    progress.console.print(f"{kind} {number.name}: {times[kind, number][-1]:.1f} s, {found}")
                    progress.advance(bar)
        finally:
            tidemill.run("down")
    return load.findings, times


def main() -> int:
    """Print a table, and what was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", type=int, default=10)
    parser.add_argument("--drains", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw, num_wrong = random.Random(arguments.seed), 0
    mixed = arguments.faults // 2, arguments.drains // 2
    pair = arguments.faults - mixed[0], arguments.drains - mixed[1]
    with Progress() as progress:
        for name, spec, shares in (("demo", [], pair), ("two mixed units and gateways", [SPEC], mixed)):
            found, times = _struck(spec, shares, draw, progress)
            num_wrong += len(found.wrong)
            print(f"{name}, {shares[0]} faults and {shares[1]} drains: {found.num_answers} answers,", end=" ")
            print(f"{len(found.wrong)} wrong, {found.num_asked_again} asked again")
            print(f"{'struck':<28}{'times':>6}{'median s':>10}{'worst s':>10}")
            for (kind, number), seconds in sorted(times.items()):
                figures = f"{len(seconds):>6}{statistics.median(seconds):>10.1f}{max(seconds):>10.1f}"
                print(f"{f'{kind} {number.name}':<28}{figures}")
            for sentence in found.wrong[:10]:
                print(sentence)
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
