r"""Lists of modules in quantisation files, and the names that they are held against.

A module is called as transformers calls it in DeepSeek-V3: `model.layers.3.self_attn.q_a_proj`. Families call theirs
otherwise, engines fuse some, multimodal models have one level more, and published DeepSeek-V4 has its own names. Names
and lists are brought to the same words before they are compared, so that neither has to be known in every spelling.
Routed experts have one name: no published file tells them apart.

A file may come from anywhere, and Python's `re` goes back and tries again: `(?:.|..)` twenty times over matches a name
in a million ways. So the work is counted before it is done. A repetition can match a name of 49 characters in 50 ways,
an alternation in as many as all its alternatives together, and what follows is tried after each of them:
`.*mlp\.(gate|up)_proj` is tried in 50 x 2 ways. Repeated groups and rare syntax are not counted: they are refused.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import translate
from functools import cached_property

__all__ = ["ModuleNames", "Unreadable", "draft_names", "module_name"]

REGEX = "re:"
MAX_PATTERN_CHARACTERS = 512  # of one; the longest published ones number the layers, in 250
MAX_WAYS = 2**17  # of one regular expression; published ones have up to 8 x 3 x 50^2
NAME_WAYS = 50  # of a repetition: our longest name has 45 characters
DIGIT_WAYS = 4  # of one of digits: a layer's number has three
LIST_WAYS = 1024  # assumed: to look up all parts of a name takes as long as so many ways
PART = re.compile(r"\\.|\[\^?\]?(?:\\.|[^]\\])*\]|\((?:\?(?:[:=!]|<[=!])|(?!\?))|\)[*+{]|\(\?|.", re.DOTALL)
LAYER = re.compile(r"layers\.(\d+)(?=\.|$)")
DIGITS = (r"\d", "[0-9]")
GLOB = re.compile(r"[*?\[]")
EXPERT = re.compile(r"(?<=experts\.)(\d+|\*)\.")
# What of a name only some files have: the level of multimodal models, and transformers' place of V4's indexer
LEVELS = re.compile(
    r"language_model\\?\.(?=model\b)|(?<=model\.)language_model\\?\.|^language_model\.(?!model\b)|compressor\.(?=indexer)"
)

# As families, engines and published DeepSeek-V4 call it -> here
WORDS = {
    "attn": "self_attn",
    "ffn": "mlp",
    "block_sparse_moe": "mlp",
    "shared_expert": "shared_experts",
    "w1": "gate_proj",
    "w2": "down_proj",
    "w3": "up_proj",
    "wq_a": "q_a_proj",
    "wq_b": "q_b_proj",
    "wk": "k_proj",
    "wkv": "kv_proj",
    "wo_a": "o_a_proj",
    "wo_b": "o_b_proj",
    "head": "lm_head",
}
WORD = re.compile(rf"(?<!\w)({'|'.join(WORDS)})(?!\w)")
# A module that an engine or a family has in place of several
FUSED = {
    "gate_up_proj": ("gate_proj", "up_proj"),
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}


class Unreadable(ValueError):
    """A quantisation file has something else in a place than belongs there; it says where."""


def module_name(name: str) -> str:
    """Return `name` in the words of this file."""
    name = WORD.sub(lambda found: WORDS[found[1]], LEVELS.sub("", name))
    return f"model.{name}" if name.startswith("layers.") else name


def draft_names(num_layers: int) -> Sequence[str]:
    """Return where an MTP module may be: after the last layer, or in a place of its own."""
    return [f"model.layers.{num_layers}", "mtp.layers.0", "mtp.0", "model.mtp.layers.0"]


class ModuleNames:
    """A list of names, globs and regular expressions. Raises Unreadable for a pattern that might take for ever.

    Patterns are compiled when the first name is held against them. Before that, `num_characters` tells how long this
    takes, and `num_ways` how long a name takes.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        names = dict.fromkeys(each for entry in entries for each in _spelled(entry))
        patterns = [each for each in names if each.startswith(REGEX) or GLOB.search(each)]
        for each in patterns:
            if len(each) > MAX_PATTERN_CHARACTERS:
                raise Unreadable(f"the pattern {each[:80]}... has more than {MAX_PATTERN_CHARACTERS} characters")
        self._plain = names.keys() - patterns
        self._expressions = [each.removeprefix(REGEX) for each in patterns if each.startswith(REGEX)]
        self._globs_of: dict[str | None, list[str]] = {}  # of one layer, or of any
        for each in patterns:
            if not each.startswith(REGEX):
                self._globs_of.setdefault(_layer(each), []).append(each)
        self.num_characters = sum(map(len, patterns))
        self.num_ways = LIST_WAYS + sum(map(_ways, self._expressions)) + self._ways_of_globs()

    def _ways_of_globs(self) -> int:
        """Return how often the globs are tried on a name: one asterisk after the other, and those of one layer."""
        ways = {
            layer: NAME_WAYS * sum(1 + each.count("*") for each in globs) for layer, globs in self._globs_of.items()
        }
        return ways.pop(None, 0) + max(ways.values(), default=0)

    @cached_property
    def _regexes(self) -> Sequence[re.Pattern[str]]:
        return [_compiled(each) for each in self._expressions]

    @cached_property
    def _globs(self) -> dict[str | None, re.Pattern[str]]:
        return {layer: _any_of(each) for layer, each in self._globs_of.items()}

    def cover(self, name: str) -> bool:
        """Return whether the module called `name` is in the list, by itself or with all that it belongs to.

        Raises Unreadable where the list has an expression that is none.
        """
        bare = EXPERT.sub("", name)
        if any(part in self._plain for part in _parts(bare)):
            return True
        globs = (self._globs[each] for each in (_layer(name), None) if each in self._globs)
        if any(each.match(bare) or each.match(name) for each in globs):
            return True
        return any(each.match(name) for each in self._regexes)


