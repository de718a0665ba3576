"""A body becomes requests within the limits, or is refused by the field's name."""

import json

import pytest

from runtime.gateway.core.body import MAX_CONTAINERS, MAX_VALUES
from runtime.gateway.core.calls import ServedModel, read_chat, read_completion
from runtime.gateway.core.tokenizer import CHARACTERS_A_TOKEN, Tokenizer, load_tokenizer
from runtime.gateway.edge.http_errors import ApiError
from runtime.protocol.json_grammar import MAX_SCHEMA_BYTES
from tests.runtime.gateway.conftest import TOOL_TEMPLATE

CALLS = [{"id": "call_1", "type": "function", "function": {"name": "grind", "arguments": "{}"}}]
TOOLS = [{"type": "function", "function": {"name": "grind", "parameters": {"type": "object"}}}]


@pytest.fixture
def model(tokenizer):
    return ServedModel("tiny", 64, tokenizer)


def completion(model, /, **wishes):
    return read_completion(json.dumps({"model": "tiny", "prompt": "mill"} | wishes).encode(), model).prepare()


def chat(model, /, **wishes):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "mill"}]} | wishes
    return read_chat(json.dumps(body).encode(), model).prepare()


def test_defaults_are_openais(model):
    """A completion's defaults are temperature 1, top_p 1, 16 tokens, eos as stop, and no stream."""
    call = completion(model)

    (request,) = call.requests
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.max_tokens) == (1, 1, 16)
    assert (request.sampling.stop_ids, request.stops) == ([1], ())
    assert not call.stream


def test_a_chat_may_use_all_that_is_left(model):
    """Without max_tokens a chat gets max_request_tokens less its prompt."""
    (request,) = chat(model).requests

    assert len(request.prompt_ids) + request.sampling.max_tokens == model.max_request_tokens


def test_a_completion_without_room_for_its_default_gets_the_room(model):
    """The default of 16 tokens shrinks to the room that is left."""
    (request,) = completion(model, prompt=[5] * 60).requests

    assert request.sampling.max_tokens == 4


def test_null_means_absent(model):
    """A parameter that is null has its default."""
    nulls = dict.fromkeys(("max_tokens", "temperature", "stop", "n", "logprobs", "stream", "tools", "seed"))

    assert completion(model, **nulls).requests[0].sampling.max_tokens == 16


NEUTRAL = {
    "best_of": 1,
    "echo": False,
    "ignore_eos": False,
    "logit_bias": {},
    "metadata": {"run": "7"},
    "min_p": 0.0,
    "min_tokens": 0,
    "modalities": ["text"],
    "n": 1,
    "parallel_tool_calls": False,
    "prompt_cache_key": "a",
    "response_format": {"type": "text"},
    "skip_special_tokens": True,
    "stop": [],
    "stop_token_ids": [],
    "store": False,
    "stream": True,
    "stream_options": {"include_usage": None, "continuous_usage_stats": False},
    "suffix": "",
    "tool_choice": "auto",
    "tools": [],
    "user": "Ann",
}


@pytest.mark.parametrize("ask", [completion, chat])
def test_what_asks_for_nothing_is_accepted(model, ask):
    """Values that change neither prompt nor sampling are accepted."""
    wishes = {name: value for name, value in NEUTRAL.items() if ask is completion or name != "best_of"}

    (request,) = ask(model, seed=1, **wishes).requests
    assert request == ask(model, seed=1).requests[0]


CLIENTS_SAY = [
    {"chat_id": "c1", "session_id": "s1", "id": "m1", "background_tasks": {"title_generation": True}, "variables": {}},
    {"messages": [{"role": "user", "content": "mill", "id": "m1", "opts": {"visible": True}, "timestamp": 1.7e12}]},
    {"messages": [{"role": "user", "content": "mill", "name": "Ann", "annotations": [], "tool_calls": []}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "mill", "cache_control": {"type": "e"}}]}]},
    {"reasoning_effort": "low", "service_tier": "flex", "safety_identifier": "u", "prompt_cache_retention": "24h"},
    {"chat_template_kwargs": {"enable_thinking": False, "budget": 2**40}, "user": "Ann", "rid": "x"},
    {
        "reasoning_format": "auto",
        "return_progress": True,
        "timings_per_token": True,
        "cache_prompt": True,
        "id_slot": 0,
    },
    {"reasoning": {"effort": "medium"}, "sse_ping_interval": 1, "reasoning_control": True, "keep_alive": "5m"},
    {"prediction": {"type": "content", "content": "tide"}, "client_metadata": {"a": "b"}, "rid": "r", "metadata": []},
]


