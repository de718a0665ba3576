"""Read and write commits without changing the checkout.

A commit is made of a folder, an index and a git folder outside the checkout, so it does not matter which branch is
checked out and what somebody is editing there. The git folder has no configuration, so no filter runs: a commit has the
bytes of the files, and a file that needs a filter is refused. `git_process.py` says what else git must not do.
"""

import hashlib
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.problems.errors import CallError
from stacks.gitops.argument_errors import PROPOSE, argument_error
from stacks.gitops.forge import Repository
from stacks.gitops.git_process import GitError, run_git

__all__ = [
    "Checkout",
    "Heads",
    "changed_by",
    "changed_elsewhere",
    "commit_folder",
    "describe_commit",
    "export_commit",
    "fetch_heads",
    "find_checkout",
    "is_own_commit",
    "list_entries",
    "push_commit",
    "read_heads",
    "remote_address",
    "require_branch",
    "require_identity",
    "require_no_filter",
    "require_unchanged",
    "require_within",
]

TRAILER = "Tidemill-Proposal: "
NO_FILTER = ("unspecified", "unset")  # what git says of a file that no filter changes


@dataclass(frozen=True)
class Checkout:
    """A checkout: its top folder, its git folder, and where and in which format git keeps its objects."""

    root: Path
    git_folder: Path
    objects: Path
    object_format: str = "sha1"


@dataclass(frozen=True)
class Heads:
    """The remote branch `into`, its commit `base`, and `tip`: the commit of the proposal's branch, if it exists."""

    into: str
    base: str
    tip: str | None


def find_checkout(folder: Path) -> Checkout:
    """Return the checkout that contains `folder`. Raises GitError if there is none."""
    asked = ["--show-toplevel", "--absolute-git-dir", "--show-object-format"]
    asked += ["--path-format=absolute", "--git-path", "objects"]
    root, git_folder, object_format, objects = run_git("rev-parse", asked, folder).splitlines()
    return Checkout(Path(root), Path(git_folder), Path(objects), object_format)


def require_within(root: Path, name: str, path: Path) -> Path:
    """Return `path` relative to a checkout's root. Raises CallError if it leads out, by `..` or by a link."""
    found, top = (Path.cwd() / path).resolve(), root.resolve()
    if not found.is_relative_to(top) or found == top:
        rule, reason = "R613 must be a path inside the checkout, also behind links", "a commit holds nothing else"
        raise argument_error(PROPOSE, name, str(path), rule, reason, "give a path inside it that no link leads out of")
    return found.relative_to(top)


def remote_address(checkout: Checkout, remote: str) -> str:
    """Return the push URL of a remote."""
    return run_git("remote", ["get-url", "--push", "--", remote], checkout.root).strip()


def require_identity(checkout: Checkout) -> None:
    """Raises GitError if git has no name and address for commits. By these we know our own."""
    if not _our_identities(checkout):
        reason, fix = "it knows no name and address for commits", "git config user.name NAME, and user.email ADDRESS"
        raise GitError("commit", reason, fix)


def require_branch(checkout: Checkout, branch: str, into: str) -> None:
    """Raises CallError if `branch` is no valid name of a branch, or is the branch `into` itself."""
    rule, fix = f"R618 must be the name of a branch other than {into}", "for example tidemill/deploy"
    try:
        if run_git("check-ref-format", ["--branch", branch], checkout.root).strip() != branch or branch == "@":
            raise GitError("check-ref-format", "it is short for another name")  # for example @{-1}
    except GitError:
        raise argument_error(PROPOSE, "--branch", branch, rule, "git takes no such name", fix) from None
    if branch == into:
        raise argument_error(PROPOSE, "--branch", branch, rule, "a pull request needs two branches", fix)


def read_heads(checkout: Checkout, repository: Repository, into: str | None, branch: str) -> Heads:
    """Read the commits of the remote's branches `into` (its default branch if None) and `branch`.

    Raises GitError if the remote cannot be read or lacks `into`.
    """
    wanted = ["HEAD", *(f"refs/heads/{each}" for each in (into, branch) if each)]
    told = run_git("ls-remote", ["--symref", repository.address, *wanted], checkout.root, repository)
    default = re.search(r"^ref: refs/heads/(\S+)\tHEAD$", told, re.M)
    refs = {name: commit for commit, name in re.findall(r"^([0-9a-f]{40,64})\t(\S+)$", told, re.M)}
    into = into or (default[1] if default else None)
    base = refs.get(f"refs/heads/{into}") or (refs.get("HEAD") if default and into == default[1] else None)
    if into is None or base is None:
        raise GitError("ls-remote", f"the remote has no branch {into or 'that is its default'}", "give --into BRANCH")
    return Heads(into, base, refs.get(f"refs/heads/{branch}"))


