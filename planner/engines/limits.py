"""What each engine cannot do, by version, with the place that says so.

Such a spec is right and plans, for a design review or for another engine; `render` and `up` refuse it as infeasible.
Sizes that do not divide are no limit of an engine: no spec has them (`spec/layout_rules.py`, `attention_rules.py`),
since the engines' own parsers take them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from planner.engines import sglang
from planner.engines.block_limits import keeps_blocks, whole_blocks
from planner.engines.exchange_limits import exchange_sizes, has_room, is_held, room_for_requests, takes_unit
from planner.engines.model_limits import all_experts_on_fewer_gpus, model_limits
from planner.engines.replicas import has_slots
from planner.facts.engines import ENGINES
from planner.facts.terms import EngineName, Phase
from planner.layout.memory import memory_of
from planner.problems.finding import Finding
from planner.problems.fix import Fix, nearest, removal
from planner.spec.attention_rules import attention_sizes
from planner.spec.check import ResolvedSpec

__all__ = ["LIMITS", "Limit", "engine_refusals", "runs_layout"]

Found = Iterator[Finding]


@dataclass(frozen=True)
class Limit:
    """One thing that an engine cannot do, in all of `versions`."""

    engine: EngineName
    versions: tuple[str, ...]
    source: str
    find: Callable[[ResolvedSpec], Found]


def engine_refusals(spec: ResolvedSpec) -> Found:
    """Why the engine of `spec`, which is not ours, cannot run it; nothing when it can."""
    name, version = spec.written.engine_name, spec.written.engine_version
    for each in LIMITS:
        if each.engine == name and version in each.versions:
            yield from each.find(spec)


def runs_layout(spec: ResolvedSpec, phase: Phase) -> bool:
    """Return whether the engine of `spec` can run the sizes of `phase`; other phases need not be decided yet."""
    return all(can(spec, phase) for can in (takes_unit, has_room, keeps_blocks, has_slots))


def _not_nvidia(spec: ResolvedSpec) -> Found:
    name, reason = spec.written.engine_name, "it exchanges expert rows with DeepEP, which needs NVIDIA GPUs"
    for path, written, gpu in spec.named_gpus():
        if gpu.device == "cpu":
            fix = removal("engine", words="leave engine out, for the bundled runtime")
            yield Finding(path, written, f"S740 must not be cpu to run on {name}", reason, fix)
        elif gpu.is_rocm:
            rule = f"S752 must not be a GPU of AMD to run on {name}"
            yield Finding(path, written, rule, reason, "plan it for other GPUs")


def _fp32(spec: ResolvedSpec) -> Found:
    for phase in spec.phases:
        if spec.phase(phase).precision == "fp32":
            name = spec.written.engine_name
            rule, reason = f"S741 must not be fp32 to run on {name}", "DeepEP dispatches BF16 or FP8"
            fix = Fix("nearest: bf16, in all phases", ({f"{each}.precision": "bf16" for each in spec.phases},))
            yield Finding(f"{phase}.precision", "fp32", rule, reason, fix)


def _other_precision(spec: ResolvedSpec) -> Found:
    """Refuse weights in what the engine cannot make of the checkpoint's: it quantises BF16 to FP8, and undoes nothing.

    A model of the catalog is published in several precisions, of which a deployment loads one.
    """
    own, name = spec.model.quantisation, spec.written.engine_name
    written = {phase: spec.phase(phase).precision for phase in spec.phases}
    has_config = not isinstance(spec.written.model, str) and spec.written.model.config is not None
    if own.precision == "bf16" or not (has_config or len(set(written.values())) > 1):
        return
    for phase, precision in written.items():
        if precision != own.precision:
            rule = f"S773 must be {own.precision} to run on {name}"
            reason = f"all phases load one checkpoint, in {own.words}, and the engine follows its {own.said_in}"
            yield Finding(f"{phase}.precision", precision, rule, reason, nearest(own.precision))


def _deterministic(spec: ResolvedSpec) -> Found:
    if spec.written.deterministic:
        name = spec.written.engine_name
        rule = f"S742 must be false to run on {name}"
        reason = "it chooses the replica for a token at random or by the batch, and results differ between batches"
        yield Finding("deterministic", True, rule, reason, removal())


def _covered_racks(spec: ResolvedSpec) -> Found:
    if spec.written.coverage == "rack":
        name = spec.written.engine_name
        rule, fix = f"S743 must not be rack to run on {name}", nearest("node")
        reason = "a unit's pods land on its nodes in any order, so the plan cannot know which rank is in which rack"
        yield Finding("coverage", "rack", rule, reason, fix)


def _bundled_checkpoint(spec: ResolvedSpec) -> Found:
    checkpoint = spec.written.checkpoint
    if checkpoint is not None and not checkpoint.startswith("/"):
        rule = f"S744 must be a path in the pod to run on {spec.written.engine_name}"
        reason = "only the bundled runtime can load bundled models"
        yield Finding(
            "model.checkpoint", checkpoint, rule, reason, "mount the checkpoint in the pod and write its path"
        )


def _overlap_of_one_group(spec: ResolvedSpec) -> Found:
    for phase in spec.phases:
        section = spec.phase(phase)
        if section.overlap != "none" and section.ep_size == section.attention_tp:
            rule = f"S745 must be none to run on {spec.written.engine_name} with one attention group"
            reason = "its GPUs share all attention, so there is no dispatch to overlap"
            yield Finding(f"{phase}.overlap", section.overlap, rule, reason, nearest("none"))


def _map_in_one_file(spec: ResolvedSpec) -> Found:
    """A map that no ConfigMap holds. Ours are cut in parts; SGLang reads one file."""
    most = sglang.most_redundant_experts(spec.model)
    for phase in spec.phases:
        section = spec.phase(phase)
        if section.redundant_experts > most:
            rule = f"S754 must be at most {most:,} to run on {spec.written.engine_name}"
            reason = (
                f"it reads the map of all {spec.model.num_layers} layers from one file, and a ConfigMap holds 1 MiB"
            )
            yield Finding(
                f"{phase}.redundant_experts", section.redundant_experts, rule, reason, _fewer(spec, phase, most)
            )


def _exchanged_precision(spec: ResolvedSpec) -> Found:
    for phase in spec.phases:
        section, taken = spec.phase(phase), sglang.EXCHANGED_IN[phase]
        if section.precision == "fp8_mxfp4" and not spec.gpu_of(phase).lacks_fp4:
            continue  # DeepGEMM computes them where matmuls take FP4
        lacks_blocks = section.precision == "fp8" and spec.model.quantisation.other_method is not None
        is_taken = section.precision in (*taken, "fp32") and not lacks_blocks  # S741 has the last
        if section.ep_size > section.attention_tp and not is_taken:
            rule = f"S759 must be {', '.join(taken[:-1])} or {taken[-1]} to run on {spec.written.engine_name}"
            called = spec.model.quantisation.words if lacks_blocks else section.precision
            reason = f"it has no kernels for {called} experts with DeepEP in {phase}"
            yield Finding(f"{phase}.precision", section.precision, rule, reason, _one_group(spec, phase))


def _one_group(spec: ResolvedSpec, phase: Phase) -> Fix | str:
    """Offer to let all GPUs share attention, and so exchange nothing, where the model's heads and memory allow it."""
    size = spec.phase(phase).ep_size
    if size in _group_sizes(spec, phase):
        return Fix(f"nearest: {phase}.attention_tp {size}", ({f"{phase}.attention_tp": size},))
    return "choose a checkpoint in one of these"


