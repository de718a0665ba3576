"""Changes of an infeasible spec as its user reads them, with what they cost where the numbers do not show it."""

import json
from typing import Any

from planner.problems.fix import Change, Fix
from planner.spec.check import ResolvedSpec

__all__ = ["fix_of"]

NO_REPLICAS = "(then no hot expert has a second replica)"


def fix_of(changes: tuple[Change, ...], spec: ResolvedSpec) -> Fix:
    """`nearest: prefill.ep_size 16, or cluster.nodes 22`, for changes of `spec`."""
    return Fix(f"nearest: {', or '.join(_in_words(each, spec) for each in changes)}", changes)


def _in_words(change: Change, spec: ResolvedSpec) -> str:
    """What to write, and in place of what."""
    words = " and ".join(f"{path} {_written(value)}" for path, value in change.items() if value is not None)
    gone = " and ".join(path for path, value in change.items() if value is None)
    told = f"{words} instead of {gone}" if gone else words
    return f"{told} {NO_REPLICAS}" if _loses_replicas(change, spec) else told


def _loses_replicas(change: Change, spec: ResolvedSpec) -> bool:
    """Whether a phase that has redundant experts gets none."""
    paths = {f"{phase}.redundant_experts": spec.phase(phase).redundant_experts for phase in spec.phases}
    return any(change.get(path) == 0 < now for path, now in paths.items())


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_written(inner)}' for key, inner in value.items())}}}"
    return value if isinstance(value, str) else json.dumps(value)
