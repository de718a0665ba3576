"""What a spec leaves to the planner, and whether speed should decide it.

It stands apart from the search by speed, so that only a search waits for the search's imports.
"""

from collections.abc import Callable

from planner.facts.terms import Phase
from planner.layout.layout import PhaseLayout
from planner.spec.check import ResolvedSpec
from planner.spec.phase import PhaseSpec
from planner.spec.undecided import AUTO

__all__ = ["FIELDS", "MAX_REQUESTS", "LayoutOf", "is_auto", "wants_speed"]

BY_SPEED = ("units", "attention_tp", "max_batch_tokens")  # what memory alone cannot decide
FIELDS = ("ep_size", "attention_tp", "redundant_experts", "max_batch_tokens", "max_requests")

MAX_REQUESTS = 4096  # assumed: beyond it a step of decode is longer than any reader waits

LayoutOf = Callable[[ResolvedSpec, Phase], PhaseLayout]


def wants_speed(spec: ResolvedSpec) -> bool:
    """Return whether something is left to the planner that speed should decide."""
    slo = spec.written.slo
    fields = BY_SPEED if slo.ttft_ms is None and slo.tpot_ms is None else (*BY_SPEED, *FIELDS)
    return any(is_auto(spec.phase(phase), field) for phase in spec.phases for field in fields)


def is_auto(section: PhaseSpec, field: str) -> bool:
    """Return whether the field is left to the planner."""
    return bool(getattr(section, field) == AUTO)
