"""The answers of /v1/responses: a list of items, whole or as a stream of events.

    words       a message          output_item.added, content_part.added, output_text.delta, ...
    thoughts    a reasoning        output_item.added, content_part.added, reasoning_text.delta, ...
    a call      a function_call    output_item.added, function_call_arguments.delta, ...

An item ends where another kind of part or another call begins. A stream's last event is response.completed,
response.incomplete or response.failed. It repeats all items, as the same answer has them without a stream.
It does not read requests (`responses.py` does).
Source: OpenAI API reference, "The Response object" and "Streaming events".
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import msgspec

from runtime.gateway.core.answer_parts import AnswerPart, CallPart, Thought, Words
from runtime.gateway.core.dialects import Dialect, delta_parts
from runtime.gateway.core.generation import Delta
from runtime.gateway.edge.http_errors import ApiError

__all__ = ["ResponsesDialect"]

Json = dict[str, Any]
NOT_DONE: Json = {  # features that no call can have here
    "background": False,
    "previous_response_id": None,
    "service_tier": "default",
    "store": False,
    "truncation": "disabled",
}


@dataclass
class ResponsesDialect(Dialect):
    """/v1/responses: one choice, as a list of items."""

    _items: list["Item"] = field(default_factory=list)  # only the last one grows
    _num_events: int = 0
    _is_cut: bool = False  # whether the answer ended at its token limit

    def write_answer(self, choices: Sequence[Delta], usage: Json) -> Json:
        """Return the answer's items and the usage."""
        (choice,) = choices
        _ = [*self._grow(choice), *self._end_last_item()]  # run the generators; only a stream sends their events
        return self._response_json(self._status, usage)

    def write_event(self, delta: Delta, usage: Callable[[], Json]) -> bytes:
        """Return the server-sent events for this delta."""
        events = list(self._grow(delta))
        if self._num_events == 0:
            response = self._response_json("in_progress") | {"output": []}
            events = [
                {"type": f"response.{name}", "response": response} for name in ("created", "in_progress")
            ] + events
        return b"".join(map(self._encode_event, events))

    def write_end(self, usage: Json) -> bytes:
        """Return the events that end the last item and then the answer."""
        events = list(self._end_last_item())
        last = {"type": f"response.{self._status}", "response": self._response_json(self._status, usage)}
        return b"".join(map(self._encode_event, (*events, last)))

    def write_failure(self, error: ApiError) -> bytes:
        """Return the answer so far, with the error."""
        failed = {"error": {"code": "server_error", "message": error.body()["error"]["message"]}}
        return self._encode_event({"type": "response.failed", "response": self._response_json("failed") | failed})

    @property
    def _status(self) -> str:
        return "incomplete" if self._is_cut else "completed"

    def _grow(self, delta: Delta) -> Iterator[Json]:
        """Add a delta's parts to the answer's items, and yield the events for them."""
        for part in delta_parts(delta):
            if not self._items or not self._items[-1].takes(part):
                yield from self._begin_item(part)
            yield from self._items[-1].grow(part)
        self._is_cut = delta.finish_reason == "length"

    def _begin_item(self, part: AnswerPart) -> Iterator[Json]:
        """End the last item, and begin one for the part. Yield the events of both."""
        if self._items:
            yield from self._items[-1].end("completed")
        self._items.append(_make_item(part, len(self._items)))
        yield from self._items[-1].begin()

    def _end_last_item(self) -> Iterator[Json]:
        """End the last item, and yield its events. An empty answer gets a message without words."""
        if not self._items:
            yield from self._begin_item(Words(""))
        yield from self._items[-1].end(self._status)

    def _response_json(self, status: str, usage: Json | None = None) -> Json:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self.model,
            "output": [item.document for item in self._items],
            "usage": None if usage is None else _rename_usage(usage),
            **NOT_DONE,
            **self.call.echo,
        }

    def _encode_event(self, event: Json) -> bytes:
        numbered = event | {"sequence_number": self._num_events}
        self._num_events += 1
        return f"event: {event['type']}\ndata: ".encode() + msgspec.json.encode(numbered) + b"\n\n"


