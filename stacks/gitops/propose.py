"""Propose a change: render a spec on a branch of its own, and open one pull request with the diff as its text.

The proposal is the branch that it is for, plus SPEC, its overlays and the files they name as these are in the checkout,
plus FOLDER rendered from them. It is made in a folder apart, so nothing else that somebody edits gets in. With
`--loads` it is a new expert map instead, and proposed only if that is worth its restarts (`worth.py`). If it is not,
an earlier proposal that is still open rests on loads of the past, and is closed.

The branch belongs to its one commit. It is pushed only while it does not exist, or while its tip is a commit that we
made for the same branch. A commit of somebody else's ends our part, whatever became of its pull request. A pull request
that was closed with this very change is not opened again.
"""

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal
from urllib.parse import quote

from planner.compiler import run_passes
from planner.diff.change import Change
from planner.diff.markdown import diff_markdown, escaped
from planner.diff.pair import Pair
from planner.facts.files import only_within
from planner.facts.loads import read_loads
from planner.facts.quantities import counted
from planner.facts.terms import PHASES
from planner.manifests.folder import files_of, kept_plan, require_same_name, write_folder
from planner.plan.plan import Plan
from planner.plan.user_input import read_spec
from planner.problems.errors import CallError, SpecError
from planner.problems.finding import Finding
from planner.problems.printable import printable, without_passwords
from planner.spec.resolved import ResolvedSpec
from planner.spec.yaml import read_content
from stacks.gitops.argument_errors import PROPOSE, argument_error, link_error, loads_error, no_loads_file_error
from stacks.gitops.check import Call as Paths
from stacks.gitops.check import read_baseline
from stacks.gitops.forge import (
    Forge,
    PullRequest,
    Repository,
    change_text,
    close_request,
    find_request,
    open_request,
    read_repository,
)
from stacks.gitops.git import (
    Checkout,
    Heads,
    changed_by,
    changed_elsewhere,
    commit_folder,
    describe_commit,
    export_commit,
    fetch_heads,
    find_checkout,
    is_own_commit,
    list_entries,
    push_commit,
    read_heads,
    remote_address,
    require_branch,
    require_identity,
    require_no_filter,
    require_unchanged,
    require_within,
)
from stacks.gitops.worth import PAYBACK_HOURS, Worth, weigh_maps

__all__ = [
    "BranchState",
    "Call",
    "Outcome",
    "Proposal",
    "Step",
    "branch_of",
    "check_payback",
    "decide",
    "is_text_of",
    "propose",
    "refuse_links",
]

Result = Literal["opened", "updated", "unchanged", "left_alone", "closed", "nothing"]

WORDS: dict[Result, str] = {
    "opened": "opened",
    "updated": "updated",
    "unchanged": "already open:",
    "left_alone": "left alone",
    "closed": "closed",
    "nothing": "nothing to propose",
}
NPY = ".npy"  # the form of a file of loads follows from its name
MARK = re.compile(r"<!-- tidemill ([0-9a-f]{40,64}) -->")  # in a pull request's text: the commit that it describes
FOOTER = (
    "Written by `tidemill gitops propose`. Its next change replaces the commit and this text, unless somebody else has "
    "committed on the branch.\n"
)


@dataclass(frozen=True)
class Call:
    """The command's arguments. Paths are relative to the working directory."""

    spec: Path
    folder: Path
    overlays: tuple[Path, ...] = ()
    loads: Path | None = None
    most_hours: float | None = None  # hours within which new maps must make up for their restarts
    remote: str = "origin"
    into: str | None = None
    branch: str | None = None
    forge: Forge | None = None
    forge_url: str | None = None


