r"""Match the lists of module names in a checkpoint's quantisation files with the modules of a model.

Each module is spelled in all the ways that a list may use: as in transformers and in the family's published checkpoint,
with the levels of multimodal models, and as the matrix that engines fuse it into. An entry covers a module if it
matches one spelling. Entries themselves are not translated, because a pattern such as `*attn*` also means
`linear_attn`.

The planner names modules as transformers does in DeepSeek-V3: `self_attn.q_a_proj`, in the layer `model.layers.3`.
Routed experts have one name, because no published file distinguishes them.

A file may come from anywhere, and Python's `re` backtracks: `(?:.|..)` repeated twenty times matches a name in a
million ways. So the number of ways is bounded before anything is matched. A repetition can match a name of 79
characters in 80 ways, and an alternation in the sum of its alternatives' ways. What follows is tried after each of
these, so ways multiply: `.*mlp\.(gate|up)_proj` is tried in 80 x 2 ways. Repeated groups and rare syntax are refused.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property

REGEX = "re:"
MAX_PATTERN_CHARACTERS = 512  # of one pattern; the longest published ones list layer numbers, in 250 characters
MAX_WAYS = 2**19  # in which one regular expression may match; published ones have up to 80^3
NAME_WAYS = 80  # in which a repetition can match: our longest name has 76 characters
DIGIT_WAYS = 4  # in which a repeated digit can match: layer numbers have up to three digits
LIST_WAYS = 1024  # assumed: looking up all parts of a name takes as long as trying 1,024 ways
PART = re.compile(r"\\.|\[\^?\]?(?:\\.|[^]\\])*\]|\((?:\?(?:[:=!]|<[=!])|(?!\?))|\)[*+{]|\(\?|.", re.DOTALL)
BACK_REFERENCE = re.compile(r"\\[1-9]")
ALL_BUT = re.compile(r"re:\^?\(\?!")  # an expression for all modules but the named ones: every spelling must match
LAYER = re.compile(r"layers\.(\d+)(?=\.|$)")
DIGITS = (r"\d", "[0-9]")
GLOB = re.compile(r"[*?\[]")
EXPERT = re.compile(r"(?<=\bexperts\.)(\d+|\*)\.")

# Part of a module's name here -> the same part in a family. Source: transformers 5.23.0 models/*/modeling_*.py, and the
# published weights
Words = Mapping[str, str]
TRANSFORMERS: Words = {}
QWEN: Words = {"shared_experts": "shared_expert"}
MIXTRAL: Words = {"mlp": "block_sparse_moe", "gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
DEEPSEEK: Words = {
    "model": "",
    "self_attn": "attn",
    "mlp": "ffn",
    "gate_proj": "w1",
    "down_proj": "w2",
    "up_proj": "w3",
    "q_proj": "wq",
    "q_a_proj": "wq_a",
    "q_b_proj": "wq_b",
    "kv_proj": "wkv",
    "kv_a_proj_with_mqa": "wkv_a",
    "o_proj": "wo",
    "o_a_proj": "wo_a",
    "o_b_proj": "wo_b",
}
INDEXER_OF_V4: Words = {"indexer": "compressor.indexer", "wq_b": "q_b_proj"}
SPELLINGS: Mapping[str, Sequence[Words]] = {
    "deepseek_v3": (TRANSFORMERS, DEEPSEEK),
    "deepseek_v32": (TRANSFORMERS, DEEPSEEK),
    "deepseek_v4": (INDEXER_OF_V4, DEEPSEEK),
    "minimax_m2": (TRANSFORMERS, MIXTRAL),
    "minimax_m3": (TRANSFORMERS, MIXTRAL),
    "minimax_m3_vl": (TRANSFORMERS, MIXTRAL),
    "minimax_m3_vl_text": (TRANSFORMERS, MIXTRAL),
    "mixtral": (TRANSFORMERS, MIXTRAL),
    "qwen2_moe": (QWEN,),
    "qwen3_next": (QWEN,),
    "qwen3_5_moe": (QWEN,),
    "qwen3_5_moe_text": (QWEN,),
}
# A module -> the fused module that an engine or a family has in its place
FUSED = {
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "q_a_proj": "fused_qkv_a_proj_with_mqa",
    "kv_a_proj_with_mqa": "fused_qkv_a_proj_with_mqa",
    "in_proj_qkv": "in_proj_qkvz",
    "in_proj_z": "in_proj_qkvz",
    "in_proj_b": "in_proj_ba",
    "in_proj_a": "in_proj_ba",
}
MEANS_FUSED = re.compile(r"gate_up|qkv(?!\w*conv)|_ba\b")  # words of entries that name a fused module


class Unreadable(ValueError):
    """Raised for a quantisation file with an unexpected value; the message says where."""


@dataclass(frozen=True)
class Spelling:
    """All names of one module, and of the fused matrix of which engines make it a part."""

    own: tuple[str, ...]
    fused: tuple[str, ...] = ()

    @cached_property
    def parts(self) -> frozenset[str]:
        """Return every run of whole dotted parts in the module's own names."""
        return frozenset(part for name in self.own for part in _dotted_runs(name))

    @cached_property
    def fused_parts(self) -> frozenset[str]:
        """Return every run of whole dotted parts in the fused matrix's names."""
        return frozenset(part for name in self.fused for part in _dotted_runs(name))


