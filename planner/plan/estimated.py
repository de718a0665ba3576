"""Build the plan sections that hold estimates: speed, cost, traffic and failures.

Estimates never change what is deployed, and never refuse a plan.
"""

from itertools import pairwise
from typing import Any

from planner.candidate.candidate import Candidate
from planner.cost.cost import Cost, list_cases, with_cases
from planner.cost.demand import named_days
from planner.estimate.coverage import uncovered_experts
from planner.estimate.gpu_loads import measure_gpu_loads
from planner.estimate.kv_cache import Disks, KvCache, PromptNodes, kv_cache
from planner.estimate.performance import PhaseOutlook
from planner.estimate.throughput.intervals import Estimate
from planner.estimate.throughput.predict import Prediction
from planner.expert_map import ExpertMap, Sizes
from planner.facts.day import DAY_MINUTES
from planner.facts.quantisation import KV_BYTES
from planner.facts.quantities import MS_PER_S, US_PER_S
from planner.facts.terms import Phase
from planner.layout.layout import PhaseLayout
from planner.layout.memory import staging_bytes
from planner.plan.expected import ORDINARY, Miss, PolicyChoice
from planner.plan.launch import kv_dtype_of
from planner.plan.sections import Map

POINTS = {
    "prefill": ("step_tokens", "prompt_tokens", "cache_hit_rate", "cache_read_gbps", "utilisation"),
    "decode": ("requests", "kv_tokens"),
    "mixed": ("requests", "kv_tokens", "step_tokens", "prompt_tokens", "output_tokens"),
}


def expected_sections(candidate: Candidate) -> dict[str, Any]:
    """Return the estimate sections, and the expert maps with their coverage counts."""
    return {
        "expert_maps": {each.sha256: _map_section(candidate, each) for each in candidate.maps.values()},
        "balance": {layout.phase: _balance(candidate, layout) for layout in candidate.layouts},
        "failures": candidate.failures,
        "performance": {each.phase: _performance(each, candidate) for each in candidate.speed},
        "cost": _cost(candidate),
    } | demand_sections(candidate)


def demand_sections(candidate: Candidate) -> dict[str, Any]:
    """Return the sections on each phase's load on an ordinary day and on the prefix cache; None if it is unknown."""
    loads = {each.phase: each for each in candidate.demand_on(None)}
    return {"demand": loads or None, "kv_cache": _kv_cache(candidate)}


def _map_section(candidate: Candidate, expert_map: ExpertMap) -> Map:
    """Return the plan's section for an expert map, with the worst coverage over all phases that use the map."""
    counts = [
        uncovered_experts(each, candidate.places[phase])
        for phase, each in candidate.maps.items()
        if each.sha256 == expert_map.sha256
    ]
    kinds = [kind for kind in counts[0] if all(kind in each for each in counts)]
    uncovered = {kind: max(each[kind] for each in counts) for kind in kinds}
    coverage = {"rule": candidate.spec.coverage, "uncovered_experts": uncovered}
    return Map.model_validate(vars(Map.model_validate(expert_map)) | {"coverage": coverage})


def _balance(candidate: Candidate, layout: PhaseLayout) -> dict[str, Any]:
    """Return a phase's balance figures. Phases may share a map, but not these figures."""
    own = candidate.maps[layout.phase]
    slot_bytes = next((each.weights.slot for each in candidate.memory if each.phase == layout.phase), None)
    sizes = Sizes(layout.num_physical_experts, layout.ep_size, layout.nodes_per_unit)
    return vars(PolicyChoice.model_validate(own)) | {
        "expert_map": own.sha256,
        "moves": _moves(own, slot_bytes),
        "staging_bytes": staging_bytes(candidate.resolved, layout),
        "gpu_loads": measure_gpu_loads(own, candidate.loads, sizes),
    }