def fetch_heads(checkout: Checkout, repository: Repository, heads: Heads, branch: str) -> None:
    """Fetch the commits of `heads` without creating a ref. Raises GitError if it fails or a branch has moved."""
    names = [heads.into, *([branch] if heads.tip else [])]
    words = ["--no-tags", "--no-write-fetch-head", repository.address, *(f"refs/heads/{each}" for each in names)]
    run_git("fetch", words, checkout.root, repository)
    for commit in filter(None, (heads.base, heads.tip)):
        run_git("cat-file", ["-e", f"{commit}^{{commit}}"], checkout.root)


def require_unchanged(checkout: Checkout, remote: str, heads: Heads, paths: Sequence[Path]) -> None:
    """Raises CallError if the remote branch has changed any of `paths` since the checkout's branch forked off.

    The suggested fix keeps every edit: `git pull` stashes only files that git knows, so it adds new files first.
    """
    try:
        start = run_git("merge-base", ["HEAD", heads.base], checkout.root).strip()
    except GitError:
        raise _lacks_history() from None
    if changed := _list_changed(checkout, start, heads.base, paths):
        pull = f"git add -A && git pull --rebase --autostash {shlex.join([remote, heads.into])}"
        reason = "others have changed it since, and that would be undone"
        raise changed_elsewhere(changed[0], reason, f"take that over, your edits on top: {pull}")


def _lacks_history() -> GitError:
    return GitError("merge-base", "the checkout lacks the history that it shares", "git fetch --unshallow")


def changed_elsewhere(path: str, reason: str, fix: str) -> CallError:
    """Return the error for a file that differs from the one on the branch that the proposal goes into."""
    return argument_error(path, "", None, "R614 must be as the branch has it", reason, fix)


def export_commit(checkout: Checkout, commit: str, scratch: Path) -> Path:
    """Write a commit's files to the new folder `scratch/tree`, and return that folder.

    Its index and its own git folder lie beside it in `scratch`.
    """
    tree = scratch / "tree"
    for each in (tree, scratch / "apart" / "objects", scratch / "apart" / "refs"):
        each.mkdir(parents=True)
    (scratch / "apart" / "HEAD").write_text("ref: refs/heads/none\n")
    extension = "" if checkout.object_format == "sha1" else f"[extensions]\nobjectFormat = {checkout.object_format}\n"
    (scratch / "apart" / "config").write_text(f"[core]\nrepositoryFormatVersion = 1\n{extension}")
    apart = _environment_apart(checkout, tree)
    run_git("read-tree", [commit], tree, more=apart)
    run_git("checkout-index", ["--all", "--force"], tree, more=apart)
    return tree


def require_no_filter(checkout: Checkout, tree: Path, paths: Sequence[Path]) -> None:
    """Raises CallError if a filter such as LFS changes one of `paths`, or a file in them, between folder and commit."""
    places = {"GIT_DIR": str(checkout.git_folder), "GIT_WORK_TREE": str(tree)}
    words = ["-z", "filter", "--", *map(str, _list_files(tree, paths))]
    told = run_git("check-attr", words, tree, more=places).split("\0")
    for path, value in zip(told[0::3], told[2::3], strict=False):
        if value not in NO_FILTER:
            rule = "R623 must be in Git without a filter"
            reason = f".gitattributes gives it filter={value}, and no program of a repository's choice is run"
            fix = "take the filter from it, by a later line there that ends in -filter"
            raise argument_error(path, "", None, rule, reason, fix)


def _list_files(tree: Path, paths: Sequence[Path]) -> Iterator[Path]:
    for each in paths:
        inner = sorted((tree / each).rglob("*")) if (tree / each).is_dir() else []
        yield from (each, *(file.relative_to(tree) for file in inner))


def commit_folder(checkout: Checkout, tree: Path, heads: Heads, paths: Sequence[Path], title: str) -> str | None:
    """Commit `paths` of an exported folder onto `heads.base`. Return the commit; None if it would change nothing."""
    require_no_filter(checkout, tree, paths)
    apart = _environment_apart(checkout, tree)
    run_git("add", ["--all", "--force", "--", *map(str, paths)], tree, more=apart)
    parent, written = heads.base, run_git("write-tree", [], tree, more=apart).strip()
    if written == run_git("rev-parse", [f"{parent}^{{tree}}"], checkout.root).strip():
        return None
    message = f"{title}\n\n{TRAILER}{_seal(heads.into, parent, written, title)}\n"
    return run_git("commit-tree", [written, "-p", parent, "-m", message], checkout.root).strip()


