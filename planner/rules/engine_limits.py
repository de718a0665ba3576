"""Limits of SGLang and vLLM, each with the source that states it.

A spec beyond these limits is valid and can be planned, for a design review or for another engine; `render` and `up`
refuse it as infeasible. Sizes that do not divide evenly are mistakes in any spec (`phases.py`, `attention.py`),
although the engines' own parsers accept them.
"""

from collections.abc import Iterator

from planner.facts.core_attention import fp8_kernels
from planner.facts.terms import Phase, Precision
from planner.layout.memory import memory_of
from planner.problems.finding import Finding
from planner.problems.fix import Fix, nearest, removal
from planner.rules.attention import attention_sizes
from planner.rules.block_limits import keeps_blocks, shards_are_whole_blocks
from planner.rules.exchange_limits import (
    decode_steps_fit_exchange,
    exchange_supports_unit_sizes,
    fits_memory,
    has_replica_slots,
    steps_fit_exchange,
    supports_unit_size,
)
from planner.rules.model_limits import engine_runs_model, units_have_at_most_one_gpu_per_expert
from planner.rules.rule import Candidate, Rule, limit
from planner.spec.resolved import ResolvedSpec

EXCHANGED_IN: dict[Phase, tuple[Precision, ...]] = {
    "prefill": ("fp8", "bf16", "w4a8"),
    "decode": ("fp8", "bf16", "w4a8", "fp4"),
    "mixed": ("fp8", "bf16", "w4a8"),
}


def runs_layout(spec: ResolvedSpec, phase: Phase) -> bool:
    """Return whether the engine can run the EP size, steps, FP8 blocks and redundant experts of `phase`.

    The other phases may still be undecided.
    """
    return all(can(spec, phase) for can in (supports_unit_size, steps_fit_exchange, keeps_blocks, has_replica_slots))


def gpus_are_nvidia(c: Candidate) -> Iterator[Finding]:
    """Reject CPUs and AMD GPUs: the engine exchanges expert rows with DeepEP, which needs NVIDIA GPUs."""
    spec = c.resolved
    name, reason = spec.written.engine_name, "it exchanges expert rows with DeepEP, which needs NVIDIA GPUs"
    for path, written, gpu in spec.named_gpus():
        if gpu.device == "cpu":
            fix = removal("engine", words="leave engine out, for the bundled runtime")
            yield Finding(path, written, f"S740 must not be cpu to run on {name}", reason, fix)
        elif gpu.is_rocm:
            rule = f"S740 must not be a GPU of AMD to run on {name}"
            yield Finding(path, written, rule, reason, "plan it for other GPUs")


def phases_load_one_checkpoint(c: Candidate) -> Iterator[Finding]:
    """Reject precisions that the engine cannot make from the checkpoint: it can only quantise BF16 to FP8.

    A catalog model may be published in several precisions, but all phases of a deployment load one checkpoint.
    """
    spec = c.resolved
    own, name = spec.model.quantisation, spec.written.engine_name
    written = {phase: spec.phase(phase).precision for phase in spec.phases}
    has_config = not isinstance(spec.written.model, str) and spec.written.model.config is not None
    if own.precision == "bf16" or not (has_config or len(set(written.values())) > 1):
        return
    for phase, precision in written.items():
        if precision != own.precision:
            rule = f"S741 must be {own.precision} to run on {name}"
            reason = f"all phases load one checkpoint, in {own.words}, and the engine follows its {own.said_in}"
            yield Finding(f"{phase}.precision", precision, rule, reason, nearest(own.precision))


