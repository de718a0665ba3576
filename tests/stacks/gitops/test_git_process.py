"""Whatever a repository is configured for or contains, `gitops propose` makes git run and ask nothing else for it."""

import os
from pathlib import Path

import pytest

from planner.problems.errors import CallError
from stacks.gitops.forge import Repository
from stacks.gitops.git import (
    commit_folder,
    export_commit,
    fetch_heads,
    find_checkout,
    is_own_commit,
    push_commit,
    read_heads,
    require_unchanged,
)
from stacks.gitops.git_process import GitError
from stacks.gitops.patience import Patience
from tests.stacks.gitops.git_server import git, serve_repositories

HOOKS = ("pre-commit", "post-checkout", "post-index-change", "pre-push", "reference-transaction", "pre-auto-gc")
BRANCH = "tidemill/deploy"


@pytest.fixture
def canary(tmp_path):
    """A program that leaves its first argument, or a note, in a file; and that file."""
    program, seen = tmp_path / "canary", tmp_path / "seen"
    program.write_text(f'#!/bin/sh\necho "$0 $*" >> {seen}\n')
    program.chmod(0o755)
    return program, seen


@pytest.fixture
def served(tmp_path):
    """A remote with a submodule, a checkout of both, and a commit since that moves the submodule on."""
    for name in ("part", "deployments"):
        git(tmp_path, "init", "-q", "-b", "main", name)
        git(tmp_path, "init", "-q", "--bare", "-b", "main", f"served/{name}.git")
    part, work = tmp_path / "part", tmp_path / "deployments"
    with serve_repositories(tmp_path / "served") as (host, asked):
        commit_and_push(part, f"{host}/part.git", {"file": "one"})
        git(work, "submodule", "add", "-q", f"{host}/part.git", "part")
        first = {"spec.yaml": "one", ".gitattributes": "*.txt filter=evil diff=evil\n", "other.txt": "text"}
        commit_and_push(work, f"{host}/deployments.git", first)
        git(tmp_path, "clone", "-q", "--recurse-submodules", f"{host}/deployments.git", "checkout")
        commit_and_push(part, f"{host}/part.git", {"file": "two"})
        git(work / "part", "pull", "-q", "origin", "main")
        commit_and_push(work, f"{host}/deployments.git", {"new.yaml": "two"})
        asked.clear()
        yield Repository("gitea", f"{host}/deployments.git", host, "o/r", "secret-token"), tmp_path / "checkout", asked


def commit_and_push(folder, address, files):
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "Files")
    git(folder, "push", "-q", address, "HEAD:refs/heads/main")


def propose(repository, folder, scratch):
    """Make every call of git that `propose` makes, and return the pushed commit."""
    checkout = find_checkout(folder)
    heads = read_heads(checkout, repository, "main", BRANCH)
    fetch_heads(checkout, repository, heads, BRANCH)
    require_unchanged(checkout, "origin", heads, [Path("spec.yaml")])
    tree = export_commit(checkout, heads.base, scratch)
    (tree / "deploy").mkdir()
    (tree / "deploy" / "plan.json").write_text("{}")
    commit = commit_folder(checkout, tree, heads, [Path("deploy")], "A title")

    assert is_own_commit(checkout, commit, heads, [Path("deploy")])
    push_commit(checkout, repository, commit, BRANCH, heads.tip)
    return commit


def configure(folder, program):
    """Make git run the canary for whatever it can be configured to."""
    for hook in HOOKS:
        (folder / ".git" / "hooks" / hook).symlink_to(program)
    settings = {
        "core.fsmonitor": program,
        "core.alternateRefsCommand": program,
        "core.editor": program,
        "core.pager": program,
        "core.askPass": program,
        "credential.helper": program,
        "diff.external": program,
        "diff.evil.command": program,
        "diff.evil.textconv": program,
        "filter.evil.clean": program,
        "filter.evil.smudge": program,
        "filter.evil.required": "true",
        "gpg.program": program,
        "user.signingKey": "evil",
        "commit.gpgSign": "true",
        "push.gpgSign": "true",
    }
    for name, value in settings.items():
        git(folder, "config", name, str(value))
    git(folder, "config", "user.name", "Ada")
    git(folder, "config", "user.email", "ada@git.example")


