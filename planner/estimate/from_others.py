"""Warnings about what other people made and nobody here has looked at: code of a checkpoint, and images by a guess.

Another engine runs the code that a checkpoint's `auto_map` names (`--trust-remote-code`): without it, it takes another
tokenizer and says nothing. A plan pins config.json and tensors by their digests, and no program beside them.

Images are guessed from how earlier versions were named (`facts/engines.py`).
"""

from collections.abc import Iterator

from planner.facts.engines import ENGINES, OURS
from planner.problems.errors import Violation
from planner.spec.check import ResolvedSpec
from planner.spec.kubernetes import DEFAULT_IMAGE

__all__ = ["from_others"]


def from_others(spec: ResolvedSpec) -> Iterator[Violation]:
    """Yield what a deployment on another engine would run unseen."""
    if spec.written.engine_name == OURS:
        return
    yield from _code_of_the_checkpoint(spec)
    yield from _guessed_images(spec)


def _code_of_the_checkpoint(spec: ResolvedSpec) -> Iterator[Violation]:
    if spec.model.brings_code:
        rule = f"W160 brings code that {spec.written.engine_name} is told to run (--trust-remote-code)"
        reason = "its tokenizer or model is a program, which no digest of the plan covers"
        fix = "read the checkpoint's .py files, and keep it where only you can write"
        yield Violation("model.checkpoint", spec.written.checkpoint, rule, reason, fix)


def _guessed_images(spec: ResolvedSpec) -> Iterator[Violation]:
    kubernetes, engine = spec.written.kubernetes, ENGINES[spec.written.engine_name]
    fix = "write the name of an image that you have seen, best with its digest"
    reason = "that name follows others of its makers', and nobody here has seen the image"
    if kubernetes.image == DEFAULT_IMAGE and engine.image is not None:
        rule = f"W161 is not given, so pods run {engine.image.format(version=spec.written.engine_version)}"
        yield Violation("kubernetes.image", None, rule, reason, fix)
    if kubernetes.gateway.image is None and engine.router_image is not None:
        rule = f"W161 is not given, so the router runs {engine.router_image}"
        yield Violation("kubernetes.gateway.image", None, rule, reason, fix)
