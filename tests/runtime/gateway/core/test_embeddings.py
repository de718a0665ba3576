"""POST /v1/embeddings, with fake ranks."""

import http.client
import json
import math
import struct

import openai
import pytest

from runtime.protocol.messages import Abort, Embed, Embedding, Failed, Token
from tests.runtime.gateway.conftest import MAX_QUEUED_REQUESTS, MAX_REQUEST_TOKENS, MAX_REQUESTS

MODEL = "org/tiny"
VECTORS = [(0.6, -0.8), (1.0, 0.0)]


def pack_values(values):
    return struct.pack(f"<{len(values)}f", *values)


@pytest.fixture
def answers(pair):
    """Make the prefill rank answer each Embed with the function's result."""

    def use(answer):
        async def say(message):
            pair.prefill.say(answer(message))

        pair.prefill.on_embed = say

    return use


def choose_vector(message):
    """Return one of two vectors, by the last token."""
    return Embedding(message.request_id, pack_values(VECTORS[message.prompt_ids[-1] % 2]))


@pytest.mark.parametrize("encoding", [openai.NOT_GIVEN, "float"])
def test_each_prompt_has_its_embedding(client, pair, answers, tokenizer, encoding):
    """Each prompt has its embedding in order, as numbers or base64."""
    answers(choose_vector)
    answer = client.embeddings.create(model=MODEL, input=[[4], [5], [6]], encoding_format=encoding)
    of_text = client.embeddings.create(model=MODEL, input="mill", encoding_format=encoding)

    assert [each.index for each in answer.data] == [0, 1, 2]
    for each, vector in zip(answer.data, (VECTORS[0], VECTORS[1], VECTORS[0]), strict=True):
        assert each.embedding == pytest.approx(vector)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (3, 3)
    assert of_text.usage.prompt_tokens == len(tokenizer.encode("mill"))
    assert [pair.prefill.hear().prompt_ids for _ in range(4)] == [[4], [5], [6], tokenizer.encode("mill")]
    assert pair.decode.heard.empty()


@pytest.mark.parametrize(
    "answer",
    [
        lambda message: Failed(message.request_id, "no room"),
        lambda message: Token(message.request_id, 0, 4, "stop"),
        lambda message: Embedding(message.request_id, b"123"),
        lambda message: Embedding(message.request_id, pack_values([math.nan])),
        lambda message: Embedding(message.request_id, pack_values([0.0, 0.0])),
        lambda message: Embedding(message.request_id, pack_values([3.0, 4.0])),
        lambda message: Embedding(message.request_id, pack_values([1.0])),
        lambda message: Embedding(message.request_id, pack_values([0.6, 0.8, 0.0])),
    ],
)
def test_what_a_rank_cannot_embed_is_a_503(client, gateway, answers, answer):
    """If a rank cannot embed one prompt, the call fails, is counted, and its other prompts are aborted."""
    answers(answer)
    before = gateway.metric("tidemill_num_requests_failed_total")
    with pytest.raises(openai.InternalServerError) as error:
        client.embeddings.create(model=MODEL, input=[[4], [5]])

    assert error.value.body["code"] == "rank_failed"
    assert gateway.metric("tidemill_num_requests_waiting") == 0
    assert gateway.metric("tidemill_num_requests_failed_total") > before


def test_a_client_that_leaves_takes_its_prompt_back(gateway, pair):
    """When a client leaves, the rank hears Abort."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.ports["http"])
    connection.request("POST", "/v1/embeddings", json.dumps({"model": MODEL, "input": [7]}))
    heard = pair.prefill.hear()
    connection.close()

    assert isinstance(heard, Embed)
    assert pair.prefill.hear() == Abort(heard.request_id)


@pytest.mark.parametrize(
    ("wishes", "status", "code"),
    [
        ({"input": ""}, 400, None),
        ({"input": []}, 400, None),
        ({"input": [9999]}, 400, None),
        ({"input": [5] * MAX_REQUEST_TOKENS}, 400, "context_length_exceeded"),
        ({"input": "mill " * 5000}, 400, "context_length_exceeded"),
        ({"input": ["x"] * 2049}, 400, None),
        ({"input": ["x"] * (MAX_REQUESTS + MAX_QUEUED_REQUESTS + 1)}, 400, None),
        ({"input": "x", "dimensions": 9}, 400, "unknown_parameter"),
        ({"input": "x", "model": "other"}, 404, "model_not_found"),
    ],
)
def test_what_cannot_be_embedded_is_refused(gateway, pair, wishes, status, code):
    """A wrong call has an error in OpenAI's shape, and no rank hears of it."""
    answered, text = gateway.call("POST", "/v1/embeddings", json.dumps({"model": MODEL} | wishes))

    assert (answered, json.loads(text)["error"]["code"]) == (status, code)
    assert pair.prefill.heard.empty()
