"""`POST /v1/responses`: a chat in the form of OpenAI's Responses API, for clients that know no other.

    input, instructions, text.format, ... -> the body of /v1/chat/completions -> the same checks and the same call

    instructions                 a system message before all others
    a message item               a message; its parts are text
    a reasoning item             `reasoning_content` of the assistant's message or calls that follow it, if any do
    function_call items          `tool_calls` of one assistant's message
    a function_call_output       a tool's message

The gateway keeps nothing, so it refuses `store: true`, `previous_response_id` and `conversation` by name. At OpenAI an
absent `store` means true. A client that leaves it out and names no earlier response loses nothing here, and the answer
says `store: false`.
It does not write answers (`response_items.py` does).
Source: OpenAI API reference, "Create a model response".
"""

import re
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from runtime.gateway.core.body import (
    Body,
    CacheSalt,
    NamedSchema,
    Neutral,
    ObjectFormat,
    PositiveInt,
    Reasoning,
    StreamOptions,
    TextFormat,
    TopP,
    convert_body,
    read_object,
)
from runtime.gateway.core.calls import Call, PendingCall, ServedModel, read_chat_document
from runtime.gateway.core.conversation import FunctionName, Json, OpenPart, Part
from runtime.gateway.edge.http_errors import ApiError, invalid, unsupported
from runtime.protocol.bounds import Temperature

__all__ = ["ResponsesBody", "read_responses_request", "rename_params"]

OWN_NAMES = {"messages": "input", "response_format": "text.format"}  # parameter of a chat -> parameter of this route
CHAT_NAME = re.compile(rf"({'|'.join(OWN_NAMES)})(\[\d+\])?(?=\W)")
TEXTS = ("input_text", "output_text", "text", "reasoning_text")
Include = Literal[  # extras of features that do not exist here; logprobs do exist, so asking for them is refused
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]
FUNCTION_KEYS = ("name", "description", "parameters", "strict")
REQUIRED_KEYS = {  # type of an item -> keys that it must have
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": (),
}


class InputPart(OpenPart, frozen=True):
    """A part of a message's content. Only text is accepted."""

    type: str
    text: str | None = None


Content = str | list[InputPart]


class InputItem(OpenPart, frozen=True):
    """A message, a function's call or output, or thoughts. A message may come without its type."""

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Content | None = None
    call_id: str | None = None
    name: FunctionName | None = None
    arguments: str | None = None
    output: Content | None = None


class FlatSchemaFormat(NamedSchema, tag_field="type", tag="json_schema", frozen=True):
    """The answer is JSON that a schema allows."""


class TextOptions(Part, frozen=True):
    """The form of the answer's text."""

    format: TextFormat | ObjectFormat | FlatSchemaFormat | None = None
    verbosity: str | None = None


class ResponsesBody(Body, frozen=True, kw_only=True):
    """`input` is a user's text, or items. Tools must be functions, since any other tool would have to run here."""

    neutral: ClassVar[Neutral] = {
        "background": (False,),
        "conversation": (),
        "previous_response_id": (),
        "prompt": (),
        "store": (False,),
        "top_logprobs": (0,),
        "truncation": ("disabled",),
    }

    model: str | None = None
    input: str | Annotated[list[InputItem], msgspec.Meta(min_length=1)]
    instructions: str | None = None
    max_output_tokens: PositiveInt | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    include: list[Include] | None = None
    cache_salt: CacheSalt | None = None


def read_responses_request(raw: bytes, model: ServedModel, seed: int | None = None) -> PendingCall:
    """Read the body of a POST to /v1/responses as a chat.

    Raises ApiError if it is wrong. The error may name a chat's parameters, which `rename_params` replaces.
    """
    document = read_object(raw)
    body = convert_body(document, ResponsesBody)
    pending = read_chat_document(_convert_to_chat(body, document), model, seed)
    return replace(pending, prepare=partial(_prepare, pending, _build_echo(body, document)))


def rename_params(error: ApiError) -> ApiError:
    """Return the error, with the names of a chat's parameters replaced by this route's."""
    if error.code == "unknown_parameter":  # the name is the caller's own
        return error
    begin = CHAT_NAME.match(error.message)
    message = OWN_NAMES[begin[1]] + error.message[begin.end() :] if begin else error.message
    param = error.param and OWN_NAMES.get(error.param, error.param)
    return replace(error, message=message, param=param)


