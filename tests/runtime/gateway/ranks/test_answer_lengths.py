"""The expected length of an answer follows the recent ones."""

from hypothesis import given
from hypothesis import strategies as st

from runtime.gateway.ranks.answer_lengths import AnswerLengths

lengths = st.integers(1, 10_000)


@given(st.lists(lengths), lengths)
def test_no_answer_is_expected_to_be_longer_than_it_may(ended, most):
    """The expectation is at most max_tokens and the longest answer so far; at first it is max_tokens."""
    seen = AnswerLengths()
    for length in ended:
        seen.record(length)

    assert 1 <= seen.expect(most) <= min([most, max(ended, default=most)])


def test_the_guess_follows_what_clients_ask_for():
    """After hundreds of short answers short ones are expected, and one long answer changes little."""
    seen = AnswerLengths()
    for length in [4000, *[100] * 300]:
        seen.record(length)
    before = seen.expect(9000)
    seen.record(4000)

    assert before < 115
    assert seen.expect(9000) < 200
