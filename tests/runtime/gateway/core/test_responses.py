"""A call of the Responses API is a chat in other words, and its answer is items."""

import itertools
import json
import re

import openai
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent

from runtime.gateway.core.answer_parts import AnswerForm, AnswerReader
from runtime.gateway.core.calls import Call, ServedModel, read_chat
from runtime.gateway.core.dialects import usage
from runtime.gateway.core.generation import Delta
from runtime.gateway.core.response_items import ResponsesDialect
from runtime.gateway.core.responses import read_responses_request, rename_params
from runtime.gateway.core.tokenizer import load_tokenizer
from runtime.gateway.edge.http_errors import ApiError

MODEL = "org/tiny"
EOS_ID = 1
FUNCTION = {"name": "grind", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "strict": False} | FUNCTION]
CALL = (
    "hm</think>ready<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>grind<｜tool▁sep｜>"
    '{"kg": 3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)
# All that the template is told of the messages.
SPOKEN = "{{ messages | tojson }}{{ tools | tojson if tools }}{# 'tool' <｜tool▁calls▁begin｜> #}"


@pytest.fixture
def ids(tokenizer):
    """Return a function that encodes text without BOS."""
    return lambda text: tokenizer.encoder.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="module")
def model(write_checkpoint, tmp_path_factory):
    return ServedModel(
        "tiny", 2048, load_tokenizer(write_checkpoint(tmp_path_factory.mktemp("m"), chat_template=SPOKEN))
    )


def call(model, read=read_responses_request, **wishes):
    return read(json.dumps({"model": "tiny"} | wishes).encode(), model, 7).prepare()


def read_call(model, **wishes):
    """Return the call's requests and the way to read its answer."""
    return call(model, **wishes).requests


def read_as_chat(model, **wishes):
    return call(model, read_chat, **wishes).requests


def assistants(**said):
    return {"role": "assistant"} | said


CALLED = {"id": "c1", "type": "function", "function": {"name": "grind", "arguments": "{}"}}
FUNCTION_CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "grind", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "done"}
THOUGHTS = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
WORDS = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
WORDS |= {"content": [{"type": "output_text", "text": "ti", "annotations": []}, {"type": "output_text", "text": "de"}]}
USER = {"role": "user", "content": "mill"}


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ("mill", [USER]),
        ([USER], [USER]),
        ([{"role": "user", "content": [{"type": "input_text", "text": text} for text in ("mi", "ll")]}], [USER]),
        ([{"type": "message", "role": "developer", "content": "x"}, USER], [{"role": "system", "content": "x"}, USER]),
        ([USER, WORDS, USER], [USER, assistants(content="tide"), USER]),
        ([THOUGHTS, WORDS], [assistants(reasoning_content="hm", content="tide")]),
        ([WORDS, WORDS], [assistants(content="tide")] * 2),
        ([WORDS, THOUGHTS, WORDS], [assistants(content="tide"), assistants(reasoning_content="hm", content="tide")]),
        ([USER, THOUGHTS, USER, THOUGHTS], [USER, USER]),
        ([{"type": "reasoning", "summary": [], "encrypted_content": "x"}, WORDS], [assistants(content="tide")]),
        (
            [THOUGHTS, FUNCTION_CALL, FUNCTION_CALL, OUTPUT],
            [
                assistants(reasoning_content="hm", tool_calls=[CALLED] * 2),
                {"role": "tool", "tool_call_id": "c1", "content": "done"},
            ],
        ),
        ([WORDS, FUNCTION_CALL], [assistants(content="tide", tool_calls=[CALLED])]),
    ],
)  # fmt: skip
def test_items_are_a_chats_messages(model, items, messages):
    """An item is a message; an assistant's thoughts and calls belong to its message."""
    assert read_call(model, input=items) == read_as_chat(model, messages=messages)


