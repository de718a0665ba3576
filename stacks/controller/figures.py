"""The gateway's measurements, read from its metrics: loads of phases, and units that one slow rank holds up."""

import http.client
import queue
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from planner.facts.terms import PHASES, Phase
from planner.problems.printable import without_secrets
from stacks.controller.demand import Load
from stacks.live.samples import read_samples

__all__ = ["Figures", "NoFigures", "parse_figures", "read_figures"]

ASK_S = 2.0  # assumed: less than a round
MAX_BYTES = 4 * 2**20  # assumed: the gateway's metrics are some ten thousand
MAX_COUNT = 2**53  # the largest count; a float is not exact beyond it
READY, REQUESTS, KV, PROMPTS = "ready_units", "requests", "kv_tokens", "prompt_tokens"  # of a phase
STRAGGLER = "unit_straggler"
PHASE_SAMPLES = rf"phase_(?:{READY}|{REQUESTS}|{KV}|{PROMPTS})"


class NoFigures(ValueError):
    """The gateway's measurements cannot be read; the text says why."""


@dataclass(frozen=True)
class Figures:
    """The gateway's measurements at one look."""

    loads: Mapping[Phase, Load]  # of phases with a ready unit
    stragglers: frozenset[str]  # ready units that one slow rank holds up


def read_figures(url: str) -> Figures:
    """Fetch the gateway's page of metrics, which needs no password. Raise NoFigures.

    A thread sends the request: resolving a host name may take any time, and the controller must not wait for it.
    """
    url = without_secrets(url)
    try:
        question = _Question(url)
    except (http.client.HTTPException, ValueError) as error:
        raise NoFigures(f"{url} is no address: {error}") from None
    threading.Thread(target=question.ask, name="figures", daemon=True).start()
    try:
        page = question.answers.get(timeout=ASK_S)
    except queue.Empty:
        question.give_up()
        raise NoFigures(f"{url} does not answer within {ASK_S:g} s") from None
    if isinstance(page, NoFigures):
        raise page
    return parse_figures(page)


def parse_figures(text: str) -> Figures:
    """Return the measurements on a page of metrics. Raise NoFigures."""
    try:
        values = dict(_values(text))
    except ValueError as error:
        raise NoFigures(f"the gateway's metrics cannot be read: {error}") from error
    phases = [phase for (name, phase), number in values.items() if name == READY and number]
    loads = {
        cast(Phase, phase): Load(
            int(values[READY, phase]), *(values.get((name, phase), 0.0) for name in (REQUESTS, KV, PROMPTS))
        )
        for phase in phases
    }
    if not loads:
        raise NoFigures("the gateway knows of no ready unit")
    stragglers = (sample.labels.get("unit", "") for sample in read_samples(text, STRAGGLER))
    return Figures(loads, frozenset(stragglers))


class _Question:
    """One request to the gateway. Giving it up ends its thread and socket, however slow the answer is."""

    def __init__(self, url: str) -> None:
        """Raise ValueError or HTTPException if the address is not valid."""
        parts = urlsplit(url)
        self.answers: queue.SimpleQueue[str | NoFigures] = queue.SimpleQueue()
        self._url, self._path = url, parts.path
        self._connection = http.client.HTTPConnection(parts.netloc, timeout=ASK_S)
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


def _values(text: str) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield each load figure with its name and phase. Raise ValueError for a figure that is no count."""
    for sample in read_samples(text, PHASE_SAMPLES):
        name, phase = sample.name.removeprefix("phase_"), sample.labels.get("phase")
        if phase not in PHASES:
            continue
        value = float(sample.written)
        if not 0 <= value < MAX_COUNT:
            raise ValueError(f"{name} of {phase} is {value}")
        yield (name, phase), value