@pytest.mark.parametrize("wishes", CLIENTS_SAY, ids=lambda wishes: next(iter(wishes)))
def test_what_reaches_no_token_is_accepted(model, wishes):
    """Parameters that clients send and that affect no token are accepted."""
    assert chat(model, seed=1, **wishes).requests == chat(model, seed=1).requests


def test_a_nucleus_of_nothing_is_the_likeliest_token(model):
    """`top_p: 0` is greedy."""
    sampling = completion(model, top_p=0, temperature=0.7).requests[0].sampling

    assert (sampling.temperature, sampling.top_p) == (0, 1)
    assert completion(model, top_p=0.5, temperature=0.7).requests[0].sampling.temperature == 0.7


def test_an_answer_can_be_sent_back_as_it_came(model):
    """An answer's message can be sent back with all its keys, nulls and thoughts."""
    said = {"role": "assistant", "content": "tide", "refusal": None, "annotations": [], "audio": None}
    said |= {"function_call": None, "tool_calls": [], "reasoning_content": "hm", "reasoning": "hm", "parsed": None}
    turns = [{"role": "user", "content": "mill"}, said, {"role": "user", "content": "more"}]
    plain = [turns[0], {"role": "assistant", "content": "tide"}, turns[2]]

    assert chat(model, messages=turns).requests[0].prompt_ids == chat(model, messages=plain).requests[0].prompt_ids


def test_an_empty_answer_and_a_developer_have_older_names(model):
    """An assistant's `content: null` is an empty text, and a developer's message is the system's."""
    said = [{"role": "developer", "content": "be brief"}, {"role": "assistant", "content": None}]
    older = [{"role": "system", "content": "be brief"}, {"role": "assistant", "content": ""}]

    assert chat(model, messages=said).requests[0].prompt_ids == chat(model, messages=older).requests[0].prompt_ids


def test_a_prefix_is_where_the_answer_goes_on(model, tokenizer):
    """A prefix follows the template's opening of the answer and is not closed."""
    begun = chat(
        model, messages=[{"role": "user", "content": "mill"}, {"role": "assistant", "content": "tide", "prefix": True}]
    )

    assert begun.requests[0].prompt_ids == [*chat(model).requests[0].prompt_ids, *tokenizer.encode_whole("tide")]


def test_several_choices_share_a_prompt_and_not_a_seed(model):
    """`n` choices of a prompt have different seeds, and the prompt counts once in the usage."""
    call = completion(model, prompt=[[5, 6], [7]], n=2, seed=2**63 - 1)

    assert [request.prompt_ids for request in call.requests] == [[5, 6], [5, 6], [7], [7]]
    assert [request.sampling.seed for request in call.requests] == [2**63 - 1, -(2**63)] * 2
    assert call.num_prompt_tokens == 3


def test_what_ends_an_answer_can_be_chosen(model):
    """A body may ignore eos, add stop ids, set a least length and bias token ids."""
    sampling = (
        completion(model, ignore_eos=True, stop_token_ids=[9], min_tokens=3, logit_bias={"5": -100})
        .requests[0]
        .sampling
    )

    assert (sampling.stop_ids, sampling.min_tokens, sampling.logit_bias) == ([9], 3, {5: -100})
    assert completion(model, stop_token_ids=[9]).requests[0].sampling.stop_ids == [1, 9]


def test_json_is_asked_for_by_schema(model):
    """JSON may be any object, or one that a schema allows."""
    formats = [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": [1]}}}]

    asked = [chat(model, response_format=form).requests[0].sampling.json_schema for form in formats]

    assert asked == ['{"type":"object"}', '{"enum":[1]}']


def test_a_schema_is_one_text_for_all_choices(model):
    """All choices share one schema text, and a schema that is too large is refused before choices are made."""

    def asked(schema):
        return chat(model, n=3, response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}})

    assert len({id(choice.sampling.json_schema) for choice in asked({"enum": [1]}).requests}) == 1
    with pytest.raises(ApiError, match="over 65,536 bytes") as refused:
        asked({"description": "x" * MAX_SCHEMA_BYTES})
    assert refused.value.param == "response_format"


