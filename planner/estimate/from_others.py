"""Warnings about what other people made: code and KV of a checkpoint, and images that another engine's pods start from.

Another engine runs the code that a checkpoint's `auto_map` names (`--trust-remote-code`): without it, it takes another
tokenizer and says nothing. A plan pins config.json and tensors by their digests, and no program beside them. An image's
engine and version are read from its name (`facts/engines.py` has how they are named).
"""

import re
from collections.abc import Iterator

from planner.facts.engines import ENGINES, OURS
from planner.facts.terms import EngineName
from planner.problems.finding import Finding
from planner.problems.fix import Change, Fix
from planner.spec.check import ResolvedSpec
from planner.spec.kubernetes import DEFAULT_IMAGE
from planner.spec.precision import kv_dtype
from planner.spec.schema import Spec

__all__ = ["from_others", "image_of_another"]

IMAGE_WORDS: dict[EngineName, str] = {"vllm": "vllm", "sglang": "sglang", "tidemill": "tidemill-runtime"}


def from_others(spec: ResolvedSpec) -> Iterator[Finding]:
    """Yield what a deployment on another engine would run unseen."""
    if spec.written.engine_name == OURS:
        return
    yield from _code_of_the_checkpoint(spec)
    yield from _kv_of_the_checkpoint(spec)


def image_of_another(spec: Spec) -> Iterator[Finding]:
    """Yield an image that is called after another engine, or another version, than is to run in it."""
    image, engine = spec.kubernetes.image, spec.engine_name
    if image == DEFAULT_IMAGE:
        return  # an engine that is not ours then has its own
    name = image.rpartition("@")[0] or image
    called = [each for each, word in IMAGE_WORDS.items() if word in name.casefold()]
    if called and engine not in called:
        rule = f"W107 has the name of an image of {called[0]}, and engine is {engine}"
        reason = f"pods start with the command of {engine}"
        fix = f"name an image of {engine}, or write engine: {called[0]}"
        yield Finding("kubernetes.image", image, rule, reason, fix)
    elif (tagged := _tagged_version(image, ENGINES[engine].image)) not in (None, spec.engine_version):
        rule = f"W107 is tagged as {engine} {tagged}, and the plan is for {spec.engine_version}"
        reason = f"a flag of {spec.engine_version} that it lacks ends its pods as they start, again and again"
        yield Finding("kubernetes.image", image, rule, reason, f"name an image of {engine} {spec.engine_version}")


def _code_of_the_checkpoint(spec: ResolvedSpec) -> Iterator[Finding]:
    if spec.model.brings_code:
        rule = f"W160 brings code that {spec.written.engine_name} is told to run (--trust-remote-code)"
        reason = "its tokenizer or model is a program, which no digest of the plan covers"
        fix = "read the checkpoint's .py files, and keep it where only you can write"
        yield Finding("model.checkpoint", spec.written.checkpoint, rule, reason, fix)


def _kv_of_the_checkpoint(spec: ResolvedSpec) -> Iterator[Finding]:
    """Yield KV in BF16, unwritten, of a checkpoint whose makers say FP8, as the engine would keep it by itself."""
    own = spec.model.quantisation
    if own.kv != "fp8":
        return
    change: Change = {f"{phase}.kv_precision": "fp8" for phase in spec.phases}
    for phase in spec.phases:
        section = spec.phase(phase)
        if section.kv_precision is None and kv_dtype(section.precision) != own.kv:
            rule = f"W113 is not given, and the checkpoint's {own.said_in} says FP8 for KV"
            reason = "KV is planned in BF16, and the engine told so: it takes twice the memory"
            fix = Fix("write kv_precision: fp8 in all phases, or bf16 to keep it", (change,))
            yield Finding(f"{phase}.kv_precision", None, rule, reason, fix)


def _tagged_version(image: str, published: str | None) -> str | None:
    """Return the version with which a tag begins, as `published` tags them; None for an image of another name."""
    own = (published or "").partition(":")[0].rpartition("/")[2]
    name, _, tag = image.partition("@")[0].rpartition("/")[2].partition(":")
    found = re.match(r"v?(\d+\.\d+\.\d+)", tag)
    return found[1] if name == own and found else None
