"""The bodies of the two POST routes: what they may say, and what is refused.

A parameter has one of three fates, so that nothing a caller asks for is dropped in silence:
    a field below       taken and obeyed (`user` is a label that changes no answer)
    NEUTRAL             not done here; accepted only at the value that asks for nothing (`n: 1`)
    anything else       refused by name

`null` always means absent. The ranges of sampling are the ranks' own (`protocol/bounds.py`). It does not know limits or
tokens (`calls.py` does).
Source: OpenAI API reference, "Create completion" and "Create chat completion"; `top_k`, with 0 or -1 for all tokens,
and `repetition_penalty`, with 1 for none, are vLLM's and others'. Completions' `logprobs` may be 20, as a chat's
`top_logprobs` may; OpenAI's own limit is 5 there.
"""

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from runtime.gateway.http_errors import ApiError, invalid
from runtime.protocol.bounds import NumLogprobs, Penalty, RepetitionPenalty, Seed, Temperature, TopP

__all__ = ["ChatBody", "CompletionBody", "Message", "StreamOptions", "TextPart", "parse_body"]

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "logit_bias": ({},),
    "n": (1,),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
}
BAD_FIELD = re.compile(r" - at `\$\.(\w+)")
MISSING_FIELD = re.compile(r"field `(\w+)`$")

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
StopString = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]  # every token is compared with all its starts


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a body: immutable, and refusing keys that it does not know."""


class StreamOptions(_Part):
    """The options of a stream. With `include_usage`, one more chunk before the end carries the usage."""

    include_usage: bool = False


class TextPart(_Part):
    """A piece of a message; other kinds (images, audio) are refused."""

    type: Literal["text"]
    text: str


class Message(_Part):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str | list[TextPart]


class Body(_Part):
    """The fields that both routes share."""

    model: str
    max_tokens: PositiveInt | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    seed: Seed | None = None
    stop: StopString | Annotated[list[StopString], msgspec.Meta(max_length=4)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None

    def stop_strings(self) -> tuple[str, ...]:
        """Return `stop` as a list, even if it was written as one text."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class CompletionBody(Body, kw_only=True):
    """`prompt` is a text, texts, token ids, or lists of token ids; several prompts give several choices.

    `logprobs` is how many of the likeliest tokens each token comes with, besides its own logprob.
    """

    prompt: str | list[str | int | list[int]]
    logprobs: NumLogprobs | None = None

    @property
    def num_logprobs(self) -> int | None:
        """The number of likeliest tokens to report; None means no logprobs at all."""
        return self.logprobs


class ChatBody(Body, kw_only=True):
    """`max_completion_tokens` is the newer name of `max_tokens`; `top_logprobs` counts the likeliest tokens."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    max_completion_tokens: PositiveInt | None = None
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = None

    @property
    def num_logprobs(self) -> int | None:
        """The number of likeliest tokens to report; None means no logprobs at all."""
        return (self.top_logprobs or 0) if self.logprobs else None


BodyKind = TypeVar("BodyKind", CompletionBody, ChatBody)


def parse_body(raw: bytes, kind: type[BodyKind]) -> BodyKind:
    """Return the body as `kind`. Raise ApiError, naming the parameter."""
    wishes = {name: value for name, value in _read_object(raw).items() if value is not None}
    _refuse_unsupported(wishes, kind)
    try:
        body = msgspec.convert({name: value for name, value in wishes.items() if name not in NEUTRAL}, kind)
    except msgspec.ValidationError as error:
        raise _misfit(str(error)) from None
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options is only for stream: true", "stream_options")
    return body


def _read_object(raw: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"the body cannot be read as JSON: {error}") from None
    if not isinstance(document, dict):
        raise invalid("the body is not a JSON object")
    return document


def _refuse_unsupported(wishes: dict[str, Any], kind: type[Body]) -> None:
    for name, value in wishes.items():
        if name in NEUTRAL:
            if not _is_neutral(value, NEUTRAL[name]):
                raise invalid(f"{name} is not supported by this server; leave it out", name, "unsupported_parameter")
        elif name not in kind.__struct_fields__:
            raise invalid(f"{name} is unknown to this route; leave it out", name, "unknown_parameter")


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Return whether the value asks for nothing. Types count: `n: true` is not `n: 1`."""
    return any(type(value) is type(nothing) and value == nothing for nothing in neutral)


def _misfit(complaint: str) -> ApiError:
    """Return msgspec's sentence, with the parameter that it points at."""
    where = BAD_FIELD.search(complaint) or MISSING_FIELD.search(complaint)
    param = where and where[1]
    return invalid(f"{param}: {complaint}" if param else complaint, param)