def test_seeds_differ_unless_said(model):
    """A seed that is absent is drawn for each request, and one that is given is kept."""
    assert completion(model).requests[0].sampling.seed != completion(model).requests[0].sampling.seed
    assert completion(model, seed=-3).requests[0].sampling.seed == -3


@pytest.mark.parametrize(
    ("prompt", "num_requests"),
    [("mill", 1), (["mill", "tide"], 2), ([5, 6, 7], 1), ([[5, 6], [7]], 2)],
)
def test_a_prompt_has_four_forms(model, prompt, num_requests):
    """A prompt is a text, texts, token ids or lists of token ids; each prompt is one request."""
    assert len(completion(model, prompt=prompt).requests) == num_requests


@pytest.mark.parametrize(
    ("prompt", "num_choices"), [("mill", 2), ([5, 6, 7], 2), (["mill", "tide"], 4), ([[1]] * 5_000, 10_000)]
)
def test_choices_are_counted_before_they_are_made(model, prompt, num_choices):
    """Choices beyond the room are refused before memory is taken for them."""
    body = {"model": "tiny", "prompt": prompt, "n": 2}

    assert read_completion(json.dumps(body).encode(), model).num_choices == num_choices


def test_token_ids_are_taken_as_they_are(model):
    """Token ids get no BOS."""
    assert completion(model, prompt=[5, 6]).requests[0].prompt_ids == [5, 6]


def test_text_parts_are_joined(model):
    """Text parts of a message's content are joined."""
    parts = [{"type": "text", "text": "mi"}, {"type": "text", "text": "ll"}]

    in_parts = chat(model, messages=[{"role": "user", "content": parts}])
    assert in_parts.requests[0].prompt_ids == chat(model).requests[0].prompt_ids


@pytest.mark.parametrize(("asked", "kept"), [(None, 0), (0, 0), (-1, 0), (1, 1), (50, 50)])
def test_top_k_has_two_words_for_all_tokens(model, asked, kept):
    """A top_k of 0 or -1 keeps all tokens, as does none."""
    assert completion(model, top_k=asked).requests[0].sampling.top_k == kept


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty"])
@pytest.mark.parametrize(("asked", "sent"), [(None, 0.0), (0, 0.0), (-2, -2.0), (0.5, 0.5), (2, 2.0)])
def test_penalties_reach_the_ranks(model, name, asked, sent):
    """Each penalty reaches the ranks, whole numbers too."""
    sampling = completion(model, **{name: asked}).requests[0].sampling

    assert getattr(sampling, name) == sent
    assert sampling.frequency_penalty + sampling.presence_penalty == sent


def test_a_repetition_penalty_reaches_the_ranks(model):
    """A repetition penalty reaches the ranks, and its default is 1."""
    asked = [completion(model, repetition_penalty=value).requests[0].sampling for value in (None, 1, 1.25)]

    assert [sampling.repetition_penalty for sampling in asked] == [1, 1, 1.25]


@pytest.mark.parametrize(
    ("wishes", "sent"), [({}, None), ({"logprobs": False}, None), ({"logprobs": True}, 0)], ids=str
)
def test_a_chat_asks_for_logprobs_in_two_words(model, wishes, sent):
    """A chat asks by `logprobs` and `top_logprobs`, a completion by `logprobs` alone."""
    assert chat(model, **wishes).requests[0].sampling.num_logprobs == sent
    assert chat(model, logprobs=True, top_logprobs=3).requests[0].sampling.num_logprobs == 3
    assert [completion(model, logprobs=n).requests[0].sampling.num_logprobs for n in (None, 0, 20)] == [None, 0, 20]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_chat_knows_both_names_of_max_tokens(model, name):
    """max_completion_tokens means max_tokens."""
    assert chat(model, **{name: 3}).requests[0].sampling.max_tokens == 3


