"""How a mixed unit divides its time: all its groups stop while prompts are computed, whoever's they are.

A unit takes turns: a step of the prompts that wait, then one token for each request. A prompt that is computed alone
takes the whole unit for its own time, and eight that lie in eight groups take hardly longer. So the unit is one server
that takes all that waits at once (a bulk queue).

A piece is a prompt, or what a group computes of it in a step. Pieces come at random, `l` a second and unit, and a turn
w = f(b) + s depends on how many there are: f is the step in which the fullest group has its share of b pieces, s a step
of tokens. Of the load p = l w and the pieces of a turn b,

    b = p + exp(-p)              those that came during the last turn, or the one that ended a pause
    busy = p / b                 share of the time that is in such turns; in the rest, tokens come every s

Where as many requests end as come, the pieces are those of the answers that a step of tokens ends, e a step:

    p = e (busy + (1 - busy) w / s)

It grows with e up to the load that a full turn takes. Then prompts hold requests up, and places are empty until e fits.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp

__all__ = ["SteadyTurns", "busy_share", "pieces_of_turn", "steady_turns"]

ROUNDS = 60  # 5 are usual
CONVERGED = 1e-6


@dataclass(frozen=True)
class SteadyTurns:
    """A mixed unit in which as many requests end as come."""

    load: float  # pieces that come in a turn
    prompt_seconds: float  # of a turn with prompts
    token_seconds: float  # of its step of tokens, and of one without prompts

    def times(self, factor: float) -> "SteadyTurns":
        """Return the turns of an engine that takes so many times as long."""
        return SteadyTurns(self.load, self.prompt_seconds * factor, self.token_seconds * factor)

    @property
    def seconds(self) -> float:
        """Return the time of a turn with prompts."""
        return self.prompt_seconds + self.token_seconds

    @property
    def busy(self) -> float:
        """Return the share of the time that is in such turns."""
        return busy_share(self.load)

    @property
    def pieces_per_s(self) -> float:
        """Return the pieces that the unit ends in a second."""
        return self.load / self.seconds

    @property
    def seconds_per_step(self) -> float:
        """Return the mean time between two steps of tokens."""
        return self.token_seconds / (1 - self.busy * self.prompt_seconds / self.seconds)

    @property
    def wait(self) -> float:
        """Return the seconds that a piece waits before its turn, on average: half of one that is under way."""
        return self.busy * self.seconds / 2

    def wait_of(self, share: float) -> float:
        """Return the seconds that such a share of all pieces waits for, or longer."""
        return max(self.busy - share, 0.0) / self.busy * self.seconds if self.load else 0.0

    def has_prompts_in(self, share: float) -> bool:
        """Return whether more than such a share of the steps of tokens wait for prompts."""
        return self.busy * self.seconds_per_step > share * self.seconds


def pieces_of_turn(load: float) -> float:
    """Return the pieces of a turn in which `load` come on average; one at least, as nothing makes no turn."""
    return load + exp(-load)


def busy_share(load: float) -> float:
    """Return the share of the time that is in turns with prompts."""
    return load / pieces_of_turn(load)


def steady_turns(
    ended: float, most: float, prompt_seconds: Callable[[float], float], token_seconds: Callable[[float], float]
) -> SteadyTurns:
    """Return the turns of a unit of which a step of tokens ends `ended` pieces' requests when all places are taken.

    `prompt_seconds` is the time in which it computes the pieces of a load, of which a turn takes `most`, and
    `token_seconds` that of a step of tokens with a share of its places taken.
    """
    turns = SteadyTurns(0.0, prompt_seconds(0.0), token_seconds(1.0))
    for _ in range(ROUNDS):  # from below: a longer turn has more pieces, and more pieces take longer
        load = _load_of(ended, turns, most)
        is_same = load - turns.load <= CONVERGED * load
        turns = replace(turns, load=load, prompt_seconds=prompt_seconds(load))
        if is_same:
            break
    if turns.load < most:
        return turns

    def with_places(share: float) -> SteadyTurns:
        return replace(turns, token_seconds=token_seconds(share))

    share = _root(lambda share: _pieces_ended(share * ended, most, with_places(share)) - most, 1.0)
    return with_places(share)


def _load_of(ended: float, turns: SteadyTurns, most: float) -> float:
    """Return the pieces that come in turns which take as long as `turns`; `most` at most."""
    longest = ended * turns.seconds / turns.token_seconds
    return _root(lambda load: load - _pieces_ended(ended, load, turns), min(longest, most))


def _pieces_ended(ended: float, load: float, turns: SteadyTurns) -> float:
    """Return the pieces of the answers that end in the time of a turn, with and without prompts as at `load`."""
    busy = busy_share(load)
    return ended * (busy + (1 - busy) * turns.seconds / turns.token_seconds)


def _root(function: Callable[[float], float], most: float) -> float:
    """Return where `function`, below 0 at 0, is 0; `most` where it is still below 0 there. The Illinois method."""
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
