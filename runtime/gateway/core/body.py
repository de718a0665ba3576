"""The bodies of the POST routes: which fields they may have, and which are refused.

A parameter has one of four fates, so that nothing that would change an answer is silently dropped:
    a field below       obeyed
    UNREAD              ignored, because no value of it changes a token: `user`, `metadata`, `chat_id`, ...
    neutral             not done here; accepted only at the values that ask for nothing (`store: false`)
    anything else       refused by name, unless it is empty: `{}`, `[]` and "" ask for nothing

`null` always means absent. So does -1 for `max_tokens` and its other names. The ranges of sampling parameters are those
of the ranks (`protocol/bounds.py`). It does not know the model's limits or tokens (`calls.py` does). The messages and
tools of a chat are in `conversation.py`.
Source: OpenAI API reference, "Create completion" and "Create chat completion"; DeepSeek API reference for 16 `stop`
strings and `thinking`; vLLM's "OpenAI-compatible server" for `ignore_eos`, `min_tokens`, `stop_token_ids`, `top_k` (0
or -1 for all tokens), `repetition_penalty`, `chat_template_kwargs`, `continuous_usage_stats` and `cache_salt`.
Completions' `logprobs` may be 20, like a chat's `top_logprobs`; OpenAI allows 5 there. The names in UNREAD are what the
clients and servers beside them send or accept.
"""

import re
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec

from runtime.gateway.core.conversation import Message, NamedTool, Part, Tool
from runtime.gateway.edge.http_errors import ApiError, invalid, too_many_values, unsupported
from runtime.protocol.bounds import INT32_MAX, Bias, NumLogprobs, Penalty, RepetitionPenalty, Seed, Temperature
from runtime.protocol.json_grammar import ANY_OBJECT

__all__ = [
    "EMPTY",
    "LIMITS",
    "MAX_CHOICES",
    "NO_LIMIT",
    "UNREAD",
    "Body",
    "CacheSalt",
    "ChatBody",
    "CompletionBody",
    "DetokenizeBody",
    "EmbeddingsBody",
    "GenerationBody",
    "StreamOptions",
    "Thinking",
    "TokenizeBody",
    "convert_body",
    "parse_body",
    "read_object",
]

# Both are bounded by counting `[`, `{` and `,` in the raw body, texts included: nobody prompts with a million commas.
MAX_VALUES = 2**20  # assumed: eight times the ids of the longest prompt
MAX_CONTAINERS = 2**17  # assumed: a token of a long chat each
SLICE_BYTES = 2**18

