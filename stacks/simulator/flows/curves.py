"""What happened in each minute of a simulated day."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Curve", "Curves", "Minute"]

Curve = NDArray[np.float64]


@dataclass
class Minute:
    """The figures of one minute. Counts cover the whole minute; other figures hold at its end."""

    asked: float = 0.0  # requests that came
    refused: float = 0.0  # requests that the gateway answered with 429
    prompts: float = 0.0  # prompts that were finished
    tokens: float = 0.0  # tokens of output
    restarted: float = 0.0  # requests that start again because their unit failed
    cut: float = 0.0  # requests not yet answered when their unit's drain ended
    queued_prompts: float = 0.0  # prompts that wait or are under way
    prompt_busy: float = 0.0  # share of time that the groups which compute prompts are busy
    prompt_wait: float = 0.0  # mean seconds until a prompt's first step, backlog and random wait together
    prompt_load: float = 0.0  # arriving prompts over the most that could be computed: 1 is full load
    prompt_seconds: float = 0.0  # seconds from one step of prompts to the next
    queued_requests: float = 0.0  # requests that have their first token and no place yet
    requests: float = 0.0  # requests of one attention group that get tokens
    kv_used: float = 0.0  # share of the room for KV
    tpot: float = 0.0  # seconds; the wait for a place is spread over the answer
    nodes_on: float = 0.0
    nodes_taken: float = 0.0  # nodes of units that serve, warm up or drain
    prompt_nodes_taken: float = 0.0  # of these, nodes of units that compute prompts
    prompt_units: float = 0.0
    token_units: float = 0.0


class Curves:
    """The minutes of a day, with an array `[minutes]` for each field of `Minute`, such as `curves.tpot`."""

    def __init__(self, minutes: Sequence[Minute]) -> None:
        self._curves = {
            name: np.array([getattr(each, name) for each in minutes]) for name in Minute.__dataclass_fields__
        }

    def __getattr__(self, name: str) -> Curve:
        try:
            return self._curves[name]
        except KeyError:
            raise AttributeError(name) from None
