"""Build the input of the speed model (`estimate/throughput`): one phase in one layout, at one operating point.

The spec gives the operating point. Without one, the phase's limits give it: `max_requests` requests of half the longest
length, fewer if KV has no room, and steps of `max_batch_tokens` with prompts of half the longest length. Plans mark
such an operating point as derived.
"""

from planner.estimate.throughput.engines import EngineModel, engine_model
from planner.estimate.throughput.machine import build_machine
from planner.estimate.throughput.point import OperatingPoint
from planner.estimate.throughput.predict import Case
from planner.estimate.throughput.stages import Exchange, Imbalance, UnitShape
from planner.estimate.throughput.work import work_of
from planner.facts.core_attention import Queries, fp8_kernels, least_heads
from planner.facts.quantisation import KV_BYTES, kv_dtype
from planner.facts.terms import Phase
from planner.layout.layout import PhaseLayout
from planner.spec.resolved import ResolvedSpec


def is_predictable(spec: ResolvedSpec, phase: Phase) -> bool:
    """Return whether a phase's speed can be predicted. Rates and links of its GPU and the kernels must be known."""
    gpu = spec.gpu_of(phase)
    known = build_machine(gpu, spec.written.gpu_name(phase)) is not None and bool(gpu.nvlink_gb_per_s)
    return known and bool(gpu.nic_gbps)


def build_case(
    spec: ResolvedSpec,
    layout: PhaseLayout,
    point: OperatingPoint,
    exchange: Exchange,
    engine: EngineModel | None = None,
) -> Case:
    """Return the speed model's input for a predictable phase, with perfectly balanced GPUs.

    `exchange` says how many copies of a token a normal dispatch sends. `engine` defaults to the spec's engine.
    """
    phase, model = layout.phase, spec.model
    machine = build_machine(spec.gpu_of(phase), layout.gpu)
    kv = kv_dtype(layout.precision, spec.phase(phase).kv_precision)
    heads = least_heads(spec.written.engine_name, layout.gpu, spec.phase(phase).kv_precision)
    work = work_of(model, layout.precision, kv, layout.attention_tp, layout.dense_tp, _fp8_core(spec, phase), heads)
    assert machine is not None
    return Case(
        phase=phase,
        machine=machine,
        model=work,
        unit=unit_shape(spec, layout),
        overlap=layout.overlap,
        engine=(engine or engine_model(spec.written.engine_name)).restrict_to(layout.gpu),
        imbalance=Imbalance(),
        exchange=exchange,
        point=point,
        gpus_per_node=layout.ranks_per_node,
        whole_kv_bytes_per_token=spec.loaded_model.kv_bytes_per_token(KV_BYTES[kv]),
        kv_bytes_per_token=spec.loaded_model.one_of(layout.attention_tp).kv_bytes_per_token(KV_BYTES[kv]),
    )


def _fp8_core(spec: ResolvedSpec, phase: Phase) -> frozenset[Queries]:
    """Return the kinds of query (of prompts, of generated tokens) whose core attention the engine computes in FP8."""
    section = spec.phase(phase)
    if section.kv_precision != "fp8" or section.attention_precision == "bf16" or not spec.model.is_dense_latent:
        return frozenset()
    kernels = fp8_kernels(spec.written.engine_name, phase, spec.written.gpu_name(phase))
    return frozenset(each for each in kernels if section.attention_precision == "fp8" or kernels[each].is_default)


def unit_shape(spec: ResolvedSpec, layout: PhaseLayout) -> UnitShape:
    """Return the sizes of a layout that determine a layer's time. A "node" here is an NVLink domain."""
    domain = spec.gpu_of(layout.phase).domain_size(spec.cluster.gpus_per_node)
    return UnitShape(
        num_gpus=layout.ep_size,
        num_nodes=max(1, -(-layout.ep_size // domain)),
        attention_tp=layout.attention_tp,
        slots_per_gpu=layout.slots_per_gpu,
        num_experts=layout.num_logical_experts,
    )
