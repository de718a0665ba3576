"""OpenAI's answers as JSON documents: whole, or as the events of a stream.

Each route has a `Dialect`, which writes one answer. Completions and chats differ in their names and in where the text
is, and they stream chunks. /v1/responses has events of its own (`response_items.py`).
It decides only what an answer looks like, not what is in it.
Source: OpenAI API reference, the completion and chat.completion objects; DeepSeek API reference for the cache fields.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from runtime.gateway.core.answer_parts import AnswerPart, CallPart, Thought, Words
from runtime.gateway.core.calls import Call
from runtime.gateway.core.generation import Delta
from runtime.gateway.core.logprobs import TokenLogprobs
from runtime.gateway.core.tokenizer import Spelling
from runtime.gateway.edge.http_errors import ApiError

__all__ = ["ChatDialect", "CompletionDialect", "Dialect", "delta_parts", "usage"]

Json = dict[str, Any]


@dataclass
class Dialect(ABC):
    """Writes the answer of one call in the form of its route. `created` is in seconds since 1970."""

    id: str
    created: int
    model: str
    call: Call

    @abstractmethod
    def write_answer(self, choices: Sequence[Delta], usage: Json) -> Json:
        """Return the answer of a call that does not stream. Each choice is one delta."""

    @abstractmethod
    def write_event(self, delta: Delta, usage: Callable[[], Json]) -> bytes:
        """Return the events of a stream for this delta; there may be none. `usage` is called if they show the usage."""

    @abstractmethod
    def write_end(self, usage: Json) -> bytes:
        """Return the events that end a complete stream."""

    @abstractmethod
    def write_failure(self, error: ApiError) -> bytes:
        """Return the end of a stream that failed."""


@dataclass
class ChunkDialect(Dialect):
    """Streams an answer in chunks, each of which looks like a short answer.

    With `include_usage` every chunk has the key `usage`. It is null in all but the last chunk, unless the call asks for
    the usage in every chunk.
    """

    _started: set[int] = field(default_factory=set)  # the choices that have had a chunk

    @property
    @abstractmethod
    def objects(self) -> tuple[str, str]:
        """The values of the field `object`: (in a whole answer, in a chunk)."""

    @abstractmethod
    def write_choice(self, delta: Delta) -> Json:
        """Return a complete choice as JSON. Its text is given as one delta."""

    @abstractmethod
    def delta(self, delta: Delta, *, is_first: bool) -> Json:
        """Return a chunk's entry for the choice to which the delta belongs. `is_first` marks a choice's first delta."""

    def write_answer(self, choices: Sequence[Delta], usage: Json) -> Json:
        """Return a whole answer, with its choices and the usage."""
        return self._document(self.objects[0], list(map(self.write_choice, choices))) | {"usage": usage}

    def write_event(self, delta: Delta, usage: Callable[[], Json]) -> bytes:
        """Return a chunk for the delta. An empty delta gives empty bytes, unless it is a choice's first."""
        is_first = delta.index not in self._started
        if not is_first and not _has_content(delta):
            return b""
        self._started.add(delta.index)
        chunk = self._document(self.objects[1], [self.delta(delta, is_first=is_first)])
        if self.call.include_usage:
            chunk["usage"] = usage() if self.call.usage_in_every_chunk else None
        return _encode_event(chunk)

    def write_end(self, usage: Json) -> bytes:
        """Return [DONE], after a chunk with the usage if the call wants it."""
        last = _encode_event(self._document(self.objects[1], []) | {"usage": usage}) if self.call.include_usage else b""
        return last + b"data: [DONE]\n\n"

    def write_failure(self, error: ApiError) -> bytes:
        """Return the error as the last event of the stream, without [DONE]."""
        return _encode_event(error.body())

    def _document(self, name: str, choices: list[Json]) -> Json:
        return {"id": self.id, "object": name, "created": self.created, "model": self.model, "choices": choices}


class CompletionDialect(ChunkDialect):
    """/v1/completions: a chunk has the form of a whole answer."""

    objects = ("text_completion", "text_completion")

    def write_choice(self, delta: Delta) -> Json:
        """Return a completion's choice as JSON, with its text."""
        return {
            "index": delta.index,
            "text": delta.text,
            "logprobs": None if delta.logprobs is None else _logprob_columns(delta.logprobs),
            "finish_reason": delta.finish_reason,
        }

    def delta(self, delta: Delta, *, is_first: bool) -> Json:
        """Return the part of a chunk with the text that the delta adds."""
        return self.write_choice(delta)


