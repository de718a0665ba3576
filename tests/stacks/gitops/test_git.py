"""Git as `tidemill gitops propose` runs it: commits that know their own, and a token that only the remote gets."""

import subprocess
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from planner.problems.errors import CallError
from stacks.gitops.forge import Repository
from stacks.gitops.git import (
    Heads,
    changed_by,
    commit_folder,
    describe_commit,
    export_commit,
    find_checkout,
    is_own_commit,
    list_entries,
    push_commit,
    read_heads,
    require_branch,
    require_identity,
    require_unchanged,
)
from stacks.gitops.git_process import GitError
from tests.stacks.gitops.git_server import git, serve_repositories


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with one commit, somebody's edit, and a hook for everything."""
    root = tmp_path / "checkout"
    (root / "deploy").mkdir(parents=True)
    git(root, "init", "-q", "-b", "main")
    (root / "spec.yaml").write_text("one")
    (root / ".gitignore").write_text("deploy")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "First")
    git(root, "config", "user.name", "Ada")
    git(root, "config", "user.email", "ada@git.example")
    for hook in ("pre-commit", "commit-msg", "post-checkout", "pre-push", "reference-transaction"):
        (root / ".git" / "hooks" / hook).write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
        (root / ".git" / "hooks" / hook).chmod(0o755)
    (root / "spec.yaml").write_text("edited by somebody")
    return find_checkout(root)


def onto(base):
    """What a proposal for `main` at a commit starts from."""
    return Heads("main", base, None)


def make_commit(checkout, scratch, text="two"):
    base = git(checkout.root, "rev-parse", "HEAD")
    scratch.mkdir()
    tree = export_commit(checkout, base, scratch)
    (tree / "deploy").mkdir()
    (tree / "deploy" / "plan.json").write_text(text)
    return commit_folder(checkout, tree, onto(base), [Path("deploy")], "A title")


def test_a_commit_is_made_apart(checkout, tmp_path):
    """Nothing of the checkout changes, what it edits stays out, no hook runs, and ignored files get in."""
    before = git(checkout.root, "status", "--porcelain")
    commit = make_commit(checkout, tmp_path / "scratch")

    assert git(checkout.root, "show", f"{commit}:spec.yaml") == "one"
    assert git(checkout.root, "show", f"{commit}:deploy/plan.json") == "two"
    assert git(checkout.root, "status", "--porcelain") == before == "M spec.yaml"
    assert git(checkout.root, "branch", "--list") == "* main"
    assert not (tmp_path / "ran").exists()


def test_a_folder_without_changes_is_no_commit(checkout, tmp_path):
    """So nothing is pushed."""
    scratch, base = tmp_path / "scratch", git(checkout.root, "rev-parse", "HEAD")
    scratch.mkdir()
    tree = export_commit(checkout, base, scratch)

    assert commit_folder(checkout, tree, onto(base), [Path("spec.yaml")], "A title") is None


def test_a_commit_knows_its_own(checkout, tmp_path):
    """Not once somebody has amended files or message, rebased it, or put a commit on top."""
    root, ours = checkout.root, make_commit(checkout, tmp_path / "scratch")
    message = git(root, "log", "-1", "--format=%B", ours)
    git(root, "stash", "-q")
    git(root, "checkout", "-q", "--detach", ours)
    again = git(root, "commit-tree", f"{ours}^{{tree}}", "-p", f"{ours}^", "-m", message)
    git(root, "commit", "-q", "--allow-empty", "-m", "On top")
    on_top = git(root, "rev-parse", "HEAD")
    reworded = git(root, "commit-tree", f"{ours}^{{tree}}", "-p", f"{ours}^", "-m", f"Please wait\n\n{message}")
    of_other_files = git(root, "commit-tree", f"{ours}^^{{tree}}", "-p", f"{ours}^", "-m", message)
    rebased = git(root, "commit-tree", f"{ours}^{{tree}}", "-p", on_top, "-m", message)
    merged = git(root, "commit-tree", f"{ours}^{{tree}}", "-p", f"{ours}^", "-p", on_top, "-m", message)

    def is_own(commit):
        return is_own_commit(checkout, commit, onto(f"{ours}^"), [Path("deploy")])

    assert [is_own(each) for each in (ours, again)] == [True, True]
    others = (f"{ours}^", on_top, reworded, of_other_files, rebased, merged)
    assert [each for each in others if is_own(each)] == []


def test_a_commit_says_whose_it_is_and_what_it_changes(checkout):
    """So whoever finds it on the branch can ask."""
    (checkout.root / "spec.yaml").write_text("name: other\n")
    git(checkout.root, "add", "spec.yaml")
    git(checkout.root, "commit", "-q", "-m", "More units", "--author", "Bob <bob@git.example>")
    theirs = git(checkout.root, "rev-parse", "HEAD")
    first = git(checkout.root, "rev-list", "--max-parents=0", "HEAD")

    us, short = git(checkout.root, "config", "user.name"), git(checkout.root, "rev-parse", "--short", theirs)
    assert describe_commit(checkout, theirs) == f"{short} (More units) by Bob, committed by {us}"
    assert describe_commit(checkout, first).endswith(f") by {us}")
    assert (changed_by(checkout, theirs), changed_by(checkout, first)) == (["spec.yaml"], [])


