"""Model how a mixed unit divides its time between computing prompts and generating tokens.

All attention groups stop generating while prompts of any group are computed. A turn is one step for all waiting
prompts, and then a step of tokens: one token for each request. One prompt alone occupies the whole unit, and eight
prompts in eight groups take hardly longer. So the unit is one server that takes all waiting prompts at once (a bulk
queue).

A piece is a prompt, or the part of a prompt that a group computes in one step. Pieces arrive at random, `l` per second
and unit. A turn takes w = f(b) + s seconds: f(b) is the step in which the fullest group computes its share of b pieces,
s is a step of tokens. With the load p = l w (pieces that arrive per turn) and b pieces per turn,

    b = p + exp(-p)              the arrivals of the last turn, or the one piece that ended a pause
    busy = p / b                 share of time in turns with prompts; otherwise a step of tokens takes s

In the steady state as many requests end as arrive. If e pieces belong to the requests that end in a step of tokens,

    p = e (busy + (1 - busy) w / s)

The load grows with e until turns are full. With a larger e, requests wait for prompts to be computed, and places for
requests stay empty until e fits.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp

ROUNDS = 60  # 5 usually suffice
CONVERGED = 1e-6


@dataclass(frozen=True)
class SteadyTurns:
    """The load and the times of a mixed unit's turns (prompts, then tokens) when as many requests end as arrive."""

    load: float  # pieces of prompts that arrive per turn
    prompt_seconds: float  # time of the prompts in a turn
    token_seconds: float  # time of a step of tokens

    def times(self, factor: float) -> "SteadyTurns":
        """Return the same turns with all times multiplied by `factor`."""
        return SteadyTurns(self.load, self.prompt_seconds * factor, self.token_seconds * factor)

    @property
    def seconds(self) -> float:
        """Return the seconds of a turn with prompts, which are those for the prompts and for one step of tokens."""
        return self.prompt_seconds + self.token_seconds

    @property
    def busy(self) -> float:
        """Return the share of time that the unit spends in turns with prompts.

        The other turns are steps of tokens alone.
        """
        return busy_share(self.load)

    @property
    def pieces_per_s(self) -> float:
        """Return the number of pieces of prompts that the unit computes per second."""
        return self.load / self.seconds

    @property
    def seconds_per_step(self) -> float:
        """Return the mean time from one step of tokens to the next."""
        return self.token_seconds / (1 - self.busy * self.prompt_seconds / self.seconds)

    @property
    def mean_wait_s(self) -> float:
        """Return the mean seconds that a piece of a prompt waits for its turn: half a turn, times the busy share."""
        return self.busy * self.seconds / 2

    def wait_exceeded_by(self, share: float) -> float:
        """Return the wait, in seconds, that a `share` of all pieces reaches or exceeds; 0 if fewer pieces wait."""
        return max(self.busy - share, 0.0) / self.busy * self.seconds if self.load else 0.0

    def delays_more_than(self, share: float) -> bool:
        """Return whether more than `share` of the steps of tokens wait for prompts."""
        return self.busy * self.seconds_per_step > share * self.seconds


def pieces_per_turn(load: float) -> float:
    """Return the mean number of pieces of prompts in a turn that has any, if `load` pieces arrive per turn.

    The number is at least 1.
    """
    return load + exp(-load)


def busy_share(load: float) -> float:
    """Return the share of time that a mixed unit spends in turns with prompts, if `load` pieces arrive per turn."""
    return load / pieces_per_turn(load)


def steady_turns(
    ended: float, most: float, prompt_seconds: Callable[[float], float], token_seconds: Callable[[float], float]
) -> SteadyTurns:
    """Return a mixed unit's turns at the load where as many requests end as arrive.

    `ended` is the number of pieces of prompts whose requests end in one step of tokens, if all places for requests are
    taken. `prompt_seconds(load)` is the time to compute the `load` pieces of a turn, which are at most `most`.
    `token_seconds(share)` is the time of a step of tokens if that share of the places is taken.
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
    """Return how many pieces of prompts arrive per turn, at most `most`, if turns take as long as `turns`.

    `ended` is as in `steady_turns`.
    """
    longest = ended * turns.seconds / turns.token_seconds
    return _find_root(lambda load: load - _pieces_ended(ended, load, turns), min(longest, most))


def _pieces_ended(ended: float, load: float, turns: SteadyTurns) -> float:
    """Return how many pieces of prompts belong to requests that end during a turn, if `load` pieces arrive per turn.

    `ended` is as in `steady_turns`.
    """
    busy = busy_share(load)
    return ended * (busy + (1 - busy) * turns.seconds / turns.token_seconds)


def _find_root(function: Callable[[float], float], most: float) -> float:
    """Return the zero of `function` between 0 and `most`, or `most` if there is none, by the Illinois method.

    `function` must be negative at 0.
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
