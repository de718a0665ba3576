"""Tickets of KV: each is taken once, by whoever has it, and none is kept for ever."""

import asyncio

import pytest

from runtime.kv import tickets as kv_tickets
from runtime.kv.tickets import LIFETIME_S, Tickets


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(kv_tickets, "WAIT_S", 0.01)


class Clock:
    """A clock that the test moves."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def redeemed(tickets, *tries):
    """Whether each (request, ticket) was taken, one after another."""

    async def run():
        return [await tickets.redeem(*each) for each in tries]

    return asyncio.run(run())


def test_a_ticket_is_of_one_request_and_taken_once():
    """A wrong one, another request's and a used one are alike; a wrong one does not end the right one."""
    tickets = Tickets(9)
    tickets.issue("a", "one")
    tickets.issue("b", "two")

    assert redeemed(tickets, ("a", "two"), ("a", "onx"), ("a", "one"), ("a", "one"), ("c", "one"), ("b", "two")) == [
        *(False, False, True, False, False, True)
    ]


def test_letters_of_any_kind_are_only_wrong():
    """What is compared is bytes."""
    tickets = Tickets(9)
    tickets.issue("a", "one")

    assert redeemed(tickets, ("a", "\u00f6ne"), ("a", ""), ("a", "one")) == [False, False, True]


def test_a_ticket_ends_with_its_request_or_its_time():
    """What comes later is refused; a ticket issued again counts anew."""
    clock = Clock()
    tickets = Tickets(9, clock)
    for name in "abc":
        tickets.issue(name, name)
    tickets.withdraw("a")
    tickets.withdraw("never issued")
    clock.now = LIFETIME_S
    tickets.issue("c", "c")

    assert redeemed(tickets, ("a", "a"), ("b", "b"), ("c", "c")) == [False, False, True]


def test_tickets_are_bounded():
    """The oldest ends first, and those whose time is over go whether anybody asks or not."""
    clock = Clock()
    tickets = Tickets(100, clock)
    for number in range(1000):
        tickets.issue(str(number), "ticket")
    assert len(tickets._issued) == 100
    clock.now = LIFETIME_S
    tickets.issue("new", "ticket")

    assert list(tickets._issued) == ["new"]


def test_few_wait_for_a_ticket(monkeypatch):
    """The others are refused at once, as is a second one for the same request; those that wait get theirs."""
    monkeypatch.setattr(kv_tickets, "WAIT_S", 60)
    monkeypatch.setattr(kv_tickets, "MAX_WAITING", 2)
    tickets = Tickets(9)

    async def run():
        waiting = [asyncio.ensure_future(tickets.redeem(name, name)) for name in "ab"]
        await asyncio.sleep(0)
        refused = [await tickets.redeem(name, name) for name in "aac"]
        for name in "ab":
            tickets.issue(name, name)
        return refused, await asyncio.gather(*waiting)

    assert asyncio.run(run()) == ([False] * 3, [True, True])
    assert (tickets._awaited, tickets._issued) == ({}, {})
