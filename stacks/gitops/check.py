"""Check a change of a spec: what it does to running units, whether its folder was rendered, and what speaks against it.

What runs is what the folder says: that of the base branch's checkout where one is given, since in a pull request the
own folder has the change already. The new plan is planned near the own folder's, as `tidemill render` would do it.

A folder keeps no estimates. So the figures before the change are those of the base's spec, planned near the base's
folder; they count where that comes to the plan in the folder. Otherwise nobody knows them, and the report says so.

A stranger may have written the change. So no link may lead to SPEC, FOLDER or an overlay, or lie in FOLDER. Files that
the change names are read in its own checkout, and those that the base names in the base's.
"""

import os
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path

from planner.compiler import run_passes
from planner.diff.pair import Pair
from planner.facts.files import only_within
from planner.facts.loads import Loads
from planner.facts.quantities import counted, first_of
from planner.manifests.folder import files_of, find_edits, kept_plan, require_same_name, stale_files
from planner.plan.load import read_plan
from planner.plan.plan import Plan
from planner.plan.user_input import read_spec
from planner.problems.errors import CallError, InfeasibleError, OutputError, SpecError
from planner.report.columns import numeric_order
from stacks.gitops.argument_errors import argument_error, link_error
from stacks.gitops.gate import CHECK, Condition, find_objections, gather_evidence
from stacks.gitops.kustomized import Builders, differing_additions, disallowed_fields, lost_builders, read_builders
from stacks.gitops.report import Report
from stacks.gitops.tree import list_files

__all__ = ["Baseline", "Call", "check_change", "read_baseline", "require_call"]

OTHER_FOLDER = (
    "the base's folder is not what the base's spec renders: give the -f that it was rendered with, or render it there"
)


@dataclass(frozen=True)
class Call:
    """The arguments of `tidemill gitops check`. `base` is a checkout of the base branch, with the same paths in it."""

    spec: Path
    folder: Path
    base: Path | None
    conditions: tuple[Condition, ...]
    overlays: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Baseline:
    """The plan that runs before a change, according to the base branch. `plan` is None if nothing runs yet."""

    plan: Plan | None = None
    unknown: str = ""  # why its figures are unknown
    loads: Loads | None = None  # the measured expert loads of its spec
    stale: tuple[str, ...] = ()  # files of its folder that are not as its spec renders them
    edits: Mapping[str, str | None] = field(default_factory=dict)  # manifests there that its plan renders differently
    builders: Builders = field(default_factory=dict)  # kustomizations that build on its folder

    def notes(self, folder: Path) -> tuple[str, ...]:
        """Return the warning that the base's folder is stale, if it is; otherwise nothing."""
        if not self.stale:
            return ()
        files = f"{counted(len(self.stale), 'file')} ({first_of(self.stale)})"
        return (f"{folder} was stale: its spec renders {files} differently; pods are compared as it has them",)


def require_call(call: Call) -> None:
    """Raises CallError if the base is no folder, if a path leads out of it, or if a condition needs a missing base."""
    if call.base is None:
        for condition in call.conditions:
            if condition.needs_figures:
                reason = "a folder keeps no figures, so those before the change follow from the base's spec"
                fix = "give --base, with a checkout of the branch that the change is for"
                raise argument_error(CHECK, "--fail-on", condition.word, "R602 needs --base", reason, fix)
        return
    if not call.base.is_dir():
        rule, reason = "R603 must be a folder", "it is the checkout of the branch that the change is for"
        raise argument_error(
            CHECK, "--base", str(call.base), rule, reason, "for example git worktree add ../base origin/main"
        )
    for name, path in (("SPEC", call.spec), ("FOLDER", call.folder), *(("-f", each) for each in call.overlays)):
        if path.is_absolute() or ".." in path.parts:
            rule, reason = "R604 must be a path inside the checkout", "--base has the same file at the same path"
            raise argument_error(
                CHECK, name, str(path), rule, reason, "call tidemill in the checkout, and give a relative path"
            )


