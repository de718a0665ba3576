"""Sections of a plan that no pass's result is by itself: figures in the units and under the keys of the file."""

from statistics import fmean
from typing import Any

from planner.estimate.performance import PhaseOutlook
from planner.estimate.throughput.predict import Prediction
from planner.expert_map import ExpertMap
from planner.facts.quantities import MS_PER_S, US_PER_S
from planner.plan.expected import OneMoreSlot
from planner.spec.operating_point import SloSpec

__all__ = ["one_more_slot", "performance"]

POINTS = {
    "prefill": ("step_tokens", "prompt_tokens", "cache_hit_rate", "cache_read_gbps", "utilisation"),
    "decode": ("requests", "kv_tokens"),
    "mixed": ("requests", "kv_tokens", "step_tokens", "prompt_tokens", "output_tokens"),
}


def one_more_slot(with_one_more: ExpertMap | None, slots_per_gpu: int, bytes_per_gpu: int | None) -> OneMoreSlot | None:
    """Return what the map has that has a slot more than `slots_per_gpu` on each GPU; None where there is none.

    `bytes_per_gpu`: what that slot takes over all layers, None where nobody knows.
    """
    if with_one_more is None:
        return None
    return OneMoreSlot(
        slots_per_gpu=slots_per_gpu + 1,
        bytes_per_gpu=bytes_per_gpu,
        mean_max_over_mean=fmean(with_one_more.max_over_mean),
        mean_bound=fmean(with_one_more.bound),
    )


def performance(outlook: PhaseOutlook, slo: SloSpec) -> dict[str, Any]:
    """Return a phase's `performance`: its figures, or why there are none."""
    if outlook.prediction is None:
        return {"not_predicted": outlook.why_not}
    found = outlook.prediction
    rate, usual, point = found.tokens_per_s_per_gpu, found.step.usual, found.point
    hits = found.tokens_per_s_with_hits
    return _latencies(found) | {
        "engine": found.engine,
        "operating_point": {field: getattr(point, field) for field in POINTS[found.phase]}
        | {"derived": point.is_derived},
        "tokens_per_s_per_gpu": rate,
        "tokens_per_s_per_node": rate.times(outlook.gpus_per_node),
        "tokens_per_s_per_unit": rate.times(found.num_gpus),
        "tokens_per_s_per_node_with_hits": hits and hits.times(outlook.gpus_per_node),
        "step_ms": found.step.seconds * MS_PER_S,
        "kv_tokens_in_use": outlook.kv_tokens_in_use,
        "imbalance": found.imbalance.gpus,
        "binding": found.binding.resource,
        "with_10_percent_more": found.binding.tokens_per_s_per_gpu,
        "stages_us": {name: seconds * US_PER_S for name, seconds in (usual.spans[0] if usual else {}).items()},
        "exposed_us": usual.timeline.exposed * US_PER_S if usual else 0.0,
        "evidence": found.evidence,
        "cache_reads": _cache_reads(found),
        "drafts": _drafts(found),
        "calibration": outlook.correction,
        "slo": _promises(found, slo) or None,
    }


def _latencies(found: Prediction) -> dict[str, Any]:
    """Return TPOT of phases that produce tokens, TTFT of those that compute prompts; `latency_ms` is the first."""
    named = {
        "tpot_ms": found.tpot_seconds,
        "tpot_p99_ms": found.tpot_99_seconds,
        "ttft_ms": found.ttft_seconds,
        "ttft_p99_ms": found.ttft_99_seconds,
    }
    known = {name: each.times(MS_PER_S) for name, each in named.items() if each is not None}
    return known | {
        "latency_ms": next(iter(known.values())),
        "tokens_per_s_per_user": found.tpot_seconds and found.tpot_seconds.inverse(1.0),
        "kv_transfer_ms": None if found.kv_transfer_seconds is None else found.kv_transfer_seconds * MS_PER_S,
        "queued_steps": None if found.waits_without_end or found.ttft_seconds is None else found.point.queued_steps,
    }


def _cache_reads(found: Prediction) -> dict[str, Any] | None:
    if not found.cache_read_bytes_per_s:
        return None
    return {
        "bytes_per_s_per_node": found.cache_read_bytes_per_s,
        "ms_per_prompt": found.cache_read_seconds * MS_PER_S,
    }


def _drafts(found: Prediction) -> dict[str, Any] | None:
    """Return what an MTP module takes of a step and, where it drafts, what it brings."""
    point = found.point
    if not point.draft_tokens:
        return None
    takes = {"draft_tokens": point.draft_tokens, "ms": found.step.drafts * MS_PER_S}
    brings = {"acceptance_rate": point.acceptance_rate, "tokens_per_step_and_request": point.accepted_tokens}
    return takes if found.phase == "prefill" else takes | brings


def _promises(found: Prediction, slo: SloSpec) -> dict[str, Any]:
    """Return each promise that the phase has a part in, and at which speeds its mean is kept."""
    parts = {"ttft_ms": found.ttft_seconds, "tpot_ms": found.tpot_seconds}
    return {
        name: {
            "promised": promised,
            "predicted": each.mid * MS_PER_S,
            "met": found.keeps(each, promised),
            "met_at_slowest": found.keeps_at(each, each.high, promised),
            "met_at_fastest": found.keeps_at(each, each.low, promised),
        }
        for name, each in parts.items()
        if (promised := getattr(slo, name)) is not None and each is not None
    }
