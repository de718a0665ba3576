"""Run git without changing the checkout, and without showing the token to anyone but the remote.

A commit is made of a folder and an index outside the checkout, so it does not matter which branch is checked out and
what somebody is editing there. git gets the token from a credential helper that prints an environment variable, for the
remote's host alone: it stands in no address, configuration or list of processes. Hooks do not run, because they would
inherit that variable. Traces are off, redirects are refused, and no helper of the user's stores what ours prints.
"""

import hashlib
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.problems.errors import CallError, TidemillError
from planner.problems.finding import Finding
from stacks.gitops.forge import TOKEN, TOKEN_USER, Repository
from stacks.gitops.refusals import PROPOSE, refused

__all__ = [
    "Checkout",
    "GitError",
    "Heads",
    "changed_elsewhere",
    "commit_folder",
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
    "require_unchanged",
    "require_within",
]

TIMEOUT_S = 600  # assumed: a fetch of a repository of manifests takes seconds
TRAILER = "Tidemill-Proposal: "
NO_TRACES = {"GIT_TRACE2": "0", "GIT_TRACE2_EVENT": "0", "GIT_TRACE2_PERF": "0"}  # git config may name files for them
UNATTENDED = {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "", "GIT_LITERAL_PATHSPECS": "1", "LC_ALL": "C"}
HELPER = f'!f() {{ test "$1" = get && printf "username={TOKEN_USER}\\npassword=%s\\n" "${TOKEN}"; }}; f'


class GitError(TidemillError):
    """A git command failed, or its output is unusable."""

    exit_status = 1

    def __init__(self, verb: str, reason: str, fix: str = "correct what git says, and call it again") -> None:
        super().__init__([Finding("", None, f"R616 git {verb} failed", reason, fix).at(PROPOSE)])


@dataclass(frozen=True)
class Checkout:
    """A checkout: its top folder, and the folder in which git keeps its objects."""

    root: Path
    git_folder: Path


@dataclass(frozen=True)
class Heads:
    """The remote branch `into`, its commit `base`, and `tip`: the commit of the proposal's branch, if it exists."""

    into: str
    base: str
    tip: str | None


def find_checkout(folder: Path) -> Checkout:
    """Return the checkout that contains `folder`. Raises GitError if there is none."""
    told = _git("rev-parse", ["--show-toplevel", "--absolute-git-dir"], folder).splitlines()
    return Checkout(Path(told[0]), Path(told[1]))


def require_within(root: Path, name: str, path: Path) -> Path:
    """Return `path` relative to a checkout's root. Raises CallError if it leads out, by `..` or by a link."""
    found, top = (Path.cwd() / path).resolve(), root.resolve()
    if not found.is_relative_to(top) or found == top:
        rule, reason = "R613 must be a path inside the checkout, also behind links", "a commit holds nothing else"
        raise refused(PROPOSE, name, str(path), rule, reason, "give a path inside it that no link leads out of")
    return found.relative_to(top)


def remote_address(checkout: Checkout, remote: str) -> str:
    """Return the push URL of a remote."""
    return _git("remote", ["get-url", "--push", "--", remote], checkout.root).strip()


def require_identity(checkout: Checkout) -> None:
    """Raises GitError if git has no name and address for the author of commits."""
    try:
        _git("var", ["GIT_COMMITTER_IDENT"], checkout.root)
    except GitError:
        reason, fix = "it knows no name and address for commits", "git config user.name NAME, and user.email ADDRESS"
        raise GitError("commit", reason, fix) from None


def require_branch(checkout: Checkout, branch: str, into: str) -> None:
    """Raises CallError if `branch` is no valid name of a branch, or is the branch `into` itself."""
    rule, fix = f"R618 must be the name of a branch other than {into}", "for example tidemill/deploy"
    try:
        if _git("check-ref-format", ["--branch", branch], checkout.root).strip() != branch or branch == "@":
            raise GitError("check-ref-format", "it is short for another name")  # for example @{-1}
    except GitError:
        raise refused(PROPOSE, "--branch", branch, rule, "git takes no such name", fix) from None
    if branch == into:
        raise refused(PROPOSE, "--branch", branch, rule, "a pull request needs two branches", fix)


