"""What the gateway measures: phases' loads and units that are held up, out of its metrics port's Prometheus text.

Prometheus' own parser is part of its client, which is there only where the runtime is.
"""

import http.client
import queue
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import cast
from urllib.parse import urlsplit

from planner.facts.terms import Phase
from stacks.controller.demand import Load

__all__ = ["Figures", "NoFigures", "figures_in", "read_figures"]

ASK_S = 2.0  # assumed: less than a round
MOST_BYTES = 4 * 2**20  # assumed: the gateway's metrics are some ten thousand
READY, REQUESTS, KV, PROMPTS = "ready_units", "requests", "kv_tokens", "prompt_tokens"
# A quote within another label's value has a backslash before it.
SAMPLE = re.compile(r'^tidemill_phase_(\w+)\{.*?\bphase="(prefill|decode|mixed)".*\} (\S+)$', re.MULTILINE)
STRAGGLER = re.compile(r'^tidemill_unit_straggler\{.*?\bunit="([-a-z0-9]+)".*\} \S+$', re.MULTILINE)


class NoFigures(ValueError):
    """Nobody can say what the gateway measures, and why."""


@dataclass(frozen=True)
class Figures:
    """One look."""

    loads: Mapping[Phase, Load]  # of phases with a ready unit
    stragglers: frozenset[str]  # ready units that one slow rank holds up


def read_figures(url: str) -> Figures:
    """Ask the gateway. Raise NoFigures.

    Whether names are resolved in time is not for us to say, and a day must not wait for it: a thread asks.
    """
    pages: queue.SimpleQueue[str | NoFigures] = queue.SimpleQueue()
    threading.Thread(target=lambda: pages.put(_page(url)), name="figures", daemon=True).start()
    try:
        page = pages.get(timeout=ASK_S)
    except queue.Empty:
        raise NoFigures(f"{url} does not answer within {ASK_S:g} s") from None
    if isinstance(page, NoFigures):
        raise page
    return figures_in(page)


def figures_in(text: str) -> Figures:
    """Return what a page of metrics says. Raise NoFigures."""
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
    return Figures(loads, frozenset(STRAGGLER.findall(text)))


def _page(url: str) -> str | NoFigures:
    """Return the page, or why there is none."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=ASK_S)
    try:
        connection.request("GET", parts.path)
        response = connection.getresponse()
        text = response.read(MOST_BYTES).decode()
    except (OSError, http.client.HTTPException, ValueError) as error:
        return NoFigures(f"{url} does not answer: {error}")
    finally:
        connection.close()
    return text if response.status == http.client.OK else NoFigures(f"{url} answers {response.status}")


def _values(text: str) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield each figure by its name and phase. Raise ValueError for one that counts nothing."""
    for name, phase, written in SAMPLE.findall(text):
        value = float(written)
        if not (isfinite(value) and value >= 0):
            raise ValueError(f"{name} of {phase} is {value}")
        yield (name, phase), value