@dataclass(frozen=True)
class Outcome:
    """The result of `propose`. `lines` give its reason, and what new expert maps are worth."""

    result: Result
    lines: tuple[str, ...]
    branch: str
    plan: Plan
    request: PullRequest | None = None
    change: Change | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the document of `--format json`."""
        request = self.request and {"number": self.request.number, "url": self.request.address}
        return {
            "result": self.result,
            "why": list(self.lines),
            "branch": self.branch,
            "pull_request": request,
            "plan_digest": self.plan.digest,
        } | ({"diff": self.change.as_json()} if self.change else {})

    def as_text(self) -> str:
        """Return a line with the result, then the lines that explain it."""
        where = f" {self.request.address}" if self.request else ""
        lines = [f"{WORDS[self.result]}{where} ({self.branch})", *(f"  {line}" for line in self.lines)]
        return "".join(f"{printable(without_passwords(line))}\n" for line in lines)


@dataclass(frozen=True)
class NewLoads:
    """New loads of experts: the file that the call names, and its content."""

    path: Path
    content: bytes


@dataclass(frozen=True)
class Source:
    """The input of a proposal: paths from the root of the checkout, and the contents of its files."""

    paths: Paths
    contents: Mapping[Path, bytes]
    loads: NewLoads | None


@dataclass(frozen=True)
class Proposal:
    """A planned change. `commit` is None if no file changes, or if new expert maps are not worth their restarts."""

    plan: Plan
    change: Change | None  # None if nothing runs yet
    worth: Worth | None  # what new expert maps are worth; None for other changes
    folder: Path  # for the title: several environments may have plans of the same name
    paths: tuple[Path, ...] = ()
    num_repaired: int = 0  # files of the folder that were not as its spec renders them
    commit: str | None = None

    @property
    def title(self) -> str:
        """Return the title of the pull request: plan, folder, repair, verdict and number of restarts."""
        of = f"{self.plan.name} ({self.folder})"
        if self.change is None:
            return f"{of}: first plan"
        units = sum(each.change in ("moved", "restarted") and each.phase in PHASES for each in self.change.units)
        what = "new expert maps, " if self.worth else ""
        what += f"repairs {counted(self.num_repaired, 'file')}, " if self.num_repaired else ""
        ending = f", restarts {counted(units, 'unit')}" if units else ""
        return f"{of}: {what}{self.change.verdict}{ending}"


@dataclass(frozen=True)
class BranchState:
    """The state of a proposal's branch on the remote, and of its pull request."""

    tip: str | None
    is_ours: bool  # the tip is a commit of ours, as we made it
    is_same: bool  # the tip makes the same change as the new proposal
    request: PullRequest | None  # the open pull request, else the newest closed one
    theirs: str = ""  # which commit the tip is, and whose, if it is not ours
    stale: Path | None = None  # the folder, if that commit changes its spec without rendering it again


@dataclass(frozen=True)
class Step:
    """What to do with the branch and its pull request: the result to report, whether to push, and why not."""

    result: Result
    pushes: bool = False
    why: str = ""


def propose(call: Call) -> Outcome:
    """Plan, render, push and open a pull request as `call` says, and return what was done.

    Raises CallError, SpecError or InfeasibleError before anything is pushed; GitError or ForgeError if the remote
    fails. Then the same call may be repeated.
    """
    check_payback(call)
    checkout = find_checkout(Path.cwd())
    repository = read_repository(remote_address(checkout, call.remote), call.forge, call.forge_url)
    require_identity(checkout)
    source = _read_source(checkout, call)
    branch = call.branch or _proposal_branch(source)
    heads = read_heads(checkout, repository, call.into, branch)
    require_branch(checkout, branch, heads.into)
    fetch_heads(checkout, repository, heads, branch)
    require_unchanged(checkout, call.remote, heads, list(source.contents))
    with TemporaryDirectory(prefix="tidemill-") as scratch:
        tree = export_commit(checkout, heads.base, Path(scratch))
        with chdir(tree), only_within([tree]):  # reviewers have no files from elsewhere
            proposal = _make_proposal(checkout, heads, source, call.most_hours or PAYBACK_HOURS)
    if proposal.commit is None:
        why = _explain_nothing(proposal, source, heads)
        request = _withdraw(checkout, repository, heads, branch, proposal, why) if source.loads else None
        result: Result = "nothing" if request is None else "closed"
        return Outcome(result, why, branch, proposal.plan, request, proposal.change)
    return _push_and_open(checkout, repository, heads, branch, proposal)


