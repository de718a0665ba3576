"""The gateways' measurements, read from their metrics.

Each gateway knows the loads of all phases and the units that one slow rank holds up, so one is enough for these.
Requests that failed are counted by each for itself.
"""

import http.client
import queue
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar, cast
from urllib.parse import urlsplit

from planner.facts.terms import PHASES, Phase
from planner.problems.printable import without_secrets
from stacks.controller.demand import Load
from stacks.measured.samples import read_samples

__all__ = ["Figures", "NoFigures", "parse_figures", "read_figures"]

ASK_S = 2.0  # assumed: less than a round
MAX_BYTES = 4 * 2**20  # assumed: the gateway's metrics are some ten thousand
MAX_COUNT = 2**53  # the largest count; a float is not exact beyond it
READY, REQUESTS, KV, PROMPTS = "ready_units", "requests", "kv_tokens", "prompt_tokens"  # of a phase
STRAGGLER, FAILED = "unit_straggler", "num_requests_failed_total"
PHASE_SAMPLES = rf"phase_(?:{READY}|{REQUESTS}|{KV}|{PROMPTS})"


class NoFigures(ValueError):
    """The gateways' measurements cannot be read; the text is the reason."""


T = TypeVar("T")
Answers = queue.SimpleQueue[T | NoFigures]


@dataclass(frozen=True)
class Figures:
    """The gateways' measurements at one look."""

    loads: Mapping[Phase, Load]  # of phases with a ready unit
    stragglers: frozenset[str]  # ready units that one slow rank holds up
    failed: Mapping[str, int] = field(default_factory=dict)  # address of a gateway -> requests that failed there


def read_figures(url: str) -> Figures:
    """Fetch the metrics of every gateway at `url`, which needs no password. Raises NoFigures if none answers.

    Threads send the requests: resolving a host name may take any time, and the controller must not wait for it.
    """
    url, until = without_secrets(url), time.monotonic() + ASK_S
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or http.client.HTTP_PORT
    except ValueError as error:
        raise NoFigures(f"{url} is no address: {error}") from None
    found: Answers[list[str]] = queue.SimpleQueue()
    threading.Thread(target=_resolve, args=(url, host, port, found), name="addresses", daemon=True).start()
    questions = [_Question(url, address, port, parts.path) for address in _take(url, found, until)]
    for each in questions:
        threading.Thread(target=each.ask, name="figures", daemon=True).start()
    pages, problem = {}, NoFigures(f"{url} has no address")
    for each in questions:
        try:
            pages[each.address] = _take(url, each.answers, until)
        except NoFigures as error:
            each.give_up()
            problem = error
    if not pages:
        raise problem
    return parse_figures(pages)


def parse_figures(pages: Mapping[str, str]) -> Figures:
    """Return the measurements on the gateways' pages of metrics (address -> page).

    Raises NoFigures if a figure is not a count.
    """
    page = next(iter(pages.values()))
    try:
        values = dict(_values(page))
        failed = {address: count for address, text in pages.items() if (count := _num_failed(text)) is not None}
    except ValueError as error:
        raise NoFigures(f"the gateway's metrics cannot be read: {error}") from error
    phases = [phase for (name, phase), number in values.items() if name == READY and number]
    loads = {
        cast(Phase, phase): Load(
            int(values[READY, phase]), *(values.get((name, phase), 0.0) for name in (REQUESTS, KV, PROMPTS))
        )
        for phase in phases
    }
    stragglers = (sample.labels.get("unit", "") for sample in read_samples(page, STRAGGLER))
    return Figures(loads, frozenset(stragglers), failed)


def _resolve(url: str, host: str, port: int, found: Answers[list[str]]) -> None:
    """Put the addresses of a host, or the error, into `found`."""
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        found.put(NoFigures(f"{url} does not answer: {error}"))
    else:
        found.put(list(dict.fromkeys(str(address[0]) for *_, address in entries)))


def _take(url: str, answers: Answers[T], until: float) -> T:
    """Return what is put into `answers` before the time `until` of the monotonic clock.

    Raises NoFigures if nothing comes in time, or if an error comes.
    """
    try:
        answer = answers.get(timeout=max(until - time.monotonic(), 0.0))
    except queue.Empty:
        raise NoFigures(f"{url} does not answer within {ASK_S:g} s") from None
    if isinstance(answer, NoFigures):
        raise answer
    return answer


class _Question:
    """One request to a gateway. Giving it up ends its thread and socket, however slow the answer is."""

    def __init__(self, url: str, address: str, port: int, path: str) -> None:
        self.address = address
        self.answers: Answers[str] = queue.SimpleQueue()
        self._url, self._path = url, path
        self._connection = http.client.HTTPConnection(address, port, timeout=ASK_S)
        self._socket: socket.socket | None = None
        self._is_given_up = False

    def ask(self) -> None:
        """Fetch the page of metrics and put it, or the error, into `answers`."""
        try:
            self.answers.put(self._page())
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.answers.put(NoFigures(f"{self._url} does not answer: {error}"))
        finally:
            self._connection.close()

    def give_up(self) -> None:
        """Close the socket. If there is none yet, `ask` notices that it was given up."""
        self._is_given_up = True
        if self._socket is not None:
            with suppress(OSError):  # it has ended by itself
                self._socket.shutdown(socket.SHUT_RDWR)

    def _page(self) -> str | NoFigures:
        self._connection.connect()
        self._socket = self._connection.sock
        if self._is_given_up:
            return NoFigures(f"{self._url} is reached too late")
        self._connection.request("GET", self._path)
        response = self._connection.getresponse()
        text = response.read(MAX_BYTES + 1)
        if response.status != http.client.OK:
            return NoFigures(f"{self._url} answers {response.status}")
        return text.decode() if len(text) <= MAX_BYTES else NoFigures(f"{self._url} answers more than {MAX_BYTES} B")


def _num_failed(text: str) -> int | None:
    """Return how many requests have failed at a gateway; None if its page has no such figure.

    Raises ValueError if the figure is not a count.
    """
    counts = [_count(FAILED, sample.written) for sample in read_samples(text, FAILED)]
    return int(sum(counts)) if counts else None


def _values(text: str) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield ((name, phase), number) of each load figure. Raises ValueError if a number is not a count."""
    for sample in read_samples(text, PHASE_SAMPLES):
        name, phase = sample.name.removeprefix("phase_"), sample.labels.get("phase")
        if phase not in PHASES:
            continue
        yield (name, phase), _count(f"{name} of {phase}", sample.written)


def _count(name: str, written: str) -> float:
    """Return the number that is `written`. Raises ValueError if it is not a count."""
    value = float(written)
    if not 0 <= value < MAX_COUNT:
        raise ValueError(f"{name} is {value}")
    return value
