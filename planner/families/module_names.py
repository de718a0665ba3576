"""Lists of modules in quantisation files, and the names that they are held against.

A module is called as transformers calls it in DeepSeek-V3: `model.layers.3.self_attn.q_a_proj`. Families call theirs
otherwise, engines fuse some, multimodal models have one level more, and published DeepSeek-V4 has its own names. Names
and lists are brought to the same words before they are compared, so that neither has to be known in every spelling.
Routed experts have one name: no published file tells them apart.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import translate

__all__ = ["ModuleNames", "Unreadable", "draft_names", "module_name"]

REGEX = "re:"
# A regular expression that repeats more, or repeats a group, takes for ever on some names. Published ones have 2.
MAX_REPETITIONS = 4
MAX_PATTERNS = 4_000  # which compile in a second; published files have up to 240
REPETITION = re.compile(r"[*+{]|(?<!\()\?")
REPEATED_GROUP = re.compile(r"\)[*+{]")
LAYER = re.compile(r"layers\.(\d+)(?=\.|$)")
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
    """A list of names, globs and regular expressions. Raises Unreadable for what cannot be used, or is without end."""

    def __init__(self, entries: Iterable[str]) -> None:
        names = dict.fromkeys(each for entry in entries for each in _spelled(entry))
        patterns = [each for each in names if each.startswith(REGEX) or GLOB.search(each)]
        if len(patterns) > MAX_PATTERNS:
            raise Unreadable(f"it lists {len(patterns)} patterns, and at most {MAX_PATTERNS} are read")
        self._plain = names.keys() - patterns
        self._regexes = [_compiled(each.removeprefix(REGEX)) for each in patterns if each.startswith(REGEX)]
        globs: dict[str | None, list[str]] = {}  # of one layer, or of any
        for each in patterns:
            if not each.startswith(REGEX):
                globs.setdefault(_layer(each), []).append(each)
        self._globs = {layer: _any_of(each) for layer, each in globs.items()}

    def cover(self, name: str) -> bool:
        """Return whether the module called `name` is in the list, by itself or with all that it belongs to."""
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


def _compiled(expression: str) -> re.Pattern[str]:
    """Return an expression that surely ends; see `MAX_REPETITIONS`."""
    if len(REPETITION.findall(expression)) > MAX_REPETITIONS or REPEATED_GROUP.search(expression):
        raise Unreadable(f"the regular expression {expression[:80]} repeats too much")
    try:
        return re.compile(expression)
    except (re.error, OverflowError, RecursionError) as error:
        raise Unreadable(f"{expression[:80]} is no regular expression ({error})") from error