def decide(standing: BranchState) -> Step:
    """Return what to do with the branch and its pull request, given their state.

    Nothing is ever pushed over a commit that is not ours.
    """
    request, tip = standing.request, standing.tip
    is_open = request is not None and request.is_open
    if tip is not None and not standing.is_ours:
        way_on = "merge it" if is_open else "delete the branch"
        if is_open and standing.stale:
            way_on = (
                f"it changes the spec and not {standing.stale}, which is stale if you merge it so. "
                "Check the branch out, tidemill render its spec into the folder, commit that and merge it"
            )
        whose = f"the branch has a commit of somebody else's, or for another --into, {standing.theirs}"
        return Step("left_alone", why=f"{whose}: {way_on}, or give another --branch")
    if tip is not None and standing.is_same:
        if request is not None and not is_open and not request.is_merged:
            why = "it was closed with this very change: to have it again, delete the branch, or give another --branch"
            return Step("left_alone", why=why)
        return Step("updated" if is_open else "opened")
    return Step("updated" if is_open else "opened", pushes=True)


def check_payback(call: Call) -> None:
    """Raises CallError for a `--payback` that is no positive number, or that is given without `--loads`."""
    if call.most_hours is not None and (call.loads is None or not 0 < call.most_hours < math.inf):
        rule, reason = "R619 must be a number above 0, beside --loads", "new expert maps have to pay for their restarts"
        raise argument_error(
            PROPOSE, "--payback", str(call.most_hours), rule, reason, f"for example --payback {PAYBACK_HOURS:g}"
        )


def _read_source(checkout: Checkout, call: Call) -> Source:
    """Read the files that the call and its spec name.

    Raises SpecError for a wrong file, and CallError for a file outside the checkout.
    """
    folder = require_within(checkout.root, "FOLDER", call.folder)
    files = [("SPEC", call.spec), *(("-f", each) for each in call.overlays)]
    spec, *overlays = (require_within(checkout.root, name, path) for name, path in files)
    named = read_spec(call.spec, call.overlays).inputs
    files += [(name, call.spec.parent / name) for name in named]
    contents = {require_within(checkout.root, name, path): read_content(path) for name, path in files}
    loads = _read_new_loads(call.loads) if call.loads else None
    return Source(Paths(spec, folder, Path(), (), tuple(overlays)), contents, loads)


def _read_new_loads(path: Path) -> NewLoads:
    found = read_loads(path, str(path), "--loads")
    if isinstance(found, Finding):
        raise CallError([found.at(PROPOSE)])
    return NewLoads(path, found.content)


def _proposal_branch(source: Source) -> str:
    """Return the branch for proposals of a folder. Changes of the spec and new expert maps have separate branches."""
    return branch_of(source.paths.folder, with_loads=source.loads is not None)


def branch_of(folder: Path, *, with_loads: bool) -> str:
    """Return a branch name unique to a folder: the path's parts joined by dots, with dots in the parts escaped."""
    parts = [quote(each, safe="").replace(".", "%2E").replace("~", "%7E") for each in folder.parts]
    if with_loads:
        parts.append("loads")
    elif parts[-1] in ("loads", "lock"):  # "loads" marks new maps, and git allows no name that ends in .lock
        parts[-1] = f"%{ord('l'):X}{parts[-1][1:]}"
    return f"tidemill/{'.'.join(parts)}"


