"""The routes beside OpenAI's, and answers to bytes that are no HTTP."""

import asyncio
import json
import re
import socket
from pathlib import Path

import jsonschema
import pytest
from starlette.requests import Request

from runtime.gateway.core.app import openapi
from runtime.gateway.core.body import (
    UNREAD,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingsBody,
    TokenizeBody,
    parse_body,
)
from runtime.gateway.core.openapi import describe
from runtime.gateway.core.responses import ResponsesBody
from runtime.gateway.edge.http_errors import ApiError
from tests.runtime.gateway.conftest import ADDRESS, BOS, BOS_ID, MAX_REQUEST_TOKENS, PATIENCE_S

ROOT = Path(__file__).parents[4]
CHAT = {"messages": [{"role": "user", "content": "mill"}]}
SAID = {
    CompletionBody: {"model": "m", "prompt": "x"},
    ChatBody: {"model": "m"} | CHAT,
    ResponsesBody: {"model": "m", "input": [{"role": "user", "content": "mill"}]},
    EmbeddingsBody: {"model": "m", "input": ["x", [5]]},
    TokenizeBody: {"prompt": "x"},
    DetokenizeBody: {"tokens": [5]},
}
WISHES = [
    {},
    {"n": 0},
    {"stop": ["a"] * 16},
    {"stop": ["a"] * 17},
    {"logit_bias": {"5": 1.5}},
    {"logit_bias": {"5": 101}},
    {"stream_options": {"include_usage": None}, "stream": True},
    {"temperature": None},
    {"top_p": 0},
    {"messages": []},
    {"messages": [{"role": "robot", "content": "x"}]},
    {"messages": [{"role": "assistant", "content": None, "refusal": None, "tool_calls": None}]},
    {"tools": [{"type": "function", "function": {"name": "a b"}}]},
    {"thinking": {"type": "maybe"}},
    {"tokens": ["x"]},
    {"encoding_format": "base64"},
    {"encoding_format": "int8"},
    {"dimensions": 9},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "null"}}}},
    {"response_format": {"type": "json_schema"}},
    {"metadata": {"a": 1}},
    {name: [{"a": 1}] for name in sorted(UNREAD)},
    {"reasoning_effort": "low", "reasoning": {"effort": "low", "summary": "auto"}},
    {"reasoning": {"max_tokens": 5}},
    {"messages": [{"role": "user", "id": 1, "content": [{"type": "text", "text": "x", "cache_control": {}}]}]},
    {"top_a": 1},
    {"params": {}, "files": [], "top_a": ""},
    {"features": {"web_search": True}},
    {"bad_words": []},
    {"max_tokens": -1},
    {"max_tokens": -2},
    {"n_predict": -1, "n_probs": 0, "repeat_last_n": 64},
    {"n_predict": 5},
    {"input": []},
    {"input": "mill"},
    {"input": [{"type": "message", "role": "robot", "content": "x"}]},
    {"text": {"format": {"type": "json_schema", "name": "a"}, "verbosity": "low"}},
    {"text": {"format": {"type": "json_schema", "json_schema": {"name": "a"}}}},
    {"include": ["message.output_text.logprobs"]},
]


def post(gateway, path, body):
    """Return (status, body as JSON)."""
    status, text = gateway.call("POST", path, json.dumps(body))
    return status, json.loads(text)


def test_text_becomes_tokens_and_text_again(gateway, tokenizer):
    """Text becomes tokens, with or without BOS, and ids become the same text again."""
    _, prompt = post(gateway, "/tokenize", {"prompt": "mill 日", "return_token_strs": True})
    _, bare = post(gateway, "/tokenize", {"prompt": "mill 日", "add_special_tokens": False})
    _, chat = post(gateway, "/tokenize", CHAT)

    assert prompt["tokens"] == [BOS_ID, *bare["tokens"]] == tokenizer.encode("mill 日")
    assert (prompt["count"], prompt["max_model_len"]) == (len(prompt["tokens"]), MAX_REQUEST_TOKENS)
    assert prompt["token_strs"][0] == BOS
    assert chat["tokens"] == tokenizer.encode_whole(f"{BOS}<｜User｜>mill<｜Assistant｜>")
    assert post(gateway, "/detokenize", {"tokens": prompt["tokens"]}) == (200, {"prompt": BOS + "mill 日"})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", CHAT),
        ("/v1/responses", {"input": "x"}),
        ("/v1/embeddings", {"input": "x", "model": None}),
    ],
)
def test_a_call_that_names_no_model_means_the_one_there_is(gateway, path, body):
    """A call without a model means the served one."""
    assert post(gateway, path, body)[0] == 503
    assert post(gateway, path, body | {"model": "other"})[0] == 404


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/tokenize", {}, 400),
        ("/tokenize", {"prompt": "x"} | CHAT, 400),
        ("/tokenize", {"prompt": "x", "model": "other"}, 404),
        ("/tokenize", {"prompt": "mill " * 10_000}, 400),
        ("/tokenize", {"messages": [{"role": "user", "content": "mill " * 10_000}]}, 400),
        ("/tokenize", {"add_special_tokens": True} | CHAT, 400),
        ("/detokenize", {"tokens": [2**40]}, 400),
        ("/detokenize", {"tokens": [-1]}, 400),
        ("/detokenize", {"tokens": [5] * 100_000}, 400),
    ],
)
def test_what_is_no_text_or_no_token_is_refused(gateway, path, body, status):
    """Wrong texts and token ids are errors in OpenAI's shape."""
    answered, said = post(gateway, path, body)

    assert (answered, set(said["error"])) == (status, {"message", "type", "param", "code"})