def test_a_call_is_a_chat_in_other_words(model):
    """Instructions come first, and each wish has its name in this API."""
    schema = {"name": "a", "schema": {"enum": [1]}, "strict": True}
    asked = {"input": "mill", "instructions": "be brief", "max_output_tokens": 9, "temperature": 0.5, "top_p": 0.9}
    messages = [{"role": "system", "content": "be brief"}, USER]
    chat = {"messages": messages, "max_tokens": 9, "temperature": 0.5, "top_p": 0.9}

    assert read_call(model, **asked) == read_as_chat(model, **chat)
    assert read_call(model, input="mill", text={"format": {"type": "json_schema"} | schema}) == read_as_chat(
        model, messages=[USER], response_format={"type": "json_schema", "json_schema": schema}
    )
    assert read_call(model, input="mill", tools=TOOLS, tool_choice="auto") == read_as_chat(
        model, messages=[USER], tools=[{"type": "function", "function": FUNCTION | {"strict": False}}]
    )


HABITS = {
    "background": False,
    "client_metadata": {"a": "b"},
    "include": ["reasoning.encrypted_content"],
    "metadata": {"a": "b"},
    "parallel_tool_calls": True,
    "prompt_cache_key": "t1",
    "reasoning": {"effort": "medium", "summary": "auto"},
    "service_tier": "priority",
    "store": False,
    "stream_options": None,
    "text": {"verbosity": "medium", "format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "truncation": "disabled",
    "user": "Ann",
}


def test_what_clients_send_by_habit_is_accepted(model):
    """Parameters that Codex, SDKs and agents send and that affect no token are accepted."""
    for wishes in (HABITS, {"max_output_tokens": -1}, {"text": {"verbosity": "low"}}):
        assert read_call(model, input="mill", **wishes) == read_call(model, input="mill")


@pytest.mark.parametrize(
    ("wishes", "param", "complaint"),
    [
        ({"store": True}, "store", "store is not supported"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "previous_response_id is not supported"),
        ({"conversation": {"id": "c"}}, "conversation", "not supported"),
        ({"background": True}, "background", "not supported"),
        ({"truncation": "auto"}, "truncation", "not supported"),
        ({"include": ["message.output_text.logprobs"]}, "include", "message.output_text.logprobs"),
        ({"tools": [{"type": "web_search"}]}, "tools", "web_search is not supported"),
        ({"tools": [{}]}, "tools", "None is not supported"),
        ({"tools": [{"type": "function"}]}, "tools", "name"),
        ({"tool_choice": {"type": "function", "name": "grind"}}, "tool_choice", "only supported as none or auto"),
        ({"tool_choice": "required"}, "tool_choice", "only supported as none or auto"),
        ({"text": {"format": {"type": "json_object"}}, "tools": TOOLS}, "text.format", "^text.format in JSON"),
        ({"max_tokens": 5}, "max_tokens", "unknown to this route; write max_output_tokens$"),
        ({"messages": [USER]}, "messages", "unknown to this route"),
        ({"max_output_tokens": 0}, "max_output_tokens", ">= 1"),
        ({"input": None}, "input", "input"),
        ({"input": []}, "input", "input"),
        ({"input": [THOUGHTS]}, "input", "^input"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input", r"input\[0\]: item_reference is not"),
        ({"input": [USER, {"role": "user", "content": [{"type": "image"}]}]}, "input", r"input\[1\]: image is not"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input", "input_text needs text"),
        ({"input": [{"role": "user"}]}, "input", r"input\[0\]: a message needs role, content"),
        ({"input": [{"type": "function_call", "name": "x"}]}, "input", "needs call_id, name, arguments"),
        ({"input": [FUNCTION_CALL | {"name": "a b"}]}, "input", r"\$\.input\[0\]\.name"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input", "robot"),
        ({"input": 5}, "input", "input"),
        ({"reasoning": "high"}, "reasoning", "reasoning"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options", "only for stream"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_this_routes_names(model, wishes, param, complaint):
    """A wrong parameter is a 400 that names this API's field."""
    with pytest.raises(ApiError) as refused:
        call(model, **{"input": "mill"} | wishes)
    error = rename_params(refused.value)

    assert (error.status, error.param) == (400, param)
    assert re.search(complaint, error.message)


def parse_events(text):
    """Return the documents of a stream's events."""
    return [json.loads(line.removeprefix("data: ")) for line in text.decode().splitlines() if line.startswith("data: ")]


PIECES = st.lists(st.sampled_from(["a", "<", "hm</think>", "<think>", *re.split("(?<=>)", CALL)]), max_size=12)


@given(PIECES, st.lists(st.integers(0, 200), max_size=6), st.sampled_from(["stop", "length"]))
def test_a_stream_says_what_a_whole_answer_says(pieces, cuts, finish_reason):
    """A stream's items and texts are those of the answer in one piece, however it is cut."""
    text, form = "".join(pieces), AnswerForm("undecided", "plain")
    at_once, in_pieces = (ResponsesDialect("r", 0, "m", Call((), 0, stream=True)) for _ in range(2))
    reader, streamed = AnswerReader(form), b""
    borders = sorted({0, *(cut for cut in cuts if cut < len(text)), len(text)})
    used = usage(1, 2, 0, 0)
    for begin, end in itertools.pairwise(borders):
        streamed += in_pieces.write_event(Delta(0, "", None, parts=reader.push(text[begin:end])), lambda: used)
    last = Delta(0, "", finish_reason, parts=reader.push("", is_last=True))
    streamed += in_pieces.write_event(last, lambda: used) + in_pieces.write_end(used)
    events = parse_events(streamed)
    answer = at_once.write_answer(
        [Delta(0, "", finish_reason, parts=AnswerReader(form).push(text, is_last=True))], used
    )

    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert list(map(drop_id, events[-1]["response"]["output"])) == list(map(drop_id, answer["output"]))
    assert events[-1]["response"] | {"output": []} == answer | {"output": []}
    for index, item in enumerate(answer["output"]):
        deltas = [event["delta"] for event in events if "delta" in event and event["output_index"] == index]
        assert "".join(deltas) == item.get("arguments", "".join(part["text"] for part in item.get("content", ())))


def drop_id(item):
    """Return an item without its ids."""
    return {name: value for name, value in item.items() if name not in ("id", "call_id")}


EVENTS = pydantic.TypeAdapter(ResponseStreamEvent)


def stream_events(client, **wishes):
    """Return a stream's events, each checked as one of OpenAI's."""
    events = list(client.responses.create(model=MODEL, stream=True, **wishes))
    for event in events:
        EVENTS.validate_python(event.model_dump(by_alias=True), strict=True)

    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events


def drop_all_ids(response):
    return [item.model_dump(exclude={"id", "call_id"}) for item in response.output]


def test_words_are_a_message(client, pair, ids):
    """Words are a message item, whole or streamed, with a chat's usage and the call's parameters."""
    pair.reply = [*ids("grinds 日本語"), EOS_ID]
    wishes = {"input": "mill", "instructions": "be brief", "temperature": 0, "metadata": {"a": "b"}}

    answer = client.responses.create(model=MODEL, **wishes)
    events = stream_events(client, **wishes)

    Response.model_validate(answer.model_dump(), strict=True)
    assert (answer.output_text, answer.status, answer.store) == ("grinds 日本語", "completed", False)
    assert (answer.temperature, answer.instructions, answer.metadata) == (0, "be brief", {"a": "b"})
    assert answer.usage.output_tokens == len(pair.reply)
    assert answer.usage.total_tokens == answer.usage.input_tokens + len(pair.reply)
    assert (answer.usage.input_tokens_details.cached_tokens, answer.usage.output_tokens_details.reasoning_tokens) == (
        0,
        0,
    )
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert "".join(event.delta for event in events[4:-4]) == "grinds 日本語"
    last = events[-1].response
    assert drop_all_ids(last) == drop_all_ids(answer)
    assert last.usage == answer.usage
    assert {event.item_id for event in events[3:-2]} == {last.output[0].id}


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_gets_items_and_sends_them_back(client, pair, ids, stream, tokenizer):
    """Thoughts, words and a call are items, and go back with the function's output."""
    pair.reply = [*ids(f"<think>{CALL}"), EOS_ID]
    wishes = {"input": [USER], "tools": TOOLS, "store": False, "parallel_tool_calls": False}

    if stream:
        with client.responses.stream(model=MODEL, **wishes) as events:
            kinds = [event.type for event in events]
            answer = events.get_final_response()
        assert {"response.reasoning_text.delta", "response.function_call_arguments.delta"} < set(kinds)
        stream_events(client, **wishes)
    else:
        answer = client.responses.create(model=MODEL, **wishes)

    thoughts, words, called = answer.output
    assert (thoughts.type, thoughts.content[0].text) == ("reasoning", "hm")
    assert (words.type, words.content[0].text) == ("message", "ready")
    assert (called.type, called.name, json.loads(called.arguments)) == ("function_call", "grind", {"kg": 3})
    assert answer.usage.output_tokens_details.reasoning_tokens > 0

    output = {"type": "function_call_output", "call_id": called.call_id, "output": "ground"}
    said = [USER, *(item.model_dump() for item in answer.output), output]
    pair.reply = [*ids("done"), EOS_ID]
    again = client.responses.create(model=MODEL, **wishes | {"input": said})
    assert again.output_text == "done"


def test_an_answer_that_is_cut_is_incomplete(client, pair, ids):
    """An answer at its limit is incomplete, with the reason, and so is its last item."""
    pair.reply = ids("tide")

    answer = client.responses.create(model=MODEL, input="mill", max_output_tokens=len(pair.reply))
    last = stream_events(client, input="mill", max_output_tokens=len(pair.reply))[-1]

    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.output[0].status == "incomplete"
    assert last.type == "response.incomplete"
    assert drop_all_ids(last.response) == drop_all_ids(answer)


def test_an_answer_of_nothing_is_an_empty_message(client, pair):
    """An empty answer has one empty message."""
    pair.reply = [EOS_ID]

    answer = client.responses.create(model=MODEL, input="mill")

    assert (answer.output_text, len(answer.output)) == ("", 1)
    assert drop_all_ids(stream_events(client, input="mill")[-1].response) == drop_all_ids(answer)


def test_a_rank_lost_in_a_stream_fails_the_response(client, pair, ids):
    """A rank lost in a stream ends it with an error event after the text so far."""
    pair.reply = [*ids("the tide"), EOS_ID]
    pair.last_may_come.clear()

    events = []
    for event in client.responses.create(model=MODEL, input="mill", stream=True):
        events.append(event)
        if event.type == "response.output_text.delta":
            pair.decode.leave()
    pair.last_may_come.set()

    assert events[-1].type == "response.failed"
    assert "was lost" in events[-1].response.error.message
    EVENTS.validate_python(events[-1].model_dump(by_alias=True), strict=True)


def test_a_refusal_names_the_field_over_http(client, pair):
    """Over HTTP an error is OpenAI's with this API's param, and no rank hears of the call."""
    nothing = {"type": "json_schema", "name": "x", "schema": {"$ref": "#/nowhere"}}
    for wish, param in (({"store": True}, "store"), ({"text": {"format": nothing}}, "text.format")):
        with pytest.raises(openai.BadRequestError) as error:
            client.responses.create(model=MODEL, input="mill", **wish)

        assert (error.value.body["param"], set(error.value.body)) == (param, {"message", "type", "param", "code"})
    assert pair.prefill.heard.empty()
