"""Compute the figures of a plan anew, because digests are no signature: whoever edits a figure can seal the plan again.

What runs is built anew wherever a plan is loaded (`plan/load.py`). Figures take a compilation, so they are computed
here, where people see them: in `report`, `diff` and `plan --previous`. What this version computes is shown, whatever
the file says. So two plans are compared by one way to predict, also if other versions of tidemill made them.

No file that only a plan names is opened. A spec that the user gave lends its own files, if they have the digests that
the plan states. Where a file is missing, the figures stay as the plan has them, and a note says so.

Not computed is how the plan was found: its search, its placement and its reasons depend on more than the plan holds.
"""

from dataclasses import replace
from typing import Any

from planner.compiler import compile_again
from planner.plan.plan import Plan
from planner.plan.user_input import file_names
from planner.problems.errors import InfeasibleError, SpecError
from planner.problems.finding import Unknown
from planner.rules.check import resolve
from planner.search.auto import Choice
from planner.spec.resolved import ResolvedSpec
from planner.spec.yaml import Document

LOADS = "expert_load"
# sections that follow from the spec, the units' nodes and the maps
COMPUTED = (
    *("performance", "cost", "demand", "balance", "failures", "kv_cache", "memory", "reads", "expert_maps"),
    *("warnings", "refusals", "why_not", "model", "gpu", "phase_gpus", "sources", "assumed", "live_maps"),
)


def compute_figures(plan: Plan, which: str, lender: ResolvedSpec | None = None) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan with figures of this version, and a note if the file has others or if they cannot be computed.

    `which` tells the plan apart in the note. `lender` is a spec that the user gave, whose files are open already. A
    rendered folder's plan has no figures and is returned unchanged.
    """
    if plan.report is None:
        return plan, ()
    try:
        spec = own_spec(plan, lender)
        choice = Choice(original=spec, spec=spec, decisions=(), search=None)
        again = compile_again(plan, choice, None, has_figures=True)
    except (Unknown, SpecError, InfeasibleError) as error:
        why = (isinstance(error, Unknown) and str(error)) or "by this version it would be another plan"
        return plan, (f"figures {which} are as its file tells them, and nobody has checked them: {why}",)
    computed = plan.with_sections(
        **{name: getattr(again, name) for name in COMPUTED} | {"balance": _keep_moves(plan, again)}
    )
    old, new = (_comparable_sections(each) for each in (plan, computed))
    differing = [name for name in COMPUTED if old.get(name) != new.get(name)]
    if not differing:
        return plan, ()
    note = (
        f"figures {which} are computed anew: its file has others ({', '.join(differing)}), edited or of another version"
    )
    return computed, (note,)


def own_spec(plan: Plan, lender: ResolvedSpec | None) -> ResolvedSpec:
    """Return the plan's spec with the contents of its files, which are those that `lender` names too.

    Raises Unknown if a file is missing or has changed, or if the plan's speeds are corrected by measurements.
    """
    files = [each.calibration.file for each in (plan.performance or {}).values() if each.calibration]
    if files:
        raise Unknown(f"the measurements ({files[0]}) are not in it")
    file = plan.spec.expert_load.file
    if file is None:
        return resolve_without_loads(plan, lender)
    if lender is None or lender.measured_loads is None or plan.inputs.get(file) != _loads_digest(lender):
        raise _missing(file)
    return replace(resolve_without_loads(plan, lender), measured_loads=lender.measured_loads)


def resolve_without_loads(plan: Plan, lender: ResolvedSpec | None) -> ResolvedSpec:
    """Return the plan's spec without a file of expert loads. Raises Unknown if another file is missing or changed."""
    lent, own = lender.inputs if lender else {}, file_names(plan.spec)
    for name in own:
        if name != plan.spec.expert_load.file and lent.get(name) != plan.inputs.get(name, ""):
            raise _missing(name)
    data = plan.written | {LOADS: {key: value for key, value in plan.written.get(LOADS, {}).items() if key != "file"}}
    found = resolve(Document(lender.document.file if lender else "", data, {}, {}))
    for name, digest in found.inputs.items():
        if plan.inputs.get(name) != digest:
            raise _missing(name)
    return found


def _loads_digest(spec: ResolvedSpec) -> str | None:
    return spec.inputs.get(spec.written.expert_load.file or "")


def _missing(name: str) -> Unknown:
    return Unknown(f"{name} is not in it, and no file is opened that only a plan names")


def _comparable_sections(plan: Plan) -> dict[str, Any]:
    """Return the computed sections as JSON, with messages sorted: where `auto` was decided their order is another."""
    sections = plan.model_dump(mode="json", include=set(COMPUTED))
    messages = {name: sorted(sections[name], key=str) for name in ("warnings", "refusals", "why_not")}
    return sections | messages


def _keep_moves(plan: Plan, again: Plan) -> dict[str, object] | None:
    """Return the computed balance with the plan's own `moves`, which depend on the plan before it."""
    own = plan.balance or {}
    return {
        phase: each.model_copy(update={"moves": own[phase].moves if phase in own else None})
        for phase, each in (again.balance or {}).items()
    }
