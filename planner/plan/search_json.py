"""What a search for layouts found, in the plan's JSON."""

from typing import Any

from planner.search.candidates import Candidate
from planner.search.layouts import LayoutSearch, PhaseSearch

__all__ = ["search_json"]


def search_json(search: LayoutSearch) -> dict[str, Any]:
    """Return the plan's `search`."""
    return {
        "units": dict(search.fleet.units),
        "nodes": search.fleet.nodes,
        "usable_nodes": search.room,
        "output_tokens_per_s": search.fleet.served_per_s,
        "tokens_per_output_token": dict(search.tokens),
        "phases": {each.phase: _phase_json(each) for each in search.phases},
    }


def _phase_json(search: PhaseSearch) -> dict[str, Any]:
    latency = "ttft_ms" if search.phase == "prefill" else "tpot_ms"
    return {
        "tried": search.tried,
        "candidates": [
            _candidate_json(each.candidate) | {"chosen": each.why_not is None, "why_not": each.why_not}
            for each in search.ranked
        ],
        "lost": {
            why: {"layouts": number, "for_example": dict(each.numbers), "detail": each.detail}
            for why, (number, each) in search.lost.items()
        },
        "front": [
            {**each.numbers, "tokens_per_s_per_gpu": each.tokens_per_s_per_gpu, latency: each.latency_ms}
            for each in search.front
        ],
    }


def _candidate_json(candidate: Candidate) -> dict[str, Any]:
    speed = candidate.speed
    return {
        **candidate.numbers,
        "nodes_per_unit": candidate.nodes,
        "tokens_per_s_per_gpu": speed.tokens_per_s_per_gpu,
        "tokens_per_s_per_node": candidate.tokens_per_s_per_node,
        "tpot_ms": speed.tpot_ms,
        "ttft_ms": speed.ttft_ms,
        "max_over_mean": speed.max_over_mean,
    }