def check_change(call: Call) -> tuple[Plan, Report]:
    """Plan the spec. Return the plan, and the report of the change that leads to it.

    Raises SpecError, CallError or InfeasibleError if there is no plan, or none that can run.
    """
    with _confine_reads(call, Path()):
        for each in list_files(call.folder):
            if each.is_symlink():
                raise link_error(str(each))
        return _check_change(call)


def _confine_reads(call: Call, top: Path) -> AbstractContextManager[None]:
    """Return a context that confines reads to the checkouts that hold the spec, its overlays and the folder.

    Paths are relative to `top`. Raises CallError if a link is on the way to one of them: a link may lead into another
    checkout, such as the base's or a submodule's, where other people's changes are.
    """
    named = [Path(os.path.abspath(top / each)) for each in (call.spec, call.folder, *call.overlays)]
    for each in named:
        _refuse_links(each, top)
    return only_within([_checkout_of(each) for each in named])


def _refuse_links(path: Path, top: Path) -> None:
    """Raises CallError if `path`, or a folder above it in its checkout or in `top`, is a link."""
    ends = (_checkout_of(path), Path(os.path.abspath(top)))
    for each in (path, *path.parents):
        is_inside = each == path or any(each != end and each.is_relative_to(end) for end in ends)
        if is_inside and each.is_symlink():
            raise link_error(os.path.relpath(each))


def _checkout_of(path: Path) -> Path:
    """Return the top level of the Git checkout that holds an absolute path; without Git, its folder."""
    outermost_first = [each for each in reversed(path.parents) if (each / ".git").exists()]
    if not outermost_first:
        return path if path.is_dir() else path.parent
    return reduce(lambda ours, inner: ours if _has_link(inner, ours) else inner, outermost_first)


def _has_link(path: Path, folder: Path) -> bool:
    """Return whether a link below `folder` is on the way to `path`."""
    return any(each.is_symlink() for each in (path, *path.parents) if each != folder and each.is_relative_to(folder))


def _check_change(call: Call) -> tuple[Plan, Report]:
    kept = kept_plan(call.folder)
    found = run_passes(read_spec(call.spec, call.overlays), kept)
    plan = found.plan
    require_same_name(call.folder, kept, plan)
    files = files_of(plan, kept)
    stale = stale_files(call.folder, files)
    builders = _read_builders(call.folder)
    if call.base is not None:
        baseline = _read_base(call, call.base)
    else:
        baseline = Baseline(kept, builders=builders, edits=find_edits(call.folder, kept) if kept else {})
    require_same_name(call.folder, baseline.plan, plan)
    change = None
    if baseline.plan is not None:
        notes = baseline.notes(call.folder)
        pair = Pair.of(baseline.plan, found, notes=notes, loads=baseline.loads, edits=baseline.edits)
        change = pair.compare(files, baseline.unknown, differing_additions(baseline.builders, builders))
    kustomized = (*disallowed_fields(builders), *lost_builders(baseline.builders, builders))
    foreign = (*_find_foreign_files(call.folder, {*files, *stale}), *kustomized)
    asked = {each.word for each in call.conditions}
    shared = _find_shared_nodes(call.folder, plan) if "nodes" in asked else {}
    objections = find_objections(
        call.conditions, gather_evidence(plan, change, stale, foreign, baseline.unknown, shared)
    )
    return plan, Report(
        name=plan.name,
        plan_digest=plan.digest,
        conditions=tuple(each.word for each in call.conditions),
        objections=objections,
        stale=stale,
        foreign=foreign,
        diff=change,
    )


def _read_base(call: Call, base: Path) -> Baseline:
    with _confine_reads(call, base):
        return replace(read_baseline(call, base), builders=_read_builders(base / call.folder))


def _read_builders(folder: Path) -> Builders:
    whole = Path(os.path.abspath(folder))
    return read_builders(whole, _checkout_of(whole))