@pytest.mark.parametrize(
    ("wishes", "param"),
    [
        *[({name: value}, name) for name, value in [("n", 0), ("n", 129), ("n", True), ("best_of", 3)]],
        *[({name: value}, name) for name, value in [("echo", True), ("suffix", "x"), ("store", True)]],
        *[({name: value}, name) for name, value in [("typical_p", 0.5), ("use_beam_search", True)]],
        *[({"logprobs": value}, "logprobs") for value in (-1, 21, True, False)],
        *[({name: 0.5}, name) for name in ("min_p", "top_k")],
        *[({"repetition_penalty": value}, "repetition_penalty") for value in (0, -1, 2.5)],
        ({"top_logprobs": 5}, "top_logprobs"),
        *[({name: 2.5}, name) for name in ("frequency_penalty", "presence_penalty")],
        ({"top_k": -2}, "top_k"),
        *[({"logit_bias": value}, "logit_bias") for value in ({"5": 101}, {"320": 1}, {"-1": 1}, {"mill": 1}, [5])],
        *[({"stop_token_ids": value}, "stop_token_ids") for value in ([320], [-1], [5] * 129, 5)],
        *[({"min_tokens": value}, "min_tokens") for value in (-1, 17)],
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"min_p": False}, "min_p"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        *[({"top_p": value}, "top_p") for value in (-0.1, 1.1)],
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"samplers": ["top_k", "temperature"]}, "samplers"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", 5]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [320]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(model, wishes, param):
    """A parameter that cannot be obeyed is a 400 that names it."""
    with pytest.raises(ApiError) as error:
        completion(model, **wishes)

    assert (error.value.status, error.value.param) == (400, param)
    assert param in error.value.message


@pytest.mark.parametrize(
    ("wishes", "complaint"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "knows no tools"),
        ({"messages": [{"role": "user", "content": None}]}, "null is only for the assistant"),
        ({"messages": [{"role": "assistant", "refusal": "no"}]}, "refusal"),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": CALLS}]}, "knows no tools"),
        ({"messages": [{"role": "user", "content": "x", "prefix": True}]}, "prefix"),
        ({"tools": TOOLS}, "does not say them"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"chat_template_kwargs": {"messages": []}}, "'messages'"),
        ({"thinking": {"type": "enabled"}}, "thinking"),
        ({"reasoning": {"max_tokens": 9}}, "reasoning"),
        ({"response_format": {"type": "json"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "together with ignore_eos"),
        ({"response_format": {"type": "json_object"}, "min_tokens": 1}, "together with min_tokens"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            r"messages: a part of type image_url is .* text only - at",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "a part of type text needs text"),
        ({"n_predict": 5}, "n_predict is not supported by this server; write max_tokens'"),
        ({"max_new_tokens": 5}, "max_new_tokens is unknown to this route; write max_tokens'"),
        ({"messages": [{"role": "assistant", "content": "x", "audio": {"id": "a"}}]}, "audio"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5, "id": 1}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}]}, "system comes first"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "one parameter"),
        ({"top_logprobs": 3}, "only for logprobs"),
        ({"logprobs": False, "top_logprobs": 3}, "only for logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ],
)
def test_a_chat_refuses_what_its_template_cannot_say(model, wishes, complaint):
    """Unknown roles and contents, and the template's own objections, are 400s."""
    with pytest.raises(ApiError, match=complaint) as error:
        chat(model, **wishes)

    assert error.value.status == 400


@pytest.mark.parametrize(
    "wishes",
    [
        *({name: 10**4299} for name in ("max_tokens", "min_tokens", "n", "best_of", "top_k", "seed")),
        *({name: [10**4299]} for name in ("prompt", "stop_token_ids")),
        {"prompt": [[10**4299]]},
        {"logit_bias": {"9" * 4299: 1}},
        {"a" * 10**6: 1},
        {"model": "a" * 10**6},
    ],
    ids=lambda wishes: next(iter(wishes))[:9],
)
def test_a_refusal_is_short_whatever_was_written(model, wishes):
    """A refusal is short, even for numbers of thousands of digits and texts of a megabyte."""
    with pytest.raises(ApiError) as error:
        completion(model, **wishes)

    assert len(json.dumps(error.value.body())) < 1500


