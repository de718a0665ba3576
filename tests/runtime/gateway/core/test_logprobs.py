"""A token's logprobs come with its first character, and hidden tokens have none."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.gateway.core.calls import GenerationRequest
from runtime.gateway.core.generation import Choice
from runtime.gateway.core.tokenizer import Spelling
from runtime.protocol.messages import Logprobs, Sampling, Token
from tests.runtime.gateway.core.test_detokenizer import random_split, texts

STOP_ID = 1


def stream_answer(tokenizer, token_ids, last="stop", stops=(), num_logprobs=0):
    """Return the deltas of an answer in which the n-th token's logprob is -n."""
    sampling = Sampling(99, 0.0, 1.0, 0, [STOP_ID], num_logprobs=num_logprobs)
    choice, deltas = Choice(0, GenerationRequest([0], sampling, stops), tokenizer), []
    for number, token_id in enumerate(token_ids):
        reason = last if number == len(token_ids) - 1 else None
        deltas.append(choice.push(Token("a", number, token_id, reason, Logprobs(-number, [(token_id, -number)]))))
        if choice.finish_reason is not None:
            break
    return deltas


def list_logprobs(deltas):
    return [token for delta in deltas for token in delta.logprobs]


def find_byte_tokens(tokenizer, text):
    return [tokenizer.token_bytes.index(bytes([byte])) for byte in text.encode()]


@settings(max_examples=60, deadline=None)
@given(st.data(), texts, st.sampled_from(["stop", "length"]))
def test_the_tokens_told_are_those_of_the_text(tokenizer, data, text, last):
    """The tokens with logprobs join to the text in order, each at its offset, without the stop token."""
    ids = random_split(data, tokenizer, text) + ([STOP_ID] if last == "stop" else [])
    deltas = stream_answer(tokenizer, ids, last) if ids else []
    tokens = list_logprobs(deltas)

    assert b"".join(token.token.content for token in tokens) == text.encode()
    assert [token.logprob for token in tokens] == [-number for number in range(len(tokens))]
    assert all(text.startswith(token.token.name, token.offset) or "�" in token.token.name for token in tokens)


def test_a_token_is_told_with_its_first_character(tokenizer):
    """The four tokens of one character are all reported once it is complete."""
    deltas = stream_answer(tokenizer, find_byte_tokens(tokenizer, "a👍b"), "length")

    assert [(delta.text, len(delta.logprobs)) for delta in deltas] == [
        *(("a", 1), ("", 0), ("", 0), ("", 0), ("👍", 4), ("b", 1))
    ]
    assert [token.offset for token in list_logprobs(deltas)] == [0, 1, 1, 1, 1, 2]


@pytest.mark.parametrize(("stop", "shown"), [("cd", "ab"), ("zz", "abcde"), ("a", "")])
def test_what_a_stop_string_holds_back_is_told_later_or_never(tokenizer, stop, shown):
    """Tokens wholly in the stop string are not reported; those that only might have been are."""
    deltas = stream_answer(tokenizer, find_byte_tokens(tokenizer, "abcde"), "length", (stop,))

    assert "".join(token.token.name for token in list_logprobs(deltas)) == shown
    assert all(len(delta.text) == len(delta.logprobs) for delta in deltas)


def test_nobody_who_did_not_ask_gets_them(tokenizer):
    """Without a wish for logprobs there is no list."""
    assert [delta.logprobs for delta in stream_answer(tokenizer, [40, 41], num_logprobs=None)] == [None, None]


def test_a_token_without_text_goes_by_its_name(tokenizer):
    """A special token has its name, and an unknown one its number."""
    assert tokenizer.spell(STOP_ID) == Spelling("<｜end▁of▁sentence｜>", None)
    assert tokenizer.spell(310) == Spelling("token_id:310", None)
