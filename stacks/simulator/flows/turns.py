"""Mixed units as flows: a server that takes all waiting prompts at once, as one batch (a bulk queue).

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
    """The seconds that a mixed unit's turn (a batch of prompts, then a step of tokens) takes at different loads."""

    pieces_per_prompt: float
    loads: tuple[float, ...]  # pieces that arrive during a turn, ascending
    prompt_seconds: tuple[float, ...]  # seconds that a turn at this load spends on prompts, without its step of tokens

    def pieces_present(self, place: int) -> float:
        """Return how many prompt pieces wait or are being computed at the load `loads[place]`."""
        load = self.loads[place]
        return load * (1 + busy_share(load) / 2)

    def rate(self, place: int, token_step_seconds: float) -> float:
        """Return the prompt pieces computed per second at the load `loads[place]`."""
        return self.loads[place] / (self.prompt_seconds[place] + token_step_seconds)


@dataclass(frozen=True)
class Turn:
    """The state of a mixed unit at one moment: the pieces of prompts at the unit, and the turn that it takes."""

    pieces: float  # pieces that wait or are being computed
    load: float  # pieces that arrive during a turn; at most a full turn's
    busy: float  # share of the time spent in turns that have prompts
    prompt_seconds: float  # seconds that the turn spends on prompts
    seconds: float  # seconds of the whole turn, with its step of tokens

    @property
    def computing(self) -> float:
        """The share of the time that the unit spends on prompts. Meanwhile no request gets a token."""
        return self.busy * self.prompt_seconds / self.seconds

    @property
    def mean_wait_s(self) -> float:
        """The mean seconds that a piece of a prompt waits for its turn."""
        return max(self.pieces / self.load - 1, 0.0) * self.seconds if self.load else 0.0


def next_pieces(turns: Turns, pieces: float, arrivals: float, token_step_seconds: float, seconds: float) -> Turn:
    """Return a mixed unit's state after `seconds`, from its present `pieces`; `arrivals` is in pieces a second.

    The equation is solved for the state at the end (implicit Euler), so any time step is stable and no piece gets
    lost.
    """
    target, last = pieces + seconds * arrivals, len(turns.loads) - 1

    def target_at(place: int) -> float:
        """Return how many present and arriving pieces lead to the load `loads[place]` after `seconds`."""
        return turns.pieces_present(place) + seconds * turns.rate(place, token_step_seconds)

    above = bisect_left(range(last + 1), target, key=target_at)
    if above > last:
        return _interpolate_turn(
            turns, last, 0.0, token_step_seconds, target - seconds * turns.rate(last, token_step_seconds)
        )
    if above == 0:
        part = target / target_at(0)
        return _interpolate_turn(turns, 0, part - 1, token_step_seconds, part * turns.pieces_present(0))
    low, high = target_at(above - 1), target_at(above)
    part = (target - low) / (high - low)
    first, rest = turns.pieces_present(above - 1), turns.pieces_present(above)
    return _interpolate_turn(turns, above - 1, part, token_step_seconds, first + part * (rest - first))


def _interpolate_turn(turns: Turns, place: int, part: float, token_step_seconds: float, pieces: float) -> Turn:
    """Return the state of a unit with `pieces`, at the fraction `part` of the way from `loads[place]` to the next."""
    if part < 0:
        load, prompts = (1 + part) * turns.loads[place], turns.prompt_seconds[place]
    else:
        above = min(place + 1, len(turns.loads) - 1)
        load = turns.loads[place] + part * (turns.loads[above] - turns.loads[place])
        prompts = turns.prompt_seconds[place] + part * (turns.prompt_seconds[above] - turns.prompt_seconds[place])
    return Turn(pieces, load, busy_share(load), prompts, prompts + token_step_seconds)
