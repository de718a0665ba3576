"""Log lines that a process writes only once."""

import sys

__all__ = ["say_once"]

_said: set[str] = set()


def say_once(sentence: str) -> None:
    """Write a line to the log, unless this process wrote it before."""
    if sentence not in _said:
        _said.add(sentence)
        print(f"tidemill: {sentence}", file=sys.stderr, flush=True)
