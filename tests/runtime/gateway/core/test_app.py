"""The gateway process from outside: the openai client in front, fake ranks behind."""

import asyncio
import http.client
import json
import re
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from runtime.gateway.core.openapi import describe
from runtime.protocol.messages import Abort, Failed, Prefill, State, Token
from tests.runtime.gateway.conftest import LOGPROB, MAX_QUEUED_REQUESTS, MAX_REQUESTS, PATIENCE_S

MODEL = "org/tiny"
EOS_ID = 1
TOO_LONG = "context_length_exceeded"


@pytest.fixture
def ids(tokenizer):
    """Return a function that encodes text without BOS."""
    return lambda text: tokenizer.encoder.encode(text, add_special_tokens=False).ids


@pytest.fixture
def raw_stream(gateway):
    """Return a function that opens a streaming completion as (connection, response), to be left half-read."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.ports["http"], timeout=PATIENCE_S)
    body = {"model": MODEL, "prompt": "mill", "stream": True, "max_tokens": 9}

    def open_stream():
        connection.request("POST", "/v1/completions", json.dumps(body))
        return connection

    yield open_stream
    connection.close()


def test_a_key_draws_alike_and_counts_once(client, gateway, pair, ids):
    """The same call under its idempotency key has the same seed, and the log counts its tokens once."""
    pair.reply = [*ids("tide"), EOS_ID]
    call = {"model": MODEL, "prompt": "mill", "temperature": 1, "extra_headers": {"Idempotency-Key": "order-7"}}
    for _ in range(2):
        client.completions.create(**call)
    seeds = [pair.prefill.hear().sampling.seed for _ in range(2)]
    with pytest.raises(openai.UnprocessableEntityError):
        client.completions.create(**call | {"prompt": "tide"})
    lines = [json.loads(line) for line in gateway.log().splitlines() if '"idempotency"' in line]

    assert seeds[0] == seeds[1]
    assert len({line["idempotency"] for line in lines}) == 1
    assert [line["completion_tokens"] for line in lines] == [len(pair.reply), 0]


def test_a_refused_call_leaves_its_key_to_another(client, pair, ids):
    """A call that no rank has had frees its idempotency key for another body."""
    pair.reply = [*ids("tide"), EOS_ID]
    call = {"model": MODEL, "prompt": "mill", "extra_headers": {"Idempotency-Key": "order-8"}}
    wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#/nowhere"}}}
    for refused in ({"extra_body": {"response_format": wrong}}, {"n": MAX_REQUESTS + MAX_QUEUED_REQUESTS + 1}):
        with pytest.raises(openai.BadRequestError):
            client.completions.create(**call | refused)

    assert client.completions.create(**call).choices[0].text == "tide"


def test_an_answer_goes_on_at_another_unit(raw_stream, gateway, join, pair, wait_until, ids):
    """When the decode rank is lost, the next unit gets the tokens so far, and the stream goes on."""
    text = ids("the tide grinds")
    pair.prefill.on_prefill = None
    connection = raw_stream()
    first = pair.prefill.hear()
    pair.prefill.say(Token(first.request_id, 0, text[0], None))
    pair.decode.say(Token(first.request_id, 1, text[1], None))
    wait_until(lambda: gateway.metric("tidemill_num_requests_running") == 1, "the answer has begun")
    other = join(phase="decode")
    other.say(State("ready"))
    wait_until(lambda: gateway.rank_states(other.hello.unit) == ["ready"], "another decode unit is ready")

    pair.decode.leave()
    second = pair.prefill.hear()
    while not isinstance(second, Prefill):  # it hears Abort before
        second = pair.prefill.hear()
    for index in range(len(second.generated), len(text)):
        finish_reason = "length" if index == len(text) - 1 else None
        other.say(Token(second.request_id, index, text[index], finish_reason))
    lines = connection.getresponse().read().decode().splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]

    assert second.generated == text[: len(second.generated)]
    assert second.generated
    assert second.sampling == first.sampling
    assert "".join(event["choices"][0]["text"] for event in events) == "the tide grinds"


def test_the_served_model_is_listed(client):
    """models.list and models.retrieve return the one model, even with a slash in its name."""
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_a_completion_is_the_text_of_its_tokens(client, pair, ids):
    """A completion is the text of its tokens. Eos is counted and not shown."""
    pair.reply = [*ids("grinds 日本語 👍"), EOS_ID]

    answer = client.completions.create(model=MODEL, prompt="the mill", max_tokens=50, temperature=0, seed=5)

    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason) == ("grinds 日本語 👍", "stop")
    num_prompt_tokens = len(ids("the mill")) + 1  # BOS
    assert answer.usage.model_dump(exclude_none=True) == {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": len(pair.reply),
        "total_tokens": num_prompt_tokens + len(pair.reply),
        "prompt_tokens_details": {"cached_tokens": 0},
        "prompt_cache_hit_tokens": 0,
        "prompt_cache_miss_tokens": num_prompt_tokens,
    }


@pytest.mark.parametrize("stream", [False, True])
def test_usage_counts_what_no_choice_computed(client, pair, ids, stream):
    """Usage counts as cached what every choice of a prompt found."""
    pair.reply, pair.hits = [*ids("grinds"), EOS_ID], iter([3, 5, 4, 0])
    asked = {"model": MODEL, "prompt": ["the mill grinds", "with the tide"], "n": 2}
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    answer = client.completions.create(**asked, **options)
    used = (list(answer)[-1] if stream else answer).usage.model_dump()

    assert (used["prompt_cache_hit_tokens"], used["prompt_tokens_details"]["cached_tokens"]) == (3, 3)
    assert used["prompt_cache_miss_tokens"] == used["prompt_tokens"] - 3


def test_a_rank_cannot_find_more_tokens_than_a_prompt_has(client, pair, ids):
    """Cached tokens are at most the prompt's."""
    pair.reply, pair.hits = [*ids("grinds"), EOS_ID], iter([3])
    with pytest.raises(openai.InternalServerError, match="found 3 of 1 prompt tokens"):
        client.completions.create(model=MODEL, prompt=[5])


