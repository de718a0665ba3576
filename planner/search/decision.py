"""What a spec leaves to the planner, and what the planner makes of it: a value that stands in the plan, and why."""

from dataclasses import dataclass
from typing import Any

from planner.spec.phase import PhaseSpec
from planner.spec.resolved import ResolvedSpec
from planner.spec.undecided import AUTO

__all__ = ["DEFAULT", "FIELDS", "MAX_REQUESTS", "Decision", "is_auto", "wants_speed"]

DEFAULT = "default"

BY_SPEED = ("units", "attention_tp", "max_batch_tokens")  # what memory alone cannot decide
FIELDS = ("ep_size", "attention_tp", "redundant_experts", "max_batch_tokens", "max_requests")

MAX_REQUESTS = 4096  # assumed: beyond it a step of decode is longer than any reader waits


@dataclass(frozen=True)
class Decision:
    """A value that the spec does not say, and why it is this one."""

    path: str
    value: Any
    why: str


def wants_speed(spec: ResolvedSpec) -> bool:
    """Return whether something is left to the planner that speed should decide."""
    slo = spec.written.slo
    fields = BY_SPEED if slo.ttft_ms is None and slo.tpot_ms is None else (*BY_SPEED, *FIELDS)
    return any(is_auto(spec.phase(phase), field) for phase in spec.phases for field in fields)


def is_auto(section: PhaseSpec, field: str) -> bool:
    """Return whether the field is left to the planner."""
    return bool(getattr(section, field) == AUTO)
