"""A REST client for pull requests of GitHub, GitLab and Gitea: find, open, edit and close them.

    Repository(forge, host, path)     from the address of a remote, or a reason why it is none
    PullRequest                       what all three say of one, in the same words

An answer is bounded and may say anything. No redirect is followed: it would carry the token to another place.
"""

import http.client
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from threading import Thread
from typing import Any, Literal, NoReturn
from urllib.parse import quote, urlencode, urlsplit

from planner.problems.errors import CallError, TidemillError
from planner.problems.finding import Finding
from planner.problems.printable import without_passwords
from stacks.gitops.argument_errors import PROPOSE, argument_error
from stacks.gitops.patience import TOO_SLOW, TRY_LATER, Patience

__all__ = [
    "FORGES",
    "TOKEN",
    "Forge",
    "ForgeError",
    "PullRequest",
    "Repository",
    "change_text",
    "close_request",
    "find_request",
    "open_request",
    "read_repository",
]

Forge = Literal["github", "gitlab", "gitea"]
FORGES: tuple[Forge, ...] = ("github", "gitlab", "gitea")
HOSTS: dict[str, Forge] = {
    "github.com": "github",
    "gitlab.com": "gitlab",
    "gitea.com": "gitea",
    "codeberg.org": "gitea",
}
TOKEN = "TIDEMILL_TOKEN"  # noqa: S105 (the variable's name)
TOKEN_USER = "x-access-token"  # noqa: S105 (the name that the token is sent with)
HTTP = ("http://", "https://")
SCP = re.compile(r"(?:[\w.-]+@)?([\w.-]+):(?!/)(.+)")  # git@github.com:owner/name.git
PATH = re.compile(r"(?!.*(^|/)\.+(/|$))[\w.~-]+(/[\w.~-]+)+")
TIMEOUT_S = 30  # assumed: the longest read from a forge
UNREADABLE = (OSError, http.client.HTTPException, ValueError)  # what urllib raises without an HTTP answer
MAX_ANSWER_BYTES = 2**24  # assumed: a page of 50 pull requests, each with a text of 64 KiB, has a fifth
_Fetched = tuple[urllib.error.HTTPError | None, bytes]
PAGE = 50  # what Gitea gives at most, and GitHub and GitLab give too
MAX_PAGES = 100  # assumed: no repository has more pull requests into one branch than these hold


class ForgeError(TidemillError):
    """The forge refuses a request, cannot be reached, or sends an unexpected answer."""

    exit_status = 1

    def __init__(self, repository: "Repository", reason: str, fix: str = "correct what it says") -> None:
        rule = f"R617 must let {PROPOSE} read and write pull requests"
        shown = repository.without_token(reason)
        super().__init__([Finding("", None, rule, shown, fix).at(repository.api)])


@dataclass(frozen=True)
class Repository:
    """A repository on a forge, and the token for it."""

    forge: Forge
    address: str  # what git pushes to
    root: str  # where the forge runs: `https://git.example:3000`, or `https://example.com/gitlab`
    path: str  # `group/name`
    token: str = field(repr=False)
    patience: Patience = field(default_factory=Patience, repr=False, compare=False)

    @property
    def by_http(self) -> bool:
        """Whether git reaches the repository by HTTP, for which it needs the token; by SSH it needs none."""
        return self.address.startswith(HTTP)

    @property
    def api(self) -> str:
        """The base URL of the repository in the forge's REST API."""
        if self.forge == "gitlab":
            return f"{self.root}/api/v4/projects/{quote(self.path, safe='')}"
        if self.forge == "gitea":
            return f"{self.root}/api/v1/repos/{self.path}"
        api = "https://api.github.com" if self.root == "https://github.com" else f"{self.root}/api/v3"
        return f"{api}/repos/{self.path}"

    def without_token(self, text: str) -> str:
        """Return `text` without the token, plain or in Base64 as git sends it, so that it may be printed."""
        login = b64encode(f"{TOKEN_USER}:{self.token}".encode()).decode()
        return without_passwords(text.replace(login, "***").replace(self.token, "***"))


@dataclass(frozen=True)
class PullRequest:
    """A pull request, or a merge request of GitLab."""

    number: int
    address: str
    text: str
    is_open: bool
    is_merged: bool