@pytest.mark.parametrize("salt", ["", "x" * 257, 7])
def test_a_cache_salt_is_a_text(client, salt):
    """A cache_salt is a bounded text that is not empty."""
    with pytest.raises(openai.BadRequestError, match="cache_salt"):
        client.completions.create(model=MODEL, prompt=[5], extra_body={"cache_salt": salt})


def test_a_prefill_rank_is_told_all_it_needs(client, pair, ids):
    """Prefill has the prompt, the sampling, and the address where decode takes KV."""
    pair.reply = [EOS_ID]
    client.completions.create(model=MODEL, prompt="mill", max_tokens=7, temperature=0.5, top_p=0.9, seed=5)

    prefill = pair.prefill.hear()
    assert isinstance(prefill, Prefill)
    assert prefill.prompt_ids == [0, *ids("mill")]
    assert (prefill.kv_host, prefill.kv_port) == ("10.0.0.9", 29600)
    sampling = prefill.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.seed) == (7, 0.5, 0.9, 5)
    assert sampling.stop_ids == [EOS_ID]


def test_both_ranks_get_one_ticket_of_each_request(client, pair):
    """Both ranks get the same ticket, and each request has another."""
    pair.reply = [EOS_ID]
    client.completions.create(model=MODEL, prompt=["mill", "mill"], max_tokens=7)

    asked = [pair.prefill.hear() for _ in range(2)]
    expected = [pair.decode.expected.get(timeout=PATIENCE_S) for _ in range(2)]
    assert [(each.request_id, each.ticket) for each in expected] == [(p.request_id, p.kv_ticket) for p in asked]
    assert len({each.ticket for each in expected}) == 2
    assert all(len(bytes.fromhex(each.ticket)) == 16 for each in expected)


def test_a_finished_request_is_not_aborted(client, pair, ids):
    """Ranks hear nothing more of a finished request."""
    pair.reply = [*ids("tide"), EOS_ID]
    for _ in range(2):
        client.completions.create(model=MODEL, prompt="mill")

    assert isinstance(pair.prefill.hear(), Prefill)
    assert isinstance(pair.prefill.hear(), Prefill)
    assert pair.decode.heard.empty()


def test_a_chat_answers_as_the_assistant(client, pair, ids):
    """A chat goes through the checkpoint's template, and an answer at its limit has finish_reason "length"."""
    pair.reply = ids("tide")

    answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "the mill"}])

    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "tide", "length")
    assert pair.prefill.hear().prompt_ids == [0, 2, *ids("the mill"), 3]