def exchange_supports_precision(c: Candidate) -> Iterator[Finding]:
    """Reject an experts' precision that the engine has no kernels for with DeepEP, in units of several groups."""
    spec = c.resolved
    for phase in spec.phases:
        section, taken = spec.phase(phase), EXCHANGED_IN[phase]
        if section.precision == "fp8_mxfp4" and not spec.gpu_of(phase).lacks_fp4:
            continue  # DeepGEMM computes them where matmuls take FP4
        lacks_blocks = section.precision == "fp8" and spec.model.quantisation.other_method is not None
        is_taken = section.precision in (*taken, "fp32") and not lacks_blocks  # another rule rejects fp32
        if section.ep_size > section.attention_tp and not is_taken:
            rule = f"S741 must be {', '.join(taken[:-1])} or {taken[-1]} to run on {spec.written.engine_name}"
            called = spec.model.quantisation.words if lacks_blocks else section.precision
            reason = f"it has no kernels for {called} experts with DeepEP in {phase}"
            yield Finding(f"{phase}.precision", section.precision, rule, reason, _offer_one_group(spec, phase))


def _exchanges_rows(spec: ResolvedSpec, phase: Phase) -> bool:
    """Return whether a unit of `phase` has several attention groups, between which expert rows are exchanged."""
    return spec.phase(phase).ep_size > spec.phase(phase).attention_tp


def _offer_one_group(spec: ResolvedSpec, phase: Phase) -> Fix | str:
    """Return a fix that makes the unit one attention group, which exchanges no rows, if heads and memory allow it."""
    size = spec.phase(phase).ep_size
    if size in _group_sizes(spec, phase):
        return Fix(f"nearest: {phase}.attention_tp {size}", ({f"{phase}.attention_tp": size},))
    return "choose a checkpoint in one of these"


def _group_sizes(spec: ResolvedSpec, phase: Phase) -> list[int]:
    """Return each `attention_tp` that the engine can run and memory allows, at the present EP size of `phase`."""
    sizes = attention_sizes(spec.phase(phase).ep_size, spec.cluster.gpus_per_node, spec.model)
    tried = {size: spec.with_numbers(phase, {"attention_tp": size}) for size in sizes}
    conditions = (supports_unit_size, steps_fit_exchange, keeps_blocks)
    runs = [size for size, each in tried.items() if all(can(each, phase) for can in conditions)]
    return [size for size in runs if fits_memory(memory_of(tried[size], phase))]


def groups_stay_on_one_node(c: Candidate) -> Iterator[Finding]:
    """Reject attention groups larger than a node: each pod of a unit serves requests of its own."""
    spec = c.resolved
    per_node = spec.cluster.gpus_per_node
    for phase in spec.phases:
        size = spec.phase(phase).attention_tp
        if size > per_node:
            rule = f"S710 must be at most gpus_per_node ({per_node}) to run on {spec.written.engine_name}"
            reason = "each pod of a unit serves requests, so no attention group may span two pods"
            below = [each for each in _group_sizes(spec, phase) if each <= per_node][-1:]
            fix = nearest(*below) if below else "plan it on nodes of more GPUs"
            yield Finding(f"{phase}.attention_tp", size, rule, reason, fix)


def model_name_has_no_colon(c: Candidate) -> Iterator[Finding]:
    """Reject a colon in the model's name: the engine reads what follows it as the name of an adapter."""
    spec = c.resolved
    name = spec.written.served_model_name
    if ":" in name:
        rule, fix = f"S751 must have no colon to run on {spec.written.engine_name}", nearest(name.replace(":", "-"))
        yield Finding("model.name", name, rule, "it reads what follows the colon as the name of an adapter", fix)


def core_attention_has_kernels(c: Candidate) -> Iterator[Finding]:
    """Reject a precision of core attention for which the engine has no kernels on the phase's GPUs.

    With KV in FP8, core attention that is in FP8 by default cannot be in BF16: the kernels quantise queries too.
    """
    spec = c.resolved
    name = spec.written.engine_name
    for phase in spec.phases:
        section, gpu = spec.phase(phase), spec.written.gpu_name(phase)
        kernels, path = fp8_kernels(name, phase, gpu), f"{phase}.attention_precision"
        fix = removal(path, words="leave it out")
        if section.attention_precision == "fp8" and not kernels:
            rule = f"S735 must be bf16 to run on {name}"
            yield Finding(path, "fp8", rule, f"in {phase} it has no kernels for core attention in FP8 on {gpu}", fix)
        is_fp8 = section.kv_precision == "fp8" and spec.model.is_dense_latent
        if section.attention_precision == "bf16" and is_fp8 and any(each.is_default for each in kernels.values()):
            rule = f"S735 must be fp8 to run on {name}"
            yield Finding(path, "bf16", rule, f"with KV in FP8 its kernels on {gpu} quantise queries too", fix)


