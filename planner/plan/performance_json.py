"""What phases do, as JSON: rates, latencies, what binds, and what the figures rest on."""

from dataclasses import asdict
from typing import Any

from planner.cost.demand import PhaseLoad
from planner.estimate.performance import PhaseOutlook
from planner.estimate.throughput.intervals import Estimate
from planner.estimate.throughput.predict import Prediction
from planner.facts.seconds import MS_PER_S, US_PER_S
from planner.spec.operating_point import SloSpec

__all__ = ["demand_json", "performance_json"]

POINTS = {
    "prefill": ("step_tokens", "prompt_tokens", "cache_hit_rate", "cache_read_gbps", "utilisation"),
    "decode": ("requests", "kv_tokens"),
    "mixed": ("requests", "kv_tokens", "step_tokens", "prompt_tokens", "output_tokens"),
}
DIGITS = 5  # figures are estimates


def performance_json(outlook: PhaseOutlook, slo: SloSpec) -> dict[str, Any]:
    """Return a phase's figures, or why there are none."""
    if outlook.prediction is None:
        return {"not_predicted": outlook.why_not}
    found = outlook.prediction
    rate, usual = found.tokens_per_s_per_gpu, found.step.usual
    document = {
        "engine": found.engine,
        "operating_point": _point(found),
        "tokens_per_s_per_gpu": _estimate(rate),
        "tokens_per_s_per_node": _estimate(rate.times(outlook.gpus_per_node)),
        "tokens_per_s_per_unit": _estimate(rate.times(found.num_gpus)),
        **_latencies(found),
        "step_ms": _round(found.step.seconds * MS_PER_S),
        "kv_tokens_in_use": outlook.kv_tokens_in_use,
        "imbalance": _round(found.imbalance.gpus),
        "binding": found.binding.resource,
        "with_10_percent_more": _round(found.binding.tokens_per_s_per_gpu),
        "stages_us": {name: _round(seconds * US_PER_S) for name, seconds in (usual.spans[0] if usual else {}).items()},
        "exposed_us": _round(usual.timeline.exposed * US_PER_S) if usual else 0.0,
        "evidence": {
            "family": found.evidence.family,
            "why": found.evidence.why,
            "scaled": list(found.evidence.scaled),
        },
    }
    if found.cache_read_bytes_per_s:
        document["cache_reads"] = {
            "bytes_per_s_per_node": _round(found.cache_read_bytes_per_s),
            "ms_per_prompt": _round(found.cache_read_seconds * MS_PER_S),
        }
    if found.point.draft_tokens:
        document["drafts"] = _drafts(found)
    if (hits := found.tokens_per_s_with_hits) is not None:
        document["tokens_per_s_per_node_with_hits"] = _estimate(hits.times(outlook.gpus_per_node))
    if outlook.correction is not None:
        document["calibration"] = asdict(outlook.correction)
    return document | ({"slo": promises} if (promises := _slo(found, slo)) else {})


def demand_json(load: PhaseLoad) -> dict[str, Any]:
    """Return what the traffic asks of a phase in its fullest hour, and how full it is then and in its emptiest."""
    return {
        "at": load.at,
        "asked_tokens_per_s": _round(load.asked_per_s),
        "served_tokens_per_s": _round(load.served_per_s),
        "most_tokens_per_s": _round(load.most_per_s),
        "highest_load": _round(load.load) if load.served_per_s else None,
        "lowest_load": _round(load.lowest),
    }


def _point(found: Prediction) -> dict[str, Any]:
    point = asdict(found.point)
    return {field: point[field] for field in POINTS[found.phase]} | {"derived": found.point.is_derived}


def _drafts(found: Prediction) -> dict[str, Any]:
    """Return what an MTP module takes of a step and, where it drafts, what it brings."""
    point = found.point
    document: dict[str, Any] = {"draft_tokens": point.draft_tokens, "ms": _round(found.step.drafts * MS_PER_S)}
    if found.phase == "prefill":
        return document
    return document | {
        "acceptance_rate": point.acceptance_rate,
        "tokens_per_step_and_request": _round(point.accepted_tokens),
    }


def _latencies(found: Prediction) -> dict[str, Any]:
    """Return TPOT of phases that produce tokens, TTFT of those that compute prompts; `latency_ms` is the first."""
    named = {
        "tpot_ms": found.tpot_seconds,
        "tpot_p99_ms": found.tpot_99_seconds,
        "ttft_ms": found.ttft_seconds,
        "ttft_p99_ms": found.ttft_99_seconds,
    }
    known = {name: _estimate(each.times(MS_PER_S)) for name, each in named.items() if each is not None}
    more: dict[str, Any] = {"latency_ms": next(iter(known.values()))}
    if found.tpot_seconds is not None:
        more["tokens_per_s_per_user"] = _estimate(found.tpot_seconds.inverse(1.0))
    if found.kv_transfer_seconds is not None:
        more["kv_transfer_ms"] = _round(found.kv_transfer_seconds * MS_PER_S)
    return more | known


def _slo(found: Prediction, slo: SloSpec) -> dict[str, Any]:
    """Return each promise that the phase has a part in, and at which speeds its mean is kept."""
    parts = {"ttft_ms": found.ttft_seconds, "tpot_ms": found.tpot_seconds}
    return {
        name: {
            "promised": promised,
            "predicted": _round(each.mid * MS_PER_S),
            "met": found.keeps(each, promised),
            "met_at_slowest": found.keeps_at(each, each.high, promised),
            "met_at_fastest": found.keeps_at(each, each.low, promised),
        }
        for name, each in parts.items()
        if (promised := getattr(slo, name)) is not None and each is not None
    }


def _estimate(each: Estimate) -> dict[str, float]:
    return {name: _round(value) for name, value in asdict(each).items()}


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
