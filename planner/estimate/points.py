"""Determine the operating point of each phase (the load at which speed is predicted)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.estimate.throughput.point import OperatingPoint
from planner.facts.quantities import read_link
from planner.facts.terms import Phase
from planner.spec.operating_point import ACCEPTANCE, CACHE_READ_RATE
from planner.spec.phase import PhaseSpec
from planner.spec.request_lengths import request_lengths
from planner.spec.resolved import ResolvedSpec
from planner.spec.undecided import AUTO


def operating_point(spec: ResolvedSpec, phase: Phase, kv_room: int | None) -> OperatingPoint:
    """Return the operating point that the spec writes for a phase, else one derived from the phase's limits.

    A step of prefill has no more tokens than `max_requests` prompts. `kv_room` is the number of tokens of KV that a GPU
    holds, or None if unknown.
    """
    point = _point_within_limits(spec, phase, kv_room)
    if phase != "prefill":
        return point
    tokens = max(round(spec.phase(phase).max_requests * point.computed_tokens), 1)
    return replace(point, step_tokens=min(point.step_tokens, tokens))


def _point_within_limits(spec: ResolvedSpec, phase: Phase, kv_room: int | None) -> OperatingPoint:
    written = getattr(spec.written.operating_point, phase)
    section, inherited = spec.phase(phase), _inherited_fields(spec, phase)
    if written is not None:
        numbers = inherited | {key: value for key, value in written if value is not None}
        return _written_point(section, numbers | _output_tokens(spec, phase, numbers), kv_room)
    lengths = request_lengths(spec.written, phase)
    requests, kv_tokens = section.max_requests, lengths.kv_within(kv_room, section.max_requests)
    if kv_room is not None and not lengths.are_assumed:
        requests = min(requests, max(kv_room // kv_tokens, 1))
    points = {
        "decode": OperatingPoint(requests=requests, kv_tokens=kv_tokens, is_derived=True),
        "prefill": OperatingPoint(step_tokens=section.max_batch_tokens, prompt_tokens=lengths.prompt, is_derived=True),
        "mixed": OperatingPoint(
            requests=requests,
            kv_tokens=kv_tokens,
            step_tokens=section.max_batch_tokens,
            prompt_tokens=lengths.prompt,
            output_tokens=lengths.output,
            is_derived=True,
        ),
    }
    return replace(points[phase], **inherited)


def _inherited_fields(spec: ResolvedSpec, phase: Phase) -> dict[str, Any]:
    """Return field -> value of the operating point's fields that the spec sets elsewhere, for drafts and caches."""
    drafts, traffic = spec.written.draft_tokens, spec.written.traffic
    accepted = spec.written.operating_point.acceptance_rate
    if accepted is None:
        accepted = ACCEPTANCE
    found: dict[str, Any] = {"draft_tokens": drafts, "acceptance_rate": accepted if drafts else 0.0}
    if phase == "decode":
        return found
    hits, disk = traffic.cache_hit_rate if traffic else 0.0, spec.written.kv_cache.disk
    read_gbps = read_link(CACHE_READ_RATE) if disk is None or disk.bandwidth is None else disk.bandwidth
    return found | {"cache_hit_rate": hits, "cache_read_gbps": read_gbps}


def _output_tokens(spec: ResolvedSpec, phase: Phase, numbers: Mapping[str, Any]) -> dict[str, float]:
    """Return {`output_tokens`: its value} for mixed units; empty for other phases.

    The value follows from the traffic's ratio or, without traffic, is twice the mean KV beyond the prompt.
    """
    traffic, prompt = spec.written.traffic, numbers.get("prompt_tokens")
    if phase != "mixed" or prompt is None:
        return {}
    if traffic is None:
        return {"output_tokens": 2 * (numbers["kv_tokens"] - prompt)}
    return {"output_tokens": prompt * traffic.output_tokens / traffic.input_tokens}


def _written_point(section: PhaseSpec, numbers: dict[str, Any], kv_room: int | None) -> OperatingPoint:
    """Return the operating point from the spec's `numbers`, with each `auto` set to what limits and memory allow.

    The function changes `numbers`.
    """
    if numbers.get("step_tokens", AUTO) == AUTO:
        numbers["step_tokens"] = section.max_batch_tokens
    if "cache_read_rate" in numbers:
        numbers["cache_read_gbps"] = numbers.pop("cache_read_rate")
    if numbers.get("requests") == AUTO:
        room = section.max_requests if kv_room is None else kv_room // numbers["kv_tokens"]
        numbers["requests"] = max(min(section.max_requests, room), 1)
    return OperatingPoint(**numbers)
