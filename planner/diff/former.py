"""Judge the former plan under the expert loads of the new one.

Until its units restart, the former plan serves with its own expert maps, and they meet the loads of today. So both
plans are compared under the loads of the new spec: that tells what serves meanwhile, and what new maps gain. Figures
for the loads that the former plan was made for would compare two days' traffic as well.

The former plan is compiled again from its own spec, with its own nodes and maps. Only the loads are others.
"""

from collections.abc import Iterator
from dataclasses import replace

from planner.compiler import Compiled, compile_again
from planner.diff.change import LoadSides
from planner.diff.figures import resolve_without_loads
from planner.plan.plan import Plan
from planner.plan.sections import ModelShape
from planner.problems.errors import InfeasibleError, SpecError
from planner.problems.finding import Unknown
from planner.spec.resolved import ResolvedSpec


def judge_former(former: Plan, found: Compiled | Plan) -> Plan:
    """Return the `former` plan with its figures for the expert loads of `found`.

    The plan of a rendered folder has no figures. It gets only the figures of its demand, which the verdict needs.

    The plan is returned unchanged if its figures are for these loads already. It is also unchanged if they cannot be
    computed: if `found` is a finished plan or has another model, or lacks a file that the former spec names.
    """
    if not isinstance(found, Compiled) or former.model != ModelShape.model_validate(found.resolved.model):
        return former
    if former.report is not None and identify_loads(former) == identify_loads(found.resolved):
        return former
    try:
        spec = replace(resolve_without_loads(former, found.resolved), measured_loads=found.resolved.expert_loads)
        choice = replace(found.choice, original=spec, spec=spec, decisions=former.decisions, search=None)
        return compile_again(former, choice, found.calibration, has_figures=former.report is not None)
    except (SpecError, InfeasibleError, Unknown):
        return former


def compare_loads(before: Plan, after: Plan, *, is_judged: bool) -> LoadSides | None:
    """Return the expert loads of each plan; None if both have the same, or if the former ones are unknown.

    `is_judged` says whether the former plan's figures are for the loads of `after`.
    """
    old, new = (identify_loads(each) for each in (before, after))
    if None in (old, new) or old == new:
        return None
    return LoadSides(before=_name(before), after=_name(after), figures_before="after" if is_judged else "before")


def explain_unknown_loads(before: Plan, after: Plan) -> Iterator[str]:
    """Yield that other measured loads count as the former ones, where a rendered folder does not tell if they are."""
    old, new = (plan.spec.expert_load.file for plan in (before, after))
    if old and new and old != new and identify_loads(before) is None:
        yield f"{new} counts as the same loads as {old}, since a rendered folder does not tell what was in that file"


def identify_loads(made: Plan | ResolvedSpec) -> tuple[object, ...] | None:
    """Return a key that is equal for equal expert loads: a digest, or the alpha and seed of drawn loads.

    Return None for measured loads of a rendered folder, which keeps no digest.
    """
    loads = (made.spec if isinstance(made, Plan) else made.written).expert_load
    if loads.file is None:
        return loads.alpha, loads.seed
    return (made.inputs[loads.file],) if loads.file in made.inputs else None


def _name(plan: Plan) -> str:
    loads = plan.spec.expert_load
    if loads.file is None:
        return f"drawn (power law, alpha {loads.alpha:g}, seed {loads.seed})"
    return f"measured ({loads.file}, {plan.inputs[loads.file][:19]})"
