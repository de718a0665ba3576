"""A played day by the minute."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Curve", "Curves", "Minute"]

Curve = NDArray[np.float64]


@dataclass
class Minute:
    """What happened in one minute. Counts are of the whole minute, levels of its end."""

    asked: float = 0.0  # requests that came
    refused: float = 0.0  # that the gateway answered with 429
    prompts: float = 0.0  # prompts that were finished
    tokens: float = 0.0  # tokens of output
    restarted: float = 0.0  # requests that failed units had
    cut: float = 0.0  # requests that a drain's end caught
    queued_prompts: float = 0.0  # that wait or are computed
    prompt_busy: float = 0.0  # share of their time that the groups of prompts work, or mixed units
    prompt_wait: float = 0.0  # seconds that prompts wait for their first step, for the backlog and by luck
    prompt_load: float = 0.0  # prompts that come over those that could be computed: 1 is full load
    prompt_seconds: float = 0.0  # from a step of prompts to the next, if there is more to do
    queued_requests: float = 0.0  # that have their first token and no place
    requests: float = 0.0  # that get tokens, of one group
    kv_used: float = 0.0  # share of the room
    tpot: float = 0.0  # seconds, with the wait for a place spread over an answer
    nodes_on: float = 0.0
    prompt_nodes_on: float = 0.0  # of them, those that compute prompts
    nodes_taken: float = 0.0  # with those of units that warm up or drain
    prompt_units: float = 0.0
    token_units: float = 0.0


class Curves:
    """A day: `curves.tpot` is the field of all its minutes, `[minutes]`."""

    def __init__(self, minutes: Sequence[Minute]) -> None:
        self._curves = {
            name: np.array([getattr(each, name) for each in minutes]) for name in Minute.__dataclass_fields__
        }

    def __getattr__(self, name: str) -> Curve:
        try:
            return self._curves[name]
        except KeyError:
            raise AttributeError(name) from None
