"""Predict the speed of each phase of a plan at its operating point, or explain why it cannot be predicted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.estimate.case import build_case, unit_shape
from planner.estimate.points import operating_point
from planner.estimate.throughput.calibration import Calibration, Correction, calibrate, require_rows
from planner.estimate.throughput.copies import expected_copies, remote_share
from planner.estimate.throughput.engines import EngineModel
from planner.estimate.throughput.imbalance import DRIFT_SHARE, MAX_DRIFT_SHARE, imbalance_of
from planner.estimate.throughput.intervals import evidence_for
from planner.estimate.throughput.machine import build_machine
from planner.estimate.throughput.point import OperatingPoint
from planner.estimate.throughput.predict import Case, Prediction, predict, saturated_rate
from planner.estimate.throughput.stages import Exchange, Imbalance, UnitShape
from planner.estimate.utilisation import with_promised_utilisation
from planner.expert_map import ExpertMap
from planner.facts.loads import Loads
from planner.facts.model import Model
from planner.facts.terms import Phase
from planner.layout.dispatch import message_bytes
from planner.layout.layout import PhaseLayout
from planner.layout.memory import MemoryPlan
from planner.spec.resolved import ResolvedSpec


@dataclass(frozen=True)
class PhaseOutlook:
    """A phase's predicted speed and its inputs, or the reason why speed cannot be predicted."""

    phase: Phase
    prediction: Prediction | None
    why_not: str | None  # why there is no prediction
    correction: Correction | None = None  # from a user's own measurements
    case: Case | None = None  # for predictions at other operating points


def predict_phases(
    spec: ResolvedSpec,
    layouts: Sequence[PhaseLayout],
    memory: Sequence[MemoryPlan],
    maps: Mapping[Phase, ExpertMap],
    loads: Loads,
    calibration: Calibration | None = None,
    engine: EngineModel | None = None,
) -> tuple[PhaseOutlook, ...]:
    """Predict each phase with its expert map, corrected by a user's own measurements (`calibration`) if given.

    `engine` is the engine that runs the phases, by default the spec's. Raises CallError if no measurement is of a phase
    of the plan, or if one is implausible.
    """
    if calibration is not None:
        require_rows(calibration, spec.phases)
    kv_rooms = {each.phase: each.kv_tokens for each in memory}
    points = {each.phase: operating_point(spec, each.phase, kv_rooms.get(each.phase)) for each in layouts}
    return tuple(_outlook(spec, each, points[each.phase], maps, loads, calibration, engine) for each in layouts)


def _outlook(
    spec: ResolvedSpec,
    layout: PhaseLayout,
    point: OperatingPoint,
    maps: Mapping[Phase, ExpertMap],
    loads: Loads,
    calibration: Calibration | None,
    engine: EngineModel | None,
) -> PhaseOutlook:
    why_not = _explain_unpredictable(spec, layout)
    if why_not is not None:
        return PhaseOutlook(layout.phase, None, why_not)
    expert_map = maps[layout.phase]
    unit = _add_remote_share(unit_shape(spec, layout), expert_map, loads)
    exchange = _token_copies(spec.model, layout, unit, expert_map)
    case = replace(build_case(spec, layout, point, exchange, engine), unit=unit)
    case = replace(case, imbalance=_imbalance(expert_map, loads, unit, layout, case.pairs_per_gpu))
    worst = _imbalance(expert_map, loads, unit, layout, case.pairs_per_gpu, MAX_DRIFT_SHARE)
    evidence = evidence_for(case.engine, layout.phase, case.machine, _unmeasured_kernels(spec.model, layout, point))
    correction = None
    if calibration is not None:
        case, evidence, correction = calibrate(case, evidence, calibration)
    case = with_promised_utilisation(spec, case, saturated_rate(case))
    prediction = predict(case, evidence, worst, with_spans=True)
    return PhaseOutlook(layout.phase, prediction, None, correction, case)


def _unmeasured_kernels(model: Model, layout: PhaseLayout, point: OperatingPoint) -> str | None:
    """Name the first kernel of the phase that no measured table of operators covers, or return None.

    The tables cover latent attention over all tokens, FP8 matmuls, and decode with one query per request.
    """
    if not model.is_dense_latent:
        return "this attention"
    if point.draft_tokens and layout.phase != "prefill":
        return "steps that verify drafts"
    return None if layout.precision == "fp8" else f"matmuls in {layout.precision}"


def _explain_unpredictable(spec: ResolvedSpec, layout: PhaseLayout) -> str | None:
    gpu, name = spec.gpu_of(layout.phase), layout.gpu
    if build_machine(gpu, name) is None:
        return f"the rates of {name} are not known"
    if layout.ep_size > 1 and not gpu.nvlink_gb_per_s:
        return f"the links of {name} are not known"
    unit = unit_shape(spec, layout)
    if unit.num_nodes > 1 and not gpu.nic_gbps:
        return f"the NICs of {name} are not known"
    return None


def _add_remote_share(unit: UnitShape, expert_map: ExpertMap, loads: Loads) -> UnitShape:
    """Return `unit` with the share of token-expert pairs that leave their node, if tokens prefer near replicas."""
    if expert_map.split != "local_first" or unit.num_gpus % unit.num_nodes:
        return unit
    return replace(
        unit, remote_share=remote_share(expert_map, loads, unit.num_gpus if unit.num_nodes == 1 else unit.num_nodes)
    )


def _imbalance(
    expert_map: ExpertMap,
    loads: Loads,
    unit: UnitShape,
    layout: PhaseLayout,
    pairs: float,
    drift_share: float = DRIFT_SHARE,
) -> Imbalance:
    """Return the max/mean load of GPUs and of NVLink domains in a step under the plan's map; 1 for a single GPU.

    `pairs` is the mean number of token-expert pairs of a GPU.
    """
    if unit.num_gpus == 1:
        return Imbalance()
    domains = unit.num_nodes if unit.num_gpus % unit.num_nodes == 0 else 1
    return imbalance_of(
        expert_map, loads, unit.num_gpus, domains, pairs, num_nodes=layout.nodes_per_unit, drift_share=drift_share
    )


def _token_copies(model: Model, layout: PhaseLayout, unit: UnitShape, expert_map: ExpertMap) -> Exchange:
    """Return how many copies of a token a normal dispatch sends to other GPUs and to other nodes.

    Copies to other nodes are the expected ones of even routing. If tokens prefer near replicas, they are scaled by the
    share of pairs that leave the node, relative to even routing. Otherwise, if the map says how many bytes its dispatch
    sends, they follow from those bytes.
    """
    expected = expected_copies(
        model, unit.num_gpus, unit.num_nodes, groups_on_nodes=expert_map.policy == "hierarchical"
    )
    if unit.remote_share is not None and unit.num_nodes > 1:
        return replace(expected, nodes=expected.nodes * unit.sent_share / (1 - 1 / unit.num_nodes))
    if expert_map.dispatch is None or unit.num_nodes == 1:
        return expected
    sent = expert_map.dispatch.bytes_per_token + expert_map.dispatch.extra_bytes_per_token
    return Exchange(expected.gpus, sent / message_bytes(model.hidden_size, layout.precision)[0])