class Item(ABC):
    """Item number `index` of an answer to /v1/responses. `document` is its JSON so far."""

    def __init__(self, index: int, prefix: str, document: Json) -> None:
        self.document: Json = {"id": f"{prefix}_{uuid4().hex}", "status": "in_progress"} | document
        self._place: Json = {"item_id": self.document["id"], "output_index": index}
        self._index = index
        self._texts: list[str] = []

    @abstractmethod
    def takes(self, part: AnswerPart) -> bool:
        """Return whether the part belongs to this item."""

    @abstractmethod
    def read_text(self, part: AnswerPart) -> str:
        """Return the text that the part adds to the item."""

    @abstractmethod
    def begin_text(self) -> Iterator[Json]:
        """Yield the events that come before the item's first text."""

    @abstractmethod
    def delta_event(self, text: str) -> Json:
        """Return the event that streams further text of the item."""

    @abstractmethod
    def end_text(self, text: str) -> Iterator[Json]:
        """Store the full text, and yield the events that close it."""

    def begin(self) -> Iterator[Json]:
        """Yield the events that begin the item."""
        added = {"type": "response.output_item.added", "output_index": self._index}
        yield added | {"item": dict(self.document)}
        yield from self.begin_text()

    def grow(self, part: AnswerPart) -> Iterator[Json]:
        """Add a part, and yield its event unless it has no text."""
        text = self.read_text(part)
        if text:
            self._texts.append(text)
            yield self.delta_event(text)

    def end(self, status: str) -> Iterator[Json]:
        """End the item with this status, and yield the events."""
        yield from self.end_text("".join(self._texts))
        self.document["status"] = status
        yield {"type": "response.output_item.done", "output_index": self._index, "item": self.document}


class TextItem(Item):
    """Words or thoughts: an item with one part, which holds the text."""

    def __init__(self, index: int, prefix: str, document: Json, kind: type[AnswerPart], part: Json) -> None:
        super().__init__(index, prefix, document | {"content": []})
        self._kind, self._part = kind, part
        self._place |= {"content_index": 0}
        self._more: Json = {"logprobs": []} if "logprobs" in part else {}

    def takes(self, part: AnswerPart) -> bool:
        """Return whether the part is of the same kind."""
        return isinstance(part, self._kind)

    def read_text(self, part: AnswerPart) -> str:
        """Return the part's text, words or thoughts."""
        assert not isinstance(part, CallPart)
        return part.text

    def begin_text(self) -> Iterator[Json]:
        """Yield the event that adds the item's only part."""
        yield self._place | {"type": "response.content_part.added", "part": self._part | {"text": ""}}

    def delta_event(self, text: str) -> Json:
        """Return the event that streams further words or thoughts of the item."""
        return self._place | {"type": f"response.{self._part['type']}.delta", "delta": text} | self._more

    def end_text(self, text: str) -> Iterator[Json]:
        """Store the full text, and yield the events that close it and its part."""
        whole = self._part | {"text": text}
        self.document["content"] = [whole]
        yield self._place | {"type": f"response.{self._part['type']}.done", "text": text} | self._more
        yield self._place | {"type": "response.content_part.done", "part": whole}


class CallItem(Item):
    """A call of a function. Its text is the call's arguments."""

    def __init__(self, index: int, first: CallPart) -> None:
        document = {"type": "function_call", "call_id": first.id, "name": first.name, "arguments": ""}
        super().__init__(index, "fc", document)
        self._call = first.index

    def takes(self, part: AnswerPart) -> bool:
        """Return whether the part is of the same call."""
        return isinstance(part, CallPart) and part.index == self._call

    def read_text(self, part: AnswerPart) -> str:
        """Return the piece of the call's arguments that the part brings."""
        assert isinstance(part, CallPart)
        return part.arguments

    def begin_text(self) -> Iterator[Json]:
        """Yield nothing: the item has no parts to announce."""
        yield from ()

    def delta_event(self, text: str) -> Json:
        """Return the event that streams further text of the call's arguments."""
        return self._place | {"type": "response.function_call_arguments.delta", "delta": text}

    def end_text(self, text: str) -> Iterator[Json]:
        """Store the full arguments, and yield the event that closes them."""
        self.document["arguments"] = text
        done = {"type": "response.function_call_arguments.done", "name": self.document["name"], "arguments": text}
        yield self._place | done


def _make_item(part: AnswerPart, index: int) -> Item:
    """Return the item that begins with this part."""
    if isinstance(part, CallPart):
        return CallItem(index, part)
    if isinstance(part, Thought):
        return TextItem(index, "rs", {"type": "reasoning", "summary": []}, Thought, {"type": "reasoning_text"})
    words = {"type": "output_text", "annotations": [], "logprobs": []}
    return TextItem(index, "msg", {"type": "message", "role": "assistant"}, Words, words)


def _rename_usage(usage: Json) -> Json:
    """Return a chat's token counts under the names of /v1/responses."""
    thoughts = usage.get("completion_tokens_details", {"reasoning_tokens": 0})
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"] | {"cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": thoughts,
        "total_tokens": usage["total_tokens"],
    }