def _prepare(pending: PendingCall, echo: Json) -> Call:
    return replace(pending.prepare(), echo=echo)


def _convert_to_chat(body: ResponsesBody, document: Json) -> Json:
    """Return the body of /v1/responses as a chat's body. A null there means that the field is absent."""
    text = body.text or TextOptions()
    return {
        "model": body.model,
        "messages": _convert_items(body),
        "max_completion_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "stream": body.stream,
        "stream_options": document.get("stream_options"),
        "response_format": _response_format(text),
        "verbosity": text.verbosity,
        "reasoning": document.get("reasoning"),
        "tools": list(map(_convert_tool, body.tools or ())),
        "tool_choice": _check_tool_choice(body),
        "parallel_tool_calls": body.parallel_tool_calls,
        "cache_salt": body.cache_salt,
    }


def _build_echo(body: ResponsesBody, document: Json) -> Json:
    """Return the fields of the call that the answer repeats, with defaults for absent ones."""
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": document.get("metadata") or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "reasoning": {"effort": body.reasoning and body.reasoning.effort, "summary": None},
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": (document.get("text") or {}).get("format") or {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "top_p": 1.0 if body.top_p is None else body.top_p,
    }


def _response_format(text: TextOptions) -> Json | None:
    if isinstance(text.format, FlatSchemaFormat):
        schema = {name: value for name, value in msgspec.to_builtins(text.format).items() if name != "type"}
        return {"type": "json_schema", "json_schema": schema}
    form: Json | None = msgspec.to_builtins(text.format)
    return form


def _convert_tool(tool: Json) -> Json:
    if tool.get("type") != "function":
        raise unsupported(f"tools: {tool.get('type')} is not supported by this server; give functions", "tools")
    return {"type": "function", "function": {name: tool[name] for name in FUNCTION_KEYS if name in tool}}


def _check_tool_choice(body: ResponsesBody) -> str | None:
    if isinstance(body.tool_choice, dict):
        raise unsupported("tool_choice is only supported as none or auto by this server", "tool_choice")
    return body.tool_choice


def _convert_items(body: ResponsesBody) -> list[Json]:
    """Return the items as a chat's messages. Thoughts with nothing after them are dropped."""
    messages: list[Json] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    items = [InputItem(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    for number, item in enumerate(items):
        _add_item(messages, item, f"input[{number}]")
    return [message for message in messages if message["role"] != "assistant" or _has_visible_output(message)]


def _add_item(messages: list[Json], item: InputItem, place: str) -> None:
    """Add an item to the messages: as a new message, or as part of the assistant's last one.

    Raises ApiError, which names `place`, for an item of an unknown type or without a key that its type needs.
    """
    if item.type not in REQUIRED_KEYS:
        raise unsupported(f"{place}: {item.type} is not supported by this server; leave it out", "input")
    if any(getattr(item, key) is None for key in REQUIRED_KEYS[item.type]):
        raise invalid(f"{place}: a {item.type} needs {', '.join(REQUIRED_KEYS[item.type])}", "input")
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    text = _join_text(item.output if item.type == "function_call_output" else item.content, place)
    if item.type == "function_call":
        if last is None:
            messages.append(last := {"role": "assistant"})
        function = {"name": item.name, "arguments": item.arguments}
        last.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})
    elif item.type == "function_call_output":
        messages.append({"role": "tool", "tool_call_id": item.call_id, "content": text})
    elif item.type == "reasoning":
        messages.append({"role": "assistant", "reasoning_content": text or None})
    elif item.role == "assistant" and last is not None and not _has_visible_output(last):
        last["content"] = text
    else:
        messages.append({"role": item.role, "content": text})


def _has_visible_output(message: Json) -> bool:
    """Return whether an assistant's message has content or tool calls, not only reasoning."""
    return "content" in message or "tool_calls" in message


def _join_text(content: Content | None, place: str) -> str | None:
    """Return the content as one text; None if there is none. Raises ApiError if a part is not text."""
    if content is None or isinstance(content, str):
        return content
    for part in content:
        if part.type not in TEXTS:
            raise unsupported(f"{place}: {part.type} is not supported by this server; give texts", "input")
        if part.text is None:
            raise invalid(f"{place}: a part of type {part.type} needs text", "input")
    return "".join(part.text or "" for part in content)