# No value of these changes a token: they say who calls, in which chat, and what to report or keep besides the answer.
UNREAD = frozenset(
    {
        *("metadata", "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),  # OpenAI
        *("safety_identifier", "service_tier", "user"),
        *("request_id", "session_id"),  # vLLM
        "rid",  # SGLang
        *("backend_sampling", "cache_prompt", "id_slot", "reasoning_control", "return_progress"),  # llama.cpp
        *("sse_ping_interval", "timings_per_token"),
        *("dry_allowed_length", "dry_base", "dry_penalty_last_n", "dry_sequence_breakers"),  # of samplers that are off
        *("dynatemp_exponent", "mirostat_eta", "mirostat_tau", "repeat_last_n", "xtc_threshold"),
        "keep_alive",  # Ollama
        *("background_tasks", "chat_id", "filter_ids", "id", "message_id", "model_item", "parent_id"),  # Open WebUI
        "variables",
        "client_metadata",  # Codex
        "usage",  # OpenRouter; `stream_options` asks for it here
        *("conversation_id", "tags", "thread_id", "trace_id", "user_id"),  # who keeps a trace of calls
    }
)
Neutral = dict[str, tuple[Any, ...]]
NEUTRAL: Neutral = {
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "include_reasoning": (True,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "min_p": (0,),
    "mirostat": (0,),
    "modalities": (["text"],),
    "n_predict": (-1,),
    "n_probs": (0,),
    "no_stop_trim": (False,),
    "priority": (0,),
    "reasoning_format": ("auto", "deepseek"),
    "repeat_penalty": (1,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "separate_reasoning": (True,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True, False),  # special tokens have no text here
    "store": (False,),
    "stream_reasoning": (True,),
    "typ_p": (1,),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "xtc_probability": (0,),
}
# field of another server or route -> our fields that do the same; a route has at most one of them
_LENGTH, _REPETITION = ("max_tokens", "max_output_tokens"), ("repetition_penalty",)
OUR_NAMES = {
    "max_completion_tokens": _LENGTH,
    "max_length": _LENGTH,
    "max_new_tokens": _LENGTH,  # text-generation-inference, SGLang
    "max_output_tokens": _LENGTH,
    "max_tokens": _LENGTH,
    "n_predict": _LENGTH,  # llama.cpp
    "num_predict": _LENGTH,  # Ollama
    "repeat_penalty": _REPETITION,  # llama.cpp, Ollama
}
EMPTY: tuple[Any, ...] = (None, {}, [], "")  # values accepted in a field that a route does not have
LIMITS = {"max_tokens", "max_completion_tokens", "max_output_tokens"}
NO_LIMIT = -1  # means "as many as there is room for" in llama.cpp and LM Studio
BAD_FIELD = re.compile(r" - at (?:`key` in )?`\$\.(\w+)")
MISSING_FIELD = re.compile(r"field `(\w+)`$")
MAX_CHOICES = 128  # OpenAI's
MAX_BIASES = 1024  # vLLM's on GPUs: MAX_NUM_LOGIT_BIAS_TOKENS

Messages = Annotated[list[Message], msgspec.Meta(min_length=1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]
TopP = Annotated[float, msgspec.Meta(ge=0, le=1)]  # ranks refuse 0, so `calls.py` sends it as temperature 0
PositiveInt = Annotated[int, msgspec.Meta(ge=1, le=INT32_MAX)]
TokenId = Annotated[int, msgspec.Meta(ge=-INT32_MAX, le=INT32_MAX)]  # `calls.py` checks that the model knows it
StopString = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]  # a generated character costs a step for each
CacheSalt = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]  # vLLM advises 43 characters of base64
StopTokenIds = Annotated[list[Count], msgspec.Meta(max_length=128)]  # vLLM's: MAX_NUM_STOP_TOKEN_IDS


class StreamOptions(Part):
    """The options of a stream.

    With `include_usage`, one more chunk at the end has the usage. With `continuous_usage_stats` too, every chunk has
    the usage so far. We do not obfuscate streams, so `include_obfuscation` may only be false.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class Thinking(Part):
    """The parameter that turns thinking on or off, as in DeepSeek's API."""

    type: Literal["enabled", "disabled"]


class TextFormat(Part, tag_field="type", tag="text"):
    """The answer may be any text."""


class ObjectFormat(Part, tag_field="type", tag="json_object"):
    """The answer is a JSON object."""


class NamedSchema(Part, frozen=True):
    """A JSON Schema. The answer always follows it, `strict` or not."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class SchemaFormat(Part, tag_field="type", tag="json_schema"):
    """The answer is JSON that follows a schema."""

    json_schema: NamedSchema


class Reasoning(Part):
    """`reasoning_effort` as /v1/responses writes it. Thoughts are returned in full, so there are no summaries."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None  # the older name of `summary`


class Body(Part, frozen=True):
    """The fields of a route's body. `neutral` maps fields without effect here to the values that are accepted."""

    neutral: ClassVar[Neutral] = {}


class GenerationBody(Body):
    """The fields that completions and chats share.

    A prompt reuses cached KV only of prompts with the same `cache_salt` and, where there are keys, of the same key.
    """

    model: str | None = None
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
    cache_salt: CacheSalt | None = None

    def stop_strings(self) -> tuple[str, ...]:
        """Return the stop strings, whether `stop` is one text or a list."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class CompletionBody(GenerationBody, kw_only=True):
    """A body of /v1/completions.

    `prompt` is a text, a list of texts, a list of token ids, or a list of such lists. Several prompts give several
    choices. `logprobs` is how many of the likeliest tokens to report for each token, besides its own logprob. `best_of`
    must be equal to `n`.
    """

    neutral: ClassVar[Neutral] = NEUTRAL | {
        "add_special_tokens": (True,),
        "parallel_tool_calls": (True, False),
        "response_format": ({"type": "text"},),
        "tool_choice": ("none", "auto"),
        "verbosity": ("medium",),
    }

    prompt: str | list[str | TokenId | list[TokenId]]
    best_of: PositiveInt | None = None
    logprobs: NumLogprobs | None = None

    @property
    def num_logprobs(self) -> int | None:
        """The number of likeliest tokens to report; None means no logprobs at all."""
        return self.logprobs


class ChatBody(GenerationBody, kw_only=True):
    """`max_completion_tokens` is the newer name of `max_tokens`; `top_logprobs` counts the likeliest tokens.

    `thinking`, `chat_template_kwargs`, `verbosity` and the effort of reasoning are for templates that read them.
    """

    neutral: ClassVar[Neutral] = NEUTRAL | {
        "add_generation_prompt": (True,),
        "add_special_tokens": (False,),
        "continue_final_message": (False,),
    }

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
    reasoning_effort: str | None = None
    reasoning: Reasoning | None = None
    verbosity: str | None = None

    def json_schema(self) -> str | None:
        """Return the JSON schema, as text, that the answer must follow, or None.

        A schema may be as long as the body.
        """
        if isinstance(self.response_format, SchemaFormat):
            return msgspec.json.encode(self.response_format.json_schema.schema or {}).decode()
        return ANY_OBJECT if isinstance(self.response_format, ObjectFormat) else None

    @property
    def template_options(self) -> dict[str, Any]:
        """The variables for the chat template.

        Variables in `chat_template_kwargs` take precedence over the named fields.
        """
        effort = self.reasoning_effort or (self.reasoning and self.reasoning.effort)
        named = {"reasoning_effort": effort, "verbosity": self.verbosity}
        return {name: value for name, value in named.items() if value} | (self.chat_template_kwargs or {})

    @property
    def num_logprobs(self) -> int | None:
        """The number of likeliest tokens to report; None means no logprobs at all."""
        return (self.top_logprobs or 0) if self.logprobs else None


class EmbeddingsBody(Body, kw_only=True):
    """`input` has the forms of a completion's `prompt`. Each prompt gives one embedding, as numbers or as base64.

    Prompts share no KV here, so any `cache_salt` is accepted.
    """

    model: str | None = None
    input: str | list[str | TokenId | list[TokenId]]
    encoding_format: Literal["float", "base64"] | None = None
    cache_salt: CacheSalt | None = None


class TokenizeBody(Body):
    """Either `prompt` or `messages`. A prompt gets a BOS as in /v1/completions unless `add_special_tokens` is false."""

    neutral: ClassVar[Neutral] = {"add_generation_prompt": (True,), "continue_final_message": (False,)}

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: list[Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Body):
    """The token ids to decode; the list may be empty."""

    tokens: list[TokenId]
    model: str | None = None


BodyKind = TypeVar("BodyKind", bound=Body)


def parse_body(raw: bytes, kind: type[BodyKind]) -> BodyKind:
    """Return the raw body as `kind`. Raises ApiError, with the name of the parameter, if it does not fit."""
    return convert_body(read_object(raw), kind)


def read_object(raw: bytes) -> dict[str, Any]:
    """Return the JSON object in the raw body. Raises ApiError if there is none, or if it has too many values.

    Too many values are refused before parsing, because parsing blocks every other thread.
    """
    if _count_characters(raw, b"[", b"{") > MAX_CONTAINERS or _count_characters(raw, b",") > MAX_VALUES:
        raise too_many_values(MAX_VALUES, MAX_CONTAINERS)
    try:
        document = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"the body cannot be read as JSON: {error}") from None
    if not isinstance(document, dict):
        raise invalid("the body is not a JSON object")
    return document


def convert_body(document: dict[str, Any], kind: type[BodyKind]) -> BodyKind:
    """Return the JSON object as `kind`. Raises ApiError, with the name of the parameter, if it does not fit."""
    present = {name: value for name, value in document.items() if not _is_absent(name, value, kind)}
    _refuse_unsupported(present, kind)
    try:
        fields = {name: value for name, value in present.items() if name not in kind.neutral}
        body = msgspec.convert(fields, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise _explain_misfit(str(error)) from None
    if isinstance(body, GenerationBody):
        _check_stream_options(body)
    return body


def _count_characters(raw: bytes, *characters: bytes) -> int:
    """Return how many of the given `characters` are in `raw`, all together.

    Characters are counted slice by slice, so that other threads run in between: 8 MB at once would take 4 ms.
    """
    slices = (raw[begin : begin + SLICE_BYTES] for begin in range(0, len(raw), SLICE_BYTES))
    return sum(each.count(character) for each in slices for character in characters)


def _refuse_unsupported(present: dict[str, Any], kind: type[Body]) -> None:
    for name, value in present.items():
        if name in kind.neutral:
            if not _is_neutral(value, kind.neutral[name]):
                raise unsupported(f"{name} is not supported by this server; {_suggest_field(name, kind)}", name)
        elif name not in kind.__struct_fields__:
            raise invalid(f"{name} is unknown to this route; {_suggest_field(name, kind)}", name, "unknown_parameter")


def _suggest_field(name: str, kind: type[Body]) -> str:
    """Return `write FIELD` if the route has a field that does the same as `name`; otherwise `leave it out`."""
    our_name = next((each for each in OUR_NAMES.get(name, ()) if each in kind.__struct_fields__), None)
    return f"write {our_name}" if our_name else "leave it out"


def _is_absent(name: str, value: Any, kind: type[Body]) -> bool:
    """Return whether giving the field this value has the same effect as leaving the field out."""
    if name in kind.__struct_fields__:
        return value is None or (name in LIMITS and value == NO_LIMIT)
    return name in UNREAD or value in EMPTY


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Return whether a value is one of `neutral`. A boolean is no number: `min_p: false` is not `min_p: 0`."""
    return any(isinstance(value, bool) == isinstance(nothing, bool) and value == nothing for nothing in neutral)


def _check_stream_options(body: GenerationBody) -> None:
    if body.stream_options is None:
        return
    if not body.stream:
        raise invalid("stream_options is only for stream: true", "stream_options")
    if body.stream_options.include_obfuscation:
        message = "stream_options: include_obfuscation is not supported by this server; leave it out"
        raise unsupported(message, "stream_options")


def _explain_misfit(complaint: str) -> ApiError:
    """Return the error for a complaint of msgspec, with the parameter that the complaint names."""
    location = BAD_FIELD.search(complaint) or MISSING_FIELD.search(complaint)
    param = location and location[1]
    return invalid(f"{param}: {complaint}" if param else complaint, param)