def test_a_colleagues_proposal_is_not_ours(checkout, tmp_path):
    """Whoever proposes next from the same folder would replace it unread."""
    theirs = make_commit(checkout, tmp_path / "scratch")
    git(checkout.root, "config", "user.email", "bob@git.example")

    assert not is_own_commit(checkout, theirs, onto(f"{theirs}^"), [Path("deploy")])


@pytest.mark.parametrize("identity", ["user.email=bob@git.example", "user.name=Bob"])
def test_a_proposal_that_a_colleague_commits_again_is_not_ours(identity, checkout, tmp_path):
    """An amended commit keeps its author and, with nothing else changed, its seal. A team may share an address."""
    ours = make_commit(checkout, tmp_path / "scratch")
    git(checkout.root, "checkout", "-q", "--detach", ours)
    git(checkout.root, "-c", identity, "commit", "-q", "--amend", "--no-edit")
    amended = git(checkout.root, "rev-parse", "HEAD")

    assert amended != ours
    assert not is_own_commit(checkout, amended, onto(f"{ours}^"), [Path("deploy")])


def test_a_proposal_for_another_branch_is_not_ours(checkout, tmp_path):
    """Its pull request is open, and would get this one's commits."""
    ours = make_commit(checkout, tmp_path / "scratch")
    release = replace(onto(f"{ours}^"), into="release")

    assert not is_own_commit(checkout, ours, release, [Path("deploy")])


def test_without_an_address_no_proposal_is_ours(checkout, tmp_path):
    """Everybody without one would be the same author, and would replace the others' proposals unread."""
    git(checkout.root, "config", "user.email", "")
    unknown = make_commit(checkout, tmp_path / "scratch")

    assert "<>" in git(checkout.root, "cat-file", "commit", unknown)
    assert not is_own_commit(checkout, unknown, onto(f"{unknown}^"), [Path("deploy")])
    with pytest.raises(GitError, match=r"user\.email"):
        require_identity(checkout)


@pytest.mark.parametrize("parents", [1, 2])
def test_a_sealed_commit_with_a_file_besides_is_not_ours(parents, checkout, tmp_path):
    """Whoever may push can compute the seal: for a commit with more in it, or for one upon a commit of their own."""
    base = git(checkout.root, "rev-parse", "HEAD")
    tree = export_commit(checkout, base, tmp_path)
    for folder in (".github", "deploy"):
        (tree / folder).mkdir()
        (tree / folder / "evil.yml").write_text("evil")
    paths = [Path(".github"), Path("deploy")]
    parent = base if parents == 1 else commit_folder(checkout, tree, onto(base), paths[:1], "Evil")
    sealed = commit_folder(checkout, tree, onto(parent), paths[2 - parents :] if parents == 2 else paths, "A title")

    assert is_own_commit(checkout, sealed, onto(parent), paths)
    assert not is_own_commit(checkout, sealed, onto(base), paths[1:])


def test_history_that_is_not_there_is_asked_for(checkout, tmp_path):
    """In a shallow checkout, the branch may have gone on from a proposal's parent or not."""
    ours = make_commit(checkout, tmp_path / "scratch")
    git(checkout.root, "commit", "-q", "--allow-empty", "-m", "Second")
    base = git(checkout.root, "rev-parse", "HEAD")

    assert is_own_commit(checkout, ours, onto(base), [Path("deploy")])
    (checkout.git_folder / "shallow").write_text(f"{base}\n")
    with pytest.raises(GitError, match="git fetch --unshallow"):
        is_own_commit(checkout, ours, onto(base), [Path("deploy")])


@pytest.mark.parametrize("name", ["-oX", "--", "HEAD", "@", "@{-1}", "a..b", "a b", "x.lock", ""])
def test_a_branch_has_a_name_of_its_own(name, checkout):
    """git reads another branch, an option or nothing into these."""
    git(checkout.root, "checkout", "-q", "-b", "earlier")
    git(checkout.root, "checkout", "-q", "main")
    with pytest.raises(CallError, match="R618"):
        require_branch(checkout, name, "main")


def test_a_push_brings_the_commit_alone(checkout, tmp_path):
    """No tags, no submodules and no options for the server, whatever the user's configuration says."""
    remote = tmp_path / "served" / "remote.git"
    git(tmp_path, "init", "-q", "--bare", str(remote))
    commit = make_commit(checkout, tmp_path / "scratch")
    git(checkout.root, "tag", "-a", "-m", "A tag", "v1", commit)
    for name, value in {"push.followTags": "true", "push.recurseSubmodules": "only", "push.pushOption": "evil"}.items():
        git(checkout.root, "config", name, value)
    with serve_repositories(remote.parent) as (host, _):
        repository = Repository("gitea", f"{host}/remote.git", host, "o/r", "secret-token")
        push_commit(checkout, repository, commit, "tidemill/deploy", None)

    assert git(remote, "for-each-ref", "--format=%(objectname) %(refname)") == f"{commit} refs/heads/tidemill/deploy"


