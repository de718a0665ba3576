"""`tidemill gitops propose` against a real Gitea: pull requests that are opened, followed, left alone and done with."""

import json
import re
import subprocess
import threading
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import numpy
import pytest

from planner.diff.markdown import escaped
from planner.facts.drawn import draw_loads
from stacks.cli import main
from tests.stacks.deployments import REPOSITORY, wait_until

SPEC = re.sub(
    r"expert_load:\n.*\n",
    "expert_load: {file: loads.json}\n",
    (REPOSITORY / "stacks" / "specs" / "h20.yaml").read_text(),
)
LAYERS_AND_EXPERTS = (58, 256, 8)  # of DeepSeek-R1, and its groups
NAMES = (f"repository-{number}" for number in count())


def git(folder, *words):
    done = subprocess.run(["git", *words], cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def write_loads(path, seed):
    path.write_text(
        json.dumps([[round(1000 * each) for each in row] for row in draw_loads(1.01, seed, *LAYERS_AND_EXPERTS)])
    )


@pytest.fixture
def checkout(gitea, tmp_path, monkeypatch):
    """A checkout whose spec has been rendered and pushed, at the remote's default branch."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TIDEMILL_TOKEN", gitea.token)
    (folder / "spec.yaml").write_text(SPEC)
    write_loads(folder / "loads.json", seed=1)
    assert main(["render", "spec.yaml", "-o", "deploy"]) == 0
    git(folder, "init", "-q", "-b", "main")
    git(folder, "config", "user.name", "Ada")
    git(folder, "config", "user.email", "ada@mill.example")
    git(folder, "remote", "add", "origin", gitea.create_repository(next(NAMES)))
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "First plan")
    push(gitea, folder, "main")
    wait_until(lambda: not gitea.ask("GET", repository_of(folder))["empty"])  # Gitea looks at pushes in its own time
    return folder


def push(gitea, folder, branch):
    header = f"http.extraHeader=Authorization: token {gitea.token}"
    git(folder, "-c", header, "push", "-q", "origin", f"HEAD:refs/heads/{branch}")


def edit(folder, image):
    text = (folder / "spec.yaml").read_text().splitlines()
    changed = [f"  image: {image}" if line.startswith("  image:") else line for line in text]
    (folder / "spec.yaml").write_text("\n".join(changed))


def propose(capsys, *words):
    capsys.readouterr()
    status = main(["gitops", "propose", "spec.yaml", "deploy", "--forge", "gitea", "--format", "json", *words])
    printed = capsys.readouterr()

    assert status == 0, printed.out + printed.err
    return json.loads(printed.out)


def repository_of(folder):
    return "/repos/" + git(folder, "remote", "get-url", "origin").split("/", 3)[3].removesuffix(".git")


def requests_of(gitea, folder, state="all"):
    return gitea.ask("GET", f"{repository_of(folder)}/pulls?state={state}")


def test_one_pull_request_follows_the_change(gitea, checkout, capsys):
    """It is opened once there is one, given the next commit and text, and left to its editors while nothing changes."""
    nothing = propose(capsys)
    none_open = requests_of(gitea, checkout)
    edit(checkout, "tidemill-runtime-gpu:0.2.0")
    opened = propose(capsys)
    (first,) = requests_of(gitea, checkout)
    edit(checkout, "tidemill-runtime-gpu:0.3.0")
    updated = propose(capsys)
    (request,) = requests_of(gitea, checkout)
    pull = f"{repository_of(checkout)}/pulls/{request['number']}"
    gitea.ask("PATCH", pull, {"title": "Please wait", "body": f"Ask Bob first.\n{request['body']}"})
    unchanged = propose(capsys)
    (edited,) = requests_of(gitea, checkout)
    edit(checkout, "tidemill-runtime-gpu:0.4.0")
    replaced = propose(capsys)
    (last,) = requests_of(gitea, checkout)
    files = gitea.ask("GET", f"{repository_of(checkout)}/pulls/{last['number']}/files")

    assert (nothing["result"], nothing["why"]) == ("nothing", ["deploy on main is what the spec renders"])
    assert none_open == []
    runs = (opened, updated, unchanged, replaced)
    assert [each["result"] for each in runs] == ["opened", "updated", "unchanged", "updated"]
    assert {each["pull_request"]["url"] for each in runs} == {last["html_url"]}
    assert (edited["title"], edited["body"]) == ("Please wait", f"Ask Bob first.\n{request['body']}")
    assert first["title"] == "deepseek-r1 (deploy): outage, restarts 3 units"
    assert "| **outage** | Change of deepseek-r1: plan" in first["body"]
    assert "image tidemill-runtime-gpu:0.1.0 \N{RIGHTWARDS ARROW} tidemill-runtime-gpu:0.2.0" in first["body"]
    assert last["head"]["sha"] != first["head"]["sha"]
    assert last["body"].startswith(f"<!-- tidemill {last['head']['sha']} -->")
    assert "spec.yaml" in {each["filename"] for each in files}
    assert git(checkout, "status", "--porcelain") == "M spec.yaml"


def test_a_branch_with_somebody_elses_commit_is_left_alone(gitea, checkout, capsys):
    """Also once its pull request is merged, until somebody deletes the branch."""
    edit(checkout, "tidemill-runtime-gpu:0.2.0")
    opened = propose(capsys)
    git(checkout, "stash", "-q")
    head = f"http.extraHeader=Authorization: token {gitea.token}"
    git(checkout, "-c", head, "fetch", "-q", "origin", opened["branch"])
    git(checkout, "checkout", "-q", "FETCH_HEAD")
    (checkout / "README").write_text("by hand")
    git(checkout, "add", "README")
    git(checkout, "commit", "-q", "-m", "By hand")
    theirs = git(checkout, "rev-parse", "HEAD")
    push(gitea, checkout, opened["branch"])
    git(checkout, "checkout", "-q", "main")
    git(checkout, "stash", "pop", "-q")
    edit(checkout, "tidemill-runtime-gpu:0.3.0")
    left = propose(capsys)
    (request,) = requests_of(gitea, checkout)
    pull = f"{repository_of(checkout)}/pulls/{request['number']}"
    gitea.merge(pull, "squash")
    git(checkout, "stash", "-q")
    git(checkout, "-c", head, "pull", "-q", "origin", "main")
    edit(checkout, "tidemill-runtime-gpu:0.4.0")
    merged = propose(capsys)
    gitea.ask("DELETE", f"{repository_of(checkout)}/branches/{opened['branch'].replace('/', '%2F')}")
    again = propose(capsys)

    assert left["result"] == "left_alone"
    assert left["why"][0].startswith("the branch has a commit of somebody else's, or for another --into, ")
    assert "(By hand) by " in left["why"][0]
    assert ": merge it, or " in left["why"][0]
    assert request["head"]["sha"] == theirs
    assert request["body"] == gitea.ask("GET", pull)["body"]
    assert merged["result"] == "left_alone"
    assert ": delete the branch, or give another --branch" in merged["why"][0]
    assert again["result"] == "opened"
    assert again["pull_request"]["number"] == request["number"] + 1


def test_a_pull_request_that_was_closed_stays_closed(gitea, checkout, capsys):
    """The same change is not proposed again, and another one is."""
    edit(checkout, "tidemill-runtime-gpu:0.2.0")
    opened = propose(capsys)
    number = opened["pull_request"]["number"]
    gitea.ask("PATCH", f"{repository_of(checkout)}/pulls/{number}", {"state": "closed"})
    left = propose(capsys)
    edit(checkout, "tidemill-runtime-gpu:0.3.0")
    another = propose(capsys)

    assert left["result"] == "left_alone"
    assert "was closed with this very change" in left["why"][0]
    assert (another["result"], another["pull_request"]["number"]) == ("opened", number + 1)


def test_a_folder_that_is_a_link_on_the_branch_is_refused(gitea, checkout, capsys):
    """Its files lie elsewhere, so a proposal of the folder would have none of them."""
    git(checkout, "mv", "deploy", "rendered")
    (checkout / "deploy").symlink_to("rendered")
    git(checkout, "add", "-A")
    git(checkout, "commit", "-q", "-m", "A link")
    push(gitea, checkout, "main")
    (checkout / "deploy").unlink()
    edit(checkout, "tidemill-runtime-gpu:0.2.0")
    status = main(["gitops", "propose", "spec.yaml", "deploy", "--forge", "gitea"])

    assert (status, requests_of(gitea, checkout)) == (2, [])
    assert "deploy on main: must not be a link" in capsys.readouterr().err


def test_new_maps_are_proposed_if_they_pay(gitea, checkout, capsys):
    """What they gain and cost is said either way, and in the pull request."""
    write_loads(checkout.parent / "loads.json", seed=2)
    words = ("--loads", str(checkout.parent / "loads.json"))
    refused = propose(capsys, *words, "--payback", "0.01")
    none_open = requests_of(gitea, checkout)
    opened = propose(capsys, *words)
    (request,) = requests_of(gitea, checkout)
    files = {each["filename"] for each in gitea.ask("GET", f"{repository_of(checkout)}/pulls/1/files?limit=50")}

    edit(checkout, "tidemill-runtime-gpu:0.2.0")
    with_another_change = main(["gitops", "propose", "spec.yaml", "deploy", "--forge", "gitea", *words])

    assert (refused["result"], none_open) == ("nothing", [])
    assert (with_another_change, "[R614]" in capsys.readouterr().err) == (2, True)
    assert refused["why"][2].startswith("not worth it: the gain equals ")
    assert opened["branch"] == "tidemill/deploy.loads"
    assert all(f"- {escaped(line)}\n" in request["body"] for line in opened["why"][1:])
    assert "loads.json" in files
    assert "spec.yaml" not in files


def test_a_proposal_of_past_loads_is_closed(gitea, checkout, capsys):
    """Newer loads ask for the maps that run, so merging the one that is open would make them worse."""
    loads = checkout.parent / "loads.json"
    write_loads(loads, seed=2)
    opened = propose(capsys, "--loads", str(loads))
    loads.write_bytes((checkout / "loads.json").read_bytes())
    closed, again = (propose(capsys, "--loads", str(loads)) for _ in range(2))
    (request,) = requests_of(gitea, checkout)

    assert [each["result"] for each in (opened, closed, again)] == ["opened", "closed", "nothing"]
    assert closed["pull_request"] == opened["pull_request"]
    assert request["state"] == "closed"
    assert request["body"].startswith("Closed by `tidemill gitops propose`, since newer loads say otherwise:")
    assert f"- {escaped(closed['why'][0])}\n" in request["body"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("missing.json", None, "must be a readable file"),
        ("text.json", b"loads", "must be .npy or JSON"),
        ("wrong.json", b"[[-1]]", "must hold token counts"),
        ("small.json", b"[[1, 2]]", "must have"),
        ("loads.npy", None, "must be a file of loads, to replace the spec's expert_load.file; that is loads.json"),
    ],
)
def test_wrong_loads_are_named_by_their_own_file(name, content, said, gitea, checkout, capsys):
    """Not by the file of the spec that they would replace, which is right."""
    path = checkout.parent / name
    if name == "loads.npy":
        numpy.save(path, json.loads((checkout / "loads.json").read_text()))
    elif content is not None:
        path.write_bytes(content)
    status = main(["gitops", "propose", "spec.yaml", "deploy", "--forge", "gitea", "--loads", f"../{name}"])

    assert status == 2
    assert f"tidemill gitops propose: --loads (../{name}) {said}" in capsys.readouterr().err


def test_a_repair_names_what_it_repairs(gitea, checkout, capsys):
    """Two merges have left a folder that its spec does not render: the unit with another image restarts."""
    unit = checkout / "deploy" / "leaderworkerset-deepseek-r1-decode-0.yaml"
    unit.write_text(unit.read_text().replace("runtime-gpu", "runtime-other"))
    git(checkout, "commit", "-q", "-a", "-m", "Merged")
    push(gitea, checkout, "main")
    propose(capsys)
    (request,) = requests_of(gitea, checkout)

    assert request["title"] == "deepseek-r1 (deploy): repairs 1 file, outage, restarts 1 unit"
    assert escaped(f"deploy was stale: its spec renders 1 file ({unit.name}) differently") in request["body"]


def test_the_token_is_nowhere(gitea, checkout, capsys, monkeypatch):
    """It is in no list of processes, trace, configuration, output or log, whatever git is told to trace."""
    for name in ("GIT_TRACE", "GIT_CURL_VERBOSE", "GIT_TRACE_CURL", "GIT_TRACE2"):
        monkeypatch.setenv(name, str(checkout.parent / "trace"))
    monkeypatch.setenv("GIT_TRACE_REDACT", "0")
    git(checkout, "config", "credential.helper", f"store --file {checkout.parent / 'stored'}")
    git(checkout, "config", "http.extraHeader", "Authorization: token wrong")
    edit(checkout, "tidemill-runtime-gpu:0.2.0")
    with seen_processes() as seen:
        told = propose(capsys)
    monkeypatch.setenv("TIDEMILL_TOKEN", "wrong-token")
    status = main(["gitops", "propose", "spec.yaml", "deploy", "--forge", "gitea"])
    said = capsys.readouterr()
    texts = [json.dumps(told), *seen, *(path.read_text(errors="replace") for path in files_below(checkout.parent))]

    assert any("credential" in each and "push" in each for each in seen)
    assert told["result"] == "opened"
    assert not [each for each in [*texts, gitea.log.read_text()] if gitea.token in each]
    assert status == 1
    assert "wrong-token" not in said.out + said.err
    assert "HTTP 401" in said.err


@contextmanager
def seen_processes():
    """Collect the command lines of all processes while the context lasts."""
    seen, done = set(), threading.Event()

    def look():
        while not done.is_set():
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    seen.add(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def files_below(folder):
    return [path for path in folder.rglob("*") if path.is_file()]
