"""Logprobs keep to the text: each token's come with its first character, and none of a token that is not shown."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.gateway.core.calls import GenerationRequest
from runtime.gateway.core.generation import Choice
from runtime.gateway.core.tokenizer import Spelling
from runtime.protocol.messages import Logprobs, Sampling, Token
from tests.runtime.gateway.core.test_detokenizer import random_split, texts

STOP_ID = 1


def answered(tokenizer, token_ids, last="stop", stops=(), num_logprobs=0):
    """The deltas of an answer; the logprob of its n-th token is -n."""
    sampling = Sampling(99, 0.0, 1.0, 0, [STOP_ID], num_logprobs=num_logprobs)
    choice, deltas = Choice(0, GenerationRequest([0], sampling, stops), tokenizer), []
    for number, token_id in enumerate(token_ids):
        reason = last if number == len(token_ids) - 1 else None
        deltas.append(choice.push(Token("a", number, token_id, reason, Logprobs(-number, [(token_id, -number)]))))
        if choice.finish_reason is not None:
            break
    return deltas


def told(deltas):
    return [token for delta in deltas for token in delta.logprobs]


def one_byte_each(tokenizer, text):
    return [tokenizer.token_bytes.index(bytes([byte])) for byte in text.encode()]


@settings(max_examples=60, deadline=None)
@given(st.data(), texts, st.sampled_from(["stop", "length"]))
def test_the_tokens_told_are_those_of_the_text(tokenizer, data, text, last):
    """Their bytes join to the text, in order, each at its offset, and the stop token is not among them."""
    ids = random_split(data, tokenizer, text) + ([STOP_ID] if last == "stop" else [])
    deltas = answered(tokenizer, ids, last) if ids else []
    tokens = told(deltas)

    assert b"".join(token.token.content for token in tokens) == text.encode()
    assert [token.logprob for token in tokens] == [-number for number in range(len(tokens))]
    assert all(text.startswith(token.token.name, token.offset) or "�" in token.token.name for token in tokens)


def test_a_token_is_told_with_its_first_character(tokenizer):
    """The four bytes of one character are four tokens, all told when it is whole."""
    deltas = answered(tokenizer, one_byte_each(tokenizer, "a👍b"), "length")

    assert [(delta.text, len(delta.logprobs)) for delta in deltas] == [
        *(("a", 1), ("", 0), ("", 0), ("", 0), ("👍", 4), ("b", 1))
    ]
    assert [token.offset for token in told(deltas)] == [0, 1, 1, 1, 1, 2]


@pytest.mark.parametrize(("stop", "shown"), [("cd", "ab"), ("zz", "abcde"), ("a", "")])
def test_what_a_stop_string_holds_back_is_told_later_or_never(tokenizer, stop, shown):
    """Tokens wholly in the stop string are not part of the answer; those that only might have been are."""
    deltas = answered(tokenizer, one_byte_each(tokenizer, "abcde"), "length", (stop,))

    assert "".join(token.token.name for token in told(deltas)) == shown
    assert all(len(delta.text) == len(delta.logprobs) for delta in deltas)


def test_nobody_who_did_not_ask_gets_them(tokenizer):
    """No list at all, which is not an empty one."""
    assert [delta.logprobs for delta in answered(tokenizer, [40, 41], num_logprobs=None)] == [None, None]


def test_a_token_without_text_goes_by_its_name(tokenizer):
    """A special token's own, or its number where the tokenizer does not know it."""
    assert tokenizer.spell(STOP_ID) == Spelling("<｜end▁of▁sentence｜>", None)
    assert tokenizer.spell(310) == Spelling("token_id:310", None)