def test_equal_entries_are_equal_contents(checkout, tmp_path):
    """A commit is compared by what it holds at a few paths."""
    one, same = (make_commit(checkout, tmp_path / name) for name in ("one", "same"))
    other = make_commit(checkout, tmp_path / "other", "three")
    paths = [Path("deploy"), Path("spec.yaml")]
    entries = [list_entries(checkout, each, paths) for each in (one, same, other, f"{other}^")]

    assert entries[0] == entries[1]
    assert len(set(entries)) == 3


def test_git_must_know_whose_commits_these_are(checkout, monkeypatch):
    """It would make up an address of this machine's name."""
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, "/dev/null")
    for name in ("GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL", "EMAIL"):
        monkeypatch.delenv(name, raising=False)
    git(checkout.root, "config", "--unset", "user.email")

    with pytest.raises(GitError, match=r"user\.email"):
        require_identity(checkout)


@contextmanager
def serving(respond):
    """Serve `respond(handler)`, and collect what each request says of itself."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            asked.append(self.headers.get("Authorization"))
            respond(self)
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def demand_login(handler):
    handler.send_response(401)
    handler.send_header("WWW-Authenticate", 'Basic realm="git"')


@pytest.mark.parametrize(
    "setting", ["http.followRedirects", "http.HOST/.followRedirects", "http.ADDRESS.followRedirects"]
)
def test_the_token_goes_to_no_other_host(setting, checkout):
    """A redirect is an error whatever the configuration says, and nobody asks for a password."""
    with serving(demand_login) as (elsewhere, asked_elsewhere):

        def redirect(handler):
            handler.send_response(302)
            handler.send_header("Location", f"{elsewhere}/o/r.git/info/refs?service=git-upload-pack")

        with serving(redirect) as (host, asked):
            repository = Repository("gitea", f"{host}/o/r.git", host, "o/r", "secret-token")
            git(checkout.root, "config", configured(setting, repository), "true")
            with pytest.raises(GitError, match="R616"):
                read_heads(checkout, repository, "main", "tidemill/deploy")

    assert asked == [None]
    assert asked_elsewhere == []


def configured(name, repository):
    return name.replace("HOST", repository.root).replace("ADDRESS", repository.address)


@pytest.mark.parametrize("place", ["", ".HOST", ".ADDRESS"])
def test_a_refused_token_is_not_repeated(place, checkout, tmp_path):
    """The remote gets it once it asks, beside no header of the user's, and no helper of the user's is told."""
    with serving(demand_login) as (host, asked):
        repository = Repository("gitea", f"{host}/o/r.git", host, "o/r", "secret-token")
        helper = f"!touch {tmp_path / 'told'}; :"
        git(checkout.root, "config", configured(f"credential{place}.helper", repository), helper)
        git(checkout.root, "config", configured(f"http{place}.extraHeader", repository), "Authorization: Basic evil")
        with pytest.raises(GitError, match="Authentication failed") as caught:
            read_heads(checkout, repository, "main", "tidemill/deploy")

    assert asked[0] is None
    assert asked[1].startswith("Basic ")
    assert "secret-token" not in str(caught.value)
    assert not (tmp_path / "told").exists()


@pytest.mark.parametrize("branch", ["main", "a'b;touch$IFS'evil'"])
def test_others_changes_are_taken_over_without_losing_edits(branch, checkout, tmp_path):
    """The advice is a command that works whatever the branch is called, and keeps an edited file and a new one."""
    text = "".join(f"line {number}\n" for number in range(9))
    (checkout.root / "spec.yaml").write_text(text)
    git(checkout.root, "commit", "-q", "-a", "-m", "Second")
    git(checkout.root, "branch", "-q", "-m", branch)
    git(tmp_path, "clone", "-q", "--bare", "checkout", "remote.git")
    git(checkout.root, "remote", "add", "origin", str(tmp_path / "remote.git"))
    git(tmp_path, "clone", "-q", "remote.git", "other")
    (tmp_path / "other" / "spec.yaml").write_text(f"{text}theirs\n")
    git(tmp_path / "other", "commit", "-q", "-a", "-m", "Theirs")
    git(tmp_path / "other", "push", "-q", "origin", branch)
    (checkout.root / "spec.yaml").write_text(f"ours\n{text}")
    (checkout.root / "new.yaml").write_text("ours")
    git(checkout.root, "fetch", "-q", "origin")
    heads = Heads(branch, git(checkout.root, "rev-parse", f"origin/{branch}"), None)
    with pytest.raises(CallError, match="R614") as refused:
        require_unchanged(checkout, "origin", heads, [Path("spec.yaml")])
    advice = str(refused.value.findings[0].fix).partition(": ")[2]
    subprocess.run(["bash", "-ec", advice], cwd=checkout.root, check=True, capture_output=True)

    assert (checkout.root / "spec.yaml").read_text() == f"ours\n{text}theirs\n"
    assert (checkout.root / "new.yaml").read_text() == "ours"