@pytest.mark.parametrize("is_chat", [False, True])
def test_a_stream_joins_to_the_text_and_ends_with_usage(client, pair, ids, is_chat):
    """Streamed deltas join to the text; with include_usage the last chunk has the usage and no choice."""
    pair.reply = [*ids("grinds 日本語 👍"), EOS_ID]
    options = {"model": MODEL, "max_tokens": 50, "stream": True, "stream_options": {"include_usage": True}}
    if is_chat:
        stream = client.chat.completions.create(messages=[{"role": "user", "content": "mill"}], **options)
    else:
        stream = client.completions.create(prompt="mill", **options)

    *chunks, last = list(stream)

    choices = [chunk.choices[0] for chunk in chunks]
    assert "".join((c.delta.content if is_chat else c.text) or "" for c in choices) == "grinds 日本語 👍"
    assert [choice.finish_reason for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert all(chunk.usage is None for chunk in chunks)
    assert not last.choices
    assert last.usage.completion_tokens == len(pair.reply)
    if is_chat:
        assert [c.delta.role for c in choices] == ["assistant"] + [None] * (len(choices) - 1)


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_tells_logprobs_in_columns(client, pair, tokenizer, stream):
    """A completion's logprobs are columns: tokens, logprobs, the likeliest tokens and offsets."""
    pair.reply = [*(tokenizer.token_bytes.index(letter) for letter in (b"a", b"\xc3", b"\xa9")), EOS_ID]

    answer = client.completions.create(model=MODEL, prompt="mill", logprobs=1, stream=stream)

    of_choices = [chunk.choices[0].logprobs for chunk in answer] if stream else [answer.choices[0].logprobs]
    assert [token for logprobs in of_choices for token in logprobs.tokens] == ["a", "bytes:\\xc3", "bytes:\\xa9"]
    assert [offset for logprobs in of_choices for offset in logprobs.text_offset] == [0, 1, 1]
    assert [value for logprobs in of_choices for value in logprobs.token_logprobs] == [LOGPROB] * 3
    assert of_choices[0].top_logprobs[0] == {"<｜begin▁of▁sentence｜>": LOGPROB, "a": LOGPROB}


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_tells_logprobs_in_rows(client, pair, ids, stream):
    """A chat's logprobs are an object for each token, with its bytes and the likeliest tokens."""
    pair.reply = [*ids("grinds 日本語"), EOS_ID]
    wish = {"messages": [{"role": "user", "content": "mill"}], "logprobs": True, "top_logprobs": 2}

    answer = client.chat.completions.create(model=MODEL, stream=stream, **wish)

    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    rows = [row for choice in choices for row in choice.logprobs.content]
    assert bytes(byte for row in rows for byte in row.bytes).decode() == "grinds 日本語"
    assert {row.logprob for row in rows} == {LOGPROB}
    assert [(other.token, other.logprob, other.bytes) for other in rows[0].top_logprobs] == [
        ("<｜begin▁of▁sentence｜>", LOGPROB, None),
        ("<｜end▁of▁sentence｜>", LOGPROB - 1, None),
    ]


def test_an_answer_has_no_logprobs_unless_asked(client, pair, ids):
    """Without a wish for logprobs the key is null."""
    pair.reply = [*ids("tide"), EOS_ID]

    assert client.completions.create(model=MODEL, prompt="mill").choices[0].logprobs is None


def test_the_first_chunk_comes_before_the_last_token(client, pair, ids):
    """The client gets the first chunk before the last token is drawn."""
    pair.reply = [*ids("the tide"), EOS_ID]
    pair.last_may_come.clear()

    stream = client.completions.create(model=MODEL, prompt="mill", stream=True)
    first = next(stream)
    pair.last_may_come.set()

    assert first.choices[0].text
    assert first.choices[0].text + "".join(chunk.choices[0].text for chunk in stream) == "the tide"


def test_decode_tokens_that_overtake_the_first_wait_for_it(client, pair, tokenizer):
    """Tokens of decode that overtake the first token wait for it."""
    first, second = (tokenizer.token_bytes.index(letter) for letter in (b"a", b"b"))

    async def answer_out_of_order(prompt):
        pair.decode.say(Token(prompt.request_id, 1, second, None))
        pair.decode.say(Token(prompt.request_id, 2, EOS_ID, "stop"))
        await asyncio.sleep(0.1)
        pair.prefill.say(Token(prompt.request_id, 0, first, None))

    pair.prefill.on_prefill = answer_out_of_order

    assert client.completions.create(model=MODEL, prompt="mill").choices[0].text == "ab"


def test_several_prompts_give_several_choices(client, pair, ids):
    """Two prompts in one call give two requests, two choices in order, and one usage."""
    pair.reply = [*ids("tide"), EOS_ID]

    answer = client.completions.create(model=MODEL, prompt=["mill", "the mill"])

    assert [(choice.index, choice.text) for choice in answer.choices] == [(0, "tide"), (1, "tide")]
    assert answer.usage.completion_tokens == 2 * len(pair.reply)
    assert [len(pair.prefill.hear().prompt_ids) for _ in range(2)] == [1 + len(ids("mill")), 1 + len(ids("the mill"))]


def test_a_stop_string_ends_the_answer_and_the_work(client, pair, ids):
    """The text ends before the stop string, wherever tokens split it, and the decode rank hears Abort."""
    pair.reply = [*ids("the tide grinds on and on"), EOS_ID]
    pair.last_may_come.clear()

    stream = client.completions.create(model=MODEL, prompt="mill", stop=["de gr", "never"], stream=True)
    choices = [chunk.choices[0] for chunk in stream]
    pair.last_may_come.set()

    assert "".join(choice.text for choice in choices) == "the ti"
    assert choices[-1].finish_reason == "stop"
    assert isinstance(pair.decode.hear(), Abort)


def test_a_stop_string_ends_its_own_prompt_only(client, pair, ids):
    """A stop string ends the answer to its own prompt, and the other prompt runs on."""
    pair.prefill.on_prefill = None

    with ThreadPoolExecutor() as pool:
        answer = pool.submit(client.completions.create, model=MODEL, prompt=["mill", "tide"], stop="x")
        first, second = pair.prefill.hear(), pair.prefill.hear()
        pair.prefill.say(Token(first.request_id, 0, *ids("x"), None))
        assert pair.decode.hear() == Abort(first.request_id)
        pair.prefill.say(Token(second.request_id, 0, *ids("y"), "length"))

    choices = [(choice.text, choice.finish_reason) for choice in answer.result().choices]
    assert choices == [("", "stop"), ("y", "length")]


def test_a_client_that_leaves_its_stream_aborts_it_at_both_ranks(raw_stream, pair, wait_until, gateway):
    """A client that leaves its stream aborts it at both ranks, and the gauges go back."""
    connection = raw_stream()
    prefill = pair.prefill.hear()
    pair.prefill.say(Token(prefill.request_id, 0, 40, None))
    connection.getresponse().read(10)
    wait_until(lambda: gateway.metric("tidemill_num_requests_running") == 1, "the request runs")

    connection.close()

    assert pair.decode.hear() == Abort(prefill.request_id)
    assert pair.prefill.hear() == Abort(prefill.request_id)
    wait_until(lambda: gateway.metric("tidemill_num_requests_running") == 0, "the request is forgotten")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_before_the_first_token_aborts_its_request(gateway, pair, stream):
    """A client that leaves before the first token aborts its request too."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.ports["http"], timeout=PATIENCE_S)
    connection.request("POST", "/v1/completions", json.dumps({"model": MODEL, "prompt": "mill", "stream": stream}))
    prefill = pair.prefill.hear()

    connection.close()

    assert pair.prefill.hear() == Abort(prefill.request_id)
    assert pair.decode.hear() == Abort(prefill.request_id)


def test_a_token_that_nobody_waits_for_is_answered_with_abort(pair):
    """A token that nobody waits for is answered with another Abort."""
    pair.decode.say(Token("long-forgotten", 0, 40, None))

    assert pair.decode.hear() == Abort("long-forgotten")


def test_a_rank_lost_before_the_first_token_is_a_503(client, pair):
    """A rank lost before the first token gives a 503 with Retry-After, and the other rank hears Abort."""
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(client.completions.create, model=MODEL, prompt="mill")
        prefill = pair.prefill.hear()
        pair.prefill.leave()
        with pytest.raises(openai.InternalServerError) as error:
            answer.result()

    assert error.value.status_code == 503
    assert error.value.response.headers["retry-after"] == "1"
    assert error.value.body["code"] == "rank_failed"
    assert "was lost" in error.value.body["message"]
    assert pair.decode.hear() == Abort(prefill.request_id)


def test_a_rank_lost_in_a_stream_ends_it_with_an_error_event(client, pair, ids):
    """A rank lost in a stream ends it with an error event after the text so far."""
    pair.reply = [*ids("the tide"), EOS_ID]
    pair.last_may_come.clear()

    stream = client.completions.create(model=MODEL, prompt="mill", stream=True)
    assert next(stream).choices[0].text
    pair.decode.leave()

    with pytest.raises(openai.APIError, match=f"rank 0 of unit {pair.decode.hello.unit} was lost"):
        list(stream)
    pair.last_may_come.set()


def test_a_request_that_a_rank_gives_up_is_a_503_with_its_reason(client, pair):
    """A request that a rank fails gives a 503 with the reason and both ranks' names."""

    async def refuse(prompt):
        pair.prefill.say(Failed(prompt.request_id, "the decode rank has no room"))

    pair.prefill.on_prefill = refuse

    both = f"({rank_name(pair.prefill)}, which hands over to {rank_name(pair.decode)})"
    with pytest.raises(openai.InternalServerError, match=re.escape(f"the decode rank has no room {both}")):
        client.completions.create(model=MODEL, prompt="mill")


def rank_name(rank):
    """Return the rank's name in messages."""
    return f"rank {rank.hello.rank} of unit {rank.hello.unit}"


def test_more_than_the_ranks_may_have_is_a_429(client, gateway, pair):
    """A call beyond the ranks' and the queue's room is a 429, is counted, and reaches no rank.

    A call that will never find room is a 400, and is not counted.
    """
    answer_all, pair.prefill.on_prefill = pair.prefill.on_prefill, None
    most, before = MAX_REQUESTS + MAX_QUEUED_REQUESTS, gateway.metric("tidemill_num_requests_rejected_total")
    with ThreadPoolExecutor() as pool:
        first = pool.submit(client.completions.create, model=MODEL, prompt=["mill"] * (most - 1))
        flying = [pair.prefill.hear() for _ in range(most - 1)]
        with pytest.raises(openai.RateLimitError) as error:
            client.completions.create(model=MODEL, prompt=["mill", "tide"], stream=True)
        for prompt in flying:
            pair.prefill.say(Token(prompt.request_id, 0, EOS_ID, "stop"))
        answered = first.result()
    pair.reply, pair.prefill.on_prefill = [EOS_ID], answer_all
    again = client.completions.create(model=MODEL, prompt=["mill"] * most)
    with pytest.raises(openai.BadRequestError, match=f"a caller may have {most}"):
        client.completions.create(model=MODEL, prompt=["mill"] * (most + 1))

    assert (error.value.status_code, error.value.body["code"]) == (429, "overloaded")
    assert error.value.response.headers["retry-after"] == "1"
    assert "room for 1 more requests now, this call makes 2" in error.value.body["message"]
    assert gateway.metric("tidemill_num_requests_rejected_total") == before + 2
    assert len(answered.choices) == most - 1
    assert len(again.choices) == most
    assert pair.decode.heard.empty()


def test_without_a_ready_pair_the_answer_is_503_with_retry_after(client, gateway):
    """Without a ready pair a call gets a 503 with Retry-After, and is counted as failed."""
    before = gateway.metric("tidemill_num_requests_failed_total")
    with pytest.raises(openai.InternalServerError) as error:
        client.completions.create(model=MODEL, prompt="mill")

    assert (error.value.status_code, error.value.body["code"]) == (503, "not_ready")
    assert error.value.response.headers["retry-after"] == "1"
    assert gateway.metric("tidemill_num_requests_failed_total") == before + 1


def test_who_is_refused_anyway_is_not_read(client, gateway, pair):
    """When there is no room, a call is refused before its prompt is encoded."""
    pair.prefill.on_prefill = None
    most = MAX_REQUESTS + MAX_QUEUED_REQUESTS
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(client.completions.create, model=MODEL, prompt=["mill"] * most)
        prompt = pair.prefill.hear()
        status, _ = gateway.call("POST", "/v1/completions", '{"model": "org/tiny"}')
        for _ in range(most - 1):
            pair.prefill.say(Token(prompt.request_id, 0, EOS_ID, "stop"))
            prompt = pair.prefill.hear()
        pair.prefill.say(Token(prompt.request_id, 0, EOS_ID, "stop"))

    assert status == 429
    assert len(answer.result().choices) == most


def test_more_choices_than_there_can_be_are_not_made(gateway, pair):
    """6.4 million requests would take gigabytes; an error comes first, and the process has not grown.

    No gateway ever has room for so many, so no client is told to ask again.
    """
    before = gateway.memory_mib()
    status, answer = gateway.call(
        "POST", "/v1/completions", json.dumps({"model": MODEL, "prompt": [[1]] * 50_000, "n": 128})
    )

    assert status == 400
    assert f"a caller may have {MAX_REQUESTS + MAX_QUEUED_REQUESTS}" in str(answer)
    assert gateway.memory_mib() < before + 100


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/v1/nothing", None, 404, "not_found"),
        ("GET", "/v1/completions", None, 405, "method_not_allowed"),
        ("GET", "/v1/models/other", None, 404, "model_not_found"),
        ("POST", "/v1/completions", '{"model": "other", "prompt": "x"}', 404, "model_not_found"),
        ("POST", "/v1/completions", '{"model": "org/tiny", "prompt": "x", "top_a": 1}', 400, "unknown_parameter"),
        ("POST", "/v1/completions", '{"model": "org/tiny", "prompt": "x", "echo": true}', 400, "unsupported_parameter"),
        ("POST", "/v1/completions", '{"model": "org/tiny", "prompt": "x", "max_tokens": 1000}', 400, TOO_LONG),
        ("POST", "/v1/completions", "{", 400, None),
        ("POST", "/v1/completions", "[]", 400, None),
        ("POST", "/v1/completions", "", 400, None),
        ("POST", "/v1/completions", b'{"model": "\xff"}', 400, None),
        ("POST", "/v1/completions", '{"model": "org/tiny", "prompt": "\\ud800"}', 400, None),
        ("POST", "/v1/completions", '{"prompt": ' + 100_000 * "[", 400, None),
        ("POST", "/v1/chat/completions", '{"model": "org/tiny"}', 400, None),
        ("POST", "/v1/completions", 9 * 2**20 * "x", 413, "request_too_large"),
    ],
)
def test_every_error_has_openais_shape(gateway, method, path, body, status, code):
    """Every error is {"error": {"message", "type", "param", "code"}}."""
    answered, text = gateway.call(method, path, body)

    error = json.loads(text)["error"]
    assert (answered, error["code"]) == (status, code)
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]