@pytest.mark.parametrize("kind", SAID)
@pytest.mark.parametrize("wishes", WISHES, ids=str)
def test_the_description_says_what_is_checked(kind, wishes):
    """A body fits the OpenAPI schema exactly if it is accepted."""
    document = describe()
    root = {"$ref": f"#/components/schemas/{kind.__name__}", "components": document["components"]}
    validator = jsonschema.Draft202012Validator(root)
    for body in [
        SAID[kind] | wishes,
        *(SAID[kind] | {name: v} for name, vs in kind.neutral.items() for v in vs),
    ]:
        assert validator.is_valid(body) == is_read(body, kind), body


def is_read(body, kind):
    try:
        parse_body(json.dumps(body).encode(), kind)
    except ApiError:
        return False
    return True


def test_the_description_names_every_route(gateway):
    """The OpenAPI description has every route and is served."""
    status, text = gateway.get("/openapi.json")

    assert status == 200
    assert json.loads(text) == json.loads(json.dumps(describe()))
    assert {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize"} <= set(json.loads(text)["paths"])


def test_the_page_names_what_no_route_reads():
    """The page's table lists the fields that no route reads, and nothing else."""
    section = (ROOT / "docs" / "http.md").read_text().partition("## Fields\n")[2].partition("\n## ")[0]
    rows = "".join(line for line in section.splitlines() if line.startswith("| "))

    assert set(re.findall(r"`(\w+)`", rows)) == UNREAD
    assert all(UNREAD.isdisjoint((*kind.__struct_fields__, *kind.neutral)) for kind in SAID)


def test_the_description_is_made_once():
    """The OpenAPI description is made once."""
    answers = [asyncio.run(openapi(Request({"type": "http"}))).body for _ in range(2)]

    assert answers[0] is answers[1]


@pytest.mark.parametrize("said", [b"mill\r\n\r\n", b"GET / HTTP/1.1\r\nHost x\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"])
def test_what_is_no_http_gets_openais_error(gateway, said):
    """Bytes that are no HTTP get a 400 in JSON, and the connection ends."""
    with socket.create_connection((ADDRESS, gateway.ports["http"]), timeout=PATIENCE_S) as connection:
        connection.sendall(said)
        answer = b"".join(iter(lambda: connection.recv(4096), b""))

    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert json.loads(body)["error"]["code"] == "invalid_http"


def post_raw(gateway, target, head="", body=b""):
    """Return the answer to a POST of this target, as text."""
    with socket.create_connection((ADDRESS, gateway.ports["http"]), timeout=PATIENCE_S) as connection:
        told = f"POST {target} HTTP/1.1\r\nHost: evil\r\nConnection: close\r\n{head}Content-Length: {len(body)}\r\n\r\n"
        connection.sendall(told.encode() + body)
        return b"".join(iter(lambda: connection.recv(4096), b"")).decode()


@pytest.mark.parametrize(
    "target", ["/tokenize/", "//tokenize", "/tokenize/?x=1", "/v1/models", "/v1/models/", "*", "ftp://x/tokenize"]
)
def test_nothing_is_redirected(gateway, target):
    """No path is redirected, because the Host header and the scheme cannot be trusted."""
    answer = post_raw(gateway, target)

    assert answer.startswith(("HTTP/1.1 404", "HTTP/1.1 405"))
    assert "location" not in answer.lower()
    assert "evil" not in answer


@pytest.mark.parametrize("host", ["http://mill", "HTTPS://mill:8000", "http://[::1]:80"])
def test_a_proxys_whole_url_means_its_path(gateway, host):
    """A target in absolute form is served by its path, whatever host it names."""
    body = json.dumps({"prompt": "mill"}).encode()

    assert post_raw(gateway, f"{host}/tokenize?x=1", body=body).startswith("HTTP/1.1 200")
    assert "POST /: not found" in post_raw(gateway, host)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, identity", "x"])
def test_a_compressed_body_is_refused_as_such(gateway, encoding):
    """A compressed body is a 415; `identity` is no compression."""
    body = json.dumps({"prompt": "mill"}).encode()
    answer = post_raw(gateway, "/tokenize", f"Content-Encoding: {encoding}\r\n", body)
    head, _, said = answer.partition("\r\n\r\n")

    assert head.startswith("HTTP/1.1 415")
    assert "accept-encoding: identity" in head.lower()
    assert f"Content-Encoding: {encoding} is not supported" in json.loads(said)["error"]["message"]
    assert post_raw(gateway, "/tokenize", "Content-Encoding: Identity\r\n", body).startswith("HTTP/1.1 200")
