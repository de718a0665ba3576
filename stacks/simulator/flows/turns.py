"""Mixed units as flows: one server that takes all prompts that wait at once (a bulk queue).

Turns and pieces are those of `planner/estimate/throughput/turns.py`, where the load is steady; here it changes. At a
load of p pieces per turn, the unit has

    p (1 + busy / 2)     pieces: in their own turn, or waiting for half of the one before

A load beyond a full turn is a backlog. Tables are interpolated linearly.
"""

from bisect import bisect_left
from dataclasses import dataclass

from planner.estimate.throughput.turns import busy_share

__all__ = ["Turn", "Turns", "next_pieces"]


@dataclass(frozen=True)
class Turns:
    """What a mixed unit computes of prompts in a turn."""

    pieces_per_prompt: float
    loads: tuple[float, ...]  # pieces that arrive during a turn, ascending
    prompt_seconds: tuple[float, ...]  # seconds of that turn, without its step of tokens

    def pieces_present(self, place: int) -> float:
        """Return the pieces that wait or are being computed at a load of the table."""
        load = self.loads[place]
        return load * (1 + busy_share(load) / 2)

    def rate(self, place: int, token_step_seconds: float) -> float:
        """Return the pieces computed in a second at a load of the table."""
        return self.loads[place] / (self.prompt_seconds[place] + token_step_seconds)


@dataclass(frozen=True)
class Turn:
    """A unit at one moment."""

    pieces: float  # pieces that wait or are being computed
    load: float  # pieces that arrive during a turn; at most a full turn's
    busy: float  # share of time in turns with prompts
    prompt_seconds: float  # seconds that the turn spends on prompts
    seconds: float  # of the whole turn, with its step of tokens

    @property
    def computing(self) -> float:
        """Return the share of the time in which no request gets a token."""
        return self.busy * self.prompt_seconds / self.seconds

    @property
    def wait(self) -> float:
        """Return the seconds that a piece waits before its turn, on average."""
        return max(self.pieces / self.load - 1, 0.0) * self.seconds if self.load else 0.0


def next_pieces(turns: Turns, pieces: float, arrivals: float, token_step_seconds: float, seconds: float) -> Turn:
    """Return a unit after `seconds`, given its arrivals in pieces a second and the seconds of its step of tokens.

    It solves for the state at the end, so that any time step is stable and no piece gets lost.
    """
    target, last = pieces + seconds * arrivals, len(turns.loads) - 1

    def target_at(place: int) -> float:
        """Return the pieces that must be present now, or arrive, so that this load is left at the end."""
        return turns.pieces_present(place) + seconds * turns.rate(place, token_step_seconds)

    above = bisect_left(range(last + 1), target, key=target_at)
    if above > last:
        return _turn(turns, last, 0.0, token_step_seconds, target - seconds * turns.rate(last, token_step_seconds))
    if above == 0:
        part = target / target_at(0)
        return _turn(turns, 0, part - 1, token_step_seconds, part * turns.pieces_present(0))
    low, high = target_at(above - 1), target_at(above)
    part = (target - low) / (high - low)
    first, rest = turns.pieces_present(above - 1), turns.pieces_present(above)
    return _turn(turns, above - 1, part, token_step_seconds, first + part * (rest - first))


def _turn(turns: Turns, place: int, part: float, token_step_seconds: float, pieces: float) -> Turn:
    """Return the turn at the fraction `part` of the way from one load of the table to the next."""
    if part < 0:
        load, prompts = (1 + part) * turns.loads[place], turns.prompt_seconds[place]
    else:
        above = min(place + 1, len(turns.loads) - 1)
        load = turns.loads[place] + part * (turns.loads[above] - turns.loads[place])
        prompts = turns.prompt_seconds[place] + part * (turns.prompt_seconds[above] - turns.prompt_seconds[place])
    return Turn(pieces, load, busy_share(load), prompts, prompts + token_step_seconds)
