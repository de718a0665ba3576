"""Compile a spec into a plan: decide what the spec leaves open, then read the plan from one candidate.

Predictions come last, since they may take as long as the rest, and `render` and `up` do not need them.

Pure: no network, no clock, no unseeded randomness. The same spec gives the same bytes on any machine.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from planner.candidate.candidate import Candidate
from planner.facts.terms import Phase
from planner.plan.decided import decided_sections
from planner.plan.plan import Plan, seal_plan
from planner.plan.sections import ModelShape
from planner.plan.user_input import read_input, refuse_option
from planner.problems.finding import Unknown
from planner.search.auto import Choice, Former, decide, decide_near
from planner.search.repair import require_feasible
from planner.spec.decision import FIELDS
from planner.spec.resolved import ResolvedSpec

if TYPE_CHECKING:
    from planner.estimate.throughput.calibration import Calibration


@dataclass(frozen=True, kw_only=True)
class Compiled(Candidate):
    """A candidate with a number for every `auto`, and the decisions behind these numbers."""

    choice: Choice

    @property
    def searched(self) -> Collection[Phase]:
        """Return the phases whose layouts the search chose by speed."""
        return self.choice.searched

    @cached_property
    def plan(self) -> Plan:
        """Return the plan with predictions and report."""
        from planner.plan.estimated import expected_sections  # slow to import; `render` and `up` do not need it
        from planner.report.rows import rows_of

        sections = decided_sections(self, self.choice) | expected_sections(self)
        sections["warnings"] += self.missed_promises
        return seal_plan(sections, rows_of)

    @property
    def deployed(self) -> Plan:
        """Return the plan without predictions and report: the part that is deployed."""
        return seal_plan(decided_sections(self, self.choice))

    @property
    def deployed_with_demand(self) -> Plan:
        """Return the deployed part and the day's demand, which the comparison with another plan needs too."""
        from planner.plan.estimated import demand_sections

        return seal_plan(decided_sections(self, self.choice) | demand_sections(self))


def compile_plan(spec: ResolvedSpec, previous: Plan | None = None, calibration: "Calibration | None" = None) -> Plan:
    """Return the plan for `spec`.

    Near a `previous` plan, `auto` keeps the sizes that units have there, while these meet the spec. Units stay on
    their nodes, and a phase keeps its map unless a fresh one is worth a restart. `calibration`, a user's own
    measurements, corrects predictions. Raises InfeasibleError, with changes that help, if no plan is possible.
    """
    return run_passes(spec, previous, calibration).plan


def run_passes(spec: ResolvedSpec, previous: Plan | None = None, calibration: "Calibration | None" = None) -> Compiled:
    """Return the compiled candidate, for callers that need more than its plan, such as `tidemill simulate`."""

    def decided(choice: Choice) -> Compiled:
        return Compiled(choice.spec.document, previous, calibration, known=choice.spec, choice=choice)

    former, missed = _former_sizes(spec, previous), dict[str, str]()
    for sizes, near in decide_near(spec, former):
        if isinstance(near, Choice):
            refusals = decided(near).misfits("mapped")
            if not refusals:
                choice = near
                break
            near = refusals[0].broken_rule
        missed |= dict.fromkeys(sizes, near)
    else:
        choice = decide(spec)
    candidate = decided(choice.explain_resizing(former, missed))
    require_feasible(candidate, "mapped", choice.original)
    return candidate


def compile_again(plan: Plan, choice: Choice, calibration: "Calibration | None", *, has_figures: bool) -> Plan:
    """Return `plan` compiled again under the spec of `choice`, with the nodes and maps that it has, however uneven.

    With `has_figures` the result has all figures, else only those of the day's demand. Raises Unknown if the new plan
    would deploy something else than `plan`.
    """
    spec = choice.spec
    again = Compiled(spec.document, plan, calibration, keeps_maps=True, known=spec, choice=choice)
    made = again.plan if has_figures else again.deployed_with_demand
    if made.digest != plan.digest:
        raise Unknown
    return made


def _former_sizes(spec: ResolvedSpec, previous: Plan | None) -> Former:
    """Return path -> size of the units in the `previous` plan, for phases with the same GPU.

    The result is empty without a previous plan, and for another model. The sizes are those of the previous plan's spec
    as planned, which a rendered folder keeps as well as a PLAN.json does.
    """
    if previous is None or previous.model != ModelShape.model_validate(spec.model):
        return {}
    phases = [each for each in spec.phases if each in previous.phases]
    same = {each for each in phases if previous.spec.gpu_name(each) == spec.written.gpu_name(each)}
    sizes = {(phase, field): getattr(previous.spec.phase(phase), field) for phase in same for field in FIELDS}
    return {f"{phase}.{field}": size for (phase, field), size in sizes.items() if isinstance(size, int)}


def compile_or_load(
    path: Path, previous: Path | None = None, kept: Plan | None = None, overlays: Sequence[Path] = ()
) -> Compiled | Plan:
    """Compile the spec at `path`, or return the plan that is there.

    A spec is read with its `overlays`, and planned so that units stay where the plan at `previous` has them, else where
    the `kept` plan has them. A rendered folder is accepted only if its manifests are what its plan renders. Raises
    SpecError, CallError or InfeasibleError if there is no plan.
    """
    given = read_input(path, overlays)
    if isinstance(given, ResolvedSpec):
        from planner.plan.load import read_plan  # imported here: most specs are planned without a previous plan

        return run_passes(given, read_plan(previous) if previous else kept)
    if previous is not None:
        raise refuse_option("--previous", previous, path)
    if overlays:
        raise refuse_option("-f", overlays[0], path)
    if path.is_dir():
        from planner.manifests.folder import require_rendered  # imported here: only a folder's plan is rendered

        require_rendered(path, given)
    return given


def plan_from(path: Path, previous: Path | None = None, overlays: Sequence[Path] = ()) -> Plan:
    """Return the plan that `compile_or_load` finds; a spec's plan has no predictions."""
    found = compile_or_load(path, previous, overlays=overlays)
    return found.deployed if isinstance(found, Compiled) else found
