"""Limits of the bundled runtime. A rule goes away when the runtime learns the feature.

A spec beyond these limits is right and still plans, for a design review or for another engine. `render` and `up` refuse
it as infeasible.
"""

from collections.abc import Iterator

from planner.facts.engine_models import ENGINE_MODELS
from planner.problems.finding import Finding
from planner.problems.fix import HERE, Fix, nearest, removal
from planner.rules.rule import Candidate, Rule
from planner.spec.precision import kv_dtype

__all__ = ["ALL_ENGINES", "TIDEMILL"]

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


def deterministic_needs_cpu(c: Candidate) -> Iterator[Finding]:
    """Reject `deterministic` on GPUs: their kernels may sum in another order in another batch."""
    if c.resolved.written.deterministic and any(gpu.device == "cuda" for _, _, gpu in c.resolved.named_gpus()):
        reason = "it has not been verified yet that GPU kernels give a request the same bits in every batch"
        rule = "S742 must be false to run on GPUs"
        yield Finding("deterministic", True, rule, reason, Fix("nearest: false", ({HERE: False},)))


def attention_is_data_parallel(c: Candidate) -> Iterator[Finding]:
    """Reject shared attention: a rank computes all heads of its own requests."""
    for phase in c.resolved.phases:
        attention_tp = c.resolved.phase(phase).attention_tp
        if attention_tp != 1:
            reason = "the bundled runtime has only data-parallel attention so far: each rank serves requests of its own"
            yield Finding(f"{phase}.attention_tp", attention_tp, "S710 must be 1 to run", reason, nearest(1))


def kv_precision_is_default(c: Candidate) -> Iterator[Finding]:
    """Reject a KV precision other than the default. The fix removes it in all phases, since they exchange KV."""
    for phase in c.resolved.phases:
        section = c.resolved.phase(phase)
        own = kv_dtype(section.precision)
        if kv_dtype(section.precision, section.kv_precision) != own:
            reason = f"with precision {section.precision}, the bundled runtime keeps KV in {own} only"
            fix = removal(*(f"{each}.kv_precision" for each in c.resolved.phases), words="leave it out")
            yield Finding(f"{phase}.kv_precision", section.kv_precision, f"S730 must be {own} to run", reason, fix)


def no_tokens_are_drafted(c: Candidate) -> Iterator[Finding]:
    """Reject drafts: each step gives a request one token."""
    for phase in c.resolved.phases:
        if drafts := c.resolved.phase(phase).draft_tokens:
            reason = "the bundled runtime has no speculative decoding yet: each step gives a request one token"
            fix = Fix("nearest: 0, or write engine: sglang or vllm", ({HERE: 0},))
            yield Finding(f"{phase}.draft_tokens", drafts, "S734 must be 0 to run", reason, fix)


def precisions_have_kernels(c: Candidate) -> Iterator[Finding]:
    """Reject precisions without kernels: matmuls are in FP8 in blocks of 128 x 128, or wider."""
    for phase in c.resolved.phases:
        precision, own = c.resolved.phase(phase).precision, c.resolved.model.quantisation
        if precision == "fp8" and own.other_method:
            rule = "S741 must be in blocks of 128 x 128 to run"
            reason = f"the checkpoint is in {own.words}, which the bundled runtime cannot read"
            yield Finding(f"{phase}.precision", precision, rule, reason, "choose a checkpoint in such blocks")
        if precision not in PRECISIONS:
            rule, reason = f"S741 must be {' or '.join(PRECISIONS)} to run", "the bundled runtime has no 4-bit matmuls"
            yield Finding(f"{phase}.precision", precision, rule, reason, "choose a checkpoint in one of these")


ALL_ENGINES = (Rule("S702", "rendered", checkpoint_is_given),)
TIDEMILL = (
    Rule("S709", "rendered", model_is_supported),
    Rule("S740", "rendered", gpus_are_supported),
    Rule("S742", "rendered", deterministic_needs_cpu),
    Rule("S710", "rendered", attention_is_data_parallel),
    Rule("S730", "rendered", kv_precision_is_default),
    Rule("S734", "rendered", no_tokens_are_drafted),
    Rule("S741", "rendered", precisions_have_kernels),
)
