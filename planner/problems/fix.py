"""Fixes for mistakes: in words for people, and as changes that programs can make.

Every fix that needs nothing but the spec is made here, words and changes from the same values, so that what a message
offers can be applied: the tests apply each one and see the mistake gone. A change holds only what was probably meant:
what was written in another form, or the nearest value that is right. Where it takes what only the user knows (which
file, how much memory), a fix has words alone: a program that applied an example would plan something else.

A change maps dotted paths to what should stand there; null takes the key, or the item of a list, away, as in JSON Merge
Patch (RFC 7396). Several changes are alternatives: each would do.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

__all__ = [
    "HERE",
    "Change",
    "Fix",
    "applied",
    "close_to",
    "did_you_mean",
    "for_example",
    "nearest",
    "nearest_of",
    "removal",
]

Change = Mapping[str, Any]

HERE = "."  # in a change: the path of the value that is wrong


@dataclass(frozen=True)
class Fix:
    """A fix in words, and the changes that it names."""

    words: str
    changes: tuple[Change, ...]

    def __str__(self) -> str:
        return self.words


def nearest(*values: Any) -> Fix:
    """Offer values in place of what is there: `nearest: 96 or 144`."""
    return Fix(f"nearest: {' or '.join(map(str, values))}", tuple({HERE: value} for value in values))


def nearest_of(value: int, allowed: Sequence[int]) -> Fix:
    """Offer the allowed numbers on both sides of `value`; `allowed` is sorted and holds one at least."""
    below = [number for number in allowed if number < value][-1:]
    above = [number for number in allowed if number > value][:1]
    return nearest(*below, *above)


def did_you_mean(word: Any, choices: Sequence[Any]) -> Fix:
    """Offer the choice that `word` is like, or the only one. Otherwise list the choices: the user knows which."""
    meant = close_to(word, [str(choice) for choice in choices])
    likely = [choice for choice in choices if str(choice) == meant]
    words = f"did you mean {meant}?" if likely else f"write {' or '.join(map(str, choices))}"
    offered = likely or (choices if len(choices) == 1 else ())
    return Fix(words, tuple({HERE: choice} for choice in offered))


def for_example(written: str) -> Fix:
    """Show what a right value looks like. An example is no change, since nobody meant its value."""
    return Fix(f"for example {written}", ())


def close_to(word: Any, choices: Sequence[str], cutoff: float = 0.5) -> str | None:
    """Return the choice that `word` is like: in other letters, within a longer name, or misspelt."""
    plain = {_plain(choice): choice for choice in choices}
    written = _plain(str(word))
    if written in plain:
        return plain[written]
    within = sorted((choice for choice in plain if len(choice) > 2 and choice in written), key=len)
    if within:
        return plain[within[-1]]
    close = get_close_matches(written, plain, n=1, cutoff=cutoff)
    return plain[close[0]] if close else None


def removal(*paths: str, words: str | None = None) -> Fix:
    """Offer to take `paths` away, or what is wrong itself."""
    return Fix(words or f"remove {' and '.join(paths) or 'it'}", (dict.fromkeys(paths or (HERE,)),))


def applied(data: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """Return a copy of `data` with `change` made; sections that it needs are created."""
    result: dict[str, Any] = deepcopy(dict(data))
    for path, value in sorted(change.items(), key=lambda item: item[1] is None):  # what goes away goes last
        section, key = _holder(result, path)
        if value is not None:
            section[key] = value
        elif isinstance(section, list) or key in section:
            del section[key]
    return result


def _holder(data: dict[str, Any], path: str) -> tuple[Any, Any]:
    """Return the section or list that holds what stands at `path`, and its key or index there. Keys may have dots."""
    section: Any = data
    parts = path.split(".")
    while True:
        if isinstance(section, list):
            key: Any = int(parts.pop(0))
        else:
            whole = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
            key = next((each for each in whole if each in section), parts[0])
            parts = parts[key.count(".") + 1 :]
        if not parts:
            return section, key
        if isinstance(section, dict) and section.get(key) is None:
            section[key] = {}
        section = section[key]


def _plain(text: str) -> str:
    return text.casefold().replace("_", "-")
