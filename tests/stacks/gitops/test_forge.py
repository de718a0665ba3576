"""The REST calls of each forge, against a stand-in that records them and answers as the forge is documented to.

The stand-in is ours, so it shows what we send and how we read answers, not what GitHub and GitLab do with them.
`tests/cluster/test_propose.py` has a real Gitea.
"""

import base64
import json
import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from planner.problems.errors import CallError
from stacks.gitops.forge import (
    ForgeError,
    Repository,
    change_text,
    close_request,
    find_request,
    open_request,
    read_repository,
)
from stacks.gitops.patience import Patience

PULL = {"number": 7, "html_url": "https://git.example/7", "body": "text", "state": "open", "merged_at": None}
OURS = {"full_name": "Group/name", "id": 1}
INTO = {"ref": "main", "repo": OURS}
GITHUB = PULL | {"head": {"ref": "tidemill/deploy", "repo": OURS}, "base": INTO}
MERGE = {"iid": 7, "web_url": "https://git.example/7", "description": "text", "state": "opened"}
BRANCHES = {"source_branch": "tidemill/deploy", "target_branch": "main"}
GITLAB = MERGE | BRANCHES | {"source_project_id": 1, "target_project_id": 1}


@pytest.fixture
def served():
    """A server that keeps what it is asked, and answers with what a test puts into `answers`."""
    asked, answers = [], []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def handle_any(self):
            length = int(self.headers.get("Content-Length") or 0)
            asked.append((self.command, self.path, json.loads(self.rfile.read(length) or "null"), dict(self.headers)))
            status, body, headers = answers.pop(0) if answers else (200, [], {})
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            time.sleep(float(headers.get("X-Pause", 0)))
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(content))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = handle_any

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked, answers
    server.shutdown()
    server.server_close()


def repository(host, forge, patience=None):
    return Repository(forge, f"{host}/group/name.git", host, "group/name", "secret-token", patience or Patience())


def test_githubs_calls(served):
    """The head is one of the owner's own: a fork's branch of the same name is another."""
    host, asked, answers = served
    answers += [(200, [GITHUB], {}), (201, GITHUB, {}), (200, GITHUB, {}), (200, GITHUB, {})]
    found = find_request(repository(host, "github"), "tidemill/deploy", "main", is_open=True)
    open_request(repository(host, "github"), "tidemill/deploy", "main", "a title", "a text")
    change_text(repository(host, "github"), 7, "another", "text")
    close_request(repository(host, "github"), 7, "closed")
    query = parse_qs(urlsplit(asked[0][1]).query)

    assert (found.number, found.is_open, found.is_merged) == (7, True, False)
    assert [(verb, urlsplit(path).path) for verb, path, *_ in asked] == [
        ("GET", "/api/v3/repos/group/name/pulls"),
        ("POST", "/api/v3/repos/group/name/pulls"),
        ("PATCH", "/api/v3/repos/group/name/pulls/7"),
        ("PATCH", "/api/v3/repos/group/name/pulls/7"),
    ]
    assert (query["head"], query["base"], query["state"]) == (["group:tidemill/deploy"], ["main"], ["open"])
    assert asked[1][2] == {"head": "tidemill/deploy", "base": "main", "title": "a title", "body": "a text"}
    assert asked[2][2] == {"title": "another", "body": "text"}
    assert asked[3][2] == {"body": "closed", "state": "closed"}
    assert {headers["Authorization"] for *_, headers in asked} == {"Bearer secret-token"}