def _make_proposal(checkout: Checkout, heads: Heads, source: Source, most_hours: float) -> Proposal:
    """Plan, render and commit a proposal in the working directory, which has the files of the commit `heads.base`.

    With new loads whose maps are not worth the change, only plan: the proposal's `commit` is None.
    """
    paths, named = source.paths, list(source.contents)
    refuse_links((*named, paths.folder), heads.into)
    require_no_filter(checkout, Path.cwd(), (*named, paths.folder))
    kept = kept_plan(paths.folder)
    baseline = read_baseline(paths, Path())
    if source.loads is None:
        for path, content in source.contents.items():
            _write(path, content)
        spec = read_spec(paths.spec, paths.overlays)
    else:
        _require_same(source.contents)
        written, spec = _replace_loads(paths, source.loads, heads.into)
        named.append(written)
    found = run_passes(spec, kept)
    require_same_name(paths.folder, kept, found.plan)
    change = worth = None
    if baseline.plan is not None:
        notes = baseline.notes(paths.folder)
        pair = Pair.of(baseline.plan, found, notes=notes, loads=baseline.loads, edits=baseline.edits)
        change = pair.compare(no_figures=baseline.unknown)
        worth = weigh_maps(pair.judged, found.plan, change, most_hours) if source.loads else None
    planned = Proposal(found.plan, change, worth, paths.folder, (*named, paths.folder), len(baseline.stale))
    if source.loads is not None and (worth is None or not worth.is_enough):
        return planned
    write_folder(paths.folder, files_of(found.plan, kept))
    commit = commit_folder(checkout, Path.cwd(), heads, planned.paths, planned.title)
    return replace(planned, commit=commit)


def refuse_links(paths: Iterable[Path], branch: str) -> None:
    """Raises CallError if a link is on the way to one of `paths` on `branch`, whose files the working directory has.

    What is written through a link changes files elsewhere, which the commit does not have.
    """
    for path in paths:
        for each in (*reversed(path.parents[:-1]), path):
            if each.is_symlink():
                raise link_error(f"{each} on {branch}")


def _require_same(contents: Mapping[Path, bytes]) -> None:
    """Raises CallError if any of `contents` (path -> content) differs from the file in the working directory."""
    for path, content in contents.items():
        if not path.is_file() or path.read_bytes() != content:
            reason, fix = "new expert maps are weighed alone", "propose the other change first, without --loads"
            raise changed_elsewhere(str(path), reason, fix)


def _replace_loads(paths: Paths, loads: NewLoads, branch: str) -> tuple[Path, ResolvedSpec]:
    """Write new loads to the file that the spec's `expert_load.file` names. Return that file's path, and the spec.

    Raises CallError if the spec names no such file on `branch`, or if the loads have another format or do not fit the
    model.
    """
    spec = read_spec(paths.spec, paths.overlays)
    written = spec.written.expert_load.file
    if written is None:
        raise no_loads_file_error(PROPOSE, "--loads")
    if (loads.path.suffix == NPY) != (Path(written).suffix == NPY):
        reason, fix = f"that is {written}, and one of them is {NPY}", f"give a file like {written}"
        raise loads_error(PROPOSE, "--loads", str(loads.path), reason, fix)
    path = Path(os.path.normpath(Path(spec.document.file).parent / written))
    refuse_links([path], branch)
    path = require_within(Path.cwd(), "expert_load.file", path)
    _write(path, loads.content)
    try:
        return path, read_spec(paths.spec, paths.overlays)
    except SpecError as error:
        wrong = (replace(each, path="--loads", value=str(loads.path)).at(PROPOSE) for each in error.findings)
        raise CallError(list(wrong)) from None


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _explain_nothing(proposal: Proposal, source: Source, heads: Heads) -> tuple[str, ...]:
    if proposal.worth is not None and not proposal.worth.is_enough:
        return tuple(proposal.worth.lines())
    if source.loads is not None and proposal.change is None:
        return ("nothing runs yet: propose the first plan without --loads",)
    return (f"{source.paths.folder} on {heads.into} is what the spec renders",)


