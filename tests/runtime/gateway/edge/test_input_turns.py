"""Connections read their input in turns, and the event loop runs between them."""

import asyncio

import pytest

from runtime.gateway.edge import input_turns
from runtime.gateway.edge.input_turns import InputTurns


class Reader:
    """A reader with `slices`, which adds its name to `taken` for each, or fails with the first."""

    def __init__(self, name, num_slices, taken, *, fails=False):
        self._name, self._left, self._taken, self._fails = name, num_slices, taken, fails

    def take_slice(self):
        self._taken.append(self._name)
        self._left -= 1
        if self._fails:
            raise AssertionError("our bug")
        return self._left > 0


def run_readers(*readers, num_turns=20):
    """Let the readers take their slices; the event loop adds `.` in each of its turns."""
    taken = []

    async def run():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        turns = InputTurns()
        for name, num_slices, fails in readers:
            turns.add(Reader(name, num_slices, taken, fails=fails))
        for _ in range(num_turns):
            await asyncio.sleep(0)
            taken.append(".")

    asyncio.run(run())
    return "".join(taken).rstrip(".")


def test_each_takes_a_slice_in_its_turn():
    """A reader with much input does not keep others from theirs."""
    assert run_readers(("a", 4, False), ("b", 1, False), ("c", 2, False)) == "abcacaa"


def test_the_event_loop_goes_on_between_slices(monkeypatch):
    """When a turn's time is over, the rest waits for the next turn."""
    monkeypatch.setattr(input_turns, "TURN_S", 0)

    assert run_readers(("a", 3, False), ("b", 2, False)) == "a.b.a.b.a"


@pytest.mark.parametrize("time_s", [0, 1])
def test_one_that_fails_costs_the_others_nothing(monkeypatch, time_s):
    """A reader that fails does not stop the others."""
    monkeypatch.setattr(input_turns, "TURN_S", time_s)

    assert run_readers(("a", 3, True), ("b", 2, False)).replace(".", "") == "abb"
