"""Turn tokens into text while they arrive, without half characters and without stop strings.

    token ids -> bytes -> characters (a partial one waits for its rest) -> text (what may begin a stop string waits)

The invariants, however a text is split into tokens:
    without a stop string, the joined pieces are the decoded text
    with one, they are the text up to the stop string that is complete first (the longest, if several end together)
It does not know stop tokens: those are ids, and ranks handle them.
"""

import codecs
from collections.abc import Sequence
from functools import lru_cache

__all__ = ["StopMatcher", "TextStream", "borders"]

MAX_KNOWN = 1024  # stop strings whose borders are cached: all choices of a call share them


class TextStream:
    """The text of one answer, piece by piece."""

    def __init__(self, token_bytes: Sequence[bytes], stops: Sequence[str]) -> None:
        self._token_bytes = token_bytes
        self.num_characters = 0  # characters of all tokens so far, returned or held back
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._matcher = StopMatcher(stops)

    @property
    def is_stopped(self) -> bool:
        """True if a stop string has come. No text follows it."""
        return self._matcher.has_matched

    def push(self, token_id: int, *, may_stop: bool = True) -> str:
        """Add a token, and return the text that is certain now (often none).

        A stop string in the token's text ends the answer only if `may_stop`.
        """
        is_known = token_id < len(self._token_bytes)  # a model's vocabulary may be padded beyond its tokenizer's
        text = self._utf8.decode(self._token_bytes[token_id] if is_known else b"")
        self.num_characters += len(text)
        return self._matcher.push(text) if may_stop else text

    def finish(self) -> str:
        """Return the text that was held back. An incomplete character becomes U+FFFD."""
        return self._matcher.push(self._utf8.decode(b"", final=True)) + self._matcher.release()


class StopMatcher:
    """Passes text on until it contains one of `stops`.

    A character costs a few steps for each stop string, however long the string is and however much of it has matched.
    That matters because callers choose the strings and, by biases, the text (D. E. Knuth, J. H. Morris, V. R. Pratt
    1977).
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [(stop, borders(stop)) for stop in stops]
        self._num_matched = [0] * len(stops)  # for each stop, how much of its beginning the text ends with
        self._pending = ""
        self.has_matched = False

    def push(self, text: str) -> str:
        """Add text, and return the text that can no longer be part of a stop string.

        The text ends before the first stop string; after that, no text comes.
        """
        if not self._stops:
            return text
        if self.has_matched:
            return ""
        pending, self._pending = self._pending, ""
        for place, character in enumerate(text):
            if complete := self._advance(character):
                self.has_matched = True
                return (pending + text[: place + 1])[:-complete]
        text = pending + text
        certain = len(text) - max(self._num_matched)
        self._pending = text[certain:]
        return text[:certain]

    def release(self) -> str:
        """Return the text that was held back, once no text follows it."""
        pending, self._pending = self._pending, ""
        return pending

    def _advance(self, character: str) -> int:
        """Follow all stop strings by one character. Return the length of the longest that it completes; 0 if none."""
        complete = 0
        for number, (stop, shorter) in enumerate(self._stops):
            matched = self._num_matched[number]
            while matched and stop[matched] != character:
                matched = shorter[matched - 1]
            matched += stop[matched] == character
            if matched == len(stop):
                complete = max(complete, matched)
            self._num_matched[number] = matched
        return complete


@lru_cache(maxsize=MAX_KNOWN)
def borders(stop: str) -> tuple[int, ...]:
    """Return for each prefix of `stop` the length of its longest proper suffix that is also a prefix of `stop`."""
    lengths = [0] * len(stop)
    for place in range(1, len(stop)):
        length = lengths[place - 1]
        while length and stop[length] != stop[place]:
            length = lengths[length - 1]
        lengths[place] = length + (stop[length] == stop[place])
    return tuple(lengths)