def _moves(expert_map: ExpertMap, slot_bytes: int | None) -> dict[str, Any] | None:
    """Return the number of slots that differ from the previous plan's map, and their bytes; None without that plan."""
    moved = expert_map.moved_slots
    if moved is None:
        return None
    return {"moved_slots": moved, "bytes": slot_bytes and moved * (slot_bytes // len(expert_map.bound))}


def _cost(candidate: Candidate) -> Cost | None:
    """Return the cost and income of a day, also for cases with another speed, traffic or GPU price.

    Return None if cost and income are unknown.
    """
    found, most = candidate.cost, candidate.most_per_node
    if found is None:
        return None
    speeds = {each.phase: each.prediction.tokens_per_s_per_gpu for each in candidate.speed if each.prediction}
    ends = {phase: (each.low / each.mid, each.high / each.mid) for phase, each in speeds.items()}
    days = list_cases(candidate.spec, most, ends)
    return with_cases(found, [(name, candidate.cost_with(spec, rates)) for name, spec, rates in days])


def _kv_cache(candidate: Candidate) -> KvCache | None:
    """Return the estimate of the prefix cache.

    Return None if the spec says nothing of a cache, or has no traffic.
    """
    layout, traffic, kept = candidate.layouts[0], candidate.spec.traffic, candidate.spec.kv_cache
    if traffic is None or not (traffic.cache_hit_rate or traffic.trace or kept.memory):
        return None
    disks = Disks(
        is_shared=candidate.spec.kubernetes.kv_cache_claim is not None,
        price=candidate.spec.cost.disk if candidate.spec.cost else None,
    )
    nodes, reuse = _prompt_nodes(candidate, layout), candidate.resolved.reuse
    token_bytes = candidate.resolved.loaded_model.kv_bytes_per_token(KV_BYTES[kv_dtype_of(candidate.spec)])
    return kv_cache(traffic, kept, token_bytes, nodes, reuse, disks)


def _prompt_nodes(candidate: Candidate, layout: PhaseLayout) -> PromptNodes:
    """Return how many nodes compute prompts, on average and at most, and how many are started in a day."""
    on = [(layout.num_units, DAY_MINUTES)]
    if candidate.running_schedule is not None:
        on = [(step.num_units[layout.phase], step.minutes) for step in candidate.running_schedule.steps]
    mean_units = sum(units * minutes for units, minutes in on) / DAY_MINUTES
    started = sum(max(after - before, 0) for (before, _), (after, _) in pairwise([on[-1], *on]))
    per_unit = layout.nodes_per_unit
    most = max(units for units, _ in on)
    return PromptNodes(per_unit * mean_units, per_unit * most, layout.ranks_per_node, per_unit * started)


def _performance(outlook: PhaseOutlook, candidate: Candidate) -> dict[str, Any]:
    """Return a phase's `performance` section: its figures, or the reason why there are none."""
    found, case = outlook.prediction, outlook.case
    if found is None or case is None:
        return {"not_predicted": outlook.why_not}
    rate, usual, point = found.tokens_per_s_per_gpu, found.step.usual, found.point
    hits = found.tokens_per_s_with_hits
    at_peak = candidate.at_peak(found.phase)
    peaks = _mean_latencies(at_peak) if at_peak else {}
    return _latencies(found) | {
        "peak_ttft_ms": None if (ttft := peaks.get("ttft_ms")) is None else ttft.mid * MS_PER_S,
        "peak_tpot_ms": None if (tpot := peaks.get("tpot_ms")) is None else tpot.mid * MS_PER_S,
        "engine": found.engine,
        "operating_point": {field: getattr(point, field) for field in POINTS[found.phase]}
        | {"derived": point.is_derived},
        "tokens_per_s_per_gpu": rate,
        "tokens_per_s_per_node": rate.times(case.gpus_per_node),
        "tokens_per_s_per_unit": rate.times(found.num_gpus),
        "tokens_per_s_per_node_with_hits": hits and hits.times(case.gpus_per_node),
        "step_ms": found.step.seconds * MS_PER_S,
        "kv_tokens_in_use": round(point.requests * point.kv_tokens),
        "imbalance": found.imbalance.gpus,
        "binding": found.binding.resource,
        "with_10_percent_more": found.binding.tokens_per_s_per_gpu,
        "stages_us": {name: seconds * US_PER_S for name, seconds in (usual.spans[0] if usual else {}).items()},
        "exposed_us": usual.timeline.exposed * US_PER_S if usual else 0.0,
        "evidence": found.evidence,
        "cache_reads": _cache_reads(found),
        "drafts": _drafts(found),
        "calibration": outlook.correction,
        "slo": _slo_results(found, candidate) or None,
    }


def _latencies(found: Prediction) -> dict[str, Any]:
    """Return the latency figures: TPOT if the phase generates tokens, TTFT and queueing if it computes prompts.

    `latency_ms` is TPOT if there is one, else TTFT. Beside them stand each user's tokens/s and the KV transfer's time.
    """
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
        "queued_steps": None if found.is_saturated or found.ttft_seconds is None else found.point.queued_steps,
    }


def _cache_reads(found: Prediction) -> dict[str, Any] | None:
    if not found.cache_read_bytes_per_s:
        return None
    return {
        "bytes_per_s_per_node": found.cache_read_bytes_per_s,
        "ms_per_prompt": found.cache_read_seconds * MS_PER_S,
    }


def _drafts(found: Prediction) -> dict[str, Any] | None:
    """Return the MTP module's time in a step and, outside prefill, its acceptance rate.

    Return None if no tokens are drafted.
    """
    point = found.point
    if not point.draft_tokens:
        return None
    takes = {"draft_tokens": point.draft_tokens, "ms": found.step.drafts * MS_PER_S}
    brings = {"acceptance_rate": point.acceptance_rate, "tokens_per_step_and_request": point.accepted_tokens}
    return takes if found.phase == "prefill" else takes | brings


def _slo_results(found: Prediction, candidate: Candidate) -> dict[str, Any]:
    """Return each SLO that the phase contributes to, whether it is met at each speed, and when traffic breaks it."""
    return {
        name: {
            "promised": promised,
            "predicted": each.mid * MS_PER_S,
            "met": found.meets(each, promised),
            "met_at_slowest": found.meets_at(each, each.high, promised),
            "met_at_fastest": found.meets_at(each, each.low, promised),
            "misses": _misses(found.phase, name, promised, candidate),
        }
        for name, each in _mean_latencies(found).items()
        if (promised := getattr(candidate.spec.slo, name)) is not None and each is not None
    }


def _misses(phase: Phase, name: str, promised: float, candidate: Candidate) -> dict[str, tuple[Miss, ...]] | None:
    """Return kind of day -> the stretches in which traffic makes a phase miss a promise; None without any."""
    misses: dict[str, list[Miss]] = {
        day: [] for day in (ORDINARY, *named_days(candidate.spec, candidate.running_schedule))
    }
    for load, served in candidate.busy_hours:
        mean = None if served is None else _mean_latencies(served)[name]
        if load.phase == phase and not (served and mean and served.meets(mean, promised)):
            predicted = None if mean is None else mean.mid * MS_PER_S
            misses[load.day or ORDINARY].append(Miss(at=load.at, minutes=load.minutes, predicted=predicted))
    return {day: tuple(each) for day, each in misses.items()} if any(misses.values()) else None


def _mean_latencies(found: Prediction) -> dict[str, Estimate | None]:
    return {"ttft_ms": found.ttft_seconds, "tpot_ms": found.tpot_seconds}
