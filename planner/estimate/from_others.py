"""Warnings about what other people made and nobody here has looked at: code of a checkpoint.

Another engine runs the code that a checkpoint's `auto_map` names (`--trust-remote-code`): without it, it takes another
tokenizer and says nothing. A plan pins config.json and tensors by their digests, and no program beside them.
"""

from collections.abc import Iterator

from planner.facts.engines import OURS
from planner.problems.errors import Violation
from planner.spec.check import ResolvedSpec

__all__ = ["from_others"]


def from_others(spec: ResolvedSpec) -> Iterator[Violation]:
    """Yield what a deployment on another engine would run unseen."""
    if spec.written.engine_name == OURS:
        return
    yield from _code_of_the_checkpoint(spec)


def _code_of_the_checkpoint(spec: ResolvedSpec) -> Iterator[Violation]:
    if spec.model.brings_code:
        rule = f"W160 brings code that {spec.written.engine_name} is told to run (--trust-remote-code)"
        reason = "its tokenizer or model is a program, which no digest of the plan covers"
        fix = "read the checkpoint's .py files, and keep it where only you can write"
        yield Violation("model.checkpoint", spec.written.checkpoint, rule, reason, fix)
