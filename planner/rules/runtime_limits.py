"""Limits of the bundled runtime. A rule is deleted once the runtime has the feature.

A spec beyond these limits is valid and can be planned, for a design review or for another engine. `render` and `up`
refuse it as infeasible.
"""

from collections.abc import Iterator

from planner.facts.engine_models import ENGINE_MODELS
from planner.facts.quantisation import kv_dtype
from planner.problems.finding import Finding
from planner.problems.fix import HERE, Fix, nearest, removal
from planner.rules.rule import Candidate, Rule, limit

RUNNABLE = ("deepseek_v3", "deepseek_v2", "kimi_k2", "kimi_k25")  # names of families in transformers
PRECISIONS = ("fp8", "bf16", "fp32")


def checkpoint_is_given(c: Candidate) -> Iterator[Finding]:
    """Reject specs without a checkpoint: no engine runs without weights."""
    model = c.resolved.written.model
    if isinstance(model, str):
        rule, reason = "S702 must give a checkpoint for the model to run", "the catalog has shapes but no weights"
        fix = f"write model: {{catalog: {model}, checkpoint: ...}}, with the folder's path in the pod"
        yield Finding("model", model, rule, reason, fix)
    elif model.checkpoint is None:
        reason = "without weights there is nothing to compute with"
        fix = "write its folder in the pod, as checkpoint: /models/..."
        yield Finding("model.checkpoint", None, "S702 is required to run", reason, fix)


def model_is_supported(c: Candidate) -> Iterator[Finding]:
    """Reject model families whose layers the runtime does not have."""
    model_type = c.resolved.model.model_type
    if model_type not in RUNNABLE:
        rule = f"S709 must have model_type {' or '.join(RUNNABLE)} to run"
        reason = f"the bundled runtime cannot run {model_type} yet"
        engines = [
            name for name, versions in ENGINE_MODELS.items() if any(model_type in each for each in versions.values())
        ]
        fix = f"write engine: {' or '.join(engines)}" if engines else "keep the plan for a review"
        yield Finding(*c.resolved.written.named_model, rule, reason, fix)


def gpus_are_supported(c: Candidate) -> Iterator[Finding]:
    """Reject AMD GPUs: kernels are for CPUs and NVIDIA GPUs."""
    rule = "S740 must be cpu or an NVIDIA GPU to run"
    reason = "AMD's GPUs use other FP8 formats and another build of PyTorch, which tidemill does not support yet"
    for path, name, gpu in c.resolved.named_gpus():
        if gpu.is_rocm:
            yield Finding(path, name, rule, reason, "plan it for other GPUs, or keep the plan for a review")


def kv_precision_is_default(c: Candidate) -> Iterator[Finding]:
    """Reject a KV precision other than the default. The fix removes it in all phases, since they exchange KV."""
    for phase in c.resolved.phases:
        section = c.resolved.phase(phase)
        own = kv_dtype(section.precision)
        if kv_dtype(section.precision, section.kv_precision) != own:
            reason = f"with precision {section.precision}, the bundled runtime keeps KV in {own} only"
            fix = removal(*(f"{each}.kv_precision" for each in c.resolved.phases), words="leave it out")
            yield Finding(f"{phase}.kv_precision", section.kv_precision, f"S730 must be {own} to run", reason, fix)


ALL_ENGINES = (Rule("S702", "rendered", checkpoint_is_given),)
TIDEMILL = (
    Rule("S709", "rendered", model_is_supported),
    Rule("S740", "rendered", gpus_are_supported),
    limit(
        "deterministic",
        "S742 must be false to run on GPUs",
        "it has not been verified yet that GPU kernels give a request the same bits in every batch",
        removal(),
        lambda spec, _: spec.written.deterministic and any(gpu.device == "cuda" for _, _, gpu in spec.named_gpus()),
    ),
    limit(
        "*.attention_tp",
        "S710 must be 1 to run",
        "the bundled runtime has only data-parallel attention so far: each rank serves requests of its own",
        nearest(1),
        lambda spec, phase: spec.phase(phase).attention_tp != 1,
    ),
    Rule("S730", "rendered", kv_precision_is_default),
    limit(
        "*.attention_precision",
        "S735 must be bf16 to run",
        "the bundled runtime has no kernels for core attention in FP8",
        removal(),
        lambda spec, phase: spec.phase(phase).attention_precision == "fp8",
    ),
    limit(
        "*.draft_tokens",
        "S734 must be 0 to run",
        "the bundled runtime has no speculative decoding yet: each step gives a request one token",
        Fix("nearest: 0, or write engine: sglang or vllm", ({HERE: 0},)),
        lambda spec, phase: spec.phase(phase).draft_tokens > 0,
    ),
    limit(
        "*.precision",
        "S741 must be in blocks of 128 x 128 to run",
        "the bundled runtime reads no other FP8, and the checkpoint has another",
        "choose a checkpoint in such blocks",
        lambda spec, phase: spec.phase(phase).precision == "fp8" and spec.model.quantisation.other_method is not None,
    ),
    limit(
        "*.precision",
        f"S741 must be {' or '.join(PRECISIONS)} to run",
        "the bundled runtime has no 4-bit matmuls",
        "choose a checkpoint in one of these",
        lambda spec, phase: spec.phase(phase).precision not in PRECISIONS,
    ),
)
