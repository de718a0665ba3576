"""The bodies of the POST routes: what they may say, and what is refused.

A parameter has one of four fates, so that nothing that would change an answer is dropped in silence:
    a field below       taken and obeyed
    UNREAD              changes no token, whatever it holds: `user`, `metadata`, `chat_id`, ...
    neutral             not done here; accepted only at the values that ask for nothing (`store: false`)
    anything else       refused by name, unless it is empty: `{}`, `[]` and "" ask for nothing

`null` always means absent, and so does a `max_tokens` of -1, or the same by its other names. The ranges of sampling are
the ranks' own (`protocol/bounds.py`). It does not know limits or tokens (`calls.py` does), and `conversation.py` has
the messages and tools of a chat.
Source: OpenAI API reference, "Create completion" and "Create chat completion"; DeepSeek API reference for 16 `stop`
strings and `thinking`; vLLM's "OpenAI-compatible server" for `ignore_eos`, `min_tokens`, `stop_token_ids`, `top_k` (0
or -1 for all tokens), `repetition_penalty`, `chat_template_kwargs`, `continuous_usage_stats` and `cache_salt`.
Completions' `logprobs` may be 20, as a chat's `top_logprobs` may; OpenAI's own limit is 5 there. The names in UNREAD
are what the clients and servers beside them send or take.
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

# Both are counted as the characters that begin or part them, in texts too: a text of a million commas is no prompt.
MAX_VALUES = 2**20  # assumed: eight times the ids of the longest prompt
MAX_CONTAINERS = 2**17  # assumed: a token of a long chat each
SLICE_BYTES = 2**18

# Whatever they hold, no token changes: who asks, in which chat, what is to be reported or kept beside the answer.
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
# Fields of other servers and routes -> those that do the same, of which a route has one or none
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
EMPTY: tuple[Any, ...] = (None, {}, [], "")  # in a field that a route does not have
LIMITS = {"max_tokens", "max_completion_tokens", "max_output_tokens"}
NO_LIMIT = -1  # llama.cpp's and LM Studio's for all there is room for
BAD_FIELD = re.compile(r" - at (?:`key` in )?`\$\.(\w+)")
MISSING_FIELD = re.compile(r"field `(\w+)`$")
MAX_CHOICES = 128  # OpenAI's
MAX_BIASES = 1024  # vLLM's on GPUs: MAX_NUM_LOGIT_BIAS_TOKENS

Messages = Annotated[list[Message], msgspec.Meta(min_length=1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]
TopP = Annotated[float, msgspec.Meta(ge=0, le=1)]  # ranks take none of 0, which `calls.py` says in other words
PositiveInt = Annotated[int, msgspec.Meta(ge=1, le=INT32_MAX)]
TokenId = Annotated[int, msgspec.Meta(ge=-INT32_MAX, le=INT32_MAX)]  # which there are, `calls.py` knows
StopString = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]  # every character takes a step in each
CacheSalt = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]  # vLLM advises 43 characters of base64
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


class NamedSchema(Part, frozen=True):
    """A JSON Schema. It is always obeyed, `strict` or not."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class SchemaFormat(Part, tag_field="type", tag="json_schema"):
    """The answer is JSON that a schema allows."""

    json_schema: NamedSchema


class Reasoning(Part):
    """`reasoning_effort` in the words of /v1/responses. Thoughts are told as they are, so no summary is made."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None  # its older name


class Body(Part, frozen=True):
    """What a route takes. `neutral` has what it does not obey, with the values that ask for nothing."""

    neutral: ClassVar[Neutral] = {}


class GenerationBody(Body):
    """The fields that both routes share which generate text.

    A prompt finds cached KV only of prompts with the same `cache_salt`, and of the same caller where there are keys.
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
        """Return `stop` as a list, even if it was written as one text."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class CompletionBody(GenerationBody, kw_only=True):
    """`prompt` is a text, texts, token ids, or lists of token ids; several prompts give several choices.

    `logprobs` is how many of the likeliest tokens each token comes with, besides its own logprob. `best_of` may only
    repeat `n`.
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
        """Return the schema that the answer is held to, as a text that may be as long as the body."""
        if isinstance(self.response_format, SchemaFormat):
            return msgspec.json.encode(self.response_format.json_schema.schema or {}).decode()
        return ANY_OBJECT if isinstance(self.response_format, ObjectFormat) else None

    @property
    def template_options(self) -> dict[str, Any]:
        """The variables that are for the template; `chat_template_kwargs` overrule the others."""
        effort = self.reasoning_effort or (self.reasoning and self.reasoning.effort)
        named = {"reasoning_effort": effort, "verbosity": self.verbosity}
        return {name: value for name, value in named.items() if value} | (self.chat_template_kwargs or {})

    @property
    def num_logprobs(self) -> int | None:
        """The number of likeliest tokens to report; None means no logprobs at all."""
        return (self.top_logprobs or 0) if self.logprobs else None


class EmbeddingsBody(Body, kw_only=True):
    """`input` has the forms of a completion's `prompt`; each gives one embedding, as numbers or as base64 of them.

    No prompt finds another's KV here, so each `cache_salt` is obeyed.
    """

    model: str | None = None
    input: str | list[str | TokenId | list[TokenId]]
    encoding_format: Literal["float", "base64"] | None = None
    cache_salt: CacheSalt | None = None


class TokenizeBody(Body):
    """Either `prompt` or `messages`. BOS comes before a prompt as in /v1/completions, unless it is declined."""

    neutral: ClassVar[Neutral] = {"add_generation_prompt": (True,), "continue_final_message": (False,)}

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: list[Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Body):
    """Token ids, which may be none."""

    tokens: list[TokenId]
    model: str | None = None


BodyKind = TypeVar("BodyKind", bound=Body)


def parse_body(raw: bytes, kind: type[BodyKind]) -> BodyKind:
    """Return the body as `kind`. Raise ApiError, naming the parameter."""
    return convert_body(read_object(raw), kind)


def read_object(raw: bytes) -> dict[str, Any]:
    """Return what is written in the body. Raise ApiError.

    A body of too many parts is refused unread: reading keeps every other thread waiting.
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
    """Return what is written as `kind`. Raise ApiError, naming the parameter."""
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
    """Count characters by slices, between which other threads go on: of 8 MB at once it would be 4 ms each."""
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
    """Say which field of the route does what a field of another server or route does."""
    ours = next((each for each in OUR_NAMES.get(name, ()) if each in kind.__struct_fields__), None)
    return f"write {ours}" if ours else "leave it out"


def _is_absent(name: str, value: Any, kind: type[Body]) -> bool:
    """Return whether a field is not read here, or says no more than if it were left out."""
    if name in kind.__struct_fields__:
        return value is None or (name in LIMITS and value == NO_LIMIT)
    return name in UNREAD or value in EMPTY


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


def _explain_misfit(complaint: str) -> ApiError:
    """Return msgspec's sentence, with the parameter that it points at."""
    where = BAD_FIELD.search(complaint) or MISSING_FIELD.search(complaint)
    param = where and where[1]
    return invalid(f"{param}: {complaint}" if param else complaint, param)
