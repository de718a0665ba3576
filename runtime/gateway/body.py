"""The bodies of the POST routes: what they may say, and what is refused.

A parameter has one of four fates, so that nothing a caller asks for is dropped in silence:
    a field below       taken and obeyed
    a label             says who asks, and changes no answer: `user`, `metadata`, `prompt_cache_key`, ...
    NEUTRAL             not done here; accepted only at the values that ask for nothing (`store: false`)
    anything else       refused by name

`null` always means absent. The ranges of sampling are the ranks' own (`protocol/bounds.py`). It does not know limits or
tokens (`calls.py` does), and `conversation.py` has the messages and tools of a chat.
Source: OpenAI API reference, "Create completion" and "Create chat completion"; DeepSeek API reference for 16 `stop`
strings and `thinking`; vLLM's "OpenAI-compatible server" for `ignore_eos`, `min_tokens`, `stop_token_ids`, `top_k` (0
or -1 for all tokens), `repetition_penalty`, `chat_template_kwargs` and `continuous_usage_stats`. Completions'
`logprobs` may be 20, as a chat's `top_logprobs` may; OpenAI's own limit is 5 there.
"""

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from runtime.gateway.conversation import Message, NamedTool, Part, Tool
from runtime.gateway.http_errors import ApiError, invalid, too_many_values, unsupported
from runtime.protocol.bounds import INT32_MAX, Bias, NumLogprobs, Penalty, RepetitionPenalty, Seed, Temperature, TopP
from runtime.protocol.json_grammar import ANY_OBJECT

__all__ = [
    "MAX_CHOICES",
    "ChatBody",
    "CompletionBody",
    "DetokenizeBody",
    "EmbeddingsBody",
    "GenerationBody",
    "StreamOptions",
    "Thinking",
    "TokenizeBody",
    "neutral_values",
    "parse_body",
]

# Both are counted as the characters that begin or part them, in texts too: a text of a million commas is no prompt.
MAX_VALUES = 2**20  # assumed: eight times the ids of the longest prompt
MAX_CONTAINERS = 2**17  # assumed: a token of a long chat each
SLICE_BYTES = 2**18

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "bad_words": ([],),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "min_p": (0,),
    "modalities": (["text"],),
    "no_stop_trim": (False,),
    "priority": (0,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "separate_reasoning": (True,),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True, False),  # special tokens have no text here
    "store": (False,),
    "stream_reasoning": (True,),
    "suffix": ("",),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
}
NEUTRAL_COMPLETION: dict[str, tuple[Any, ...]] = {
    "add_special_tokens": (True,),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
}
NEUTRAL_TOKENIZE: dict[str, tuple[Any, ...]] = {"add_generation_prompt": (True,), "continue_final_message": (False,)}
NEUTRAL_CHAT: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "continue_final_message": (False,),
}
BAD_FIELD = re.compile(r" - at (?:`key` in )?`\$\.(\w+)")
MISSING_FIELD = re.compile(r"field `(\w+)`$")
MAX_CHOICES = 128  # OpenAI's
MAX_BIASES = 1024  # vLLM's on GPUs: MAX_NUM_LOGIT_BIAS_TOKENS

Messages = Annotated[list[Message], msgspec.Meta(min_length=1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]
PositiveInt = Annotated[int, msgspec.Meta(ge=1, le=INT32_MAX)]
TokenId = Annotated[int, msgspec.Meta(ge=-INT32_MAX, le=INT32_MAX)]  # which there are, `calls.py` knows
StopString = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]  # every character takes a step in each
StopTokenIds = Annotated[list[Count], msgspec.Meta(max_length=128)]  # vLLM's: MAX_NUM_STOP_TOKEN_IDS


class StreamOptions(Part):
    """The options of a stream.

    With `include_usage`, one more chunk before the end carries the usage; with `continuous_usage_stats` as well, every
    chunk has what was used so far. Obfuscation is not done, so it can only be declined.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class Thinking(Part):
    """Whether the model thinks first, in DeepSeek's words."""

    type: Literal["enabled", "disabled"]


class TextFormat(Part, tag_field="type", tag="text"):
    """The answer is whatever the model says."""


class ObjectFormat(Part, tag_field="type", tag="json_object"):
    """The answer is an object in JSON."""


class NamedSchema(Part):
    """A JSON Schema. It is always obeyed, `strict` or not."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class SchemaFormat(Part, tag_field="type", tag="json_schema"):
    """The answer is JSON that a schema allows."""

    json_schema: NamedSchema


class GenerationBody(Part):
    """The fields that both routes share which generate text."""

    model: str
    max_tokens: PositiveInt | None = None
    min_tokens: Count | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=INT32_MAX)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    logit_bias: Annotated[dict[TokenId, Bias], msgspec.Meta(max_length=MAX_BIASES)] | None = None
    seed: Seed | None = None
    stop: StopString | Annotated[list[StopString], msgspec.Meta(max_length=16)] | None = None
    stop_token_ids: StopTokenIds | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    metadata: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    request_id: str | None = None
    safety_identifier: str | None = None
    user: str | None = None

    def stop_strings(self) -> tuple[str, ...]:
        """Return `stop` as a list, even if it was written as one text."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class CompletionBody(GenerationBody, kw_only=True):
    """`prompt` is a text, texts, token ids, or lists of token ids; several prompts give several choices.

    `logprobs` is how many of the likeliest tokens each token comes with, besides its own logprob. `best_of` may only
    repeat `n`.
    """

    prompt: str | list[str | TokenId | list[TokenId]]
    best_of: PositiveInt | None = None
    logprobs: NumLogprobs | None = None

    @property
    def num_logprobs(self) -> int | None:
        """The number of likeliest tokens to report; None means no logprobs at all."""
        return self.logprobs