def read_repository(address: str, forge: Forge | None, forge_url: str | None = None) -> Repository:
    """Return the repository at a remote's address. Raises CallError if that is no repository of a supported forge.

    Without `forge_url` the forge runs at the root of the address's host.
    """
    token = os.environ.get(TOKEN, "")
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        rule, reason = "R610 must hold a token", "the branch is pushed, and the pull request opened, with its rights"
        raise argument_error(PROPOSE, TOKEN, None, rule, reason, "export one that may write code and pull requests")
    root, path = _locate(address, forge_url)
    known = forge or HOSTS.get(urlsplit(root).hostname or "")
    if known is None:
        rule, reason = "R612 must be given for this host", f"{root} may be any of {', '.join(FORGES)}"
        raise argument_error(PROPOSE, "--forge", None, rule, reason, "for example --forge gitea")
    if not PATH.fullmatch(path) or (known != "gitlab" and path.count("/") != 1):
        _refuse_address(address, "it names no repository of an owner")
    return Repository(known, address, root, path, token)


def find_request(repository: Repository, branch: str, into: str, *, is_open: bool) -> PullRequest | None:
    """Return the newest pull request of `branch` into `into` that is open (or closed, if not `is_open`), or None.

    Raises ForgeError if the forge cannot be asked.
    """
    for found in FINDERS[repository.forge](repository, branch, into, is_open):
        if found.is_open == is_open:
            return found
    return None


def open_request(repository: Repository, branch: str, into: str, title: str, text: str) -> PullRequest:
    """Open a pull request. Raises ForgeError if the forge refuses or cannot be reached."""
    if repository.forge == "gitlab":
        request = {"source_branch": branch, "target_branch": into, "title": title, "description": text}
        return _read_gitlab(repository, _send(repository, "POST", "/merge_requests", request))
    request = {"head": branch, "base": into, "title": title, "body": text}
    return _read_github(repository, _send(repository, "POST", "/pulls", request))


def change_text(repository: Repository, number: int, title: str, text: str) -> PullRequest:
    """Replace a pull request's title and text. Raises ForgeError if the forge refuses or cannot be reached."""
    if repository.forge == "gitlab":
        request = {"title": title, "description": text}
        return _read_gitlab(repository, _send(repository, "PUT", f"/merge_requests/{number}", request))
    return _read_github(repository, _send(repository, "PATCH", f"/pulls/{number}", {"title": title, "body": text}))


def close_request(repository: Repository, number: int, text: str) -> PullRequest:
    """Close a pull request, and replace its text. Raises ForgeError if the forge refuses or cannot be reached."""
    if repository.forge == "gitlab":
        request = {"description": text, "state_event": "close"}
        return _read_gitlab(repository, _send(repository, "PUT", f"/merge_requests/{number}", request))
    return _read_github(repository, _send(repository, "PATCH", f"/pulls/{number}", {"body": text, "state": "closed"}))


def _find_on_github(repository: Repository, branch: str, into: str, is_open: bool) -> Iterator[PullRequest]:
    """Yield the open or closed pull requests of the repository's own branch.

    GitHub also returns those from forks of the same owner.
    """
    owner = repository.path.partition("/")[0]
    asked = {"head": f"{owner}:{branch}", "base": into, "sort": "created", "direction": "desc"}
    for each in _list_pages(repository, "/pulls", asked | {"state": "open" if is_open else "closed"}):
        if _is_between(each, repository, branch, into):
            yield _read_github(repository, each)


def _find_on_gitlab(repository: Repository, branch: str, into: str, is_open: bool) -> Iterator[PullRequest]:
    """Yield the open or closed merge requests of the project's own branch.

    GitLab also returns those of forks' branches of that name.
    """
    asked = {"source_branch": branch, "target_branch": into, "order_by": "created_at", "sort": "desc"}
    for each in _list_pages(repository, "/merge_requests", asked | ({"state": "opened"} if is_open else {})):
        project = each.get("source_project_id")
        branches = each.get("source_branch"), each.get("target_branch")
        if project is not None and project == each.get("target_project_id") and branches == (branch, into):
            yield _read_gitlab(repository, each)


def _find_on_gitea(repository: Repository, branch: str, into: str, is_open: bool) -> Iterator[PullRequest]:
    """Yield the open or the closed pull requests from `branch` into `into`, newest first.

    All pull requests into `into` are listed, because Gitea's search by branch would return only the oldest one.
    """
    asked = {"base_branch": into, "state": "open" if is_open else "closed"}
    for each in _list_pages(repository, "/pulls", asked):
        if _is_between(each, repository, branch, into):
            yield _read_github(repository, each)