def test_gitlabs_calls(served):
    """A fork's merge request from a branch of the same name is not ours."""
    host, asked, answers = served
    merged = GITLAB | {"iid": 6, "state": "merged"}
    answers += [
        (200, [GITLAB | {"source_project_id": 2}, merged], {}),
        (201, GITLAB, {}),
        (200, GITLAB, {}),
        (200, GITLAB, {}),
    ]
    found = find_request(repository(host, "gitlab"), "tidemill/deploy", "main", is_open=False)
    open_request(repository(host, "gitlab"), "tidemill/deploy", "main", "a title", "a text")
    change_text(repository(host, "gitlab"), 7, "another", "text")
    close_request(repository(host, "gitlab"), 7, "closed")
    query = parse_qs(urlsplit(asked[0][1]).query)

    assert (found.number, found.is_open, found.is_merged) == (6, False, True)
    assert [(verb, urlsplit(path).path) for verb, path, *_ in asked] == [
        ("GET", "/api/v4/projects/group%2Fname/merge_requests"),
        ("POST", "/api/v4/projects/group%2Fname/merge_requests"),
        ("PUT", "/api/v4/projects/group%2Fname/merge_requests/7"),
        ("PUT", "/api/v4/projects/group%2Fname/merge_requests/7"),
    ]
    assert (query["source_branch"], query["target_branch"]) == (["tidemill/deploy"], ["main"])
    assert asked[1][2]["source_branch"] == "tidemill/deploy"
    assert asked[2][2] == {"title": "another", "description": "text"}
    assert asked[3][2] == {"description": "closed", "state_event": "close"}


def test_giteas_pages_are_read_until_the_branch_is_found(served):
    """It finds no pull request by its branch, and gives fifty at a time."""
    host, asked, answers = served
    others = [GITHUB | {"number": each, "head": GITHUB["head"] | {"ref": "other"}} for each in range(50)]
    answers += [(200, others, {}), (200, [GITHUB], {})]
    found = find_request(repository(host, "gitea"), "tidemill/deploy", "main", is_open=True)

    assert found.number == 7
    assert [parse_qs(urlsplit(path).query)["page"] for _, path, *_ in asked] == [["1"], ["2"]]


FORK = {"full_name": "group/fork", "id": 2}


@pytest.mark.parametrize("forge", ["github", "gitea"])
@pytest.mark.parametrize(
    "other",
    [
        *({side: GITHUB[side] | {"repo": repo}} for side in ("head", "base") for repo in (FORK, None, {}, 7)),
        *({side: GITHUB[side] | {"ref": ref}} for side in ("head", "base") for ref in ("prod", None)),
        *({side: value} for side in ("head", "base") for value in (None, {}, "tidemill/deploy")),
    ],
)
def test_only_a_request_between_the_two_own_branches_is_ours(forge, other, served):
    """A fork of the same owner has the same head to GitHub's filter; and what an answer lacks matches nothing."""
    host, _, answers = served
    answers += [(200, [GITHUB | other], {}), (200, [GITHUB | other, GITHUB], {})]
    alone, beside = (find_request(repository(host, forge), "tidemill/deploy", "main", is_open=True) for _ in range(2))

    assert alone is None
    assert beside.number == 7


@pytest.mark.parametrize("key", ["source_branch", "target_branch", "source_project_id", "target_project_id"])
def test_only_a_merge_request_between_the_two_own_branches_is_ours(key, served):
    """What an answer lacks matches nothing, be it on both sides."""
    host, _, answers = served
    without = {name: value for name, value in GITLAB.items() if name != key}
    unknown = GITLAB | {"source_project_id": None, "target_project_id": None}
    answers += [(200, [GITLAB | {key: 99}, without, unknown], {})]

    assert find_request(repository(host, "gitlab"), "tidemill/deploy", "main", is_open=True) is None


@pytest.mark.parametrize("token", ["secret-token", base64.b64encode(b"x-access-token:secret-token").decode()])
@pytest.mark.parametrize(("forge", "answer"), [("github", GITHUB), ("gitlab", GITLAB)])
def test_an_address_has_no_token_in_it(token, forge, answer, served):
    """It is printed, and a server may send back what it was sent, also as git sends it."""
    host, _, answers = served
    key = "html_url" if forge == "github" else "web_url"
    answers.append((201, answer | {key: f"https://git.example/{token}/7"}, {}))
    found = open_request(repository(host, forge), "tidemill/deploy", "main", "a title", "a text")

    assert found.address == "https://git.example/***/7"


