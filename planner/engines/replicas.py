"""Whether an engine gives an expert several slots: the model's class and the form of its experts decide.

vLLM has slots for replicas only where it moves experts (`--enable-eplb`). With experts that it cannot move it refuses
that option, and with it every replica; without replicas it runs.
"""

from planner.facts.engine_models import ENGINE_MODELS, MOVED_FORMS
from planner.facts.quantisation import METHODS
from planner.facts.terms import EngineName, Phase, Precision
from planner.spec.check import ResolvedSpec

__all__ = ["has_slots", "moves_form", "why_no_replicas"]


def has_slots(spec: ResolvedSpec, phase: Phase) -> bool:
    """Return whether the engine has a slot for each redundant expert of `phase`."""
    return spec.phase(phase).redundant_experts == 0 or why_no_replicas(spec, phase) is None


def why_no_replicas(spec: ResolvedSpec, phase: Phase) -> str | None:
    """Return why the spec's engine has one slot for each expert; None where it can have more, or nobody knows."""
    engine, version = spec.written.engine_name, spec.written.engine_version or ""
    model = ENGINE_MODELS.get(engine, {}).get(version, {}).get(spec.model.model_type)
    if model is None:
        return None
    if not model.replicas:
        return f"its {model.architecture} has exactly one slot for each expert"
    own, precision = spec.model.quantisation, spec.phase(phase).precision
    if moves_form(engine, version, precision, own.other_method):
        return None
    called = own.words if own.precision == precision else precision
    return f"it has slots for replicas only of experts that it can move, and cannot move those in {called}"


def moves_form(engine: EngineName, version: str, precision: Precision, other_method: str | None) -> bool:
    """Return whether the engine can move experts in `precision`; `other_method` is a checkpoint's unusual form."""
    forms = MOVED_FORMS.get(engine, {}).get(version)
    return forms is None or (other_method or METHODS.get(precision)) in forms.get(precision, {})