def _is_between(answer: dict[str, Any], repository: Repository, branch: str, into: str) -> bool:
    """Return whether a pull request on GitHub or Gitea goes from `branch` to `into`, both in this repository."""
    return all(
        isinstance(end := answer.get(side), dict)
        and end.get("ref") == ref
        and isinstance(owner := end.get("repo"), dict)
        and str(owner.get("full_name")).casefold() == repository.path.casefold()
        for side, ref in (("head", branch), ("base", into))
    )


FINDERS: dict[Forge, Callable[[Repository, str, str, bool], Iterator[PullRequest]]] = {
    "github": _find_on_github,
    "gitlab": _find_on_gitlab,
    "gitea": _find_on_gitea,
}


def _read_github(repository: Repository, answer: Any) -> PullRequest:
    """Read a pull request from the JSON of GitHub, or of Gitea, which uses the same keys.

    Raises ForgeError if the JSON is no pull request.
    """
    try:
        is_merged, text = answer.get("merged_at") is not None, answer.get("body") or ""
        told = answer["number"], answer["html_url"], text, answer["state"] == "open", is_merged
        return _check_shape(repository, PullRequest(*told))
    except (AttributeError, KeyError, TypeError):
        raise _no_request(repository) from None


def _read_gitlab(repository: Repository, answer: Any) -> PullRequest:
    try:
        state, text = answer["state"], answer.get("description") or ""
        told = answer["iid"], answer["web_url"], text, state == "opened", state == "merged"
        return _check_shape(repository, PullRequest(*told))
    except (AttributeError, KeyError, TypeError):
        raise _no_request(repository) from None


def _check_shape(repository: Repository, found: PullRequest) -> PullRequest:
    """Return `found` with the token removed from its address. Raises TypeError if a field has the wrong type."""
    texts = (found.address, found.text)
    if type(found.number) is not int or not all(isinstance(each, str) for each in texts):
        raise TypeError
    return replace(found, address=repository.without_token(found.address))


def _no_request(repository: Repository) -> ForgeError:
    return ForgeError(repository, "it answers with something else than a pull request", "is --forge right?")


