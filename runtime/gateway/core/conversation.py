"""A chat's messages and tools, and the prompt that the checkpoint's own template makes of them.

    messages, tools -> checked against what the template can say -> rendered -> a prompt's text
                                                                           `-> the form that the answer will have

A role or a list of tools that the template would silently drop is refused, because it changes the answer. Unknown keys
go to the template unchanged; a template that does not read them writes the same text without them. So clients may send
what they like beside a message (`id`, `name`, `reasoning`, ...), and may send our own answers back as they are. A hint
inside a message's parts or beside a tool's function (`cache_control`) does not reach the template, which gets the
joined texts and the functions.
It does not know token ids (`calls.py` does) and does not read answers (`answer_parts.py` does).

Sources: OpenAI API reference, "Create chat completion"; DeepSeek API reference, "Chat prefix completion" for `prefix`
and for a `reasoning_content` in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Annotated, Any, Literal

import jinja2
import msgspec

from runtime.gateway.core.answer_parts import THINK_END, AnswerForm, Opening, read_opening
from runtime.gateway.core.chat_template import ChatTemplate
from runtime.gateway.edge.http_errors import invalid, unsupported

__all__ = [
    "ChatPrompt",
    "Conversation",
    "FunctionName",
    "Json",
    "Message",
    "NamedTool",
    "OpenPart",
    "Part",
    "Tool",
    "render_chat_prompt",
]

Json = dict[str, Any]

TEMPLATE_ERRORS = (  # all that foreign code can raise, except classes of its own
    *(jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, NameError),
    *(AssertionError, MemoryError, OSError, RuntimeError),  # RecursionError is one
)
MAX_COMPLAINT = 500  # characters
NO_PARAMETERS = {"type": "object", "properties": {}}

FunctionName = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a body: immutable, and refusing keys that it does not know."""


class OpenPart(Part, frozen=True, forbid_unknown_fields=False):
    """A part that may have unknown keys."""


class TextPart(OpenPart):
    """A piece of a message; other kinds (images, audio) are refused."""

    type: str
    text: str | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for a part of another type, or a part of type text without text."""
        if self.type != "text":
            raise ValueError(f"a part of type {self.type} is not supported: this server reads text only")
        if self.text is None:
            raise ValueError("a part of type text needs text")


class CalledFunction(OpenPart):
    """The function that an assistant called. `arguments` is JSON as text; the SDK's `parsed_arguments` repeats it."""

    name: FunctionName
    arguments: str
    parsed_arguments: Any = None


class ToolCall(OpenPart):
    """A call in an assistant's earlier message.

    Clients that put a streamed call together leave its `index` in.
    """

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None


class Message(OpenPart):
    """One turn of a conversation. The SDK's `parsed` repeats the content."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    prefix: bool | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None  # links of a search, which no template shows
    parsed: Any = None
    audio: Any = None
    function_call: Any = None

    @property
    def text(self) -> str | None:
        """The content as one text; None if there is no content."""
        if self.content is None or isinstance(self.content, str):
            return self.content
        return "".join(part.text or "" for part in self.content)


class Function(OpenPart, omit_defaults=True):
    """A function that the model may call; `parameters` is a JSON Schema."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(OpenPart):
    """A tool that the model may call."""

    type: Literal["function"]
    function: Function


class ToolName(Part):
    """The name of a tool."""

    name: str


class NamedTool(Part):
    """The choice of a tool that the model must call."""

    type: Literal["function"]
    function: ToolName


@dataclass(frozen=True)
class Conversation:
    """A chat's messages, and the tools that may be called. Each is there as a checked object and as the body's JSON."""

    messages: Sequence[Message]
    raw_messages: Sequence[Json]
    tools: Sequence[Tool]
    raw_tools: Sequence[Json]


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation's text for the model, and the form in which to read the answer."""

    text: str
    answer: AnswerForm


def render_chat_prompt(
    conversation: Conversation, options: dict[str, Any], template: ChatTemplate | None
) -> ChatPrompt:
    """Return the conversation as text, up to where the assistant speaks or goes on speaking.

    `options` are variables for the template, which may ignore them. Raises ApiError if there is no template, or if it
    cannot render the conversation.
    """
    messages, tools = conversation.messages, conversation.tools
    if template is None:
        raise invalid("this model has no chat template; use /v1/completions", "messages")
    _check_tools(tools, template)
    options = _read_options(options, template)
    for number, message in enumerate(messages):
        _check_message(message, f"messages[{number}]", template, is_last=number == len(messages) - 1)
    last = messages[-1]
    adapted = list(map(_adapt_message, messages, conversation.raw_messages, repeat(template)))
    adapted_tools = list(map(_adapt_tool, tools, conversation.raw_tools))
    try:
        text = template.render(adapted[:-1] if last.prefix else adapted, adapted_tools or None, options)
    except TEMPLATE_ERRORS as error:
        raise invalid(
            f"the model's chat template refuses these messages: {_describe_error(error)}", "messages"
        ) from None
    opening = read_opening(text) if template.thinks else "content"
    if last.prefix:
        text, opening = _begin_answer(last, text, opening)
    return ChatPrompt(text, AnswerForm(opening, template.tool_calls if tools else None))


