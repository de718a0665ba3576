"""What an engine cannot run of the spec's model, from the table in `planner/facts/engine_models.py`."""

from collections.abc import Iterator, Mapping

from planner.facts.engine_models import ENGINE_MODELS, EngineModel
from planner.facts.terms import Phase
from planner.problems.finding import Finding
from planner.problems.fix import HERE, Fix, nearest
from planner.rules.exchange_limits import explain_missing_replicas, most_gpus_per_unit, nearest_units
from planner.rules.rule import Candidate
from planner.spec.resolved import ResolvedSpec


def engine_runs_model(c: Candidate) -> Iterator[Finding]:
    """Reject a model that the engine cannot run, and redundant experts or overlap that it lacks for this model."""
    spec = c.resolved
    model = _known_models(spec).get(spec.model.model_type)
    if model is None:
        yield _unknown_model(spec)
        return
    if model.cannot:
        yield _unsupported_model(spec, model.cannot)
        return
    yield from _find_replicas(spec)
    yield from _find_overlaps(spec, model)


def units_have_at_most_one_gpu_per_expert(c: Candidate) -> Iterator[Finding]:
    """Reject units with more GPUs than the model has experts: SGLang refuses them, even with redundant experts."""
    spec = c.resolved
    most = most_gpus_per_unit(spec)
    for phase in spec.phases:
        if (size := spec.phase(phase).ep_size) > most:
            rule = f"S758 must be at most num_routed_experts ({most}) to run on {spec.written.engine_name}"
            reason = "it refuses a unit with more GPUs than a layer has experts, even with replicas"
            yield Finding(f"{phase}.ep_size", size, rule, reason, f"plan units of at most {most} GPUs")


def _known_models(spec: ResolvedSpec) -> Mapping[str, EngineModel]:
    version = spec.written.engine_version
    assert version is not None
    return ENGINE_MODELS[spec.written.engine_name][version]


def _engine_in_words(spec: ResolvedSpec) -> str:
    return f"{spec.written.engine_name} {spec.written.engine_version}"


def _unknown_model(spec: ResolvedSpec) -> Finding:
    rule = f"S709 must have model_type {' or '.join(sorted(_known_models(spec)))} to run on {_engine_in_words(spec)}"
    reason = f"what it does with {spec.model.model_type} is not known"
    return Finding(*spec.written.named_model, rule, reason, "choose one of these models, or another engine")


def _unsupported_model(spec: ResolvedSpec, reason: str) -> Finding:
    rule = f"S709 must not be {spec.model.model_type} to run on {_engine_in_words(spec)}"
    return Finding(*spec.written.named_model, rule, reason, "choose another engine")


def _find_replicas(spec: ResolvedSpec) -> Iterator[Finding]:
    for phase in spec.phases:
        redundant, reason = spec.phase(phase).redundant_experts, explain_missing_replicas(spec, phase)
        if redundant and reason:
            rule = f"S754 must be 0 to run {spec.model.model_type} on {_engine_in_words(spec)}"
            yield Finding(f"{phase}.redundant_experts", redundant, rule, reason, _offer_no_replicas(spec, phase))


def _offer_no_replicas(spec: ResolvedSpec, phase: Phase) -> Fix | str:
    """Return a fix with 0 redundant experts.

    If the present EP size then does not divide the experts, the fix has another EP size too.
    """
    if spec.model.num_routed_experts % spec.phase(phase).ep_size == 0:
        return nearest(0)
    sizes = [size for size, _ in nearest_units(spec, phase)]
    if not sizes:
        return "choose another engine"
    words = f"nearest: 0 with ep_size {' or '.join(map(str, sizes))}"
    return Fix(words, tuple({HERE: 0, f"{phase}.ep_size": size} for size in sizes))


def _find_overlaps(spec: ResolvedSpec, model: EngineModel) -> Iterator[Finding]:
    for phase in spec.phases:
        overlap = spec.phase(phase).overlap
        if overlap != "none" and phase not in model.overlaps:
            rule = f"S745 must be none to run {spec.model.model_type} on {_engine_in_words(spec)}"
            reason = f"it does not split the layers of {model.architecture} into stages" + (
                f" in {phase}" if model.overlaps else ""
            )
            yield Finding(f"{phase}.overlap", overlap, rule, reason, nearest("none"))
