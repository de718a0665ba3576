"""The OpenAPI description of the HTTP routes, which `/openapi.json` returns.

It is made from the types that check the bodies (`body.py`), so the two cannot differ. A rule that a type cannot state,
such as that a request fits the model, is not described; breaking it is a 400 with the reason.
Source: OpenAPI Specification 3.1.0.
"""

from functools import cache
from typing import Any

import msgspec

from runtime.gateway.core.body import (
    EMPTY,
    LIMITS,
    NO_LIMIT,
    UNREAD,
    Body,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingsBody,
    TokenizeBody,
)
from runtime.gateway.core.responses import ResponsesBody
from runtime.gateway.edge.idempotency import HEADER, MAX_CHARACTERS

__all__ = ["ROUTES", "describe", "encoded_description"]

Json = dict[str, Any]

POSTS: dict[str, tuple[type[Body], str, tuple[int, ...]]] = {
    "/v1/completions": (CompletionBody, "Continue prompts.", (429, 503)),
    "/v1/chat/completions": (ChatBody, "Answer as the assistant of a conversation.", (429, 503)),
    "/v1/responses": (ResponsesBody, "Answer as the assistant, in the words of the Responses API.", (429, 503)),
    "/v1/embeddings": (EmbeddingsBody, "Return a vector for each prompt.", (429, 503)),
    "/tokenize": (TokenizeBody, "Return the token ids of a prompt or a conversation.", ()),
    "/detokenize": (DetokenizeBody, "Return the text of token ids.", ()),
}
GETS: dict[str, tuple[str, tuple[int, ...]]] = {
    "/v1/models": ("List the one model that is served.", (401,)),
    "/v1/models/{name}": ("Describe the model.", (401, 404)),
    "/health": ("Say that the gateway lives.", ()),
    "/readyz": ("Say whether requests can be answered, and the state of every rank.", ()),
    "/openapi.json": ("Return this description.", ()),
}
ROUTES = (*(f"POST {path}" for path in POSTS), *(f"GET {path}" for path in GETS))
STREAMED = (CompletionBody, ChatBody, ResponsesBody)
MEANINGS = {
    400: "The request is wrong, or asks for what is not done here.",
    401: "No key, or one that is not known; only where keys are set.",
    404: "Another model, or no such path.",
    408: "The body was not here in time.",
    413: "The body is too large.",
    415: "The body is compressed.",
    422: "Another body came with this Idempotency-Key.",
    431: "The head is too large.",
    429: "Every rank has as many requests as it may have; ask again after Retry-After seconds.",
    503: "Nobody can answer now; ask again after Retry-After seconds.",
}
JSON = "application/json"
EVENTS = "text/event-stream"


@cache
def encoded_description() -> bytes:
    """Return the OpenAPI document as JSON.

    The document is made only once, because making it takes milliseconds and anybody may ask for it.
    """
    return msgspec.json.encode(describe())


def describe() -> Json:
    """Return the OpenAPI document."""
    paths = {path: {"get": _describe_get(path, *described)} for path, described in GETS.items()}
    paths |= {path: {"post": _describe_post(path, *described)} for path, described in POSTS.items()}
    paths["/readyz"]["get"]["responses"]["503"] = {"description": "Not yet.", "content": {JSON: {"schema": {}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tidemill gateway", "version": "1"},
        "paths": paths,
        "components": {"schemas": _describe_schemas()},
    }


def _describe_schemas() -> Json:
    kinds = [kind for kind, *_ in POSTS.values()]
    _, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    for kind in kinds:
        schemas[kind.__name__]["additionalProperties"] = {
            "enum": [*EMPTY]
        }  # an empty value counts as absent, whatever the field's name
        properties = schemas[kind.__name__]["properties"]
        properties |= {name: {"description": "Not read."} for name in sorted(UNREAD)}
        for name, values in kind.neutral.items():
            properties[name] = {"enum": [*values, *EMPTY], "description": "Not obeyed."}
        properties |= {
            name: {"anyOf": [properties[name], {"const": NO_LIMIT}]} for name in LIMITS if name in properties
        }
    nullable = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    error = {"message": {"type": "string"}, "type": {"type": "string"}, "param": nullable, "code": nullable}
    body = {"type": "object", "required": list(error), "properties": error}
    schemas["Error"] = {"type": "object", "required": ["error"], "properties": {"error": body}}
    return schemas


def _describe_get(path: str, summary: str, errors: tuple[int, ...]) -> Json:
    name_parameter = {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    parameters = {"parameters": [name_parameter]} if "{name}" in path else {}
    return {"summary": summary, **parameters, "responses": _describe_responses(errors)}


def _describe_post(path: str, kind: type[Body], summary: str, errors: tuple[int, ...]) -> Json:
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    takes_key = path.startswith("/v1/")
    responses = _describe_responses((400, 401, 404, 408, 413, 415, *((422,) if takes_key else ()), 431, *errors))
    if kind in STREAMED:
        responses["200"]["content"][EVENTS] = {"schema": {"type": "string"}}
    key = {"name": HEADER, "in": "header", "schema": {"type": "string", "minLength": 1, "maxLength": MAX_CHARACTERS}}
    return {
        "summary": summary,
        **({"parameters": [key]} if takes_key else {}),
        "requestBody": {"required": True, "content": {JSON: {"schema": schema}}},
        "responses": responses,
    }


def _describe_responses(errors: tuple[int, ...]) -> Json:
    error_content = {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
    success: Json = {"200": {"description": "Done.", "content": {JSON: {"schema": {"type": "object"}}}}}
    return success | {str(status): {"description": MEANINGS[status], "content": error_content} for status in errors}