def test_git_runs_no_program_of_the_configuration(served, canary, tmp_path):
    """Hooks, monitors, filters, drivers and signing: they would run with the token in their environment."""
    repository, folder, _ = served
    program, seen = canary
    configure(folder, program)
    git(tmp_path, "clone", "-q", "--bare", str(folder), "alternate.git")
    (folder / ".git" / "objects" / "info" / "alternates").write_text(f"{tmp_path / 'alternate.git' / 'objects'}\n")
    seen.unlink(missing_ok=True)
    commit = propose(repository, folder, tmp_path / "scratch")

    assert git(tmp_path / "served" / "deployments.git", "rev-parse", BRANCH) == commit
    assert not seen.exists(), seen.read_text()


def test_git_asks_nobody_but_the_remote(served, tmp_path):
    """A submodule's address is whatever somebody wrote into `.gitmodules`, maybe in a fork."""
    repository, folder, asked = served
    settings = {
        "user.name": "Ada",
        "user.email": "ada@git.example",
        "submodule.recurse": "true",
        "submodule.part.fetchRecurseSubmodules": "true",
        "fetch.recurseSubmodules": "true",
        "fetch.bundleURI": f"{repository.root}/bundle.git",
        "push.recurseSubmodules": "on-demand",
    }
    for name, value in settings.items():
        git(folder, "config", name, value)
    propose(repository, folder, tmp_path / "scratch")

    assert {each.split("/")[1] for each in asked} == {"deployments.git"}


@pytest.mark.parametrize("setting", ["url.ext::PROGRAM.insteadOf", "remote.ADDRESS.vcs"])
def test_a_remote_is_reached_by_no_helper_of_its_own(setting, served, canary, tmp_path, monkeypatch):
    """git runs what stands behind `ext::`, and a program that is called after a remote's `vcs`."""
    repository, folder, asked = served
    program, seen = canary
    (tmp_path / "git-remote-evil").symlink_to(program)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    name = setting.replace("PROGRAM", str(program)).replace("ADDRESS", repository.address)
    git(folder, "config", name, "evil" if name.endswith("vcs") else repository.address)
    git(folder, "config", f"remote.{repository.address}.url", repository.address)
    with pytest.raises(GitError, match="not allowed"):
        read_heads(find_checkout(folder), repository, "main", BRANCH)

    assert not seen.exists()
    assert asked == []


def test_a_bare_repository_among_the_files_is_none(served, canary):
    """Whoever proposes from a folder that looks like one would run what its configuration names."""
    _, folder, _ = served
    program, seen = canary
    bare = folder / "deploy"
    git(folder, "init", "-q", "--bare", str(bare))
    git(bare, "config", "core.fsmonitor", str(program))
    git(bare, "config", "core.bare", "false")
    git(bare, "config", "core.worktree", str(folder))
    with pytest.raises(GitError, match="bare repository"):
        find_checkout(bare)

    assert not seen.exists()


@pytest.mark.parametrize("value", ["filter=lfs", "filter"])
def test_a_file_that_needs_a_filter_is_refused(value, served, tmp_path):
    """No filter runs, so the commit would have the text itself, even what git-crypt is to hide."""
    repository, folder, _ = served
    checkout = find_checkout(folder)
    heads = read_heads(checkout, repository, "main", BRANCH)
    fetch_heads(checkout, repository, heads, BRANCH)
    tree = export_commit(checkout, heads.base, tmp_path / "scratch")
    (tree / "deploy").mkdir()
    (tree / "deploy" / "a secret.yaml").write_text("text")
    (tree / ".gitattributes").write_text(f"deploy/** {value}\n")
    with pytest.raises(CallError, match="R623") as refused:
        commit_folder(checkout, tree, heads, [Path("spec.yaml"), Path("deploy")], "A title")
    (tree / ".gitattributes").write_text(f"deploy/** {value}\ndeploy/* -filter\n")

    assert "deploy/a secret.yaml" in str(refused.value)
    assert commit_folder(checkout, tree, heads, [Path("spec.yaml"), Path("deploy")], "A title")


def test_git_waits_as_long_as_the_command_has_patience(served):
    """What earlier requests have taken is gone."""
    repository, folder, _ = served
    hurried = Repository(repository.forge, repository.address, repository.root, "o/r", "token", Patience(0.0))
    with pytest.raises(GitError, match="kept this command waiting for 600 s in all"):
        read_heads(find_checkout(folder), hurried, "main", BRANCH)