def _group_sizes(spec: ResolvedSpec, phase: Phase) -> list[int]:
    """Return the numbers of GPUs that can share attention in the units of `phase` as they are."""
    sizes = attention_sizes(spec.phase(phase).ep_size, spec.cluster.gpus_per_node, spec.model)
    tried = {size: spec.trying(phase, {"attention_tp": size}) for size in sizes}
    conditions = (takes_unit, has_room, keeps_blocks)
    runs = [size for size, each in tried.items() if all(can(each, phase) for can in conditions)]
    return [size for size in runs if is_held(memory_of(tried[size], phase))]


def _fewer(spec: ResolvedSpec, phase: Phase, most: int) -> Fix | str:
    """The most redundant experts that the unit's GPUs can share, at most `most`; none where it has too many GPUs."""
    ep_size, num_experts = spec.phase(phase).ep_size, spec.model.num_routed_experts
    fitting = (num_experts + most) // ep_size * ep_size - num_experts
    return nearest(fitting) if fitting >= 0 else "plan units of fewer GPUs"


def _five_stages(spec: ResolvedSpec) -> Found:
    for phase in spec.phases:
        if spec.phase(phase).overlap == "five_stage":
            rule = f"S747 must be dual_batch or none to run on {spec.written.engine_name}"
            reason = "it overlaps two micro-batches at dispatch and combine, and cannot split attention into two stages"
            overlaps = (
                phase != "mixed" and spec.phase(phase).ep_size > spec.phase(phase).attention_tp
            )  # else S745, S748
            yield Finding(f"{phase}.overlap", "five_stage", rule, reason, nearest("dual_batch" if overlaps else "none"))