@pytest.mark.parametrize(
    "sent",
    [
        b"no HTTP at all\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n[]",
        b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"",
    ],
)
def test_what_is_no_http_is_an_error(sent):
    """The forge's name and the reason are said; there is no traceback."""
    with pytest.raises(ForgeError, match="R617"):
        _ask_one_that_sends([sent])


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.0 200 OK\r\n", b"HTTP/1.0 200 OK\r\n\r\n", b"HTTP/1.0 500 No\r\n\r\n"])
def test_an_answer_in_drips_ends(begin):
    """Each read from it is quick, be it of headers or of the answer, and all of them together would take for ever."""
    with pytest.raises(ForgeError, match="has kept this command waiting for 600 s in all"):
        _ask_one_that_sends([begin, *[b"X"] * 1000], pause_s=0.01, patience=Patience(0.1))


def test_all_requests_share_one_limit(served):
    """A list of a hundred slow pages is no reason to wait a hundred times as long."""
    host, asked, answers = served
    others = [GITHUB | {"number": each, "head": GITHUB["head"] | {"ref": "other"}} for each in range(50)]
    answers += [(200, others, {"X-Pause": "0.05"})] * 100
    with pytest.raises(ForgeError, match="has kept this command waiting for 600 s in all") as caught:
        find_request(repository(host, "gitea", Patience(0.2)), "tidemill/deploy", "main", is_open=True)

    assert caught.value.exit_status == 1
    assert 1 <= len(asked) <= 5


def _ask_one_that_sends(parts, pause_s=0.0, patience=None):
    ended = threading.Event()

    def send():
        with listener, listener.accept()[0] as connection, suppress(OSError):
            connection.recv(65536)
            for each in parts:
                connection.sendall(each)
                if ended.wait(pause_s):
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = threading.Thread(target=send)
        sender.start()
        host = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            find_request(repository(host, "github", patience), "tidemill/deploy", "main", is_open=True)
        finally:
            ended.set()
            sender.join()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((302, {}, {"Location": "http://127.0.0.1:1/elsewhere"}), "HTTP 302, a redirect"),
        ((401, {"message": "Bad secret-token"}, {}), r"HTTP 401: Bad \*\*\*"),
        ((422, {"message": "Validation Failed", "errors": [{"message": "No commits"}]}, {}), "Failed; No commits"),
        ((409, {"message": ["Another open merge request already exists"]}, {}), "HTTP 409: ..Another open"),
        ((200, b"<html>", {}), "its answer is no JSON"),
        ((200, {"a": 1}, {}), "something else than a list"),
        ((200, [GITHUB | {"number": "7/../8"}], {}), "something else than a pull request"),
        ((500, b"", {}), "HTTP 500: Internal Server Error"),
    ],
)
def test_every_other_answer_is_an_error(answer, said, served):
    """It quotes what the forge says, without the token, and no redirect is followed."""
    host, asked, answers = served
    answers.append(answer)
    with pytest.raises(ForgeError, match=said) as caught:
        find_request(repository(host, "github"), "tidemill/deploy", "main", is_open=True)

    assert len(asked) == 1
    assert "secret-token" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "forge", "api"),
    [
        ("https://github.com/o/r.git", None, "https://api.github.com/repos/o/r"),
        ("git@github.com:o/r.git", None, "https://api.github.com/repos/o/r"),
        ("ssh://git@github.com/o/r", None, "https://api.github.com/repos/o/r"),
        ("https://gitlab.com/a/b/c.git", None, "https://gitlab.com/api/v4/projects/a%2Fb%2Fc"),
        ("https://codeberg.org/o/r/", None, "https://codeberg.org/api/v1/repos/o/r"),
        ("https://git.example:3000/o/r", "gitea", "https://git.example:3000/api/v1/repos/o/r"),
        ("https://git.example/o/r", "github", "https://git.example/api/v3/repos/o/r"),
        ("http://[::1]:3000/o/r", "gitea", "http://[::1]:3000/api/v1/repos/o/r"),
    ],
)
def test_repositories_are_read_from_addresses(address, forge, api, monkeypatch):
    """A known host tells what runs there; --forge tells it of any other."""
    monkeypatch.setenv("TIDEMILL_TOKEN", "secret-token")
    found = read_repository(address, forge)

    assert found.api == api
    assert "secret-token" not in repr(found)