class ChatBody(GenerationBody, kw_only=True):
    """`max_completion_tokens` is the newer name of `max_tokens`; `top_logprobs` counts the likeliest tokens.

    `thinking` and `chat_template_kwargs` are for templates that read them.
    """

    messages: Messages
    max_completion_tokens: PositiveInt | None = None
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: TextFormat | ObjectFormat | SchemaFormat | None = None
    thinking: Thinking | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def json_schema(self) -> str | None:
        """Return the schema that the answer is held to, as a text that may be as long as the body."""
        if isinstance(self.response_format, SchemaFormat):
            return msgspec.json.encode(self.response_format.json_schema.schema or {}).decode()
        return ANY_OBJECT if isinstance(self.response_format, ObjectFormat) else None

    @property
    def num_logprobs(self) -> int | None:
        """The number of likeliest tokens to report; None means no logprobs at all."""
        return (self.top_logprobs or 0) if self.logprobs else None


class EmbeddingsBody(Part):
    """`input` has the forms of a completion's `prompt`; each gives one embedding, as numbers or as base64 of them."""

    model: str
    input: str | list[str | TokenId | list[TokenId]]
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None


class TokenizeBody(Part):
    """Either `prompt` or `messages`. BOS comes before a prompt as in /v1/completions, unless it is declined."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: list[Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Part):
    """Token ids, which may be none."""

    tokens: list[TokenId]
    model: str | None = None


BodyKind = TypeVar("BodyKind", bound=Part)
NEUTRAL_OF: dict[type[Part], dict[str, tuple[Any, ...]]] = {
    CompletionBody: NEUTRAL | NEUTRAL_COMPLETION,
    ChatBody: NEUTRAL | NEUTRAL_CHAT,
    TokenizeBody: NEUTRAL_TOKENIZE,
}


def parse_body(raw: bytes, kind: type[BodyKind]) -> BodyKind:
    """Return the body as `kind`. Raise ApiError, naming the parameter."""
    wishes = {name: value for name, value in _read_object(raw).items() if value is not None}
    neutral = neutral_values(kind)
    _refuse_unsupported(wishes, kind, neutral)
    try:
        fields = {name: value for name, value in wishes.items() if name not in neutral}
        body = msgspec.convert(fields, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise _misfit(str(error)) from None
    if isinstance(body, GenerationBody):
        _check_stream_options(body)
    return body


def neutral_values(kind: type[Part]) -> dict[str, tuple[Any, ...]]:
    """Return the values that ask for nothing, by the names of parameters that are not obeyed."""
    return NEUTRAL_OF.get(kind, {})


def _read_object(raw: bytes) -> dict[str, Any]:
    """Return the body. One of too many parts is refused unread: reading keeps every other thread waiting."""
    if _count(raw, b"[", b"{") > MAX_CONTAINERS or _count(raw, b",") > MAX_VALUES:
        raise too_many_values(MAX_VALUES, MAX_CONTAINERS)
    try:
        document = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"the body cannot be read as JSON: {error}") from None
    if not isinstance(document, dict):
        raise invalid("the body is not a JSON object")
    return document


def _count(raw: bytes, *characters: bytes) -> int:
    """Count characters by slices, between which other threads go on: of 8 MB at once it would be 4 ms each."""
    slices = (raw[begin : begin + SLICE_BYTES] for begin in range(0, len(raw), SLICE_BYTES))
    return sum(each.count(character) for each in slices for character in characters)


def _refuse_unsupported(wishes: dict[str, Any], kind: type[Part], neutral: dict[str, tuple[Any, ...]]) -> None:
    for name, value in wishes.items():
        if name in neutral:
            if not _is_neutral(value, neutral[name]):
                raise unsupported(f"{name} is not supported by this server; leave it out", name)
        elif name not in kind.__struct_fields__:
            raise invalid(f"{name} is unknown to this route; leave it out", name, "unknown_parameter")


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Return whether the value asks for nothing. `true` is no number: `min_p: false` is not `min_p: 0`."""
    return any(isinstance(value, bool) == isinstance(nothing, bool) and value == nothing for nothing in neutral)


def _check_stream_options(body: GenerationBody) -> None:
    if body.stream_options is None:
        return
    if not body.stream:
        raise invalid("stream_options is only for stream: true", "stream_options")
    if body.stream_options.include_obfuscation:
        said = "stream_options: include_obfuscation is not supported by this server; leave it out"
        raise unsupported(said, "stream_options")


def _misfit(complaint: str) -> ApiError:
    """Return msgspec's sentence, with the parameter that it points at."""
    where = BAD_FIELD.search(complaint) or MISSING_FIELD.search(complaint)
    param = where and where[1]
    return invalid(f"{param}: {complaint}" if param else complaint, param)