def _overlap_of_mixed(spec: ResolvedSpec) -> Found:
    if "mixed" in spec.phases and spec.phase("mixed").overlap != "none":
        rule = f"S748 must be none to run on {spec.written.engine_name}"
        reason = "mixed units exchange expert rows by all-gather, which it cannot overlap"
        yield Finding("mixed.overlap", spec.phase("mixed").overlap, rule, reason, nearest("none"))


def _groups_over_nodes(spec: ResolvedSpec) -> Found:
    per_node = spec.cluster.gpus_per_node
    for phase in spec.phases:
        size = spec.phase(phase).attention_tp
        if size > per_node:
            rule = f"S749 must be at most gpus_per_node ({per_node}) to run on {spec.written.engine_name}"
            reason = "each pod of a unit serves requests, so no attention group may span two pods"
            below = [each for each in _group_sizes(spec, phase) if each <= per_node][-1:]
            fix = nearest(*below) if below else "plan it on nodes of more GPUs"
            yield Finding(f"{phase}.attention_tp", size, rule, reason, fix)


def _w4a8(spec: ResolvedSpec) -> Found:
    for phase in spec.phases:
        if spec.phase(phase).precision == "w4a8":
            rule = f"S750 must be fp8, bf16 or fp4 to run on {spec.written.engine_name}"
            reason = "it has no INT4 experts with FP8 activations"
            yield Finding(f"{phase}.precision", "w4a8", rule, reason, "choose a checkpoint in one of these")


def _colons(spec: ResolvedSpec) -> Found:
    name = spec.written.served_model_name
    if ":" in name:
        rule, fix = f"S751 must have no colon to run on {spec.written.engine_name}", nearest(name.replace(":", "-"))
        yield Finding("model.name", name, rule, "it reads what follows the colon as the name of an adapter", fix)


def _keys(spec: ResolvedSpec) -> Found:
    secret = spec.written.gateway.keys
    if secret is not None:
        rule = f"S761 must be absent to run on {spec.written.engine_name}"
        yield Finding("gateway.keys", secret, rule, "its router cannot read this file of keys", removal())


def _replicas(spec: ResolvedSpec) -> Found:
    replicas = spec.written.gateway.replicas
    if replicas > 1:
        rule = f"S766 must be 1 to run on {spec.written.engine_name}"
        reason = "each of its routers counts its own requests only"
        yield Finding("gateway.replicas", replicas, rule, reason, nearest(1))


def _tls(spec: ResolvedSpec) -> Found:
    if spec.written.kubernetes.tls is not None:
        rule = f"S765 must be absent to run on {spec.written.engine_name}"
        yield Finding("kubernetes.tls", None, rule, "its servers and router cannot use these certificates", removal())


_SGLANG, _VLLM = ENGINES["sglang"].versions, ENGINES["vllm"].versions
_EXCHANGE = "planner/facts/exchange.py"
_BUFFER = "github.com/deepseek-ai/DeepEP dd758caf csrc/legacy/buffer.hpp, the constructor"
_DEEPEP = "github.com/deepseek-ai/DeepEP dd758caf README.md"
_DISPATCHER = "sglang 0.5.23 layers/moe/token_dispatcher/deepep.py"
_LWS = "github.com/kubernetes-sigs/lws v0.9.0: pods are numbered as they are created, wherever they are bound"
_BUNDLED = "runtime/demo"
_MODELS = "planner/facts/engine_models.py"
_OUR_FORM = "runtime/gateway/tenants/keys.py: the file's form is ours"
_OUR_REPORTS = "runtime/gateway/ranks/ledger.py: ranks report to each of our gateways what others gave them"
_OUR_TLS = "runtime/protocol/tls.py: it is between our gateway and our ranks"

