"""How a mixed unit divides its time between prompts and tokens.

All groups stop while prompts of any group are computed. A turn is a step of all waiting prompts, then one token for
each request. One prompt alone occupies the whole unit, and eight prompts in eight groups take hardly longer. So the
unit is one server that takes all waiting prompts at once (a bulk queue).

A piece is a prompt, or the part of it that a group computes in a step. Pieces arrive at random, `l` per second and
unit. A turn takes w = f(b) + s: f is the step in which the fullest group computes its share of b pieces, s a step of
tokens. With the load p = l w and b pieces per turn,

    b = p + exp(-p)              arrivals of the last turn, or the one that ended a pause
    busy = p / b                 share of time in turns with prompts; otherwise a step of tokens takes s

In the steady state as many requests end as arrive. If e pieces belong to the requests that end in a step of tokens,

    p = e (busy + (1 - busy) w / s)

The load grows with e up to that of a full turn. Beyond, prompts hold requests up, and places stay empty until e fits.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp

__all__ = ["SteadyTurns", "busy_share", "pieces_per_turn", "steady_turns"]

ROUNDS = 60  # 5 usually suffice
CONVERGED = 1e-6


@dataclass(frozen=True)
class SteadyTurns:
    """The turns of a mixed unit in which as many requests end as arrive."""

    load: float  # pieces that arrive per turn
    prompt_seconds: float  # of a turn with prompts
    token_seconds: float  # of a step of tokens

    def times(self, factor: float) -> "SteadyTurns":
        """Return the turns with all times multiplied by `factor`."""
        return SteadyTurns(self.load, self.prompt_seconds * factor, self.token_seconds * factor)

    @property
    def seconds(self) -> float:
        """Return the time of a turn with prompts."""
        return self.prompt_seconds + self.token_seconds

    @property
    def busy(self) -> float:
        """Return the share of time in turns with prompts."""
        return busy_share(self.load)

    @property
    def pieces_per_s(self) -> float:
        """Return the pieces that the unit completes per second."""
        return self.load / self.seconds

    @property
    def seconds_per_step(self) -> float:
        """Return the mean time between two steps of tokens."""
        return self.token_seconds / (1 - self.busy * self.prompt_seconds / self.seconds)

    @property
    def wait(self) -> float:
        """Return the mean seconds that a piece waits before its turn: half of the turn under way."""
        return self.busy * self.seconds / 2

    def wait_exceeded_by(self, share: float) -> float:
        """Return the seconds that `share` of all pieces wait for, or longer."""
        return max(self.busy - share, 0.0) / self.busy * self.seconds if self.load else 0.0

    def delays_more_than(self, share: float) -> bool:
        """Return whether more than `share` of the steps of tokens wait for prompts."""
        return self.busy * self.seconds_per_step > share * self.seconds


def pieces_per_turn(load: float) -> float:
    """Return the mean pieces of a turn with prompts, if `load` pieces arrive per turn; 1 at least."""
    return load + exp(-load)


def busy_share(load: float) -> float:
    """Return the share of time in turns with prompts."""
    return load / pieces_per_turn(load)


def steady_turns(
    ended: float, most: float, prompt_seconds: Callable[[float], float], token_seconds: Callable[[float], float]
) -> SteadyTurns:
    """Return a mixed unit's turns at the load where as many requests end as arrive.

    `ended` is the number of pieces whose requests end in one step of tokens with all places taken.

    `prompt_seconds(load)` is the time to compute the pieces of a turn, at most `most`. `token_seconds(share)` is the
    time of a step of tokens with that share of the places taken.
    """
    turns = SteadyTurns(0.0, prompt_seconds(0.0), token_seconds(1.0))
    for _ in range(ROUNDS):  # from below: a longer turn collects more pieces, and more pieces take longer
        load = _find_load(ended, turns, most)
        is_same = load - turns.load <= CONVERGED * load
        turns = replace(turns, load=load, prompt_seconds=prompt_seconds(load))
        if is_same:
            break
    if turns.load < most:
        return turns

    def with_places(share: float) -> SteadyTurns:
        return replace(turns, token_seconds=token_seconds(share))

    share = _find_root(lambda share: _pieces_ended(share * ended, most, with_places(share)) - most, 1.0)
    return with_places(share)


def _find_load(ended: float, turns: SteadyTurns, most: float) -> float:
    """Return the pieces that arrive per turn if turns take as long as `turns`, at most `most`."""
    longest = ended * turns.seconds / turns.token_seconds
    return _find_root(lambda load: load - _pieces_ended(ended, load, turns), min(longest, most))


def _pieces_ended(ended: float, load: float, turns: SteadyTurns) -> float:
    """Return the pieces of the requests that end in the time of a turn, at this load."""
    busy = busy_share(load)
    return ended * (busy + (1 - busy) * turns.seconds / turns.token_seconds)


def _find_root(function: Callable[[float], float], most: float) -> float:
    """Return the zero of `function` up to `most`, or `most` if there is none. It is negative at 0.

    Uses the Illinois method.
    """
    low, high, last = 0.0, most, 0.0
    of_low, of_high = function(low), function(high)
    if of_high <= 0:
        return most
    for _ in range(ROUNDS):
        middle = high - of_high * (high - low) / (of_high - of_low)
        found = function(middle)
        if abs(found) <= CONVERGED * middle:
            return middle
        same_side = found * last > 0
        if found < 0:
            low, of_low, of_high = middle, found, of_high / 2 if same_side else of_high
        else:
            high, of_high, of_low = middle, found, of_low / 2 if same_side else of_low
        last = found
    return high