NO_FP32 = limit(
    "*.precision",
    "S741 must not be fp32 to run on {engine}",
    "DeepEP dispatches BF16 or FP8",
    "write bf16 in all phases",
    lambda spec, phase: spec.phase(phase).precision == "fp32",
)
NO_W4A8 = limit(
    "*.precision",
    "S741 must be fp8, bf16 or fp4 to run on {engine}",
    "it has no INT4 experts with FP8 activations",
    "choose a checkpoint in one of these",
    lambda spec, phase: spec.phase(phase).precision == "w4a8",
)
NOT_DETERMINISTIC = limit(
    "deterministic",
    "S742 must be false to run on {engine}",
    "it chooses the replica for a token at random or by the batch, and results differ between batches",
    removal(),
    lambda spec, _: spec.written.deterministic,
)
NO_RACK_COVERAGE = limit(
    "coverage",
    "S743 must not be rack to run on {engine}",
    "a unit's pods land on its nodes in any order, so the plan cannot know which rank is in which rack",
    nearest("node"),
    lambda spec, _: spec.written.coverage == "rack",
)
CHECKPOINT_IN_POD = limit(
    "model.checkpoint",
    "S744 must be a path in the pod to run on {engine}",
    "only the bundled runtime can load bundled models",
    "mount the checkpoint in the pod and write its path",
    lambda spec, _: not (spec.written.checkpoint or "/").startswith("/"),
)
NO_OVERLAP_IN_A_GROUP = limit(
    "*.overlap",
    "S745 must be none to run on {engine} with one attention group",
    "its GPUs share all attention, so there is no dispatch to overlap",
    nearest("none"),
    lambda spec, phase: spec.phase(phase).overlap != "none" and not _exchanges_rows(spec, phase),
)
NO_MIXED_OVERLAP = limit(
    "*.overlap",
    "S745 must be none to run on {engine}",
    "mixed units exchange expert rows by all-gather, which it cannot overlap",
    nearest("none"),
    lambda spec, phase: phase == "mixed" and spec.phase(phase).overlap != "none",
)
NO_FIVE_STAGES = limit(
    "*.overlap",
    "S745 must be dual_batch or none to run on {engine}",
    "it overlaps two micro-batches at dispatch and combine, and cannot split attention into two stages",
    nearest("dual_batch"),
    lambda spec, phase: spec.phase(phase).overlap == "five_stage" and phase != "mixed" and _exchanges_rows(spec, phase),
)
NO_KEYS = limit(
    "gateway.keys",
    "S761 must be absent to run on {engine}",
    "its router cannot read this file of keys",
    removal(),
    lambda spec, _: spec.written.gateway.keys is not None,
)
NO_TLS = limit(
    "kubernetes.tls",
    "S761 must be absent to run on {engine}",
    "its servers and router cannot use these certificates",
    removal(),
    lambda spec, _: spec.written.kubernetes.tls is not None,
)
ONE_GATEWAY = limit(
    "gateway.replicas",
    "S766 must be 1 to run on {engine}",
    "each of its routers admits as many requests as all units take",
    nearest(1),
    lambda spec, _: spec.written.gateway.replicas > 1,
)

