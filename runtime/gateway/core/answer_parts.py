"""Split an answer's text into its parts: thoughts, words and tool calls.

    thinking</think>words<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>CALL<｜tool▁call▁end｜>...<｜tool▁calls▁end｜>

A CALL has one of two forms, by the model's template:
    plain     NAME<｜tool▁sep｜>ARGUMENTS                               (DeepSeek-V3.1)
    fenced    function<｜tool▁sep｜>NAME, a line ```json, ARGUMENTS, a line ```    (DeepSeek-V3 and R1)

The text comes in pieces that may end anywhere. A piece's end that may begin a mark waits for the next piece.
The invariants: the joined parts do not depend on how the text was cut, and no character is lost except marks and the
white space around thoughts. A call that ends before its name is complete becomes words.
It does not check that arguments are JSON. The model wrote them, and the caller reads them.

Sources: the chat templates of DeepSeek-V3, R1 and V3.1; DeepSeek API reference for `reasoning_content`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import uuid4

__all__ = ["AnswerForm", "AnswerReader", "CallPart", "Opening", "Thought", "ToolCallForm", "Words", "read_opening"]

THINK_BEGIN, THINK_END = "<think>", "</think>"
CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
FENCE, FENCE_END = "```json\n", "\n```"

ToolCallForm = Literal["plain", "fenced"]
Opening = Literal["thinking", "content", "undecided"]


@dataclass(frozen=True)
class AnswerForm:
    """The form of an answer's text, by which it is split. `tool_calls` is None if there are no tools."""

    opening: Opening = "content"
    tool_calls: ToolCallForm | None = None

    @property
    def is_plain(self) -> bool:
        """True if the whole answer is words: it has neither thoughts nor tool calls."""
        return self.opening == "content" and self.tool_calls is None

    @property
    def call_end(self) -> str:
        """The mark that follows a tool call's arguments."""
        return CALL_END if self.tool_calls == "plain" else FENCE_END + CALL_END


@dataclass(frozen=True)
class Thought:
    """A piece of what the model thinks."""

    text: str


@dataclass(frozen=True)
class Words:
    """A piece of the answer proper."""

    text: str


@dataclass(frozen=True)
class CallPart:
    """A piece of tool call `index`.

    The first piece has the call's id and name, the other pieces have the text of its arguments.
    """

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None


AnswerPart = Thought | Words | CallPart


def read_opening(prompt: str) -> Opening:
    """Return how the answer begins, judged by the end of the prompt: thinking, content or undecided.

    The opening is undecided if the prompt ends with neither mark: some models write <think> themselves.
    """
    prompt_end = prompt.rstrip()
    if prompt_end.endswith(THINK_BEGIN):
        return "thinking"
    return "content" if prompt_end.endswith(THINK_END) else "undecided"


class AnswerReader:
    """Splits one answer's text into parts as it arrives."""

    def __init__(self, form: AnswerForm) -> None:
        self._form = form
        self._text = ""  # text that is not returned yet
        self._is_last = False
        self._skips_space = form.opening != "content"
        self.num_calls = 0
        openings = {"thinking": self._read_thought, "content": self._read_words, "undecided": self._read_opening}
        self._state: Callable[[], Sequence[AnswerPart]] = openings[form.opening]

    @property
    def is_thinking(self) -> bool:
        """True until the model ends its thinking."""
        return self._state == self._read_thought

    def push(self, text: str, *, is_last: bool = False) -> Sequence[AnswerPart]:
        """Add a piece of text, and return the parts that are certain now. `is_last` says that no text follows."""
        self._text += text
        self._is_last = is_last
        parts: list[AnswerPart] = []
        state = None
        while state != self._state:
            state = self._state
            parts += state()
        return parts

    def _read_opening(self) -> Sequence[AnswerPart]:
        beginning = self._text.lstrip()
        if beginning.startswith(THINK_BEGIN):
            self._text = beginning.removeprefix(THINK_BEGIN)
            self._state = self._read_thought
        elif self._is_last or not THINK_BEGIN.startswith(beginning):
            self._state, self._skips_space = self._read_words, False
        return ()

    def _read_thought(self) -> Sequence[AnswerPart]:
        """Remove from the buffered text the thoughts that have arrived, and return them as one part.

        The result is empty if there are none. White space around them is dropped, except at the end of an answer that
        stops while it thinks.
        """
        self._skip_space()
        text, is_over = self._read_until(THINK_END)
        if is_over:
            self._state, self._skips_space = self._read_words, True
        elif not self._is_last:
            self._text = text[len(text.rstrip()) :] + self._text
        text = text if self._is_last and not is_over else text.rstrip()
        return (Thought(text),) if text else ()

    def _read_words(self) -> Sequence[AnswerPart]:
        self._skip_space()
        if self._form.tool_calls is None:
            text, self._text = self._text, ""
        else:
            text, is_over = self._read_until(CALLS_BEGIN)
            self._state = self._read_call_mark if is_over else self._state
        return (Words(text),) if text else ()

    def _read_call_mark(self) -> Sequence[AnswerPart]:
        self._text = self._text.lstrip()
        if self._text.startswith(CALL_BEGIN):
            self._text = self._text.removeprefix(CALL_BEGIN)
            self._state = self._read_call_name
        elif self._text.startswith(CALLS_END):
            self._text = self._text.removeprefix(CALLS_END)
            self._state, self._skips_space = self._read_words, True
        elif self._is_last or not any(mark.startswith(self._text) for mark in (CALL_BEGIN, CALLS_END)):
            self._state = self._read_words
        return ()

    def _read_call_name(self) -> Sequence[AnswerPart]:
        """Remove the call's name from the buffered text, and return it as the call's first piece.

        The result is empty while the name is incomplete. If the text ends so, it is content after all.
        """
        kind, separator, rest = self._text.partition(SEPARATOR)
        name, arguments = kind, rest
        if self._form.tool_calls == "fenced":
            name, separator, arguments = rest.partition(FENCE)
        if separator:
            self._text = arguments
            self._state = self._read_arguments
            self.num_calls += 1
            return (CallPart(self.num_calls - 1, "", f"call_{uuid4().hex[:24]}", name.strip()),)
        if self._is_last:
            self._text, self._state = CALL_BEGIN + self._text, self._read_words
        return ()

    def _read_arguments(self) -> Sequence[AnswerPart]:
        text, is_over = self._read_until(self._form.call_end)
        self._state = self._read_call_mark if is_over else self._state
        return (CallPart(self.num_calls - 1, text),) if text else ()

    def _skip_space(self) -> None:
        if self._skips_space:
            self._text = self._text.lstrip()
            self._skips_space = not self._text

    def _read_until(self, mark: str) -> tuple[str, bool]:
        """Remove `mark` and all before it from the buffered text. Return (text before it, whether the mark has come).

        If the mark has not come, leave the end of the text that may be the mark's beginning.
        """
        text, mark_found, rest = self._text.partition(mark)
        if mark_found:
            self._text = rest
            return text, True
        certain = len(text) - (0 if self._is_last else _partial_mark_length(text, mark))
        self._text = text[certain:]
        return text[:certain], False


def _partial_mark_length(text: str, mark: str) -> int:
    """Return how many characters at the end of `text` may be the beginning of the mark."""
    lengths = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(mark[:length])), 0)