class ChatDialect(ChunkDialect):
    """/v1/chat/completions: a choice is a message. The first chunk of a choice has the role."""

    objects = ("chat.completion", "chat.completion.chunk")

    def write_choice(self, delta: Delta) -> Json:
        """Return a chat's choice as JSON: the assistant's message, with its reasoning and tool calls, if any."""
        parts = delta_parts(delta)
        calls = [_join_call(group) for group in _group_calls(parts)]
        content = {"content": _join_text(parts, Words) or (None if calls else "")}
        reasoning = (
            {"reasoning_content": _join_text(parts, Thought)} if any(isinstance(p, Thought) for p in parts) else {}
        )
        message = {"role": "assistant", **content, **reasoning, "refusal": None} | (
            {"tool_calls": calls} if calls else {}
        )
        return {"index": delta.index, "message": message} | _chat_ending(delta)

    def delta(self, delta: Delta, *, is_first: bool) -> Json:
        """Return the part of a chunk with what the delta adds to the message.

        A choice's first delta adds the role, too, and its last one may add only the finish_reason.
        """
        parts = delta_parts(delta)
        growth: Json = {"role": "assistant"} if is_first else {}
        if any(isinstance(part, Thought) for part in parts):
            growth["reasoning_content"] = _join_text(parts, Thought)
        calls = _group_calls(parts)
        if calls:
            growth["tool_calls"] = [_join_call(group) | {"index": group[0].index} for group in calls]
        if any(isinstance(part, Words) for part in parts) or (is_first and len(growth) == 1):
            growth["content"] = _join_text(parts, Words)
        return {"index": delta.index, "delta": growth} | _chat_ending(delta)


def usage(
    num_prompt_tokens: int, num_generated_tokens: int, num_hit_tokens: int, num_thinking_tokens: int | None
) -> Json:
    """Return the token counts as OpenAI reports them, and the cache counts as DeepSeek does."""
    counts: Json = {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_generated_tokens,
        "total_tokens": num_prompt_tokens + num_generated_tokens,
        "prompt_tokens_details": {"cached_tokens": num_hit_tokens},
        "prompt_cache_hit_tokens": num_hit_tokens,
        "prompt_cache_miss_tokens": num_prompt_tokens - num_hit_tokens,
    }
    if num_thinking_tokens is not None:
        counts["completion_tokens_details"] = {"reasoning_tokens": num_thinking_tokens}
    return counts


def delta_parts(delta: Delta) -> Sequence[AnswerPart]:
    """Return the delta's thoughts, words and tool calls."""
    if delta.parts is not None:
        return delta.parts
    return (Words(delta.text),) if delta.text else ()


def _has_content(delta: Delta) -> bool:
    content = delta.text if delta.parts is None else delta.parts
    return bool(content or delta.logprobs or delta.finish_reason)


def _encode_event(document: Json) -> bytes:
    return b"data: " + msgspec.json.encode(document) + b"\n\n"


def _logprob_columns(tokens: Sequence[TokenLogprobs]) -> Json:
    """Return logprobs in the form of completions: a list for each property. Offsets count from the answer's start."""
    return {
        "tokens": [_token_key(token.token) for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [
            {_token_key(other): logprob for other, logprob in (*token.best, (token.token, token.logprob))}
            for token in tokens
        ],
        "text_offset": [token.offset for token in tokens],
    }


def _token_key(token: Spelling) -> str:
    """Return the token as a key of a JSON object.

    Bytes that are no text are written in OpenAI's form for them. As text they would all be U+FFFD.
    """
    if token.content is None or token.content == token.name.encode():
        return token.name
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.content)


def _join_text(parts: Sequence[AnswerPart], kind: type[Words] | type[Thought]) -> str:
    return "".join(part.text for part in parts if isinstance(part, kind))


def _group_calls(parts: Sequence[AnswerPart]) -> list[list[CallPart]]:
    """Return the pieces of tool calls as a list for each call."""
    by_index: dict[int, list[CallPart]] = {}
    for part in parts:
        if isinstance(part, CallPart):
            by_index.setdefault(part.index, []).append(part)
    return list(by_index.values())


def _join_call(pieces: list[CallPart]) -> Json:
    """Return the JSON of one tool call, joined from its pieces. Only a call's very first piece has its id and name."""
    first = pieces[0]
    arguments = "".join(piece.arguments for piece in pieces)
    if first.id is None:
        return {"function": {"arguments": arguments}}
    return {"id": first.id, "type": "function", "function": {"name": first.name, "arguments": arguments}}


def _chat_ending(delta: Delta) -> Json:
    """Return the JSON of logprobs and finish_reason, which a chat's choices and chunks write in the same way."""
    logprobs = None if delta.logprobs is None else {"content": list(map(_logprob_row, delta.logprobs)), "refusal": None}
    return {"logprobs": logprobs, "finish_reason": delta.finish_reason}


def _logprob_row(token: TokenLogprobs) -> Json:
    """Return a token's logprobs in the form of chats: one object."""
    return _logprob_entry(token.token, token.logprob) | {
        "top_logprobs": [_logprob_entry(*other) for other in token.best]
    }


def _logprob_entry(token: Spelling, logprob: float) -> Json:
    return {"token": token.name, "logprob": logprob, "bytes": None if token.content is None else list(token.content)}