def test_arguments_too_deep_are_refused(write_checkpoint, tmp_path):
    """A call's arguments that are nested too deeply are a 400."""
    said = TOOL_TEMPLATE + "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    model = ServedModel("tiny", 64, load_tokenizer(write_checkpoint(tmp_path, chat_template=said)))
    for depth in (800, MAX_CONTAINERS - 100):
        call = {"function": {"name": "grind", "arguments": "[" * depth + "]" * (depth if depth == 800 else 0)}}

        with pytest.raises(ApiError) as error:
            chat(model, messages=[{"role": "assistant", "content": "x", "tool_calls": [call]}])
        assert error.value.status == 400


def test_a_tool_may_have_no_parameters(write_checkpoint, tmp_path):
    """A tool without parameters has an empty object of them."""
    said = TOOL_TEMPLATE.replace("tools | tojson", "tools[0].function.parameters | tojson")
    model = ServedModel("tiny", 640, load_tokenizer(write_checkpoint(tmp_path, chat_template=said)))
    prompts = [
        chat(model, tools=[{"type": "function", "function": {"name": "grind"} | more}]).requests[0].prompt_ids
        for more in ({}, {"parameters": {"type": "object", "properties": {}}})
    ]

    assert prompts[0] == prompts[1]


def test_too_long_a_request_is_refused_with_the_numbers(model):
    """A request that is too long is refused with the limit, the prompt's tokens and the wish."""
    with pytest.raises(ApiError) as error:
        completion(model, prompt=[5] * 60, max_tokens=10)

    assert error.value.code == "context_length_exceeded"
    assert error.value.message == (
        "this model takes 64 tokens, prompt and answer together; 70 were asked for (60 in the prompt, 10 to generate)"
    )


@pytest.mark.parametrize(
    "ask",
    [
        lambda model, text: completion(model, prompt=text),
        lambda model, text: chat(model, messages=[{"role": "user", "content": text}]),
    ],
)
def test_a_text_far_too_long_is_not_encoded(model, monkeypatch, ask):
    """A text that is far too long is refused by its beginning. One that may fit is encoded in full."""
    encoded, encode = [], Tokenizer.encode_whole
    monkeypatch.setattr(Tokenizer, "encode_whole", lambda self, text: encoded.append(len(text)) or encode(self, text))

    with pytest.raises(ApiError, match=r"of 1,000,0.* characters has more") as error:
        ask(model, "mill " * 200_000)

    assert error.value.code == "context_length_exceeded"
    assert encoded == [model.max_request_tokens * CHARACTERS_A_TOKEN]


def test_more_messages_than_tokens_are_not_put_into_words(model):
    """More messages than tokens allowed are refused before the template runs."""
    with pytest.raises(ApiError, match="65 messages have more") as error:
        chat(model, messages=[{"role": "user", "content": ""}] * 65)

    assert (error.value.param, error.value.code) == ("messages", "context_length_exceeded")


def test_a_long_text_of_few_tokens_is_taken(model, monkeypatch):
    """A long text of few tokens is accepted."""
    monkeypatch.setattr(Tokenizer, "encode_whole", lambda self, text: [5] * 9)

    assert len(completion(model, prompt="m" * 5000).requests[0].prompt_ids) == 10


def test_a_prompt_that_fills_the_limit_leaves_no_room_to_answer(model):
    """A prompt that fills the limit is refused, because no token is left for the answer."""
    with pytest.raises(ApiError, match="65 were asked for"):
        completion(model, prompt=[5] * 64)


@pytest.mark.parametrize(
    "wishes",
    [
        {"prompt": [[]] * MAX_CONTAINERS},
        {"prompt": [5] * (MAX_VALUES + 2)},
        {"prompt": "mill", "logit_bias": [{}] * MAX_CONTAINERS},
    ],
)
def test_a_body_of_too_many_parts_is_refused_unread(model, wishes):
    """A body of too many parts is refused before it is decoded, which would block all streams."""
    raw = json.dumps({"model": "tiny"} | wishes).encode()
    with pytest.raises(ApiError, match="the body may have 1,048,576 values, 131,072 of them lists or objects") as error:
        read_completion(raw[:-1], model)  # it is not even JSON

    assert (error.value.status, error.value.code) == (413, "request_too_large")


def test_a_prompt_may_be_as_long_as_any_model_reads(tokenizer):
    """A million token ids are not too many parts."""
    model = ServedModel("tiny", MAX_VALUES, tokenizer)

    assert completion(model, prompt=[5] * (MAX_VALUES - 20)).num_prompt_tokens == MAX_VALUES - 20