def test_an_unknown_path_is_answered_with_those_that_there_are(gateway):
    """An unknown path is a 404 that lists the known ones."""
    _, text = gateway.call("POST", "/v1/rerank", "{}")
    message = json.loads(text)["error"]["message"]

    assert message.startswith("POST /v1/rerank: not found; there are POST /v1/completions, ")
    assert set(message.partition("there are ")[2].split(", ")) == {
        f"{method.upper()} {path}" for path, methods in describe()["paths"].items() for method in methods
    }


def test_metrics_count_what_was_answered(gateway, client, pair, ids):
    """The counters grow by the usage's tokens, and the histograms by one request."""
    names = ("prompt_tokens_total", "generation_tokens_total", "e2e_request_latency_seconds_count")
    names += ("time_to_first_token_seconds_count", "inter_token_latency_seconds_count")
    pair.reply = [*ids("the tide"), EOS_ID]
    before = [gateway.metric(f"tidemill_{name}") for name in names]
    usage = client.completions.create(model=MODEL, prompt="mill").usage

    grown = [gateway.metric(f"tidemill_{name}") - old for name, old in zip(names, before, strict=True)]
    assert grown == [usage.prompt_tokens, usage.completion_tokens, 1, 1, usage.completion_tokens - 1]
    assert gateway.metric("tidemill_num_requests_waiting") == 0


def test_the_metrics_port_tells_what_each_phase_has_to_do(gateway, pair, wait_until):
    """The metrics port shows each phase's ready units and requests within about a second."""

    def loads():
        page = gateway.get("/metrics", port="metrics")[1].splitlines()
        return [line.rsplit(" ", 1)[1] for line in page if line.startswith(("tidemill_phase_r", "tidemill_phase_k"))]

    wait_until(lambda: loads() == ["1.0", "1.0", "0.0", "0.0", "0.0", "0.0"], "both units are counted")
