"""A day that is played under steady streams: does anybody who asks notice that units come and go?

    python -m tests.benchmarks.played_day [--day 5min] [--spec SPEC] [--host 127.90.4.1]

First all units are up and nothing changes: each call's text then is the one that is expected. Then `tidemill up --day`
plays the spec's day, while callers of the package `openai` stream one answer after another, without retries. They stop
asking shortly before the day is over, since the end of the day ends the gateway.

Exits with 1 unless every unit was started, ready, drained and gone when it was due, and every answer was whole and had
the text of the undisturbed run.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import openai

from planner.facts.quantities import read_seconds
from stacks.local.played_day import DayRecord
from stacks.local.run_folder import RunFolder
from tests.benchmarks.goals import Goals
from tests.stacks.deployments import REPOSITORY, Tidemill, get_json, wait_until

__all__ = ["CALLS", "Answer", "Streams", "played", "undisturbed"]

SPEC = REPOSITORY / "stacks" / "specs" / "demo-day.yaml"
HOST = "127.90.4.1"
CALLS = [
    {"prompt": "Return a list of", "max_tokens": 120, "temperature": 0},
    {"prompt": "def mean(values):", "max_tokens": 160, "temperature": 0},
    {"prompt": "Why is the sea salt?", "max_tokens": 90, "temperature": 0.7, "seed": 11},
    {"prompt": "Write a function that", "max_tokens": 60, "temperature": 1, "seed": 7},
]
ANSWER_S = 120.0
LAST_CALL_S = 2.0  # before the day is over; an answer that runs then is drained
PROMPT_S = 2.0  # the supervisor looks every 0.2 s, and at most this long on a busy machine


@dataclass(frozen=True)
class Answer:
    """One whole answer, and when it was streamed: times of time.time()."""

    text: str
    finish_reason: str | None
    num_tokens: int
    began: float
    ended: float


@dataclass
class Streams:
    """Callers that stream one answer after another, each its own call and `pause_s` apart, from `with` to `stop`."""

    host: str
    expected: list[Answer]
    pause_s: float = 0.0
    answers: list[Answer] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self):
        self._is_over = threading.Event()
        self._callers = [threading.Thread(target=self._ask_on, args=(number,)) for number in range(len(self.expected))]

    def __enter__(self):
        for caller in self._callers:
            caller.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """Begin no more answers, and wait for those that run."""
        self._is_over.set()
        for caller in self._callers:
            caller.join()

    def num_under_way(self, at):
        """How many answers were being streamed at a time, to their end and whole."""
        return sum(answer.began < at < answer.ended for answer in self.answers)

    def _ask_on(self, number):
        client, expected = client_of(self.host), self.expected[number]
        while not self._is_over.is_set():
            try:
                answer = ask(client, CALLS[number])
            except openai.OpenAIError as error:
                self.wrong.append(f"call {number}: {error!r}")
                time.sleep(0.2)
                continue
            self.answers.append(answer)
            if (answer.text, answer.finish_reason, answer.num_tokens) != (
                expected.text,
                expected.finish_reason,
                expected.num_tokens,
            ):
                self.wrong.append(f"call {number}: {answer}, not {expected}")
            self._is_over.wait(self.pause_s)


def client_of(host):
    """A client that never asks twice."""
    return openai.OpenAI(base_url=f"http://{host}:8000/v1", api_key="none", max_retries=0, timeout=ANSWER_S)


def ask(client, call):
    """Stream one answer to its end. Raise OpenAIError."""
    began, pieces, reason, tokens = time.time(), [], None, 0
    stream = client.completions.create(
        model="tidemill-demo", stream=True, stream_options={"include_usage": True}, **call
    )
    for chunk in stream:
        for choice in chunk.choices:
            pieces.append(choice.text)
            reason = choice.finish_reason or reason
        if chunk.usage is not None:
            tokens = chunk.usage.completion_tokens
    return Answer("".join(pieces), reason, tokens, began, time.time())


def undisturbed(host):
    """The answer to each call, while nothing else happens."""
    client = client_of(host)
    return [ask(client, call) for call in CALLS]


def played(tidemill: Tidemill, spec: Path, length: str, expected: list[Answer]) -> tuple[int, DayRecord, Streams, str]:
    """Play a day under streams. Return the exit status, the day as it went, what callers saw, and what was printed."""
    up = tidemill.start("up", spec, "--day", length, "--host", tidemill.host)
    said = []
    reader = threading.Thread(target=lambda: said.extend(up.stderr))
    reader.start()
    try:
        assert up.stdout.readline().startswith("endpoint: "), "".join(said)
        began = time.monotonic()
        seconds = read_seconds(length)
        with Streams(tidemill.host, expected) as streams:
            while up.poll() is None and time.monotonic() - began < seconds - LAST_CALL_S:
                time.sleep(0.1)
        status = up.wait(timeout=seconds + ANSWER_S)
    finally:
        if up.poll() is None:
            tidemill.run("down")
        reader.join()
    (folder,) = (tidemill.state / "tidemill").iterdir()
    record = RunFolder(folder).read()
    return status, record.day, streams, "".join([*said, up.stdout.read()])


def texts_before(tidemill, spec):
    """What is answered when all units are up and stay."""
    done = tidemill.up(spec)
    if done.returncode:
        raise SystemExit(done.stderr)
    try:
        wait_until(lambda: get_json(f"http://{tidemill.host}:8000/readyz")["ready"])
        return undisturbed(tidemill.host)
    finally:
        tidemill.run("down")


def main():
    """Play the day, print what was done, and hold it against the goals."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--day", default="5min")
    parser.add_argument("--spec", type=Path, default=SPEC)
    parser.add_argument("--host", default=HOST)
    arguments = parser.parse_args()
    goals = Goals()
    with tempfile.TemporaryDirectory() as folder:
        tidemill = Tidemill(arguments.host, Path(folder) / "state")
        expected = texts_before(tidemill, arguments.spec)
        status, day, streams, said = played(tidemill, arguments.spec, arguments.day, expected)
    print(said)
    at_drains = [streams.num_under_way(day.began + act.done_s) for act in day.acts if act.kind == "drain"]
    tokens = sum(answer.num_tokens for answer in streams.answers)
    print(f"{len(streams.answers)} answers of {tokens} tokens; under way at each drain: {at_drains}")
    print(json.dumps(streams.wrong[:10], indent=1)) if streams.wrong else None
    waits = [act.done_s - act.due_s for act in day.acts if act.kind in ("start", "drain")]
    goals.check("exit status of up", status, "==", 0)
    goals.check("acts done", sum(act.done_s is not None for act in day.acts), "==", len(day.acts))
    goals.check("most seconds from due to start or drain", max(waits), "<=", PROMPT_S)
    goals.check("units not ready, or not gone, in time", day.num_late, "==", 0)
    goals.check("answers under way at the least busy drain", min(at_drains), ">=", 1)
    goals.check("failed, shortened or other answers", len(streams.wrong), "==", 0)
    return goals.report()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.TimeoutExpired as error:
        sys.exit(f"the day did not end: {error}")
