"""Read OLD and NEW as two plans that can be compared.

A plan is used unchanged. A spec is planned first: OLD as if nothing ran, NEW near OLD, as `tidemill plan --previous`
does it. The change says so, because what really runs may be on other nodes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from planner.compiler import run_passes
from planner.diff.figures import compute_figures
from planner.diff.pair import Pair
from planner.manifests.folder import find_edits
from planner.plan.load import PLAN_AGAIN
from planner.plan.plan import Plan
from planner.plan.user_input import named_files, read_input, refuse_option
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.spec.resolved import ResolvedSpec

ALTERED = "manifests were edited, merged or written by another version; pods are compared as {}"
AS_PLANNED, AS_THEY_STAND = "its plan renders them", "these manifests have them"
BOTH_OVERLAID = "OLD and NEW are both read under"
OLD_IS_PLANNED = "OLD is a spec, planned as if nothing ran: give the plan that runs to see what really restarts"
SPEC_SUFFIXES = (".yaml", ".yml")
NEW_IS_PLANNED = "the new spec is planned so that it keeps the old plan's nodes and experts where it can"

CheckFiles = Callable[[Sequence[Path]], None]


def read_pair(old: Path, new: Path, overlays: Sequence[Path] = (), check_files: CheckFiles | None = None) -> Pair:
    """Return both plans. Each spec is read with the `overlays` merged into it.

    `check_files` is called with the files that both name, before anything is planned.
    Raises SpecError, CallError or InfeasibleError; CallError also for a spec compared with itself.
    """
    notes, loads, on_figures = list[str](), None, tuple[str, ...]()
    before, given = read_input(old, overlays), read_input(new, overlays)
    if check_files is not None:
        check_files(named_files((old, before), (new, given)))
    if isinstance(before, ResolvedSpec) and old.exists() and new.exists() and old.samefile(new):
        raise _same_spec(old)
    if overlays and isinstance(before, Plan) and isinstance(given, Plan):
        raise refuse_option("-f", overlays[0], new)
    if overlays and isinstance(before, ResolvedSpec) and isinstance(given, ResolvedSpec):
        notes.append(f"{BOTH_OVERLAID} {' and '.join(map(str, overlays))}: plan OLD first if it had others")
    lenders = [each if isinstance(each, ResolvedSpec) else None for each in (given, before)]
    if isinstance(before, ResolvedSpec):
        loads, before = before.measured_loads, run_passes(before).plan
        notes.append(OLD_IS_PLANNED)
    else:
        before, on_figures = compute_figures(before, "before the change", lenders[0])
    if isinstance(given, Plan):
        given, told = compute_figures(given, "after the change", lenders[1])
        notes[:0] = told
    found = given if isinstance(given, Plan) else run_passes(given, before)
    after = found if isinstance(found, Plan) else found.plan
    if after is not given:
        notes.append(NEW_IS_PLANNED)
    edits = find_edits(old, before) if old.is_dir() else {}
    altered = [f"{old}: {ALTERED.format(AS_THEY_STAND)}"] if edits else []
    if new.is_dir() and find_edits(new, after):
        altered.append(f"{new}: {ALTERED.format(AS_PLANNED)}")
    return Pair.of(before, found, notes=(*altered, *notes), on_figures=on_figures, loads=loads, edits=edits)


@contextmanager
def refuse_contradictions(*given: Path | None) -> Iterator[None]:
    """Turn, in the `with` block, an error that contradictory figures cause into a CallError about the PLAN.json.

    Without a plan file in `given` the error stays as it is.

    Figures of our own plans never contradict each other. Whoever edits a figure and seals the plan again may break what
    follows from it in more ways than checks can name, and none may end in a traceback.
    """
    try:
        yield
    except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError):
        files = [path for path in given if path is not None and path.is_file() and path.suffix not in SPEC_SUFFIXES]
        if not files:
            raise
        rule, reason = (
            "S908 must agree with itself",
            "its figures contradict each other: it was edited and sealed again",
        )
        raise CallError([Finding("", None, rule, reason, PLAN_AGAIN).at(str(path)) for path in files]) from None


def read_to_show(
    path: Path, previous: Path | None, overlays: Sequence[Path], check_files: CheckFiles
) -> tuple[Pair | None, Plan, tuple[str, ...]]:
    """Return the pair with the `previous` plan, or None; the plan at `path` with its figures; and notes on these.

    `check_files` is called with the files that both name, before anything is planned.
    Raises SpecError, CallError or InfeasibleError. A rendered folder at `path` is refused, because it keeps no figures.
    """
    if previous is not None:
        pair = read_pair(previous, path, overlays, check_files)
        return pair, _require_figures(pair.after, path), pair.notes
    given = read_input(path, overlays)
    check_files(named_files((path, given)))
    if isinstance(given, ResolvedSpec):
        return None, run_passes(given).plan, ()
    if overlays:
        raise refuse_option("-f", overlays[0], path)
    return None, *compute_figures(_require_figures(given, path), "of this plan")


def _same_spec(path: Path) -> CallError:
    rule, reason = "S917 must not be both OLD and NEW", "a spec does not say what runs, and does not differ from itself"
    fix = "give the plan.json or the rendered folder of what runs as OLD"
    return CallError([Finding("", None, rule, reason, fix).at(str(path))])


def _require_figures(plan: Plan, path: Path) -> Plan:
    if plan.report is not None:
        return plan
    rule, reason = "S912 must be a spec or a plan with its figures", "a rendered folder keeps no figures"
    raise CallError([Finding("", None, rule, reason, "give its spec, or what tidemill plan -o wrote").at(str(path))])
