"""A queue of waiting requests that shares the ranks' work fairly between callers. It decides which request is next.

    counter[c]   the work served to caller c, in tokens: those of prompts count once, generated ones twice
    clock        the counter of the caller served last; it only grows

The next request is the first one of the waiting caller with the smallest counter; of equal callers, the one that came
first. When a request is served, its expected cost is added to the counter. When it has ended, the counter is corrected.
A new caller begins at the clock, so idle time earns no credit. A caller's counter is forgotten when it is behind the
clock. When nobody waits, all are forgotten, because there is nothing to share.

So a caller with many requests delays another caller's first one by no more than the requests that are being served. A
lone caller is served in the order of its requests. Callers that always wait are served equal work, up to one largest
request each.

    room[c] = max(places - all, min(places / callers - waiting[c], 2 places - all))

is how many more requests of a caller may wait. One caller alone may take all places, and as many again are reserved for
callers with less than their share. So a caller who fills the queue keeps nobody out, and the queue never has more than
twice its places.

It knows neither ranks nor time (`admission.py` does).

Sources: Y. Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024 (the virtual token counter, its lift,
the weights 1 and 2). Kubernetes, API Priority and Fairness, `fairqueuing/queueset/doc.go` (a guess is charged at
dispatch and corrected at the end). P. Goyal et al., "Start-time Fair Queueing", SIGCOMM 1996 (the clock).
"""

from dataclasses import dataclass, field
from itertools import count

__all__ = ["FairQueue", "Turn", "cost"]

GENERATED_WEIGHT = 2


def cost(prompt_tokens: int, generated_tokens: int) -> int:
    """Return the work of a request in prompt tokens: a generated token counts as two."""
    return prompt_tokens + GENERATED_WEIGHT * generated_tokens


@dataclass(eq=False)
class _Caller:
    name: str
    counter: float
    waiting: "dict[Turn, None]" = field(default_factory=dict)  # in the order of arrival
    num_served: int = 0  # requests that are being served


@dataclass(eq=False)
class Turn:
    """A request that is queued or being served. `number` is its place in the order of arrival."""

    caller: _Caller
    cost: float
    number: int
    has_ended: bool = False


class FairQueue:
    """The waiting requests by caller, and the work that each caller has been served."""

    def __init__(self) -> None:
        self._callers: dict[str, _Caller] = {}
        self._waiting: dict[str, _Caller] = {}  # callers with waiting requests
        self._idle: dict[str, _Caller] = {}  # callers without requests whose counter is ahead of the clock
        self._clock = 0.0
        self._num_waiting = 0
        self._numbers = count()

    def __len__(self) -> int:
        return self._num_waiting

    def num_callers(self, name: str) -> int:
        """Return how many callers wait. The caller `name` counts even if none of its requests waits."""
        return len(self._waiting) + (name not in self._waiting)

    def room(self, name: str, num_places: int) -> int:
        """Return how many more requests of the caller may wait in a queue with `num_places` places."""
        num_own = len(self._waiting[name].waiting) if name in self._waiting else 0
        share = num_places // self.num_callers(name) - num_own
        return max(num_places - len(self), min(share, 2 * num_places - len(self)), 0)

    def join(self, name: str, cost: float) -> Turn:
        """Queue a caller's request of expected work `cost`. Return its turn."""
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
        """Return the next request to serve; None if none waits."""
        heads = [next(iter(caller.waiting)) for caller in self._waiting.values()]
        return min(heads, key=lambda turn: (turn.caller.counter, turn.number), default=None)

    def serve(self, turn: Turn) -> None:
        """Take a request that is sent to ranks out of the queue, and charge its expected cost to its caller."""
        caller = turn.caller
        self._clock = max(self._clock, caller.counter)
        caller.counter += turn.cost
        caller.num_served += 1
        self._leave(turn)
        self._forget(caller)

    def end(self, turn: Turn, cost: float) -> None:
        """End a request, and replace the expected cost that its caller was charged by its real `cost`.

        A request that still waits costs nothing. A second call does nothing.
        """
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
        """Forget the idle callers whose counter of served work is not ahead of the clock.

        If no caller waits, forget all idle callers. `caller` may just have become idle.
        """
        if not caller.waiting and not caller.num_served:
            self._idle[caller.name] = caller
        for name, idle in list(self._idle.items()):
            if idle.counter <= self._clock or not self._num_waiting:
                del self._idle[name], self._callers[name]