def _find_foreign_files(folder: Path, known: Collection[str]) -> tuple[str, ...]:
    """Return the files that may make a GitOps tool apply something other than the rendered folder.

    That is: files in the folder that are not `known`, and each `.sourceignore` above it. Paths are relative to it.

    No list of names would do: Argo CD takes a folder with a file `*Chart.yaml` for a Helm chart, reads others by the
    patterns of its plugins, and applies `.argocd-source*.yaml` (argoproj/argo-cd, util/app/discovery/discovery.go and
    reposerver/repository/repository.go); Kustomize knows three names (kubernetes-sigs/kustomize, api/konfig). Flux
    applies the `.sourceignore` of each folder to everything below that folder (fluxcd/pkg, sourceignore).
    """
    whole = Path(os.path.abspath(folder))
    found = list_files(folder) if folder.is_dir() else ()
    foreign = {str(each.relative_to(folder)) for each in found} - set(known)
    above = [each for each in whole.parents if each.is_relative_to(_checkout_of(whole)) or each == Path.cwd()]
    ignoring = (each / ".sourceignore" for each in above)
    foreign |= {os.path.relpath(each, folder) for each in ignoring if os.path.lexists(each)}
    return tuple(sorted(foreign))


def _find_shared_nodes(folder: Path, plan: Plan) -> dict[str, list[str]]:
    """Return neighbouring folder -> nodes that the plan's units share with the units rendered there.

    Raises CallError if a neighbouring folder's plan is invalid.
    """
    ours = {node for unit in plan.units for node in unit.nodes}
    shared = {}
    for each in sorted(folder.parent.iterdir()):
        is_linked_away = each.is_symlink() and not _is_inside(each, folder.parent)
        if each.name == folder.name or is_linked_away or not each.is_dir():
            continue
        if (other := kept_plan(each)) is not None:
            nodes = ours.intersection(node for unit in other.units for node in unit.nodes)
            shared[str(each)] = sorted(nodes, key=numeric_order)
    return {name: nodes for name, nodes in shared.items() if nodes}


def _is_inside(path: Path, folder: Path) -> bool:
    """Return whether a link leads to a place in the checkout that holds `folder`, whether or not something is there."""
    checkout = _checkout_of(Path(os.path.abspath(folder)))
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(checkout))


def read_baseline(call: Call, base: Path) -> Baseline:
    """Return the plan in the base branch's folder: it is what runs before the change.

    Its figures are computed from the base branch's spec, since anybody may have edited those in the folder.
    """
    folder = base / call.folder
    is_linked = any((base / each).is_symlink() for each in (call.folder, *call.folder.parents[:-1]))
    if not folder.exists() and not is_linked:  # behind a broken link, something may run
        return Baseline()
    kept = read_plan(folder)
    try:
        spec = read_spec(base / call.spec, [base / each for each in call.overlays])
        found = run_passes(spec, kept).plan
    except (SpecError, CallError, InfeasibleError) as error:  # the change may repair the base
        return Baseline(kept, f"the base's spec is refused ({error.findings[0]})", edits=_find_edits(folder, kept))
    stale = _find_stale_files(folder, found, kept)
    is_known = found.digest == kept.digest
    unknown, edits = "" if is_known else OTHER_FOLDER, _find_edits(folder, kept)
    return Baseline(found if is_known else kept, unknown, spec.measured_loads, stale, edits)


def _find_edits(folder: Path, kept: Plan) -> dict[str, str | None]:
    """Return what `find_edits` finds in the base's folder; nothing if its plan cannot be rendered."""
    try:
        return find_edits(folder, kept)
    except (CallError, InfeasibleError):  # the change may repair the base
        return {}


def _find_stale_files(folder: Path, plan: Plan, kept: Plan) -> tuple[str, ...]:
    """Return the files in the base's folder that rendering its spec would change; none if that fails."""
    try:
        return stale_files(folder, files_of(plan, kept))
    except (CallError, InfeasibleError, OutputError):  # the change may repair the base
        return ()
