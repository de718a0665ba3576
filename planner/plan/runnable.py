"""What the engine of a spec cannot run: the bundled runtime, not yet; another, by `planner/engines`.

A layout that it cannot run still plans, for a design review or for another engine; `render` and `up` refuse it as
infeasible: the spec is right, the engine is not there yet. Each refusal of the bundled runtime goes away with the issue
that teaches it.
"""

from collections.abc import Iterator
from itertools import chain

from planner.facts.engine_models import ENGINE_MODELS
from planner.facts.engines import OURS
from planner.facts.terms import Phase
from planner.problems.finding import Finding
from planner.problems.fix import HERE, Fix, nearest, removal
from planner.spec.check import ResolvedSpec
from planner.spec.precision import kv_dtype

__all__ = ["runtime_refusals"]

RUNNABLE = ("deepseek_v3", "deepseek_v2", "kimi_k2", "kimi_k25")  # as transformers calls the families
PRECISIONS = ("fp8", "bf16", "fp32")


def runtime_refusals(spec: ResolvedSpec) -> tuple[Finding, ...]:
    """Why the engine of `spec` cannot run it; empty when it can."""
    if spec.written.engine_name == OURS:
        found = chain(_not_this_model(spec), _not_on_this_gpu(spec), _not_in_this_way(spec))
    else:
        from planner.engines.limits import engine_refusals

        found = chain(engine_refusals(spec))
    return tuple(spec.locate(finding) for finding in chain(_without_weights(spec), found))


def _without_weights(spec: ResolvedSpec) -> Iterator[Finding]:
    model = spec.written.model
    if isinstance(model, str):
        words = f"write model: {{catalog: {model}, checkpoint: ...}}, with the folder's path in the pod"
        yield Finding(
            "model",
            model,
            "S702 must give a checkpoint for the model to run",
            "the catalog has shapes but no weights",
            words,
        )
    elif model.checkpoint is None:
        reason, fix = (
            "without weights there is nothing to compute with",
            "write its folder in the pod, as checkpoint: /models/...",
        )
        yield Finding("model.checkpoint", None, "S703 is required to run", reason, fix)


def _not_this_model(spec: ResolvedSpec) -> Iterator[Finding]:
    if spec.model.model_type not in RUNNABLE:
        reason = f"the bundled runtime cannot run {spec.model.model_type} yet"
        rule = f"S709 must have model_type {' or '.join(RUNNABLE)} to run"
        yield Finding(*spec.written.named_model, rule, reason, _another_engine(spec.model.model_type))


def _another_engine(model_type: str) -> str:
    """Return which engines run the model in some version that is known."""
    engines = [
        name for name, versions in ENGINE_MODELS.items() if any(model_type in each for each in versions.values())
    ]
    return f"write engine: {' or '.join(engines)}" if engines else "keep the plan for a review"


def _not_on_this_gpu(spec: ResolvedSpec) -> Iterator[Finding]:
    rule, reason = (
        "S704 must be cpu or an NVIDIA GPU to run",
        "AMD's GPUs use other FP8 formats and another build of PyTorch, which tidemill does not support yet",
    )
    for path, name, gpu in spec.named_gpus():
        if gpu.is_rocm:
            yield Finding(path, name, rule, reason, "plan it for other GPUs, or keep the plan for a review")
    if spec.written.deterministic and any(gpu.device == "cuda" for _, _, gpu in spec.named_gpus()):
        reason = "it has not been verified yet that GPU kernels give a request the same bits in every batch"
        yield Finding(
            "deterministic", True, "S732 must be false to run on GPUs", reason, Fix("nearest: false", ({HERE: False},))
        )


def _not_in_this_way(spec: ResolvedSpec) -> Iterator[Finding]:
    for phase in spec.phases:
        attention_tp = spec.phase(phase).attention_tp
        if attention_tp != 1:
            reason = "the bundled runtime has only data-parallel attention so far: each rank serves requests of its own"
            yield Finding(f"{phase}.attention_tp", attention_tp, "S710 must be 1 to run", reason, nearest(1))
        yield from _kv_in_another_type(phase, spec)
        if drafts := spec.phase(phase).draft_tokens:
            reason = "the bundled runtime has no speculative decoding yet: each step gives a request one token"
            fix = Fix("nearest: 0, or write engine: sglang or vllm", ({HERE: 0},))
            yield Finding(f"{phase}.draft_tokens", drafts, "S734 must be 0 to run", reason, fix)
        precision = spec.phase(phase).precision
        if precision == "fp8" and spec.model.quantisation.other_method:
            rule = "S731 must be in blocks of 128 x 128 to run"
            reason = f"the checkpoint is in {spec.model.quantisation.words}, which the bundled runtime cannot read"
            yield Finding(f"{phase}.precision", precision, rule, reason, "choose a checkpoint in such blocks")
        if precision not in PRECISIONS:
            rule, reason = f"S731 must be {' or '.join(PRECISIONS)} to run", "the bundled runtime has no 4-bit matmuls"
            yield Finding(f"{phase}.precision", precision, rule, reason, "choose a checkpoint in one of these")


def _kv_in_another_type(phase: Phase, spec: ResolvedSpec) -> Iterator[Finding]:
    """KV in a type that the runtime does not keep it in; all phases exchange KV, so that all leave it out."""
    section = spec.phase(phase)
    own = kv_dtype(section.precision)
    if kv_dtype(section.precision, section.kv_precision) != own:
        reason = f"with precision {section.precision}, the bundled runtime keeps KV in {own} only"
        fix = removal(*(f"{each}.kv_precision" for each in spec.phases), words="leave it out")
        yield Finding(f"{phase}.kv_precision", section.kv_precision, f"S730 must be {own} to run", reason, fix)