LIMITS: tuple[Limit, ...] = (
    Limit("sglang", _SGLANG, f"{_DEEPEP}; what stands in for it on AMD's GPUs (mori) is not rendered", _not_nvidia),
    Limit("sglang", _SGLANG, f"{_DISPATCHER}, set_deepep_dispatcher_dtype", _fp32),
    Limit("sglang", _SGLANG, "sglang 0.5.23 configs/model_config.py, _verify_quantization", _other_precision),
    Limit("sglang", _SGLANG, "sglang 0.5.23 eplb/expert_location_dispatch.py, algorithm dynamic", _deterministic),
    Limit("sglang", _SGLANG, _LWS, _covered_racks),
    Limit("sglang", _SGLANG, _BUNDLED, _bundled_checkpoint),
    Limit("sglang", _SGLANG, "sglang 0.5.23 arg_groups/validation_hook.py, two-batch overlap", _overlap_of_one_group),
    Limit("sglang", _SGLANG, f"{_DISPATCHER}, FINISHED_SUM_TAG; {_BUFFER}", room_for_requests),
    Limit("sglang", _SGLANG, _EXCHANGE, exchange_sizes),
    Limit("sglang", _SGLANG, "sglang 0.5.23 layers/quantization/fp8.py, validate_block_quant_shapes", whole_blocks),
    Limit("sglang", _SGLANG, "sglang 0.5.23 layers/moe/ep_moe/layer.py, arg_groups/moe_hook.py", _exchanged_precision),
    Limit("sglang", _SGLANG, "sglang 0.5.23 arg_groups/validation_hook.py, served_model_name", _colons),
    Limit("sglang", _SGLANG, _MODELS, model_limits),
    Limit(
        "sglang",
        _SGLANG,
        "sglang 0.5.23 models/deepseek_v2.py, DeepseekV2MoE; likewise others",
        all_experts_on_fewer_gpus,
    ),
    Limit(
        "sglang",
        _SGLANG,
        "sglang 0.5.23 eplb/expert_location.py, the reader at the end; kubernetes 1.36 ValidateConfigMap",
        _map_in_one_file,
    ),
    Limit("sglang", _SGLANG, _OUR_FORM, _keys),
    Limit("sglang", _SGLANG, _OUR_REPORTS, _replicas),
    Limit("sglang", _SGLANG, _OUR_TLS, _tls),
    Limit("vllm", _VLLM, _DEEPEP, _not_nvidia),
    Limit("vllm", _VLLM, _DEEPEP, _fp32),
    Limit("vllm", _VLLM, "vllm 0.33.0 config/model.py, _verify_quantization", _other_precision),
    Limit(
        "vllm",
        _VLLM,
        "vllm 0.33.0 distributed/eplb/eplb_state.py, which moves experts",
        _deterministic,
    ),
    Limit("vllm", _VLLM, _LWS, _covered_racks),
    Limit("vllm", _VLLM, _BUNDLED, _bundled_checkpoint),
    Limit("vllm", _VLLM, "vllm 0.33.0 config/vllm.py, backends of use_ubatching", _overlap_of_one_group),
    Limit("vllm", _VLLM, "vllm 0.33.0 config/vllm.py, backends of use_ubatching", _overlap_of_mixed),
    Limit("vllm", _VLLM, "vllm 0.33.0 v1/worker/ubatching.py", _five_stages),
    Limit(
        "vllm",
        _VLLM,
        f"{_DISPATCHER}: DeepEP's own limit; vllm 0.33.0 model_executor/layers/fused_moe/all2all_utils.py; {_BUFFER}",
        room_for_requests,
    ),
    Limit("vllm", _VLLM, _EXCHANGE, exchange_sizes),
    Limit("vllm", _VLLM, "vllm 0.33.0 model_executor/layers/quantization/utils/fp8_utils.py", whole_blocks),
    Limit("vllm", _VLLM, "vllm 0.33.0 config/parallel.py, nnodes_within_dp", _groups_over_nodes),
    Limit("vllm", _VLLM, "vllm 0.33.0 model_executor/layers/quantization/__init__.py", _w4a8),
    Limit("vllm", _VLLM, _MODELS, model_limits),
    Limit("vllm", _VLLM, _OUR_FORM, _keys),
    Limit("vllm", _VLLM, _OUR_REPORTS, _replicas),
    Limit("vllm", _VLLM, _OUR_TLS, _tls),
)
