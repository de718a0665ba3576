"""Run git so that it runs no other program, asks no host but the remote, and shows the token to nobody else.

A repository can make git do more than it is called for. What stops that, here and nowhere else:

    hooks, file system monitors, signing programs, `ext::` remotes      SETTINGS and PROTOCOLS, for every call
    submodules, which may be fetched from any address                   SETTINGS
    a bare repository among the files, which brings its configuration   SETTINGS
    filters such as LFS, which attributes among the files choose        calls that touch files have a git folder without
                                                                        configuration (`Workbench`)

The remote's host alone gets the token, from a credential helper that prints an environment variable. It stands in no
address, configuration or list of processes. Traces are off, redirects are refused, and no helper of the user's stores
what ours prints. How git reaches the remote is left to the user: SSH keys, proxies and certificates.
Sources: git 2.39, Documentation/config/*.txt and git.txt.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from planner.problems.errors import TidemillError
from planner.problems.finding import Finding
from stacks.gitops.argument_errors import PROPOSE
from stacks.gitops.forge import TOKEN, TOKEN_USER, Repository
from stacks.gitops.patience import TOO_SLOW, TRY_LATER

__all__ = ["GitError", "run_git"]

LOCAL_S = 600  # assumed: a call without the remote takes seconds
SETTINGS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.alternateRefsCommand": "true",  # the program that does nothing
    "safe.bareRepository": "explicit",
    "fetch.recurseSubmodules": "false",
    "fetch.bundleURI": "",
    "push.recurseSubmodules": "no",
    "push.followTags": "false",
    "push.pushOption": "",
    "push.gpgSign": "false",
    "maintenance.auto": "false",  # it would outlive the command, in a repository that is not ours
    "user.useConfigOnly": "true",
}
PROTOCOLS = "http:https:ssh"  # those that `forge.read_repository` lets through
NO_TRACES = {"GIT_TRACE2": "0", "GIT_TRACE2_EVENT": "0", "GIT_TRACE2_PERF": "0"}  # git config may name files for them
UNATTENDED = {
    "GIT_ALLOW_PROTOCOL": PROTOCOLS,
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "",
    "GIT_LITERAL_PATHSPECS": "1",
    "LC_ALL": "C",
}
HELPER = f'!f() {{ test "$1" = get && printf "username={TOKEN_USER}\\npassword=%s\\n" "${TOKEN}"; }}; f'


class GitError(TidemillError):
    """A git command failed, or its output is unusable."""

    exit_status = 1

    def __init__(self, verb: str, reason: str, fix: str = "correct what git says, and call it again") -> None:
        super().__init__([Finding("", None, f"R616 git {verb} failed", reason, fix).at(PROPOSE)])


def run_git(
    verb: str,
    words: Sequence[str],
    folder: Path,
    repository: Repository | None = None,
    more: Mapping[str, str] | None = None,
) -> str:
    """Run git in `folder`, with `more` environment variables, and return its output.

    With a `repository`, git gets the token for it and the command's patience with it. Raises GitError if git fails.
    """
    settings = [*SETTINGS.items(), *_token_settings(repository)]
    command = ["git", *(word for name, value in settings for word in ("-c", f"{name}={value}")), verb, *words]
    environment = {**_environment(repository), **(more or {})}
    try:
        if repository is None:
            done = _run(command, folder, environment, LOCAL_S)
        else:
            with repository.patience.spend() as left_s:
                done = _run(command, folder, environment, left_s)
    except FileNotFoundError:
        raise GitError(verb, "there is no program git, or no such folder", "install git") from None
    except subprocess.TimeoutExpired:
        if repository is None:
            raise GitError(verb, f"it did not end within {LOCAL_S} s") from None
        raise GitError(verb, TOO_SLOW, TRY_LATER) from None
    if done.returncode != 0:
        raise GitError(verb, _error_lines(done.stderr, repository))
    return done.stdout


def _run(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=timeout_s,
    )


def _token_settings(repository: Repository | None) -> list[tuple[str, str]]:
    """Return git's settings for sending the token to the repository's address, and only there. SSH needs none.

    An empty value removes earlier settings: helpers that would store the token, and the header with which GitHub's
    checkout action would push as somebody else. Of several settings git takes the one with the longest address.
    """
    if repository is None or not repository.by_http:
        return []
    address = repository.address
    return [
        ("credential.helper", ""),
        (f"credential.{address}.helper", ""),
        (f"credential.{address}.helper", HELPER),
        ("http.extraHeader", ""),
        (f"http.{repository.root}/.extraHeader", ""),
        (f"http.{address}.extraHeader", ""),
        (f"http.{address}.followRedirects", "false"),
    ]


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