# Each rule with its source. Every rule holds for all versions in `facts/engines.py`.
SGLANG = (
    # github.com/deepseek-ai/DeepEP dd758caf README.md; AMD's replacement (mori) is not rendered
    Rule("S740", "rendered", gpus_are_nvidia),
    # sglang 0.5.23 layers/moe/token_dispatcher/deepep.py, set_deepep_dispatcher_dtype
    NO_FP32,
    # planner/facts/core_attention.py
    Rule("S735", "rendered", core_attention_has_kernels),
    # sglang 0.5.23 configs/model_config.py, _verify_quantization
    Rule("S741", "rendered", phases_load_one_checkpoint),
    # sglang 0.5.23 eplb/expert_location_dispatch.py, algorithm dynamic
    NOT_DETERMINISTIC,
    # github.com/kubernetes-sigs/lws v0.9.0: pods are numbered as they are created, wherever they are bound
    NO_RACK_COVERAGE,
    # runtime/demo
    CHECKPOINT_IN_POD,
    # sglang 0.5.23 arg_groups/validation_hook.py, two-batch overlap
    NO_OVERLAP_IN_A_GROUP,
    # sglang 0.5.23 layers/moe/token_dispatcher/deepep.py, FINISHED_SUM_TAG
    Rule("S746", "rendered", decode_steps_fit_exchange),
    # planner/facts/exchange.py
    Rule("S758", "rendered", exchange_supports_unit_sizes),
    # sglang 0.5.23 layers/quantization/fp8.py, validate_block_quant_shapes
    Rule("S772", "rendered", shards_are_whole_blocks),
    # sglang 0.5.23 layers/moe/ep_moe/layer.py, arg_groups/moe_hook.py
    Rule("S741", "rendered", exchange_supports_precision),
    # sglang 0.5.23 arg_groups/validation_hook.py, served_model_name
    Rule("S751", "rendered", model_name_has_no_colon),
    # planner/facts/engine_models.py
    Rule("S754 S709 S745", "rendered", engine_runs_model),
    # sglang 0.5.23 models/deepseek_v2.py, DeepseekV2MoE; likewise others
    Rule("S758", "rendered", units_have_at_most_one_gpu_per_expert),
    # runtime/gateway/tenants/keys.py: the file's form is ours
    NO_KEYS,
    # planner/engines/sglang.py, --max-concurrent-requests; our ranks report to each gateway the work from others
    ONE_GATEWAY,
    # runtime/protocol/tls.py: it is between our gateway and our ranks
    NO_TLS,
)
VLLM = (
    # github.com/deepseek-ai/DeepEP dd758caf README.md
    Rule("S740", "rendered", gpus_are_nvidia),
    NO_FP32,
    # planner/facts/core_attention.py
    Rule("S735", "rendered", core_attention_has_kernels),
    # vllm 0.33.0 config/model.py, _verify_quantization
    Rule("S741", "rendered", phases_load_one_checkpoint),
    # vllm 0.33.0 distributed/eplb/eplb_state.py, which moves experts
    NOT_DETERMINISTIC,
    # github.com/kubernetes-sigs/lws v0.9.0: pods are numbered as they are created, wherever they are bound
    NO_RACK_COVERAGE,
    # runtime/demo
    CHECKPOINT_IN_POD,
    # vllm 0.33.0 config/vllm.py, backends of use_ubatching
    NO_OVERLAP_IN_A_GROUP,
    NO_MIXED_OVERLAP,
    # vllm 0.33.0 v1/worker/ubatching.py
    NO_FIVE_STAGES,
    # sglang 0.5.23 layers/moe/token_dispatcher/deepep.py: DeepEP's own limit
    # vllm 0.33.0 model_executor/layers/fused_moe/all2all_utils.py
    Rule("S746", "rendered", decode_steps_fit_exchange),
    # planner/facts/exchange.py
    Rule("S758", "rendered", exchange_supports_unit_sizes),
    # vllm 0.33.0 model_executor/layers/quantization/utils/fp8_utils.py
    Rule("S772", "rendered", shards_are_whole_blocks),
    # vllm 0.33.0 config/parallel.py, nnodes_within_dp
    Rule("S710", "rendered", groups_stay_on_one_node),
    # vllm 0.33.0 model_executor/layers/quantization/__init__.py
    NO_W4A8,
    # planner/facts/engine_models.py
    Rule("S754 S709 S745", "rendered", engine_runs_model),
    # the last two: for the same reasons as with SGLang
    NO_KEYS,
    NO_TLS,
)
