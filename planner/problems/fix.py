"""Fixes for mistakes: in words for people, and as changes that programs can make.

Every fix that needs nothing but the spec is made here, words and changes from the same values, so that what a message
offers can be applied: `rules/check.py` applies each one, and keeps it where the mistake is gone and no other is there.
Where it takes what only the user knows (which file, how much memory), a fix has words alone: a program that applied an
example would plan something else.

A change maps dotted paths to what should stand there; null takes the key, or the item of a list, away, as in JSON Merge
Patch (RFC 7396). Several changes are alternatives: each would do.
"""

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from typing import Any

__all__ = [
    "HERE",
    "Change",
    "Fix",
    "applied",
    "close_to",
    "did_you_mean",
    "for_example",
    "is_misspelling",
    "nearest",
    "nearest_of",
    "plain",
    "removal",
]

Change = Mapping[str, Any]

HERE = "."  # in a change: the path of the value that is wrong
ALIKE = 0.8  # assumed: the least ratio of two words of which one is the other's misspelling
LEAST_NEAR = 0.7  # assumed: the same of names, of which two letters may have changed places


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
    """Ask for the choice that `word` is like, else list the choices: the user knows which.

    It is a change where `word` only misspells the choice, and where there is no other choice.
    """
    meant = close_to(word, list(map(str, choices)))
    likely = [choice for choice in choices if str(choice) == meant]
    words = f"did you mean {meant}?" if likely else f"write {' or '.join(map(str, choices))}"
    certain = [choice for choice in likely or choices if len(choices) == 1 or is_misspelling(word, str(choice))]
    return Fix(words, tuple({HERE: choice} for choice in certain))


def for_example(written: str) -> Fix:
    """Show what a right value looks like. An example is no change, since nobody meant its value."""
    return Fix(f"for example {written}", ())


def close_to(word: Any, choices: Sequence[str]) -> str | None:
    """Return the choice that `word` misspells, or that has a word more or less; None where no choice is that near.

    One with other digits is another name, as `fp4` is not `fp8`, and so is `min_units` beside `max_units`.
    """
    written = plain(str(word))
    known = {plain(each): each for each in reversed(choices) if _digits(each) == _digits(written)}
    near = [known[each] for each in get_close_matches(written, known, n=3, cutoff=LEAST_NEAR)]
    return next((each for each in near if is_misspelling(word, each) or _is_longer(str(word), each)), None)


def is_misspelling(word: Any, choice: str) -> bool:
    """Return whether `word` can only be `choice`: the same digits, and each of its words hardly misspelt.

    A word more or another word makes another name: `min_units` is no misspelt `units`, nor `min_nodes` of `max_nodes`.
    """
    if plain(str(word)) == plain(choice):
        return True
    words, others = _words(str(word)), _words(choice)
    if len(words) != len(others) or _digits(str(word)) != _digits(choice):
        return False
    pairs = zip(words, others, strict=True)
    return all(sorted(a) == sorted(b) or SequenceMatcher(None, a, b).ratio() >= ALIKE for a, b in pairs)


def plain(text: str) -> str:
    """Return `text` without what differs between spellings of a name: `--max-num-seqs`, `maxNumSeqs`."""
    return re.sub("[-_ ]", "", text.casefold())


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


def _is_longer(word: str, choice: str) -> bool:
    """Return whether one of the two names has more words than the other, and they are alike all the same."""
    ratio = SequenceMatcher(None, plain(word), plain(choice)).ratio()
    return len(_words(word)) != len(_words(choice)) and ratio >= ALIKE


def _words(text: str) -> list[str]:
    return re.split("[-_ ./]+", text.casefold().strip("-"))


def _digits(text: str) -> list[str]:
    return re.findall("[0-9]+", text)
