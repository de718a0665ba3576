"""The gateway's ledger of a rank adds the rank's reports to its own requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.gateway.ranks.ledger import Ledger
from runtime.gateway.ranks.rank_load import RankLimits, RequestSize, Work
from runtime.protocol.messages import Load

LIMITS = RankLimits(max_requests=3, kv_tokens=640, max_queued_requests=2)
SIZE = RequestSize(100, 20)
PAIRS = 100 * 101 // 2


def ledger(phase):
    return Ledger("unit", 0, phase, LIMITS)


def request_lists(phase, *names, size=SIZE):
    its = ledger(phase)
    for name in names:
        its.give(name, size)
    return its


@pytest.mark.parametrize(
    ("phase", "work", "after_a_token"),
    [
        ("prefill", Work(1, 100, PAIRS, 0), Work(1, 0, 0, 0)),
        ("decode", Work(1, 0, 0, 128), Work(1, 0, 0, 128)),
        ("mixed", Work(1, 100, PAIRS, 128), Work(1, 0, 0, 128)),
    ],
)
def test_a_request_counts_from_when_it_is_given_to_its_end(phase, work, after_a_token):
    """A request's prompt counts until the first token, and once at a mixed rank."""
    its = request_lists(phase, "a", "a")
    before = its.load.work
    its.count_token("a")
    computed = its.load.work
    its.end("a")
    its.end("a")

    assert (before, computed, its.load.work) == (work, after_a_token, Work(0, 0, 0, 0))


def test_an_answer_longer_than_was_expected_counts_with_what_it_has():
    """A longer answer than expected counts with the pages that it has."""
    its = request_lists("decode", "a")
    for _ in range(27):
        its.count_token("a")
    before = its.load.work.kv_tokens
    its.count_token("a")

    assert (before, its.load.work.kv_tokens) == (128, 192)


def test_a_report_adds_what_others_asked_for():
    """A report adds other gateways' requests, and own ones that are on their way count beside them."""
    its = request_lists("mixed", "a", "on its way")
    its.apply_report(Load(3, 1, 300, 3 * PAIRS, 384, ["x", "a", "y"]))

    assert its.load.work == Work(4, 400, 4 * PAIRS, 2 * 128 + 2 * 128)
    assert its.load.num_waiting == 1


def test_a_report_tells_how_far_a_long_prompt_is():
    """Only the rest of a long prompt counts, by the rank's report."""
    its = request_lists("prefill", "a")
    its.apply_report(Load(1, 0, 40, 4000, 128, ["a"]))
    half = its.load.work
    its.count_token("a")

    assert half == Work(1, 40, 4000, 0)
    assert its.load.work == Work(1, 0, 0, 0)


def test_nothing_is_ever_less_than_none():
    """A request that ended after the report counts in neither, and no count is negative."""
    its = request_lists("decode", "a", "b")
    its.apply_report(Load(0, 0, 0, 0, 0, ["a", "b"]))
    its.end("a")

    assert its.load.work == Work(0, 0, 0, 0)


def test_who_finds_no_room_waits_and_the_oldest_gets_the_next():
    """When three places are taken, the fourth request waits for the next free one, and the fifth after it."""
    its = request_lists("decode", "a", "b", "c", "d", "e")
    waiting = [its.load.num_waiting]
    for name in "ab":
        its.end(name)
        waiting.append(its.load.num_waiting)

    assert waiting == [2, 1, 0]


def test_nobody_overtakes_one_that_waits_for_kv():
    """A small request does not overtake a large one that waits for KV."""
    its = request_lists("decode", "a", size=RequestSize(500, 12))
    its.give("large", RequestSize(200, 20))
    its.give("small", RequestSize(20, 20))
    fits = its.load.fits(RequestSize(20, 20).work_at("decode"))
    its.end("small")

    assert not fits
    assert its.load.num_waiting == 1


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["give", "token", "end", "report"])), max_size=40))
def test_with_one_gateway_reports_change_nothing(events):
    """With one gateway, a report changes nothing in the ledger."""
    its, without = ledger("decode"), ledger("decode")
    tokens = {}
    arrived = set()
    for name, event in events:
        if event == "give" and name not in tokens:
            tokens[name] = 101
            its.give(name, SIZE), without.give(name, SIZE)
        elif event == "token" and name in tokens:
            tokens[name] += 1
            its.count_token(name), without.count_token(name)
        elif event == "end":
            tokens.pop(name, None)
            arrived.discard(name)
            its.end(name), without.end(name)
        elif event == "report":
            new = sorted(set(tokens) - arrived)
            arrived |= set(new)
            kv = sum(-(-num // 64) * 64 for num in tokens.values())
            its.apply_report(Load(len(tokens), without.load.num_waiting, 0, 0, kv, new))

    assert its.load == without.load