def _spelled(entry: str) -> Iterator[str]:
    """Yield an entry in the words of this file; of a fused module each."""
    if entry.startswith(REGEX):
        yield REGEX + module_name(entry.removeprefix(REGEX))
        return
    name = EXPERT.sub("", module_name(entry).strip("."))
    fused = next((each for each in FUSED if name.endswith(each) or f"{each}." in name), None)
    yield from (name.replace(fused, each) for each in FUSED[fused]) if fused else (name,)


def _layer(name: str) -> str | None:
    """Return the number of the one layer that a name is about."""
    found = LAYER.search(name)
    return found[1] if found else None


def _parts(name: str) -> Iterator[str]:
    """Yield every run of whole parts: `mlp.gate` is one of `layers.3.mlp.gate`, not of `layers.3.mlp.gate_proj`."""
    words = name.split(".")
    for first in range(len(words)):
        for last in range(first + 1, len(words) + 1):
            yield ".".join(words[first:last])


def _any_of(globs: Sequence[str]) -> re.Pattern[str]:
    """Return what matches the names that some glob matches, or that belong to such a module."""
    return re.compile("|".join(translate(form) for each in globs for form in (each, f"{each}.*")))


def _ways(expression: str) -> int:
    """Return an upper bound of the ways in which an expression can match the beginning of a name.

    Raises Unreadable where there are too many, or where it repeats a group or has other syntax without a bound.
    """
    total, ways = [0], [1]  # of each group that is open: of the alternatives before, and of this one
    before = ""
    for part in PART.findall(expression.removesuffix(".*")):  # at the end it is never gone back to
        if part in (")*", ")+", "){", "(?"):
            raise Unreadable(f"the regular expression {expression[:80]} repeats a group, or has a group of a rare kind")
        if part.startswith("("):
            total.append(0)
            ways.append(1)
        elif part == "|":
            total[-1] += ways[-1]
            ways[-1] = 1
        elif part == ")" and len(ways) > 1:
            of_group = max(total.pop() + ways.pop(), 2)  # an empty one takes time too
            ways[-1] *= of_group
        elif part == "?":
            ways[-1] *= 2
        elif part in ("*", "+", "{"):
            ways[-1] *= DIGIT_WAYS if before in DIGITS else NAME_WAYS
        before = part
    bound = sum(total) + sum(ways)
    if bound > MAX_WAYS:
        raise Unreadable(f"the regular expression {expression[:80]} can match in more than {MAX_WAYS:,} ways")
    return bound


def _compiled(expression: str) -> re.Pattern[str]:
    try:
        return re.compile(expression)
    except (re.error, OverflowError, RecursionError) as error:
        raise Unreadable(f"{expression[:80]} is no regular expression ({error})") from error
