"""The log has a line for each call, and no prompt or answer."""

import json
import struct

import openai
import pytest

from runtime.protocol.messages import Embedding, Failed
from tests.runtime.gateway.conftest import EOS_ID, UNIT_DIGEST

MODEL = "org/tiny"
SECRET = "the mill grinds secretly"


@pytest.fixture
def new_lines(gateway):
    """Return the log's lines since the test began, as JSON."""
    before = len(gateway.log().splitlines())
    return lambda: [json.loads(line) for line in gateway.log().splitlines()[before:]]


def request_lines(lines):
    return [line for line in lines if line["message"] == "request"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_has_one_line_with_its_id(client, pair, tokenizer, wait_until, new_lines, stream):
    """A call's line has its id, tokens, units and digests, and neither prompt nor answer."""
    pair.reply, pair.hits = [*tokenizer.encode_whole("secret tide"), EOS_ID], iter([2])
    answer = client.completions.with_raw_response.create(model=MODEL, prompt=SECRET, stream=stream)
    answer.http_response.read()
    (line,) = wait_until(lambda: request_lines(new_lines()), "the call's line")

    assert line["request_id"] == answer.headers["x-request-id"]
    assert (line["path"], line["answered"], line["key"]) == ("/v1/completions", True, None)
    assert (line["prompt_tokens"], line["completion_tokens"]) == (len(tokenizer.encode(SECRET)), len(pair.reply))
    assert line["prompt_cache_hit_tokens"] == 2
    assert line["units"] == {rank.hello.unit: UNIT_DIGEST for rank in (pair.prefill, pair.decode)}
    assert "secret" not in json.dumps(new_lines())


def test_what_was_given_up_or_refused_is_said(client, pair, wait_until, new_lines):
    """A call that was given up or refused is logged with its peer, without the error's words."""

    async def fail(prompt):
        pair.prefill.say(Failed(prompt.request_id, SECRET))

    pair.prefill.on_prefill = fail
    with pytest.raises(openai.InternalServerError):
        client.completions.create(model=MODEL, prompt="mill")
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model=SECRET, prompt="mill")
    lines = wait_until(lambda: (lines := new_lines()) and len(lines) > 2 and lines, "three lines")

    assert [line["answered"] for line in request_lines(lines)] == [False]
    refusals = [line["message"] for line in lines if line["message"].startswith("refused 127.0.0.1:")]
    assert [refusal.partition(": ")[2] for refusal in refusals] == [
        "POST /v1/completions: 503 rank_failed",
        "POST /v1/completions: 404 model_not_found",
    ]
    assert SECRET not in json.dumps(lines)


@pytest.mark.parametrize("said", ["no address", "6.6.6.6"])
def test_a_peer_is_who_has_connected(client, wait_until, new_lines, said):
    """The peer is the connected address, whatever X-Forwarded-For says."""
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="mill", extra_headers={"X-Forwarded-For": said})
    lines = wait_until(lambda: [line["message"] for line in new_lines() if "refused" in line["message"]], "the refusal")

    assert lines[0].startswith("refused 127.0.0.1:")


def test_an_embedding_has_its_line(client, pair, wait_until, new_lines):
    """An embedding's line has no tokens of an answer."""

    async def embed(message):
        pair.prefill.say(Embedding(message.request_id, struct.pack("<2f", 1.0, 0.0)))

    pair.prefill.on_embed = embed
    client.embeddings.create(model=MODEL, input=[5, 6])
    (line,) = wait_until(lambda: request_lines(new_lines()), "the call's line")

    assert (line["path"], line["prompt_tokens"], line["completion_tokens"]) == ("/v1/embeddings", 2, 0)
    assert line["units"] == {pair.prefill.hello.unit: UNIT_DIGEST}
