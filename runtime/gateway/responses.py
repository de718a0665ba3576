"""OpenAI's answers as JSON documents: whole, or as the chunks of a stream.

The two routes differ in names and in where the text sits; `Dialect` is that difference, everything else is shared.
It does not decide what is answered, only how it looks.
Source: OpenAI API reference, the completion and chat.completion objects; DeepSeek API reference for the cache fields.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runtime.gateway.answer_parts import AnswerPart, CallPart, Said, Thought
from runtime.gateway.generation import Delta
from runtime.gateway.logprobs import TokenLogprobs
from runtime.gateway.tokenizer import Spelling

__all__ = ["ChatDialect", "CompletionDialect", "Dialect", "chunk", "usage", "usage_chunk", "whole"]

Json = dict[str, Any]


@dataclass(frozen=True)
class Dialect(ABC):
    """The way in which one route writes one answer. `created` is in seconds since 1970."""

    id: str
    created: int
    model: str

    @property
    @abstractmethod
    def objects(self) -> tuple[str, str]:
        """The names of a whole answer and of a chunk."""

    @abstractmethod
    def choice(self, delta: Delta) -> Json:
        """Return a finished choice, given as one delta."""

    @abstractmethod
    def delta(self, delta: Delta, *, is_first: bool) -> Json:
        """Return the growth of a choice."""


class CompletionDialect(Dialect):
    """/v1/completions: a chunk looks like a whole answer."""

    objects = ("text_completion", "text_completion")

    def choice(self, delta: Delta) -> Json:
        """Return the text, plain."""
        return {
            "index": delta.index,
            "text": delta.text,
            "logprobs": None if delta.logprobs is None else _columns(delta.logprobs),
            "finish_reason": delta.finish_reason,
        }

    def delta(self, delta: Delta, *, is_first: bool) -> Json:
        """Return the text, plain."""
        return self.choice(delta)


class ChatDialect(Dialect):
    """/v1/chat/completions: a message, whose role comes with its first chunk."""

    objects = ("chat.completion", "chat.completion.chunk")

    def choice(self, delta: Delta) -> Json:
        """Return the assistant's message. `reasoning_content` and `tool_calls` are there where there are some."""
        parts = _parts(delta)
        calls = [_call(group) for group in _calls(parts)]
        said = {"content": _text(parts, Said) or (None if calls else "")}
        thought = {"reasoning_content": _text(parts, Thought)} if any(isinstance(p, Thought) for p in parts) else {}
        message = {"role": "assistant", **said, **thought, "refusal": None} | ({"tool_calls": calls} if calls else {})
        return {"index": delta.index, "message": message} | _chat_ending(delta)

    def delta(self, delta: Delta, *, is_first: bool) -> Json:
        """Return the message's growth; nothing but the finish_reason when it ends without text."""
        parts = _parts(delta)
        growth: Json = {"role": "assistant"} if is_first else {}
        if any(isinstance(part, Thought) for part in parts):
            growth["reasoning_content"] = _text(parts, Thought)
        calls = _calls(parts)
        if calls:
            growth["tool_calls"] = [_call(group) | {"index": group[0].index} for group in calls]
        if any(isinstance(part, Said) for part in parts) or (is_first and len(growth) == 1):
            growth["content"] = _text(parts, Said)
        return {"index": delta.index, "delta": growth} | _chat_ending(delta)


def whole(dialect: Dialect, choices: Sequence[Delta], usage: Json) -> Json:
    """Return the answer of a call that does not stream; each choice is one delta."""
    return _document(dialect, dialect.objects[0], [dialect.choice(delta) for delta in choices]) | {"usage": usage}


def chunk(dialect: Dialect, delta: Delta, *, is_first: bool) -> Json:
    """Return one event of a stream."""
    return _document(dialect, dialect.objects[1], [dialect.delta(delta, is_first=is_first)])


def usage_chunk(dialect: Dialect, usage: Json) -> Json:
    """Return the last event before the end, without choices."""
    return _document(dialect, dialect.objects[1], []) | {"usage": usage}


def usage(num_prompt_tokens: int, num_generated_tokens: int, num_thinking_tokens: int | None) -> Json:
    """Return OpenAI's counts and DeepSeek's cache counts. Without a prefix cache, every prompt token was computed."""
    counts: Json = {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_generated_tokens,
        "total_tokens": num_prompt_tokens + num_generated_tokens,
        "prompt_cache_hit_tokens": 0,
        "prompt_cache_miss_tokens": num_prompt_tokens,
    }
    if num_thinking_tokens is not None:
        counts["completion_tokens_details"] = {"reasoning_tokens": num_thinking_tokens}
    return counts


def _document(dialect: Dialect, name: str, choices: list[Json]) -> Json:
    return {
        "id": dialect.id,
        "object": name,
        "created": dialect.created,
        "model": dialect.model,
        "choices": choices,
    }


def _columns(tokens: Sequence[TokenLogprobs]) -> Json:
    """Return logprobs as completions have them: a list for each property, `text_offset` counted in the whole answer."""
    return {
        "tokens": [_key(token.token) for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [
            {_key(other): logprob for other, logprob in (*token.best, (token.token, token.logprob))} for token in tokens
        ],
        "text_offset": [token.offset for token in tokens],
    }


def _key(token: Spelling) -> str:
    """Return a token as a key of an object.

    Bytes that are no text get OpenAI's form for them, because they would all be alike as U+FFFD.
    """
    if token.content is None or token.content == token.name.encode():
        return token.name
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.content)


def _parts(delta: Delta) -> Sequence[AnswerPart]:
    if delta.parts is not None:
        return delta.parts
    return (Said(delta.text),) if delta.text else ()


def _text(parts: Sequence[AnswerPart], kind: type[Said] | type[Thought]) -> str:
    return "".join(part.text for part in parts if isinstance(part, kind))


def _calls(parts: Sequence[AnswerPart]) -> list[list[CallPart]]:
    """Return the pieces of each call, together."""
    by_index: dict[int, list[CallPart]] = {}
    for part in parts:
        if isinstance(part, CallPart):
            by_index.setdefault(part.index, []).append(part)
    return list(by_index.values())


def _call(pieces: list[CallPart]) -> Json:
    """Return the pieces of one call as one; its id and name are in the first of all."""
    first = pieces[0]
    arguments = "".join(piece.arguments for piece in pieces)
    if first.id is None:
        return {"function": {"arguments": arguments}}
    return {"id": first.id, "type": "function", "function": {"name": first.name, "arguments": arguments}}


def _chat_ending(delta: Delta) -> Json:
    """Return the keys that end a chat's choice, whole or not."""
    logprobs = None if delta.logprobs is None else {"content": list(map(_row, delta.logprobs)), "refusal": None}
    return {"logprobs": logprobs, "finish_reason": delta.finish_reason}


def _row(token: TokenLogprobs) -> Json:
    """Return logprobs as chats have them: an object for each token."""
    return _entry(token.token, token.logprob) | {"top_logprobs": [_entry(*other) for other in token.best]}


def _entry(token: Spelling, logprob: float) -> Json:
    return {"token": token.name, "logprob": logprob, "bytes": None if token.content is None else list(token.content)}