def read_heads(checkout: Checkout, repository: Repository, into: str | None, branch: str) -> Heads:
    """Read the commits of the remote's branches `into` (its default branch if None) and `branch`.

    Raises GitError if the remote cannot be read or lacks `into`.
    """
    wanted = ["HEAD", *(f"refs/heads/{each}" for each in (into, branch) if each)]
    told = _git("ls-remote", ["--symref", repository.address, *wanted], checkout.root, repository)
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
    _git("fetch", words, checkout.root, repository)
    for commit in filter(None, (heads.base, heads.tip)):
        _git("cat-file", ["-e", f"{commit}^{{commit}}"], checkout.root)


def require_unchanged(checkout: Checkout, remote: str, heads: Heads, paths: Sequence[Path]) -> None:
    """Raises CallError if the remote branch has changed any of `paths` since the checkout's branch forked off.

    The suggested fix keeps every edit: `git pull` stashes only files that git knows, so it adds new files first.
    """
    try:
        start = _git("merge-base", ["HEAD", heads.base], checkout.root).strip()
    except GitError:
        raise _lacks_history() from None
    words = ["--name-only", start, heads.base, "--", *map(str, paths)]
    if changed := _git("diff", words, checkout.root).split("\n")[0]:
        pull = f"git add -A && git pull --rebase --autostash {remote} {heads.into}"
        reason = "others have changed it since, and that would be undone"
        raise changed_elsewhere(changed, reason, f"take that over, your edits on top: {pull}")


def _lacks_history() -> GitError:
    return GitError("merge-base", "the checkout lacks the history that it shares", "git fetch --unshallow")


def changed_elsewhere(path: str, reason: str, fix: str) -> CallError:
    """Return the error for a file that differs from the one on the branch that the proposal goes into."""
    return refused(path, "", None, "R614 must be as the branch has it", reason, fix)


def export_commit(checkout: Checkout, commit: str, scratch: Path) -> Path:
    """Write a commit's files to a new folder in `scratch`, and git's index beside it. Return the folder."""
    tree = scratch / "tree"
    tree.mkdir()
    _git("read-tree", [commit], tree, more=_index_environment(checkout, tree))
    _git("checkout-index", ["--all", "--force"], tree, more=_index_environment(checkout, tree))
    return tree


def commit_folder(checkout: Checkout, tree: Path, parent: str, paths: Sequence[Path], title: str) -> str | None:
    """Commit `paths` of an exported folder, and return the commit; None if nothing differs from `parent`."""
    apart = _index_environment(checkout, tree)
    _git("add", ["--all", "--force", "--", *map(str, paths)], tree, more=apart)
    written = _git("write-tree", [], tree, more=apart).strip()
    if written == _git("rev-parse", [f"{parent}^{{tree}}"], checkout.root).strip():
        return None
    message = f"{title}\n\n{TRAILER}{_seal(parent, written, title)}\n"
    return _git("commit-tree", [written, "-p", parent, "-m", message], checkout.root).strip()


def is_own_commit(checkout: Checkout, commit: str, base: str, paths: Sequence[Path]) -> bool:
    """Return whether `commit_folder` made `commit` for this author: its seal fits its files, its parent and its title.

    So somebody else's commit on top is noticed, and a colleague's proposal is not replaced. Anybody with push rights
    can make a seal too. Therefore the commit must change nothing but `paths`, and its parent must be in the history of
    `base`: then the next proposal replaces all its changes. Raises GitError if the checkout lacks that history.
    """
    head, _, message = _git("cat-file", ["commit", commit], checkout.root).partition("\n\n")
    tree, parents = re.findall(r"^tree (\w+)$", head, re.M), re.findall(r"^parent (\w+)$", head, re.M)
    title, _, seal = message.strip().partition(f"\n\n{TRAILER}")
    authors = re.findall(r"^author (.*)$", head, re.M)[0], _git("var", ["GIT_AUTHOR_IDENT"], checkout.root)
    if len(parents) != 1 or seal != _seal(parents[0], tree[0], title) or len(set(map(_email, authors))) != 1:
        return False
    words = ["--no-renames", "--no-ext-diff", "--ignore-submodules=none", "--name-only", "-z", parents[0], commit]
    changed = _git("diff", words, checkout.root).split("\0")[:-1]
    is_within = all(any(Path(each).is_relative_to(path) for path in paths) for each in changed)
    return is_within and _is_in_history(checkout, parents[0], base)


