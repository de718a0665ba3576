"""Names of models as others write them: `deepseek-ai/DeepSeek-R1` on a hub is `deepseek-r1` in the catalog.

A fix only mends a spelling. Another version, or another size, is another model.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Literal

from planner.facts.terms import Precision
from planner.families import ALIKE, ALIKE_IN, MODELS
from planner.problems.fix import close_to

__all__ = ["Copy", "beginning_with", "catalog_name", "copy_of", "is_hub_name", "is_path", "named_on_hub"]

PATH = re.compile(r"\.{0,2}/|.*\.json$")  # how a path begins or ends, and no name of a model
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")  # of an owner and a model
VERSION = re.compile(r"[a-z]*[0-9][a-z0-9.]*")  # r1, v3.2, qwen3, 235b, a22b
OF_A_DATE = re.compile(r"[0-9]{4,}")  # a checkpoint's, such as R1-0528: the shapes are those of the name before it
SAME_SHAPES = ("instruct", "chat", "base", "thinking", "hf", "exp")  # of another training, or of a file

# What a quantised copy is called by -> its precision here.
PRECISIONS: Mapping[str, Precision] = {
    "fp8": "fp8",
    "fp4": "fp4",
    "nvfp4": "fp4",
    "mxfp4": "mxfp4",
    "bf16": "bf16",
    "w4afp8": "w4a8",
    "w4a8": "w4a8",
}
OTHER_FORMATS = re.compile(r"gguf|awq|gptq|bnb|mlx|exl[23]|int[48]|[348]bit|w[48]a(8|16)|quantized\S*|q[2-8](\.\w+)?")
INT4 = re.compile(r"awq|gptq|int4|4bit|w4a16")


@dataclass(frozen=True)
class Copy:
    """A checkpoint of a model of the catalog, by its name on a hub."""

    model: str
    precision: Precision | Literal[""] | None  # "" where no precision says its format, None where none is named
    form: str  # as its name calls it, empty where it names none

    @property
    def is_int4(self) -> bool:
        """Return whether its name says weights in INT4 that are not known to be as w4a16 has them."""
        return self.precision == "" and INT4.search(self.form) is not None


def is_path(written: str) -> bool:
    """Return whether `written` begins or ends as paths do."""
    return PATH.match(written) is not None


def catalog_name(written: str) -> str | None:
    """Return the model of the catalog that `written` spells otherwise; None where it is in another size or format."""
    copy = copy_of(written)
    return copy.model if copy and copy.precision != "" else None


def copy_of(written: str) -> Copy | None:
    """Return what `written` says: a model of the catalog, and what its weights are in. None for any other model."""
    if is_path(written):
        return None
    words, forms = _words_and_forms(written)
    whole, short = "-".join(words), _short(words)
    precision: Precision | Literal[""] | None = PRECISIONS.get(forms[-1], "") if forms else ALIKE_IN.get(whole)
    meant = ALIKE.get(whole) or ALIKE.get(short) or _spelled(short)
    return Copy(meant, precision, "-".join(forms).removeprefix("quantized.")) if meant else None


def beginning_with(written: str) -> list[str]:
    """Return the models of the catalog whose names are `written` and more: both sizes of `gpt-oss`."""
    words, _ = _words_and_forms(written)
    return [each for each in MODELS if words and each.startswith(f"{_short(words)}-")]


def _words_and_forms(written: str) -> tuple[list[str], list[str]]:
    """Return the words of a name without a date, and those that say what its weights are in."""
    name = re.sub(r"[_ ]", "-", written.rpartition("/")[2].casefold())
    words = [each for each in name.split("-") if not OF_A_DATE.fullmatch(each)]
    forms = [each for each in words if each in PRECISIONS or OTHER_FORMATS.fullmatch(each)]
    return [each for each in words if each not in forms], forms


def _short(words: Sequence[str]) -> str:
    return "-".join(each for each in words if each not in SAME_SHAPES)


def _spelled(name: str) -> str | None:
    """Return the model that `name` spells: the same numbers, and no word more or less."""
    meant = close_to(name, list(MODELS), cutoff=0.8)
    is_same = (
        meant and VERSION.findall(meant) == VERSION.findall(name) and _are_alike(meant.split("-"), name.split("-"))
    )
    joined = {each.replace("-", ""): each for each in MODELS}
    return meant if is_same else joined.get(name.replace("-", ""))


def _are_alike(words: Sequence[str], written: Sequence[str]) -> bool:
    """Return whether each of `written` is at most a misspelling of its word: `pro` is none of `flash`."""
    pairs = zip(words, written, strict=False)
    return len(words) == len(written) and all(SequenceMatcher(None, *pair).ratio() >= 0.7 for pair in pairs)


def is_hub_name(written: Any) -> bool:
    """Return whether `written` is an owner and a model, as `mistralai/Mixtral-8x7B-v0.1`."""
    return isinstance(written, str) and not is_path(written) and HUB_NAME.fullmatch(written) is not None


def named_on_hub(written: Any) -> str | None:
    """Return the model of the catalog that a hub's name such as `deepseek-ai/DeepSeek-R1` says, or None."""
    return catalog_name(written) if is_hub_name(written) else None