def _withdraw(
    checkout: Checkout,
    repository: Repository,
    heads: Heads,
    branch: str,
    proposal: Proposal,
    why: Sequence[str],
) -> PullRequest | None:
    """Close an open earlier proposal that only we changed, with the reasons `why` in its text.

    Return the closed pull request, or None if there was none.
    """
    request = find_request(repository, branch, heads.into, is_open=True)
    if request is None or heads.tip is None or not is_own_commit(checkout, heads.tip, heads, proposal.paths):
        return None
    reasons = "".join(f"- {escaped(line)}\n" for line in why)
    text = f"Closed by `tidemill gitops propose`, since newer loads say otherwise:\n\n{reasons}\n{request.text}"
    return close_request(repository, request.number, text)


def _push_and_open(
    checkout: Checkout, repository: Repository, heads: Heads, branch: str, proposal: Proposal
) -> Outcome:
    """Push the proposal and open or update its pull request, as far as that has not been done yet."""
    assert proposal.commit is not None
    standing = _read_branch_state(checkout, repository, heads, branch, proposal)
    step, request = decide(standing), standing.request
    if step.pushes:
        push_commit(checkout, repository, proposal.commit, branch, heads.tip)
    shown = proposal.commit if step.pushes else heads.tip
    assert shown is not None
    text, result = f"<!-- tidemill {shown} -->\n{_request_text(proposal)}", step.result
    if result == "opened":
        request = open_request(repository, branch, heads.into, proposal.title, text)
    elif result == "updated" and request is not None:
        if is_text_of(request.text, shown) and not step.pushes:
            result = "unchanged"
        else:
            request = change_text(repository, request.number, proposal.title, text)
    lines = (step.why,) if step.why else (proposal.title, *(proposal.worth.lines() if proposal.worth else ()))
    return Outcome(result, lines, branch, proposal.plan, request, proposal.change)


def is_text_of(text: str, commit: str) -> bool:
    """Return whether a pull request's text may stay for `commit`: it has the commit's mark, or no mark of ours.

    A text without a mark is somebody's own. A text with an earlier commit's mark is out of date: the run that pushed
    `commit` ended before it wrote the text.
    """
    marks = MARK.findall(text)
    return not marks or commit in marks


def _read_branch_state(
    checkout: Checkout, repository: Repository, heads: Heads, branch: str, proposal: Proposal
) -> BranchState:
    """Return the state of the branch and its pull request.

    A closed pull request counts only while the branch exists.
    """
    tip, paths = heads.tip, proposal.paths
    request = find_request(repository, branch, heads.into, is_open=True)
    if tip is None:
        return BranchState(None, is_ours=False, is_same=False, request=request)
    request = request or find_request(repository, branch, heads.into, is_open=False)
    is_ours = is_own_commit(checkout, tip, heads, paths)
    is_same = is_ours and all(
        list_entries(checkout, theirs, paths) == list_entries(checkout, ours, paths)
        for theirs, ours in ((tip, proposal.commit), (f"{tip}^", heads.base))
        if ours is not None
    )
    if is_ours:
        return BranchState(tip, is_ours, is_same, request)
    changed, (*inputs, folder) = set(changed_by(checkout, tip)), paths
    is_stale = not changed.isdisjoint(map(str, inputs)) and not any(
        Path(each).is_relative_to(folder) for each in changed
    )
    theirs = describe_commit(checkout, tip)
    return BranchState(tip, is_ours, is_same, request, theirs, folder if is_stale else None)


def _request_text(proposal: Proposal) -> str:
    """Return the pull request's text: worth of new maps, the diff and a footer. Text from the spec is escaped."""
    worth = proposal.worth.lines() if proposal.worth else []
    lines = "".join(f"- {escaped(line)}\n" for line in worth)
    first = f"nothing runs from this folder yet: {escaped(proposal.title)}\n"
    shown = first if proposal.change is None else diff_markdown(proposal.change)
    return f"{lines}\n{shown}\n{FOOTER}"