def _check_tools(tools: Sequence[Tool], template: ChatTemplate) -> None:
    if tools and not template.renders_tools:
        raise unsupported("tools is not supported: this model's chat template does not say them", "tools")
    if tools and template.tool_calls is None:
        raise unsupported("tools is not supported: this model's calls are in a form not read here", "tools")
    if any(tool.function.strict for tool in tools):
        raise unsupported("tools: strict is not supported by this server; leave it out", "tools")


def _read_options(options: dict[str, Any], template: ChatTemplate) -> dict[str, Any]:
    """Return the options that the template reads. Raises ApiError for a variable that callers may not set."""
    read = {name: value for name, value in options.items() if name in template.variables}
    reserved = sorted(read.keys() - template.options)
    if reserved:
        raise unsupported(f"chat_template_kwargs may not set {reserved[0]!r}", "chat_template_kwargs")
    return read


def _describe_error(error: Exception) -> str:
    """Return the error's text, shortened, or its type if it has none."""
    text = str(error)[:MAX_COMPLAINT].encode(errors="backslashreplace").decode()
    return text or type(error).__name__


def _check_message(message: Message, place: str, template: ChatTemplate, *, is_last: bool) -> None:
    """Raises ApiError, which names `place`, if the template would drop a part of the message or fail on it.

    Only the last message may be the beginning of the answer (`prefix`).
    """
    has_content = message.role == "assistant" or message.content is not None
    wrong = {
        "content: null is only for the assistant": not has_content,
        "refusal is not supported": bool(message.refusal),
        "audio is not supported": message.audio is not None,
        "function_call is not supported; use tool_calls": message.function_call is not None,
        "tool_calls is only for the assistant": bool(message.tool_calls) and message.role != "assistant",
        "prefix is only for the last message, an assistant's": bool(message.prefix)
        and not (is_last and message.role == "assistant"),
        "this model's chat template knows no tools": not template.renders_tool_results
        and (message.role == "tool" or bool(message.tool_calls)),
    }
    for complaint, applies in wrong.items():
        if applies:
            raise invalid(f"{place}: {complaint}", "messages")


def _adapt_message(message: Message, document: Json, template: ChatTemplate) -> Json:
    """Return the message as templates expect it. Optional keys without a value are left out; `content` may be None.

    `document` is the message as the client sent it. Keys that `Message` does not know are kept from it.
    """
    calls = list(map(_adapt_call, message.tool_calls or (), document.get("tool_calls") or (), repeat(template)))
    optional = {
        "name": message.name,
        "tool_calls": calls or None,
        "tool_call_id": message.tool_call_id,
        "reasoning_content": message.reasoning_content,
    }
    role = "system" if message.role == "developer" else message.role  # OpenAI's newer name of the same role
    content = message.text if calls else message.text or ""
    present = {name: value for name, value in optional.items() if value is not None}
    return {"role": role, "content": content} | present | _unknown_keys(document, Message)


def _unknown_keys(document: Json, kind: type[Part]) -> Json:
    """Return the keys that `kind` does not know, with their values."""
    known = kind.__struct_fields__
    return {name: value for name, value in document.items() if name not in known and value is not None}


def _adapt_tool(tool: Tool, document: Json) -> Json:
    """Return the tool as templates expect it. As in OpenAI's API, absent parameters mean that the tool takes none."""
    function: Json = msgspec.to_builtins(tool.function)
    function["parameters"] = function.get("parameters", NO_PARAMETERS)
    function |= _unknown_keys(document["function"], Function)
    return {"type": tool.type, "function": function}


def _adapt_call(call: ToolCall, document: Json, template: ChatTemplate) -> Json:
    arguments: Any = call.function.arguments
    if template.dumps_arguments:
        try:
            arguments = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, RecursionError) as error:
            raise invalid(
                f"messages: the arguments of {call.function.name} are not JSON: {error}", "messages"
            ) from None
    function = {"name": call.function.name, "arguments": arguments} | _unknown_keys(
        document["function"], CalledFunction
    )
    return {"id": call.id, "type": call.type, "function": function} | _unknown_keys(document, ToolCall)


def _begin_answer(last: Message, prompt: str, opening: Opening) -> tuple[str, Opening]:
    """Return the prompt with the beginning of the answer that the caller wrote, and how the model's part begins.

    If answers begin with thoughts, any words of the caller end the thoughts.
    """
    words = last.text or ""
    if opening != "thinking":
        return prompt + words, opening
    thought = prompt + (last.reasoning_content or "")
    return (thought + THINK_END + words, "content") if words else (thought, opening)
