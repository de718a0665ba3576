"""What is asked of `estimate/throughput`: a phase of a spec in one layout, at one operating point.

The point is the spec's. A phase without one is asked at what its limits allow: `max_requests` of half the longest
request, or of what KV has room for; steps of `max_batch_tokens`, of prompts half as long as the longest request. Plans
say when a point is derived so.
"""

from collections.abc import Callable
from typing import Any

from planner.cluster.domains import domain_size
from planner.estimate.throughput.engines import engine_model
from planner.estimate.throughput.machine import machine_of
from planner.estimate.throughput.point import OperatingPoint
from planner.estimate.throughput.predict import Case
from planner.estimate.throughput.stages import Exchange, Imbalance, UnitShape
from planner.estimate.throughput.work import work_of
from planner.facts.terms import Phase
from planner.layout.layout import PhaseLayout
from planner.spec.check import ResolvedSpec
from planner.spec.phase import PhaseSpec
from planner.spec.precision import KV_BYTES, kv_dtype
from planner.spec.undecided import AUTO

__all__ = ["case_of", "operating_point", "unit_shape"]

OUTPUT_SHARE = 1 / 3  # of a mixed unit's request, where nobody says: assumed


def case_of(
    spec: ResolvedSpec,
    layout: PhaseLayout,
    point: OperatingPoint,
    exchange: Exchange,
    imbalance_at: Callable[[float], Imbalance],
) -> Case:
    """Return the case of a phase whose GPU and kernels are known.

    `imbalance_at` is asked once, for the pairs of a token and an expert that a GPU receives in a step on average.
    """
    phase, model = layout.phase, spec.model
    machine = machine_of(spec.gpu_of(phase), layout.gpu)
    kv = kv_dtype(layout.precision, spec.phase(phase).kv_precision)
    work = work_of(model, layout.precision, kv, layout.attention_tp, layout.dense_tp)
    assert machine is not None
    assert work is not None
    tokens = point.step_tokens if phase == "prefill" else point.requests
    return Case(
        phase=phase,
        machine=machine,
        model=work,
        unit=unit_shape(spec, layout),
        overlap=layout.overlap,
        engine=engine_model(spec.written.engine_name, layout.gpu),
        imbalance=imbalance_at(tokens / layout.attention_tp * model.num_experts_per_token),
        exchange=exchange,
        point=point,
        kv_bytes_per_token=model.one_of(layout.attention_tp).kv_bytes_per_token(KV_BYTES[kv]),
    )


def operating_point(spec: ResolvedSpec, phase: Phase, kv_room: int | None) -> OperatingPoint:
    """Return the spec's point of a phase, or one that its limits allow; `kv_room` is what memory has room for."""
    written = getattr(spec.written.operating_point, phase)
    section = spec.phase(phase)
    if written is not None:
        return _written_point(section, dict(written), kv_room)
    half = max(section.max_request_tokens // 2, 1)
    room = half if kv_room is None else min(half, max(kv_room // section.max_requests, 1))
    output = max(round(half * OUTPUT_SHARE), 1)
    points = {
        "decode": OperatingPoint(requests=section.max_requests, kv_tokens=room, is_derived=True),
        "prefill": OperatingPoint(step_tokens=section.max_batch_tokens, prompt_tokens=half, is_derived=True),
        "mixed": OperatingPoint(
            requests=section.max_requests,
            kv_tokens=room,
            step_tokens=section.max_batch_tokens,
            prompt_tokens=max(half - output, 1),
            output_tokens=output,
            is_derived=True,
        ),
    }
    return points[phase]


def unit_shape(spec: ResolvedSpec, layout: PhaseLayout) -> UnitShape:
    """Return what of a layout decides a layer's time; nodes are those that NICs are between."""
    domain = domain_size(spec.gpu_of(layout.phase), spec.cluster.gpus_per_node)
    return UnitShape(
        num_gpus=layout.ep_size,
        num_nodes=max(1, -(-layout.ep_size // domain)),
        attention_tp=layout.attention_tp,
        slots_per_gpu=layout.slots_per_gpu,
        num_experts=layout.num_logical_experts,
    )


def _written_point(section: PhaseSpec, numbers: dict[str, Any], kv_room: int | None) -> OperatingPoint:
    """Return the point that is written; what it leaves to the planner is what limits and memory allow."""
    if numbers.get("step_tokens", AUTO) == AUTO:
        numbers["step_tokens"] = section.max_batch_tokens
    if numbers.get("requests") == AUTO:
        room = section.max_requests if kv_room is None else kv_room // numbers["kv_tokens"]
        numbers["requests"] = max(min(section.max_requests, room), 1)
    return OperatingPoint(**numbers)