HEAD = Spelling(("lm_head", "language_model.lm_head", "head"))


def spell_module(module: str, places: Sequence[str], model_type: str) -> Spelling:
    """Return all names of `module` in a layer; `places` are the names that the layer may have."""
    names = [f"{place}.{module}" for place in places]
    stem, _, last = module.rpartition(".")
    fused = [f"{place}.{stem}.{FUSED[last]}" for place in places if last in FUSED]
    families = SPELLINGS.get(model_type, (TRANSFORMERS,))
    return Spelling(*(tuple(dict.fromkeys(_spell(each, families))) for each in (names, fused)))


def draft_names(num_layers: int) -> Sequence[str]:
    """Return the names under which checkpoints store the first MTP module: as layer `num_layers`, or apart."""
    return [f"model.layers.{num_layers}", "mtp.layers.0", "mtp.0", "model.mtp.layers.0"]


Globs = Mapping[str | None, re.Pattern[str]]  # layer number in the globs (None: globs for any layer) -> their pattern


class ModuleNames:
    """A list of names, globs and regular expressions. Raises Unreadable for a pattern that could match for ever.

    Patterns are compiled on first use. The time to compile grows with `num_characters`, and the time to match one name
    with `num_ways`; both are known before.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        self.entries = list(dict.fromkeys(entries))
        names = dict.fromkeys(
            each if each.startswith(REGEX) else _drop_expert_number(each.strip(".")) for each in self.entries
        )
        patterns = [each for each in names if each.startswith(REGEX) or GLOB.search(each)]
        for each in patterns:
            if len(each) > MAX_PATTERN_CHARACTERS:
                raise Unreadable(f"the pattern {each[:80]}... has more than {MAX_PATTERN_CHARACTERS} characters")
        self._plain = names.keys() - patterns
        self._expressions = [each for each in patterns if each.startswith(REGEX)]
        self._globs_of: dict[str | None, list[str]] = {}  # of one layer, or of any
        for each in patterns:
            if not each.startswith(REGEX):
                self._globs_of.setdefault(_layer_number(each), []).append(each)
        self.num_characters = sum(map(len, patterns))
        ways = (_count_ways(each.removeprefix(REGEX)) for each in self._expressions)
        self.num_ways = LIST_WAYS + sum(ways) + self._ways_of_globs()

    def _ways_of_globs(self) -> int:
        """Return an upper bound on the number of ways in which all globs together can match a name."""
        ways = {
            layer: NAME_WAYS * sum(1 + each.count("*") for each in globs) for layer, globs in self._globs_of.items()
        }
        return ways.pop(None, 0) + max(ways.values(), default=0)

    @cached_property
    def _regexes(self) -> Mapping[str, re.Pattern[str]]:
        return {each: _compiled(each.removeprefix(REGEX)) for each in self._expressions}

    @cached_property
    def _own(self) -> Sequence[re.Pattern[str]]:
        return [regex for each, regex in self._regexes.items() if not ALL_BUT.match(each)]

    @cached_property
    def _all_but(self) -> Sequence[re.Pattern[str]]:
        return [regex for each, regex in self._regexes.items() if ALL_BUT.match(each)]

    @cached_property
    def _fused_regexes(self) -> Sequence[re.Pattern[str]]:
        return [regex for each, regex in self._regexes.items() if MEANS_FUSED.search(each)]

    @cached_property
    def _globs(self) -> Globs:
        return {layer: _compile_globs(each) for layer, each in self._globs_of.items()}

    @cached_property
    def _globs_of_fused(self) -> Globs:
        fused = {layer: list(filter(MEANS_FUSED.search, each)) for layer, each in self._globs_of.items()}
        return {layer: _compile_globs(each) for layer, each in fused.items() if each}

    def cover(self, module: Spelling) -> bool:
        """Return whether the list names `module` or a parent of it.

        Raises Unreadable if the list has an invalid expression.
        """
        if self._plain and not (self._plain.isdisjoint(module.parts) and self._plain.isdisjoint(module.fused_parts)):
            return True
        if _match(self._globs, self._own, module.own):
            return True
        if _match(self._globs_of_fused, self._fused_regexes, module.fused):
            return True
        return any(all(map(regex.match, module.own)) for regex in self._all_but)


def _spell(names: Iterable[str], families: Sequence[Words]) -> Iterator[str]:
    """Yield `names` as each family spells them, with and without experts' numbers, under each multimodal prefix."""
    for name in names:
        for words in families:
            said = ".".join(filter(None, (words.get(each, each) for each in name.split("."))))
            for each in (said, _drop_expert_number(said)):
                below = each.removeprefix("model.")
                yield from (each, f"language_model.{each}", f"language_model.{below}")
                yield from (f"model.{below}", f"model.language_model.{below}")