def is_own_commit(checkout: Checkout, commit: str, heads: Heads, paths: Sequence[Path]) -> bool:
    """Return whether `commit_folder` made `commit` for this author and for the branch `heads.into`.

    The commit must have our author and committer, and a seal that fits its branch, parent, files and title. So somebody
    else's commit on top is noticed, and so is ours that a colleague has amended; neither a colleague's proposal nor one
    for another branch is replaced. Anybody with push rights can make a seal too. Therefore the commit must change
    nothing but `paths`, and its parent must be in the history of `heads.base`: then the next proposal replaces all its
    changes. Raises GitError if the checkout lacks that history.
    """
    head, _, message = run_git("cat-file", ["commit", commit], checkout.root).partition("\n\n")
    tree, parents = re.findall(r"^tree (\w+)$", head, re.M), re.findall(r"^parent (\w+)$", head, re.M)
    title, _, seal = message.strip().partition(f"\n\n{TRAILER}")
    theirs = [_name_and_email(each) for each in re.findall(r"^(?:author|committer) (.*)$", head, re.M)]
    is_sealed = len(parents) == 1 and seal == _seal(heads.into, parents[0], tree[0], title)
    if not is_sealed or theirs != _our_identities(checkout):
        return False
    changed = _list_changed(checkout, parents[0], commit)
    is_within = all(any(Path(each).is_relative_to(path) for path in paths) for each in changed)
    return is_within and _is_in_history(checkout, parents[0], heads.base)


def _list_changed(checkout: Checkout, old: str, new: str, paths: Sequence[Path] = ()) -> list[str]:
    """Return the files below `paths` (below the root if none are given) that differ between two commits."""
    words = ["-r", "--no-renames", "--ignore-submodules=none", "--name-only", "-z", old, new, "--", *map(str, paths)]
    return run_git("diff-tree", words, checkout.root).split("\0")[:-1]


def describe_commit(checkout: Checkout, commit: str) -> str:
    """Return a commit's short name, its subject, its author's name and the committer's if that is another."""
    words = ["-1", "--no-show-signature", "--format=%h (%s) by %an%n%cn", commit]
    text, _, committer = run_git("log", words, checkout.root).removesuffix("\n").rpartition("\n")
    return text if text.endswith(f" by {committer}") else f"{text}, committed by {committer}"


def changed_by(checkout: Checkout, commit: str) -> list[str]:
    """Return the files that a commit changes against its first parent; none if the checkout lacks that one."""
    try:
        return _list_changed(checkout, f"{commit}^", commit)
    except GitError:
        return []


def _our_identities(checkout: Checkout) -> list[str]:
    """Return names and addresses of the author and of the committer of our commits; none if an address is unknown."""
    try:
        lines = [run_git("var", [each], checkout.root) for each in ("GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT")]
    except GitError:
        return []
    found = [_name_and_email(each) for each in lines]
    return [] if any(each.endswith("<>") for each in found) else found


def _name_and_email(identity: str) -> str:
    """Return `NAME <ADDRESS` of an identity as git writes it: `NAME <ADDRESS> SECONDS ZONE`."""
    return "".join(identity.rpartition(">")[:2])


def _is_in_history(checkout: Checkout, commit: str, of: str) -> bool:
    if not run_git("rev-list", ["--max-count=1", commit, f"^{of}"], checkout.root):
        return True
    if run_git("rev-parse", ["--is-shallow-repository"], checkout.root).strip() == "true":
        raise _lacks_history()
    return False


def list_entries(checkout: Checkout, commit: str, paths: Sequence[Path]) -> str:
    """Return git's listing of `paths` in a commit (or in its parent: `COMMIT^`). Equal listings mean equal contents."""
    return run_git("ls-tree", [commit, "--", *map(str, paths)], checkout.root)


def push_commit(checkout: Checkout, repository: Repository, commit: str, branch: str, tip: str | None) -> None:
    """Push `commit` to the remote's `branch`. Raises GitError if the branch is not at `tip` (None: does not exist)."""
    ref = f"refs/heads/{branch}"
    words = [f"--force-with-lease={ref}:{tip or ''}", repository.address, f"{commit}:{ref}"]
    run_git("push", words, checkout.root, repository)


def _environment_apart(checkout: Checkout, tree: Path) -> dict[str, str]:
    """Return environment variables for work on `tree` with an index and a git folder of its own.

    git then reads no configuration but that folder's: not the user's, the machine's or the checkout's.
    """
    scratch = str(tree.parent)
    return {
        "GIT_DIR": f"{scratch}/apart",
        "GIT_WORK_TREE": str(tree),
        "GIT_INDEX_FILE": f"{scratch}/index",
        "GIT_OBJECT_DIRECTORY": str(checkout.objects),
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_COUNT": "0",
        "GIT_CONFIG_PARAMETERS": "",
        "GIT_ATTR_NOSYSTEM": "1",
        "HOME": scratch,  # a git before 2.32 knows no GIT_CONFIG_GLOBAL
        "XDG_CONFIG_HOME": scratch,
    }


def _seal(into: str, parent: str, tree: str, title: str) -> str:
    return hashlib.sha256(f"{into}\n{parent}\n{tree}\n{title}".encode()).hexdigest()
