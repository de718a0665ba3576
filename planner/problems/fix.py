"""Fixes for mistakes: words for people, and changes for programs.

The functions here make words and changes from the same values, so a program can apply what a message offers.
`rules/check.py` tries each change, and keeps it only if the mistake is gone and no other appears. A fix that needs
something that only the user knows (which file, how much memory) has words alone: applying an example would plan
something else.

A change maps dotted paths to new values. Null removes the key or the list item, as in JSON Merge Patch (RFC 7396).
Several changes are alternatives.
"""

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from typing import Any

Change = Mapping[str, Any]

HERE = "."  # in a change: the path of the wrong value
MISSPELT_RATIO = 0.8  # assumed: least similarity of a word and its misspelling
SIMILAR_RATIO = 0.7  # assumed: least similarity of a name and its misspelling; two letters may be swapped


@dataclass(frozen=True)
class Fix:
    """A fix: words for people, and alternative changes for programs."""

    words: str
    changes: tuple[Change, ...]

    def __str__(self) -> str:
        return self.words


def nearest(*values: Any) -> Fix:
    """Offer values to replace the wrong one: `nearest: 96 or 144`."""
    return Fix(f"nearest: {' or '.join(map(str, values))}", tuple({HERE: value} for value in values))


def nearest_of(value: int, allowed: Sequence[int]) -> Fix:
    """Offer the nearest allowed numbers below and above `value`; `allowed` is sorted and not empty."""
    below = [number for number in allowed if number < value][-1:]
    above = [number for number in allowed if number > value][:1]
    return nearest(*below, *above)


def did_you_mean(word: Any, choices: Sequence[Any]) -> Fix:
    """Suggest the choice that is similar to `word`, else list all choices.

    The fix has a change only if `word` certainly means the choice: as its misspelling, or as the only choice.
    """
    closest = closest_choice(word, list(map(str, choices)))
    likely = [choice for choice in choices if str(choice) == closest]
    words = f"did you mean {closest}?" if likely else f"write {' or '.join(map(str, choices))}"
    certain = [choice for choice in likely or choices if len(choices) == 1 or is_misspelling(word, str(choice))]
    return Fix(words, tuple({HERE: choice} for choice in certain))


def for_example(written: str) -> Fix:
    """Return a fix that shows an example of a right value. It has no change, since nobody meant that value."""
    return Fix(f"for example {written}", ())


def closest_choice(word: Any, choices: Sequence[str]) -> str | None:
    """Return the choice that `word` misspells, or that has a word more or less than `word`; None if there is none.

    Names with different digits never match (`fp4`, `fp8`), nor do names with a different word (`min_units`,
    `max_units`).
    """
    written = fold_spelling(str(word))
    known = {fold_spelling(each): each for each in reversed(choices) if _digits(each) == _digits(written)}
    near = [known[each] for each in get_close_matches(written, known, n=3, cutoff=SIMILAR_RATIO)]
    return next((each for each in near if is_misspelling(word, each) or _differs_in_words(str(word), each)), None)


def is_misspelling(word: Any, choice: str) -> bool:
    """Return whether `word` is certainly a misspelling of `choice`.

    Case and separators do not count: `minunits` is `min_units`. Besides, a misspelling has the same digits and as many
    words, each spelt nearly the same. A name with another number of words, or a different word, is another name:
    `min_units` is not `units`, and `min_nodes` is not `max_nodes`.
    """
    if fold_spelling(str(word)) == fold_spelling(choice):
        return True
    words, others = _words(str(word)), _words(choice)
    if len(words) != len(others) or _digits(str(word)) != _digits(choice):
        return False
    pairs = zip(words, others, strict=True)
    return all(sorted(a) == sorted(b) or SequenceMatcher(None, a, b).ratio() >= MISSPELT_RATIO for a, b in pairs)


def fold_spelling(text: str) -> str:
    """Return `text` in lower case without hyphens, underscores and spaces: `--max-num-seqs` equals `maxNumSeqs`."""
    return re.sub("[-_ ]", "", text.casefold())


def removal(*paths: str, words: str | None = None) -> Fix:
    """Offer to remove `paths`, or the wrong value itself if none are given."""
    return Fix(words or f"remove {' and '.join(paths) or 'it'}", (dict.fromkeys(paths or (HERE,)),))


def apply_change(data: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """Return a copy of `data` with `change` applied. Missing sections are created.

    Raises LookupError for a path into a value that is no section, or past the end of a list.
    """
    result: dict[str, Any] = deepcopy(dict(data))
    for path, value in sorted(change.items(), key=lambda item: item[1] is None):  # removals last: they shift indices
        section, key = _find_holder(result, path)
        if value is not None:
            section[key] = value
        elif isinstance(section, list) or key in section:
            del section[key]
    return result


def value_at(data: Mapping[str, Any], path: str) -> Any:
    """Return the value at the dotted `path` of sections and list entries; None if there is none."""
    value: Any = data
    for key in path.split("."):
        if isinstance(value, list):
            value = {str(index): each for index, each in enumerate(value)}
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _find_holder(data: dict[str, Any], path: str) -> tuple[Any, Any]:
    """Return the section or list with the value at `path`, and the value's key or index. Keys may contain dots."""
    section: Any = data
    parts = path.split(".")
    while True:
        if isinstance(section, list):
            if not parts[0].isdecimal() or int(parts[0]) >= len(section):
                raise LookupError(path)
            key: Any = int(parts.pop(0))
        elif not isinstance(section, dict):
            raise LookupError(path)
        else:
            whole = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
            key = next((each for each in whole if each in section), parts[0])
            parts = parts[key.count(".") + 1 :]
        if not parts:
            return section, key
        if isinstance(section, dict) and section.get(key) is None:
            section[key] = {}
        section = section[key]


def _differs_in_words(word: str, choice: str) -> bool:
    """Return whether two names are spelt alike but differ in their number of words."""
    ratio = SequenceMatcher(None, fold_spelling(word), fold_spelling(choice)).ratio()
    return len(_words(word)) != len(_words(choice)) and ratio >= MISSPELT_RATIO


def _words(text: str) -> list[str]:
    return re.split("[-_ ./]+", text.casefold().strip("-"))


def _digits(text: str) -> list[str]:
    return re.findall("[0-9]+", text)
