"""Decisions of the planner: a value for a field that is `auto` or missing in the spec, and the reason for it."""

from dataclasses import dataclass
from typing import Any

from planner.facts.terms import Phase
from planner.spec.phase import PhaseSpec
from planner.spec.resolved import ResolvedSpec
from planner.spec.undecided import AUTO

AS_BEFORE = "as in the previous plan"
DEFAULT = "default"

BY_SPEED = ("units", "attention_tp", "max_batch_tokens")  # fields that memory alone cannot decide
FIELDS = ("ep_size", "attention_tp", "redundant_experts", "max_batch_tokens", "max_requests")

DEFAULT_REQUESTS: int = PhaseSpec.model_fields["max_requests"].default
MAX_REQUESTS = 4096  # assumed: with more, a decode step takes longer than any reader waits


@dataclass(frozen=True)
class Decision:
    """A value for a field that is `auto` or missing in the spec, and the reason for it."""

    path: str
    value: Any
    why: str


def searched_fields(phase: Phase) -> tuple[str, ...]:
    """Return the fields of a phase that a search for layouts decides if they are `auto`."""
    return tuple(each for each in ("units", *FIELDS) if (phase, each) != ("prefill", "max_requests"))


def needs_speed(spec: ResolvedSpec) -> bool:
    """Return whether predicted speed should decide some `auto` field of the spec."""
    slo = spec.written.slo
    fields = BY_SPEED if slo.ttft_ms is None and slo.tpot_ms is None else (*BY_SPEED, *FIELDS)
    return any(is_auto(spec.phase(phase), field) for phase in spec.phases for field in fields)


def is_auto(section: PhaseSpec, field: str) -> bool:
    """Return whether `field` of a phase's section is still `auto`."""
    return bool(getattr(section, field) == AUTO)