@pytest.mark.parametrize(
    ("address", "forge", "rule"),
    [
        ("https://git.example/o/r", None, "R612"),
        ("https://user:hunter2@github.com/o/r", None, "R611"),
        ("https://hunter2@github.com/o/r", None, "R611"),
        ("http://git.example/o/r", "gitea", "R611"),
        ("/srv/git/r.git", "gitea", "R611"),
        ("file:///srv/git/r.git", "gitea", "R611"),
        ("https://github.com/o/r/s", None, "R611"),
        ("https://github.com/o", None, "R611"),
        ("https://github.com/o/..", None, "R611"),
        ("https://gitlab.com/o/../r/s", None, "R611"),
        ("https://git.example:x/o/r", "gitea", "R611"),
    ],
)
def test_other_addresses_are_refused(address, forge, rule, monkeypatch):
    """Those with a password in them, without encryption, or of no repository; the password is not repeated."""
    monkeypatch.setenv("TIDEMILL_TOKEN", "secret-token")
    with pytest.raises(CallError, match=rule) as caught:
        read_repository(address, forge)

    assert "hunter2" not in json.dumps(caught.value.findings[0].as_json())


@pytest.mark.parametrize(
    ("address", "forge_url", "api"),
    [
        (
            "https://example.com/gitlab/a/b.git",
            "https://example.com/gitlab",
            "https://example.com/gitlab/api/v4/projects/a%2Fb",
        ),
        (
            "https://example.com/x/gitlab/a/b/c",
            "https://example.com/x/gitlab/",
            "https://example.com/x/gitlab/api/v4/projects/a%2Fb%2Fc",
        ),
        ("https://example.com/a/b.git", "https://example.com", "https://example.com/api/v4/projects/a%2Fb"),
        (
            "git@ssh.example.com:a/b.git",
            "https://example.com/gitlab",
            "https://example.com/gitlab/api/v4/projects/a%2Fb",
        ),
        (
            "ssh://git@example.com:2222/a/b.git",
            "https://example.com:8443",
            "https://example.com:8443/api/v4/projects/a%2Fb",
        ),
    ],
)
def test_a_forge_need_not_be_at_the_root_of_its_host(address, forge_url, api, monkeypatch):
    """GitLab may run under a relative URL, and an SSH address does not say where its pages are."""
    monkeypatch.setenv("TIDEMILL_TOKEN", "secret-token")

    assert read_repository(address, "gitlab", forge_url).api == api


@pytest.mark.parametrize(
    "forge_url",
    [
        "https://example.com/git",
        "https://another.example/gitlab",
        "http://example.com/gitlab",
        "https://hunter2@example.com/gitlab",
        "git@example.com:gitlab",
        "example.com/gitlab",
    ],
)
def test_another_forges_address_is_refused(forge_url, monkeypatch):
    """The token goes there, so it has to be where the remote is, and encrypted."""
    monkeypatch.setenv("TIDEMILL_TOKEN", "secret-token")
    with pytest.raises(CallError, match="R622") as caught:
        read_repository("https://example.com/gitlab/a/b.git", "gitlab", forge_url)

    assert "hunter2" not in json.dumps(caught.value.findings[0].as_json())


@pytest.mark.parametrize("token", ["", "two words", "line\nend", "umläut"])
def test_the_token_must_be_one(token, monkeypatch):
    """It becomes part of a header."""
    monkeypatch.setenv("TIDEMILL_TOKEN", token)
    with pytest.raises(CallError, match="R610"):
        read_repository("https://github.com/o/r", None)
