"""Deltas join to the whole text, characters stay whole, and stop strings never show."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.gateway.core.detokenizer import StopMatcher, TextStream, borders


def stream_text(tokenizer, token_ids, stops=()):
    stream = TextStream(tokenizer.token_bytes, stops)
    return [*(stream.push(token_id) for token_id in token_ids), stream.finish()]


def random_split(data, tokenizer, text):
    """Return token ids whose bytes join to `text`."""
    ids, rest = [], text.encode()
    while rest:
        fitting = [token_id for token_id, token in enumerate(tokenizer.token_bytes) if token and rest.startswith(token)]
        ids.append(data.draw(st.sampled_from(fitting)))
        rest = rest[len(tokenizer.token_bytes[ids[-1]]) :]
    return ids


texts = st.text(st.one_of(st.sampled_from("the mil日本語👍é"), st.characters(exclude_categories=["Cs"])), max_size=20)


@settings(max_examples=60, deadline=None)
@given(st.data(), texts)
def test_pieces_join_to_the_text_however_it_is_split(tokenizer, data, text):
    """Any UTF-8 text, split into any tokens, comes back from its deltas."""
    deltas = stream_text(tokenizer, random_split(data, tokenizer, text))

    assert "".join(deltas) == text


@given(st.lists(st.integers(0, 319), max_size=20))
def test_pieces_join_to_what_the_tokenizer_decodes(tokenizer, token_ids):
    """Any tokens, broken UTF-8 and special ones included, give the tokenizers library's text."""
    decoded = tokenizer.encoder.decode(token_ids, skip_special_tokens=True)

    assert "".join(stream_text(tokenizer, token_ids)) == decoded


def test_half_a_character_waits_for_its_other_half(tokenizer):
    """A delta shows a character once all its bytes have come."""
    one_byte_each = [tokenizer.token_bytes.index(bytes([byte])) for byte in "a👍b".encode()]

    assert stream_text(tokenizer, one_byte_each) == ["a", "", "", "", "👍", "b", ""]


def test_a_character_cut_off_by_the_end_becomes_one_replacement(tokenizer):
    """A character that never completes becomes one U+FFFD."""
    cut_off = [tokenizer.token_bytes.index(bytes([byte])) for byte in "👍".encode()[:3]]

    assert "".join(stream_text(tokenizer, cut_off)) == "\ufffd"


def test_a_token_beyond_the_vocabulary_has_no_text(tokenizer):
    """A token id beyond the tokenizer's vocabulary has no text."""
    assert stream_text(tokenizer, [10_000]) == ["", ""]


@given(st.text("ab", min_size=1, max_size=12))
def test_borders_are_the_longest_ends_that_are_beginnings(stop):
    """The matcher's borders are each prefix's longest end that is also a beginning."""
    for place, length in enumerate(borders(stop)):
        begun = stop[: place + 1]
        assert length == max(each for each in range(place + 1) if begun[place + 1 - each :] == begun[:each])


def cut_slowly(text, stops):
    """Cut text by reading it character by character: the slow reference."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))]
    return text


@given(st.lists(st.text("ab", max_size=4), max_size=8), st.lists(st.text("ab", min_size=1, max_size=4), max_size=4))
def test_stop_strings_cut_the_same_however_the_text_arrives(deltas, stops):
    """The matcher cuts as its slow reference does, whatever deltas the text comes in."""
    matcher = StopMatcher(stops)
    passed = "".join(matcher.push(delta) for delta in deltas) + matcher.release()

    whole = "".join(deltas)
    assert passed == cut_slowly(whole, stops)
    assert matcher.has_matched == any(stop in whole for stop in stops)


@pytest.mark.parametrize(
    ("deltas", "passed"),
    [
        (["one E", "ND two"], ["one ", ""]),
        (["one E", "NDED"], ["one ", ""]),
        (["one E", "at"], ["one ", "Eat"]),
        (["EN", "EN", "D"], ["", "EN", ""]),
    ],
)
def test_text_that_may_begin_a_stop_string_is_held_back(deltas, passed):
    """Text that may begin a stop string is held back until it cannot."""
    matcher = StopMatcher(["END"])

    assert [matcher.push(delta) for delta in deltas] == passed