def _email(identity: str) -> str:
    """Return the address of an author as git writes it: `NAME <ADDRESS> SECONDS ZONE`."""
    return identity.rpartition("<")[2].partition(">")[0]


def _is_in_history(checkout: Checkout, commit: str, of: str) -> bool:
    if not _git("rev-list", ["--max-count=1", commit, f"^{of}"], checkout.root):
        return True
    if _git("rev-parse", ["--is-shallow-repository"], checkout.root).strip() == "true":
        raise _lacks_history()
    return False


def list_entries(checkout: Checkout, commit: str, paths: Sequence[Path]) -> str:
    """Return git's listing of `paths` in a commit (or in its parent: `COMMIT^`). Equal listings mean equal contents."""
    return _git("ls-tree", [commit, "--", *map(str, paths)], checkout.root)


def push_commit(checkout: Checkout, repository: Repository, commit: str, branch: str, tip: str | None) -> None:
    """Push `commit` to the remote's `branch`. Raises GitError if that is no longer at `tip` (None: does not exist)."""
    ref = f"refs/heads/{branch}"
    words = [
        "--no-verify",
        "--no-follow-tags",
        "--recurse-submodules=no",
        f"--force-with-lease={ref}:{tip or ''}",
        repository.address,
        f"{commit}:{ref}",
    ]
    _git("push", words, checkout.root, repository)


def _index_environment(checkout: Checkout, tree: Path) -> dict[str, str]:
    """Return environment variables that make git work on `tree`, with its own index, instead of the checkout."""
    places = {"GIT_DIR": checkout.git_folder, "GIT_WORK_TREE": tree, "GIT_INDEX_FILE": tree.parent / "index"}
    return {name: str(path) for name, path in places.items()}


def _seal(parent: str, tree: str, title: str) -> str:
    return hashlib.sha256(f"{parent}\n{tree}\n{title}".encode()).hexdigest()


def _git(
    verb: str,
    words: Sequence[str],
    folder: Path,
    repository: Repository | None = None,
    more: dict[str, str] | None = None,
) -> str:
    """Run git in `folder` and return its output. With a `repository`, git gets the token for it.

    Raises GitError if git fails.
    """
    options = [
        "-c",
        "core.hooksPath=/dev/null",
        "-c",
        "user.useConfigOnly=true",
        "-c",
        "push.pushOption=",
        *_token_options(repository),
    ]
    command = ["git", *options, verb, *words]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=_environment(repository) | (more or {}),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=TIMEOUT_S,
        )
    except FileNotFoundError:
        raise GitError(verb, "there is no program git, or no such folder", "install git") from None
    except subprocess.TimeoutExpired:
        raise GitError(verb, f"it did not end within {TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise GitError(verb, _error_lines(done.stderr, repository))
    return done.stdout


def _token_options(repository: Repository | None) -> list[str]:
    """Return git's options for sending the token to the repository's address, and only there. None are needed for SSH.

    An empty value removes earlier settings: helpers that would store the token, and the header with which GitHub's
    checkout action would push as somebody else. Of several settings git takes the one with the longest address.
    """
    if repository is None or not repository.by_http:
        return []
    address = repository.address
    settings = (
        ("credential.helper", ""),
        (f"credential.{address}.helper", ""),
        (f"credential.{address}.helper", HELPER),
        ("http.extraHeader", ""),
        (f"http.{repository.root}/.extraHeader", ""),
        (f"http.{address}.extraHeader", ""),
        (f"http.{address}.followRedirects", "false"),
    )
    return [word for name, value in settings for word in ("-c", f"{name}={value}")]


def _environment(repository: Repository | None) -> dict[str, str]:
    traces = ("GIT_TRACE", "GIT_CURL_VERBOSE")
    kept = {name: value for name, value in os.environ.items() if name != TOKEN and not name.startswith(traces)}
    token = {TOKEN: repository.token} if repository is not None and repository.by_http else {}
    return kept | NO_TRACES | UNATTENDED | token


def _error_lines(stderr: str, repository: Repository | None) -> str:
    """Return the error lines in git's output, joined to one, without the token (a server may have sent it back)."""
    lines = [line for line in stderr.splitlines() if line.startswith(("fatal:", "error:", " ! [", "remote:"))]
    said = "; ".join(line.strip() for line in lines) or "it says nothing"
    return repository.without_token(said) if repository else said