def _drop_expert_number(name: str) -> str:
    """Return the name of an expert's module without the expert's number; other names stay as they are."""
    return EXPERT.sub("", name)


def _match(globs: Globs, regexes: Sequence[re.Pattern[str]], names: Sequence[str]) -> bool:
    """Return whether any of the globs and regular expressions matches any of `names`."""
    of_names = ((globs[each], name) for name in names for each in (_layer_number(name), None) if each in globs)
    return any(glob.match(name) for glob, name in of_names) or any(
        regex.match(name) for regex in regexes for name in names
    )


def _layer_number(name: str) -> str | None:
    """Return the number of the layer in a name, or None."""
    found = LAYER.search(name)
    return found[1] if found else None


def _dotted_runs(name: str) -> Iterator[str]:
    """Yield every run of whole parts: `mlp.gate` is one of `layers.3.mlp.gate`, not of `layers.3.mlp.gate_proj`."""
    words = name.split(".")
    for first in range(len(words)):
        for last in range(first + 1, len(words) + 1):
            yield ".".join(words[first:last])


def _compile_globs(globs: Sequence[str]) -> re.Pattern[str]:
    """Return one pattern for the module names that any of `globs` matches, and for the names of submodules."""
    return re.compile("|".join(translate(form) for each in globs for form in (each, f"{each}.*")))


def _count_ways(expression: str) -> int:
    """Return an upper bound on the number of ways in which an expression can match the beginning of a name.

    Raises Unreadable if there are too many, or for repeated groups and other unbounded syntax.
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
        elif BACK_REFERENCE.fullmatch(part):
            ways[-1] *= NAME_WAYS  # to compare what a group has matched takes as long as to repeat it
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
