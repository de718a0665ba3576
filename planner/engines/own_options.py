"""The options that a spec chooses for an engine's servers: kernels for core attention in FP8, and any others by name.

The others come after the plan's own options. None may be one that the plan decides: `rules/engine.py` refuses those.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from planner.facts.core_attention import fp8_kernels
from planner.facts.terms import Phase
from planner.spec.schema import Spec

Option = tuple[str, ...]  # an option's name and values


def attention_options(spec: Spec, phase: Phase) -> Iterator[Option]:
    """Yield the options for core attention in FP8 if the spec asks for FP8; otherwise the engine chooses kernels."""
    if spec.phase(phase).attention_precision == "fp8":
        yield from (each.option for each in fp8_kernels(spec.engine_name, phase, spec.gpu_name(phase)).values())


def own_options(args: Mapping[str, Any]) -> Iterator[Option]:
    """Yield an option for each of `args`, sorted by name: `true` as a flag, lists as words, mappings as JSON."""
    for name, value in sorted(args.items()):
        yield (f"--{name}", *_words(value))


def _words(value: Any) -> Iterator[str]:
    if value is True:
        return
    for each in value if isinstance(value, list) else [value]:
        yield json.dumps(each, sort_keys=True) if isinstance(each, dict) else str(each)