def _list_pages(repository: Repository, path: str, query: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the items of a list in the API, from up to MAX_PAGES pages. `query` has the parameters of each request.

    Raises ForgeError if an answer is not a list of objects.
    """
    for page in range(1, MAX_PAGES + 1):
        words = urlencode(query | {"page": str(page), "per_page": str(PAGE), "limit": str(PAGE)})
        items = _send(repository, "GET", f"{path}?{words}")
        if not isinstance(items, list) or not all(isinstance(each, dict) for each in items):
            raise ForgeError(repository, "it answers with something else than a list", "is --forge right?")
        yield from items
        if len(items) < PAGE:
            return


def _send(repository: Repository, method: str, path: str, body: dict[str, str] | None = None) -> Any:
    """Send a request and return the JSON of its answer.

    Raises ForgeError if the forge is unreachable, refuses, or answers with too much or without JSON.
    """
    headers = {"Authorization": f"Bearer {repository.token}", "Accept": "application/json", "User-Agent": "tidemill"}
    content = None if body is None else json.dumps(body).encode()
    if content is not None:
        headers["Content-Type"] = "application/json"
    request = urllib.request.Request(  # noqa: S310 (its scheme is http or https: `_split_address`)
        f"{repository.api}{path}", content, headers, method=method
    )
    try:
        with repository.patience.spend() as left_s:
            error, answer = _fetch_in_time(request, left_s)
    except _TooSlow:
        raise ForgeError(repository, TOO_SLOW, TRY_LATER) from None
    except UNREADABLE as failure:
        said = getattr(failure, "reason", None) or str(failure) or type(failure).__name__
        raise ForgeError(repository, f"it cannot be reached: {said}") from None
    if error is not None:
        raise ForgeError(repository, _explain(error, answer))
    if len(answer) > MAX_ANSWER_BYTES:
        raise ForgeError(repository, f"its answer has over {MAX_ANSWER_BYTES:,} bytes")
    try:
        return json.loads(answer)
    except (ValueError, RecursionError):
        raise ForgeError(repository, "its answer is no JSON", "is --forge right?") from None


class _TooSlow(Exception):
    """The forge has not answered in the time that is left."""


def _fetch_in_time(request: urllib.request.Request, left_s: float) -> _Fetched:
    """Return `_fetch(request)`, or raise _TooSlow after `left_s`: a server may trickle its answer byte by byte."""
    fetched: Future[_Fetched] = Future()

    def fetch() -> None:
        try:
            fetched.set_result(_fetch(request))
        except UNREADABLE as error:
            fetched.set_exception(error)

    Thread(target=fetch, daemon=True).start()
    if not wait([fetched], left_s).done:
        raise _TooSlow
    return fetched.result()


def _fetch(request: urllib.request.Request) -> _Fetched:
    """Send a request. Return the HTTP error, or None, and the answer's body. Raises the exceptions in UNREADABLE."""
    try:
        with OPENER.open(request, timeout=TIMEOUT_S) as response:
            return None, response.read(MAX_ANSWER_BYTES + 1)
    except urllib.error.HTTPError as error:
        try:
            return error, error.read(MAX_ANSWER_BYTES)
        except UNREADABLE:  # the status is enough
            return error, b""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Treats every redirect as an error."""

    def redirect_request(self, *_: Any) -> None:
        return None


OPENER = urllib.request.build_opener(_NoRedirect)  # heeds the proxies of the environment


def _explain(error: urllib.error.HTTPError, content: bytes) -> str:
    """Return an HTTP error's status, and the message in its JSON body (or advice, for a redirect)."""
    if error.code in range(300, 400):
        return f"HTTP {error.code}, a redirect: the repository has moved, so correct the remote's address"
    try:
        answer = json.loads(content)
        said = answer.get("message") or answer.get("error") or "" if isinstance(answer, dict) else ""
        more = [each.get("message") for each in answer.get("errors") or [] if isinstance(each, dict)] if said else []
    except (ValueError, RecursionError, TypeError):
        said, more = "", []
    parts = [said if isinstance(said, str) else json.dumps(said), *filter(None, map(str, more))]
    return f"HTTP {error.code}: {'; '.join(filter(None, parts)) or error.reason}"


def _locate(address: str, forge_url: str | None) -> tuple[str, str]:
    """Return the forge's root URL and the repository's path below it.

    Raises CallError if either address is malformed, or if the repository is not below `forge_url`.
    """
    try:
        root, path = _split_address(address)
    except ValueError as error:
        _refuse_address(address, str(error))
    if forge_url is None:
        return root, path
    if not forge_url.startswith(HTTP):
        raise _wrong_forge_url(forge_url, "it is no https:// address")
    try:
        host, prefix = _split_address(forge_url)
    except ValueError as error:
        raise _wrong_forge_url(forge_url, str(error)) from None
    found = f"{host}/{prefix}".rstrip("/")
    if not address.startswith(HTTP):  # SSH: the path begins at the forge's root
        return found, path
    if not f"{root}/{path}".startswith(f"{found}/"):
        raise _wrong_forge_url(forge_url, f"the remote is at {root}/{path}")
    return found, path.removeprefix(f"{prefix}/")


def _split_address(address: str) -> tuple[str, str]:
    """Split a remote's address into its root, such as `https://host:port`, and its path.

    Raises ValueError with the reason if the address is malformed or unsafe.
    """
    if "://" not in address and (found := SCP.fullmatch(address)):
        return f"https://{found[1]}", found[2].removesuffix(".git").strip("/")
    try:
        parts = urlsplit(address)
        name, port = parts.hostname or "", parts.port
    except ValueError:
        raise ValueError("it is no address") from None
    path = parts.path.removesuffix("/").removesuffix(".git").strip("/")
    if parts.scheme == "ssh" and name:
        return f"https://{name}", path
    if parts.scheme not in ("http", "https") or not name:
        raise ValueError("it is none of https://, ssh:// and git@HOST:PATH")
    if parts.username is not None or parts.password is not None:
        raise ValueError("it has a user or password in it, which git config and lists of processes show")
    if parts.scheme == "http" and not _is_loopback(name):
        raise ValueError("http:// would send the token unencrypted")
    shown = f"[{name}]" if ":" in name else name
    return f"{parts.scheme}://{shown}{f':{port}' if port else ''}", path


def _is_loopback(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def _refuse_address(address: str, reason: str) -> NoReturn:
    rule = f"R611 must be the address of a repository of {', '.join(FORGES)}"
    fix = "git remote set-url NAME https://HOST/OWNER/NAME.git"
    raise argument_error(PROPOSE, "--remote", without_passwords(address), rule, reason, fix)


def _wrong_forge_url(forge_url: str, reason: str) -> CallError:
    rule, fix = "R622 must be the https:// address of the remote's forge", "for example https://example.com/gitlab"
    return argument_error(PROPOSE, "--forge-url", without_passwords(forge_url), rule, reason, fix)
