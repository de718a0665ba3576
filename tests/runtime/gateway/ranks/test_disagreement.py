"""Two gateways and three units, some with other files, through every course of a few events.

The gateways are ours. A unit of the model does what a rank does (`worker/io_thread.py`): it says "ready" unless a
gateway that it is connected to has refused it, and "joining" otherwise.
"""

from collections import deque
from functools import partial
from types import SimpleNamespace

import pytest

from runtime.gateway.ranks.served_tokenizer import ServedTokenizer
from runtime.gateway.ranks.served_weights import ServedWeights

RIGHT, WRONG = "sha256:right", "sha256:wrong"
UNITS, GATEWAYS = range(3), range(2)
DEPTH = 5  # events; no more were needed for what went wrong, and all states there are pass too, in 30 s


class Line:
    """A unit's only rank, as one gateway knows it."""

    def __init__(self, unit, digest):
        self.hello, self.refusal, self.state = SimpleNamespace(unit=unit, pid=1), None, "loading"
        self.loaded_digest = self.tokenizer_digest = digest
        self.is_told = False

    def refuse(self, reason):
        self.refusal, self.is_told = reason, True

    def hang_up(self, _):
        self.state = "lost"


class Weights:
    """A gateway that serves with the first weights."""

    def __init__(self, _):
        self.served = ServedWeights()

    def hear(self, line, lines):
        self.served.check(line, lines, unit_is_ready=line.state == "ready" and line.refusal is None)

    def mark_lost(self, line, lines):
        self.served.mark_lost(line, lines)


class Tokenizers:
    """A gateway that has read a tokenizer itself."""

    def __init__(self, digest):
        self.served = ServedTokenizer(digest)

    def hear(self, line, lines):
        self.served.check(line, lines)

    def mark_lost(self, line, lines):
        self.served.mark_lost(line, lines)


class Fleet:
    """The gateways, the digest of each running unit, and the lines between them."""

    def __init__(self, kind, digests):
        self.gateways = [kind(digest) for digest in digests]
        self.running, self.lines = {}, {}

    def do(self, act, unit, gateway):
        """Do one event, and let the gateways hear of its consequences."""
        if act == "die":
            self.running.pop(unit, None)
            for each in GATEWAYS:
                self.hang_up(unit, each)
        elif act == "hear":
            self.hear(unit, gateway)
        elif unit not in self.running:
            self.running[unit] = act
        self.notice()

    def hear(self, unit, gateway):
        """Let the gateway hear of a running unit: its Hello or its state."""
        if unit in self.running:
            line = self.lines.setdefault((unit, gateway), Line(unit, self.running[unit]))
            line.state = "joining" if any(each.is_told for each in self.unit_lines(unit)) else "ready"
            self.gateways[gateway].hear(line, self.gateway_lines(gateway))

    def hang_up(self, unit, gateway):
        line = self.lines.get((unit, gateway))
        if line is not None:
            line.hang_up("it is gone")

    def notice(self):
        """Let gateways notice lost lines, and refused units tell all gateways."""
        while lost := [key for key, line in self.lines.items() if line.state == "lost"]:
            line = self.lines.pop(lost[0])
            self.gateways[lost[0][1]].mark_lost(line, self.gateway_lines(lost[0][1]))
        for unit, gateway in list(self.lines):
            line = self.lines.get((unit, gateway))
            if line and line.state == "ready" and any(each.is_told for each in self.unit_lines(unit)):
                line.state = "joining"
                self.gateways[gateway].hear(line, self.gateway_lines(gateway))
                self.notice()

    def unit_lines(self, unit):
        return [line for (each, _), line in self.lines.items() if each == unit]

    def gateway_lines(self, gateway):
        return [line for (_, each), line in self.lines.items() if each == gateway]

    def serving(self, gateway):
        """Return the digests of the units to which this gateway sends requests."""
        ready = (line for line in self.gateway_lines(gateway) if line.state == "ready" and line.refusal is None)
        return {line.loaded_digest for line in ready}

    def settle(self):
        """Let all gateways hear of all units, again and again."""
        for _ in range(4):
            for unit in UNITS:
                for gateway in GATEWAYS:
                    self.do("hear", unit, gateway)

    @property
    def key(self):
        """Return the part of the state that decides what can happen next."""
        lines = {key: (line.state, line.refusal is None, line.is_told) for key, line in self.lines.items()}
        served = tuple(gateway.served._digest for gateway in self.gateways)
        return tuple(sorted(self.running.items())), tuple(sorted(lines.items())), served


def replay_events(kind, digests, events):
    fleet = Fleet(kind, digests)
    for event in events:
        fleet.do(*event)
    return fleet


def reachable_states(kind, digests):
    """Yield each state once, with the events that lead there and a function that replays them."""
    events = [(act, unit, 0) for act in (RIGHT, WRONG, "die") for unit in UNITS]
    events += [("hear", unit, gateway) for unit in UNITS for gateway in GATEWAYS]
    seen, waiting = set(), deque([()])
    while waiting:
        past = waiting.popleft()
        key = replay_events(kind, digests, past).key
        if key not in seen:
            seen.add(key)
            yield past, partial(replay_events, kind, digests, past)
            waiting += [(*past, event) for event in events if len(past) < DEPTH]
    assert len(seen) > 100


KINDS = pytest.mark.parametrize(("kind", "digests"), [(Weights, (RIGHT, RIGHT)), (Tokenizers, (RIGHT, WRONG))])


@KINDS
def test_no_gateway_serves_two_digests_at_once(kind, digests):
    """No gateway serves two digests at once, in whatever order it hears of events."""
    for past, fleet in reachable_states(kind, digests):
        assert all(len(fleet().serving(gateway)) <= 1 for gateway in GATEWAYS), past


@KINDS
def test_units_serve_once_the_wrong_ones_are_gone(kind, digests):
    """Once the wrong units are gone, every gateway serves with the right ones."""
    for past, replay in reachable_states(kind, digests):
        fleet = replay()
        for unit in [unit for unit, digest in fleet.running.items() if digest == WRONG]:
            fleet.do("die", unit, 0)
        fleet.settle()
        served = {RIGHT} if fleet.running else set()
        assert all(fleet.serving(gateway) == served for gateway in GATEWAYS if digests[gateway] == RIGHT), past


@KINDS
def test_a_wrong_minority_takes_no_fleet_down(kind, digests):
    """A wrong minority does not stop the right gateways from serving."""
    for past, replay in reachable_states(kind, digests):
        fleet = replay()
        fleet.settle()
        running = list(fleet.running.values())
        if running.count(RIGHT) > running.count(WRONG):
            assert all(fleet.serving(gateway) for gateway in GATEWAYS if digests[gateway] == RIGHT), past
