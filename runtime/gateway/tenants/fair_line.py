"""A line of requests that is fair between callers, by the work that they ask for. It says whose turn it is.

    counter[c]   what caller c has been served, in tokens: a prompt's count once, generated ones twice
    clock        the counter of whoever was served last, which only grows

The next one served is the first of the caller with the least counter, among those that wait; of equals, whoever came
first. Its cost is added to the counter when it is served, as expected, and put right when it has ended. A caller begins
at the clock: time in which it asked for nothing is no credit. A caller's counter is forgotten when it is behind the
clock, and all are when nobody waits: then there is nothing to share.

So a caller with many requests delays another's first by no more than those that are being served; one caller alone is
served in the order of its requests. Callers that always wait are served equal work, up to a largest request of each.

    room[c] = max(places - all, min(places / callers - waiting[c], 2 places - all))

is how many more of a caller's may wait: one alone may take all places, and as many again are kept for callers with less
than their share. So whoever fills the line keeps nobody out of it, and it never has more than twice its places.

It knows neither ranks nor the clock on the wall (`admission.py` does).

Sources: Y. Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024 (the virtual token counter, its lift,
the weights 1 and 2). Kubernetes, API Priority and Fairness, `fairqueuing/queueset/doc.go` (a guess is charged at
dispatch and put right at the end). P. Goyal et al., "Start-time Fair Queueing", SIGCOMM 1996 (the clock).
"""

from dataclasses import dataclass, field
from itertools import count

__all__ = ["FairLine", "Turn", "cost"]

GENERATED_WEIGHT = 2


def cost(prompt_tokens: int, generated_tokens: int) -> int:
    """Return the work of a request, in tokens of a prompt."""
    return prompt_tokens + GENERATED_WEIGHT * generated_tokens


@dataclass(eq=False)
class _Caller:
    name: str
    counter: float
    waiting: "dict[Turn, None]" = field(default_factory=dict)  # in the order in which they came
    num_served: int = 0  # that have not ended


@dataclass(eq=False)
class Turn:
    """A request in the line, and after that until it ends; `number` tells who came first."""

    caller: _Caller
    cost: float
    number: int
    has_ended: bool = False


class FairLine:
    """The requests that wait, by caller, and what their callers have been served."""

    def __init__(self) -> None:
        self._callers: dict[str, _Caller] = {}
        self._waiting: dict[str, _Caller] = {}  # of these, those that wait
        self._idle: dict[str, _Caller] = {}  # and those that neither wait nor are served, but are ahead of the clock
        self._clock = 0.0
        self._num_waiting = 0
        self._numbers = count()

    def __len__(self) -> int:
        return self._num_waiting

    def num_callers(self, name: str) -> int:
        """Return how many callers wait, this one counted in any case."""
        return len(self._waiting) + (name not in self._waiting)

    def room(self, name: str, num_places: int) -> int:
        """Return how many more requests of the caller may wait, where there are so many places in all."""
        num_own = len(self._waiting[name].waiting) if name in self._waiting else 0
        share = num_places // self.num_callers(name) - num_own
        return max(num_places - len(self), min(share, 2 * num_places - len(self)), 0)

    def join(self, name: str, cost: float) -> Turn:
        """Let a request of a caller wait."""
        caller = self._callers.setdefault(name, _Caller(name, self._clock))
        self._idle.pop(name, None)
        if not caller.waiting:
            caller.counter = max(caller.counter, self._clock)
            self._waiting[name] = caller
        turn = Turn(caller, cost, next(self._numbers))
        caller.waiting[turn] = None
        self._num_waiting += 1
        return turn

    def next_turn(self) -> Turn | None:
        """Return whose turn it is, or None when nobody waits."""
        heads = [next(iter(caller.waiting)) for caller in self._waiting.values()]
        return min(heads, key=lambda turn: (turn.caller.counter, turn.number), default=None)

    def serve(self, turn: Turn) -> None:
        """Take the request out of the line, because it is being served."""
        caller = turn.caller
        self._clock = max(self._clock, caller.counter)
        caller.counter += turn.cost
        caller.num_served += 1
        self._leave(turn)
        self._forget(caller)

    def end(self, turn: Turn, cost: float) -> None:
        """Note that the request is over, be it served or not, and what it has cost. Ending twice is ending once."""
        if turn.has_ended:
            return
        turn.has_ended = True
        if turn in turn.caller.waiting:
            self._leave(turn)
        else:
            turn.caller.num_served -= 1
            turn.caller.counter += cost - turn.cost
        self._forget(turn.caller)

    def _leave(self, turn: Turn) -> None:
        caller = turn.caller
        del caller.waiting[turn]
        self._num_waiting -= 1
        if not caller.waiting:
            del self._waiting[caller.name]

    def _forget(self, caller: _Caller) -> None:
        """Forget the callers that are served as if they were new. `caller` may have become one of them."""
        if not caller.waiting and not caller.num_served:
            self._idle[caller.name] = caller
        for name, idle in list(self._idle.items()):
            if idle.counter <= self._clock or not self._num_waiting:
                del self._idle[name], self._callers[name]
