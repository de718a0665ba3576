"""The workflows that `tidemill gitops init` writes: what they may do, and their steps run as written."""

import json
import os
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml

from planner.plan.user_input import read_spec
from planner.problems.errors import CallError
from planner.rules.check import change_spec, check_spec
from stacks.cli import main
from stacks.gitops.init import (
    FORGES,
    Environment,
    engine_files,
    make_environments,
    rebalancing_files,
    require_loads,
    require_repository,
    workflow_files,
)
from tests.stacks.deployments import DEMO_SPEC, write_demo

ROOT = DEMO_SPEC.parents[2]
HEALTH = ROOT / "templates" / "gitops" / "health"
ENVIRONMENTS = make_environments(Path("spec.yaml"), Path("deploy"), (), None)
CHECK, COMMENT, GITLAB = workflow_files(ENVIRONMENTS, FORGES).values()
THREE = make_environments(Path("spec.yaml"), Path("deploy"), (), "dev,stage,prod")
LOADS_AT = "http://prometheus.example:9090"
MARK = "<!-- tidemill deploy -->"
TIDEMILL = f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m stacks.cli "$@"\n'
# `gh`: notes each call, and answers with what the folder of the same name has for it.
GH = f"""#!{sys.executable}
import pathlib, sys
answers, call = pathlib.Path(__file__).parent / "answers", " ".join(sys.argv[1:])
with open(answers / "calls", "a") as calls:
    print(call, file=calls)
for body in [word for word in sys.argv if word.startswith("body=@")]:
    (answers / "posted").write_text(pathlib.Path(body.removeprefix("body=@")).read_text())
names = ("zip", "artifacts", "comments", "pulls", "workflows")
name = next((each for each in names if each in call and "--method" not in call), None)
if name:
    sys.stdout.buffer.write((answers / name).read_bytes())
"""
# `unzip -p FILE NAME`, which runners have and machines of ours may lack.
UNZIP = f"""#!{sys.executable}
import sys, zipfile
names = zipfile.ZipFile(sys.argv[2]).namelist()
sys.stdout.buffer.write(zipfile.ZipFile(sys.argv[2]).read(sys.argv[3]) if sys.argv[3] in names else b"")
"""
# `curl`: notes each call and what it reads from stdin; two answers are JSON.
CURL = f"""#!{sys.executable}
import pathlib, sys
answers, call = pathlib.Path(__file__).parent / "answers", " ".join(sys.argv[1:])
with open(answers / "calls", "a") as calls:
    print(call, file=calls)
(answers / "stdin").write_text(sys.stdin.read())
if "--request" not in call:
    sys.stdout.write((answers / ("user" if call.endswith("/user") else "notes")).read_text())
"""


def _run(script, folder, programs, **variables):
    """Run a job's script as a runner does, with `programs` in its PATH."""
    for name, text in {"tidemill": TIDEMILL, **programs}.items():
        (programs_of(folder) / name).write_text(text)
        (programs_of(folder) / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{programs_of(folder)}:{os.environ['PATH']}", "HOME": str(folder)} | variables
    call = ["bash", "-e", "-c", script]
    return subprocess.run(call, cwd=folder, env=environment, check=False, capture_output=True, text=True)


def programs_of(folder):
    programs = folder.parent / "programs"
    (programs / "answers").mkdir(parents=True, exist_ok=True)
    return programs


def _script(text, job):
    """Return what a job of GitLab runs, without the installation."""
    return "\n".join(line for line in yaml.safe_load(text)[job]["script"] if "pip install" not in line)


def _step(text, name):
    jobs = yaml.safe_load(text)["jobs"].values()
    return next(each["run"] for job in jobs for each in job["steps"] if each.get("name") == name)


def _git(folder, *words):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.example")
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A clone at a branch that renders another port, whose target went on meanwhile."""
    origin = tmp_path / "origin"
    origin.mkdir()
    monkeypatch.chdir(origin)
    write_demo(origin)
    main(["render", "spec.yaml", "-o", "deploy"])
    _git(origin, "init", "-q", "-b", "main")
    _commit(origin)
    _git(origin, "checkout", "-q", "-b", "change")
    (origin / "spec.yaml").write_text((origin / "spec.yaml").read_text().replace("port: 8000", "port: 8001"))
    main(["render", "spec.yaml", "-o", "deploy"])
    _commit(origin)
    _git(origin, "checkout", "-q", "main")
    (origin / "README").write_text("later")
    _commit(origin)
    _git(tmp_path, "clone", "-q", "-b", "change", str(origin), "clone")
    monkeypatch.chdir(tmp_path / "clone")
    return tmp_path / "clone"


def _commit(folder):
    _git(folder, "add", "-A")
    _git(folder, "commit", "-q", "-m", "change")


def _check_on_github(repository, event="pull_request"):
    """Run the steps of the merge result's check, or of the check after the merge."""
    _git(repository, "checkout", "-q", "--detach", "origin/main")
    _git(repository, "merge", "-q", "--no-ff", "--no-edit", "origin/change")
    variables = {"RUNNER_TEMP": str(repository.parent), "NUMBER": "7", "GITHUB_STEP_SUMMARY": "/dev/null"}
    (matrix,) = yaml.safe_load(CHECK)["jobs"]["check"]["strategy"]["matrix"]["include"]
    variables |= {"GITHUB_EVENT_NAME": event} | {name.upper(): value for name, value in matrix.items()}
    if event == "pull_request":
        _run(_step(CHECK, "Put the base branch beside it"), repository, {}, **variables)
    return _run(_step(CHECK, "Check"), repository, {}, **variables)


def _check_on_gitlab(repository, **variables):
    (matrix,) = yaml.safe_load(GITLAB)["tidemill-check"]["parallel"]["matrix"]
    return _run(_script(GITLAB, "tidemill-check"), repository, {}, **variables, **matrix)


def test_githubs_check_leaves_report_and_plan(repository):
    """What it prints is what will be posted."""
    done = _check_on_github(repository)
    report = json.loads((repository.parent / "report" / "report.json").read_text())

    assert (done.returncode, done.stderr) == (0, "")
    assert "| **rolling** | Change of demo" in done.stdout
    assert (report["objections"], report["stale"]) == ([], [])
    assert (repository.parent / "report" / "number").read_text() == "7\n"
    assert (repository.parent / "plan.json").is_file()


def test_githubs_check_fails_and_still_says_why(repository):
    """A spec that is wrong ends with 2, and its mistakes are in what will be posted."""
    _git(repository, "checkout", "-q", "change")
    (repository / "spec.yaml").write_text((repository / "spec.yaml").read_text().replace("port:", "prot:"))
    _commit(repository)
    _git(repository, "push", "-q", "origin", "change")
    done = _check_on_github(repository)

    assert done.returncode == 2
    assert "- refused: there is no plan to compare\n- spec.yaml:" in done.stdout


def test_gitlabs_check_judges_the_merge_result(repository):
    """The target is merged first, and is what runs. A report that the branch brings along is none."""
    (repository / "tidemill-report").mkdir()
    (repository / "tidemill-report" / "comment.md").symlink_to("/proc/self/environ")
    _commit(repository)
    request = {"CI_MERGE_REQUEST_PROJECT_ID": "1", "CI_PROJECT_ID": "1", "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main"}
    done = _check_on_gitlab(repository, **request)

    assert done.returncode == 0
    assert not (repository / "tidemill-report" / "comment.md").is_symlink()
    assert (repository / "README").read_text() == "later"
    assert "| **rolling** |" in (repository / "tidemill-report" / "deploy" / "comment.md").read_text()


@pytest.mark.parametrize("is_stale", [False, True])
@pytest.mark.parametrize("forge", FORGES)
def test_a_stale_default_branch_fails_its_check(forge, is_stale, repository):
    """Two changes that pass alone may leave a folder that the merged spec does not render."""
    if is_stale:
        _git(repository, "checkout", "-q", "change")
        (repository / "spec.yaml").write_text(
            (repository / "spec.yaml").read_text().replace("port: 8001", "port: 8002")
        )
        _commit(repository)
        _git(repository, "push", "-q", "origin", "change")
    done = _check_on_github(repository, event="push") if forge == "github" else _check_on_gitlab(repository)

    assert done.returncode == (3 if is_stale else 0)
    assert ("refused by stale: tidemill render would change" in done.stdout) == is_stale


def test_gitlabs_check_does_not_run_beside_the_token(job):
    """It installs programs and reads the branch, so a token without the environment's scope ends it."""
    done = _run("\n".join(yaml.safe_load(GITLAB)["tidemill-check"]["script"][:2]), job, {}, TIDEMILL_TOKEN="secret")

    assert (done.returncode, "environment scope tidemill-comment" in done.stdout) == (1, True)


@pytest.mark.parametrize(
    ("comments", "call"),
    [("", "--method POST repos/o/r/issues/7/comments"), ("42\n", "--method PATCH repos/o/r/issues/comments/42")],
)
def test_github_has_one_comment(comments, call, job):
    """A later report replaces it."""
    _keep(job, {"deploy.md": f"{MARK}\nnews", "deploy.number": "7\n"})
    done, calls = _on_github(job, "Post the comments", artifacts="5", pulls="abc", comments=comments)

    assert (done.returncode, done.stderr) == (0, "")
    assert f"api {call} -F body=@comment.md --silent" in calls
    assert (answers_of(job) / "posted").read_text() == f"{MARK}\nnews"


@pytest.mark.parametrize(
    ("number", "head", "status"),
    [("7/../../8", "abc", 1), ("", "abc", 1), ("$(touch hacked)", "abc", 1), ("-8", "abc", 1), ("8", "another", 0)],
)
def test_the_number_must_be_that_of_the_checked_pull_request(number, head, status, job):
    """The artifact of a fork names any: nothing is posted where the checked commit is not the head."""
    _keep(job, {"deploy.md": f"{MARK}\nnews", "deploy.number": number})
    done, calls = _on_github(job, "Post the comments", artifacts="5", pulls=head, comments="")

    assert done.returncode == status
    assert "--method" not in calls
    assert not (job / "hacked").exists()


@pytest.mark.parametrize("text", [{}, {"deploy.md": "news"}, {"deploy.md": "<!-- tidemill prod -->\nnews"}])
def test_only_a_comment_with_the_environments_mark_is_posted(text, job):
    """Another one would be found again by nobody, or replace another environment's."""
    _keep(job, {**text, "deploy.number": "7"})
    done, calls = _on_github(job, "Post the comments", artifacts="5", pulls="abc", comments="")

    assert (done.returncode, "--method" in calls) == (0, False)


@pytest.mark.parametrize(
    ("artifact", "report", "status"),
    [("5", '{"errors": []}', 0), ("5", "{}", 1), ("5", " " * 2_000_000, 1), ("", "", 0)],
)
def test_an_artifact_becomes_a_comment_or_nothing(artifact, report, status, job):
    """One that is too large, or holds no report, is left out."""
    _keep(job, {"number": "7" * 1000, "report.json": report})
    _on_github(job, "Fetch the reports", artifacts=artifact)
    done, _ = _on_github(job, "Write the comments")
    written = {path.name: path.read_text() for path in (job / "comments").iterdir()}

    assert done.returncode == status
    assert written.keys() == ({"deploy.md", "deploy.number"} if artifact and not status else set())
    if written:
        assert written["deploy.md"].startswith(f"{MARK}\n**deploy**\n\n- refused")
        assert len(written["deploy.number"]) == 20


def _keep(job, texts):
    """Have `gh` answer with an artifact of these files."""
    with zipfile.ZipFile(answers_of(job) / "zip", "w") as file:
        for each, text in texts.items():
            file.writestr(each, text)


@pytest.fixture
def job(tmp_path):
    """The folder in which a job works."""
    (tmp_path / "job").mkdir()
    return tmp_path / "job"


def answers_of(job):
    return programs_of(job) / "answers"


def _on_github(job, step, **answers):
    """Run a step of the workflow that posts, with GitHub's answers."""
    for name, text in {"calls": "", **answers}.items():
        (answers_of(job) / name).write_text(text)
    variables = {"GITHUB_REPOSITORY": "o/r", "RUN": "1", "CHECKED": "abc"}
    done = _run(_step(COMMENT, step), job, {"gh": GH, "unzip": UNZIP}, **variables)
    return done, (answers_of(job) / "calls").read_text()


@pytest.mark.parametrize(("author", "call"), [(3, "--request PUT"), (4, "--request POST")])
def test_gitlab_has_one_note(author, call, job):
    """It is replaced if the token's user wrote it; the token is in no argument."""
    (job / "tidemill-report" / "deploy").mkdir(parents=True)
    (job / "tidemill-report" / "deploy" / "comment.md").write_text("news")
    (job / "json.py").write_text("raise SystemExit('a file of the branch ran')")
    answers = answers_of(job)
    (answers / "user").write_text('{"id": 3}')
    (answers / "notes").write_text(json.dumps([{"id": 9, "author": {"id": author}, "body": f"{MARK}\nolder"}]))
    done = _comment_on_gitlab(job)
    *_, last = (answers / "calls").read_text().splitlines()

    assert (done.returncode, done.stderr) == (0, "")
    assert f"{call} --data-urlencode body@tidemill-report/deploy/comment.md" in last
    assert last.endswith("/notes/9") == (author == 3)
    assert "secret" not in (answers / "calls").read_text()
    assert (answers / "stdin").read_text() == 'header = "PRIVATE-TOKEN: secret"\n'


@pytest.mark.parametrize("linked", ["tidemill-report", "tidemill-report/deploy", "tidemill-report/deploy/comment.md"])
def test_gitlab_posts_no_file_behind_a_link(linked, job):
    """A link could lead to the job's own environment, where the token is."""
    (job / "secrets" / "deploy").mkdir(parents=True)
    (job / "secrets" / "deploy" / "comment.md").write_text("secret")
    (job / linked).parent.mkdir(exist_ok=True, parents=True)
    (job / linked).symlink_to(job / linked.replace("tidemill-report", "secrets"))
    for name, answer in (("user", '{"id": 3}'), ("notes", "[]")):
        (answers_of(job) / name).write_text(answer)
    done = _comment_on_gitlab(job)

    assert (done.returncode, done.stdout) == (1, "The check of deploy left no report.\n")
    assert "--request" not in (answers_of(job) / "calls").read_text()


def test_gitlab_posts_nothing_without_a_token(job):
    """Pipelines of forks have none, and that is no failure."""
    done = _comment_on_gitlab(job, token="")

    assert (done.returncode, "nothing is posted" in done.stdout) == (0, True)


def _comment_on_gitlab(job, token="secret"):
    (script,) = yaml.safe_load(GITLAB)["tidemill-comment"]["script"]
    variables = {"CI_API_V4_URL": "https://g/api/v4", "CI_PROJECT_ID": "1", "CI_MERGE_REQUEST_IID": "2"}
    return _run(script, job, {"curl": CURL}, TIDEMILL_TOKEN=token, **variables)


def test_workflows_have_the_least_rights():
    """What runs a fork's words may only read, and what may write installs nothing and checks nothing out."""
    check, comment = (yaml.safe_load(text) for text in (CHECK, COMMENT))
    triggers = [set(each[True]) for each in (check, comment)]  # YAML 1.1 reads `on` as true

    assert triggers == [{"pull_request", "push"}, {"workflow_run"}]
    assert (check["permissions"], comment["permissions"]) == ({"contents": "read"}, {})
    assert comment["jobs"]["read"]["permissions"] == {"actions": "read"}
    assert comment["jobs"]["post"]["permissions"] == {"actions": "read", "pull-requests": "write"}
    assert [list(each) for each in comment["jobs"]["post"]["steps"]] == [["name", "env", "run"]]
    assert "checkout" not in COMMENT
    assert "tidemill gitops" not in comment["jobs"]["post"]["steps"][0]["run"]


@pytest.mark.parametrize(
    "text",
    [
        CHECK,
        COMMENT,
        *workflow_files(THREE, ("github",)).values(),
        *rebalancing_files(THREE, ("github",), LOADS_AT).values(),
    ],
)
def test_actions_are_pinned_by_commit(text):
    """A tag can be moved, and no script has an expression in it, which would be text of a stranger."""
    steps = [each for job in yaml.safe_load(text)["jobs"].values() for each in job["steps"]]
    used = re.findall(r"uses: (\S+)", text)

    assert used == [each for each in used if re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", each)]
    assert not any("${{" in each.get("run", "") for each in steps)


@pytest.mark.parametrize(
    ("options", "files"),
    [
        (["--github"], [".github/workflows/tidemill-check.yml", ".github/workflows/tidemill-comment.yml"]),
        (["--gitlab"], [".gitlab/tidemill.yml"]),
    ],
)
def test_init_writes_what_is_asked_for(options, files, repository, capsys):
    """Without options both; a second run changes nothing, and a file that was edited is kept."""
    words = ["gitops", "init", "spec.yaml", "deploy"]
    statuses = main([*words, *options]), main(words), main(words)
    capsys.readouterr()
    main([*words, *options, "--format", "json"])
    told = json.loads(capsys.readouterr().out)
    (repository / files[0]).write_text("edited")
    refused = main(words)

    assert (statuses, refused) == ((0, 0, 0), 2)
    assert told == {"files": files}
    assert (repository / files[0]).read_text() == "edited"


WITH_CONTROLLER = """
prefill: {units: null}
decode: {units: null}
schedule: {windows: [{at: "00:00", prefill_units: 1, decode_units: 1}]}
kubernetes: {controller: {}}
"""


def test_init_says_what_prevents_an_outage_with_each_image(repository, capsys):
    """Units that Git restarts all at once serve nobody meanwhile."""
    assert main(["gitops", "init", "spec.yaml", "deploy", "--github"]) == 0
    assert "spec.yaml has no kubernetes.controller, so Git restarts all units at once" in capsys.readouterr().err


@pytest.mark.parametrize("overlay", [WITH_CONTROLLER, "kubernetes: {unit_kind: statefulset}\n"])
def test_init_recommends_no_controller_where_there_is_one_or_can_be_none(overlay, repository, capsys):
    """A controller turns only LeaderWorkerSets off and on, so that StatefulSets could not follow the advice."""
    (repository / "overlay.yaml").write_text(overlay)
    assert main(["gitops", "init", "spec.yaml", "deploy", "--gitlab", "-f", "overlay.yaml"]) == 0
    assert "kubernetes.controller" not in capsys.readouterr().err


FLUX = ["gitops", "init", "spec.yaml", "deploy", "--flux", "--repository", "https://git.example/team/r.git"]


def test_an_engines_files_come_alone(repository):
    """Forges' files that somebody has edited are in nobody's way, and what says the same is left."""
    assert main(["gitops", "init", "spec.yaml", "deploy", "--github"]) == 0
    (repository / ".github" / "workflows" / "tidemill-check.yml").write_text("edited")
    statuses = main(FLUX), main(FLUX)

    assert statuses == (0, 0)
    assert not (repository / ".gitlab").exists()
    assert [path.name for path in (repository / "clusters" / "deploy").iterdir()] == ["flux.yaml"]


def test_a_lost_file_is_written_again(repository):
    """Those that are there are not touched."""
    main(FLUX)
    main([*FLUX, "--argocd"])
    kept, lost = (repository / "clusters" / "deploy" / name for name in ("flux.yaml", "argocd.yaml"))
    lost.unlink()
    kept.chmod(0o444)
    before = kept.stat().st_mtime_ns, kept.stat().st_ino
    status = main([*FLUX, "--argocd"])

    assert (status, lost.is_file()) == (0, True)
    assert (kept.stat().st_mtime_ns, kept.stat().st_ino) == before


def test_a_refused_init_writes_nothing(repository, capsys):
    """Neither overlays nor definitions; it names each file that says something else."""
    for name in ("dev", "prod"):
        (repository / "clusters" / name).mkdir(parents=True)
        (repository / "clusters" / name / "flux.yaml").write_text("edited")
    before = sorted(repository.rglob("*"))
    status = main([*FLUX, "--environments", "dev,prod,stage"])
    told = capsys.readouterr().err

    assert (status, told.count("[R607]")) == (2, 2)
    assert sorted(repository.rglob("*")) == before


@pytest.mark.parametrize("engine", ["flux", "argocd"])
def test_environments_share_a_cluster(engine):
    """Whatever applies them has the environment in its name, which stays a label's value."""
    spec = change_spec(check_spec(DEMO_SPEC.with_name("demo-day.yaml")), {"name": "a" * 40})
    names = []
    for each in make_environments(Path("spec.yaml"), Path("deploy"), (), f"dev,{'p' * 32}"):
        text = engine_files(each, spec, (engine,), "https://git.example/team/r.git")[
            f"clusters/{each.name}/{engine}.yaml"
        ]
        names += [(found["kind"], found["metadata"]["name"]) for found in yaml.safe_load_all(text)]

    assert len(set(names)) == len(names)
    assert all(len(name) <= 63 for _, name in names)


def test_overlays_stand_in_the_call():
    """An environment's spec is a base under overlays."""
    environments = make_environments(Path("spec.yaml"), Path("deploy"), [Path("prod.yaml")], None)
    (text,) = workflow_files(environments, ("gitlab",)).values()

    assert yaml.safe_load(text)["tidemill-check"]["parallel"]["matrix"][0]["SPEC"] == "spec.yaml -f prod.yaml"


@pytest.mark.parametrize("schema", ["github-workflows", "gitlab-ci"])
def test_the_files_are_what_the_forges_read(schema, tmp_path):
    """Both publish a schema."""
    pytest.importorskip("check_jsonschema")
    forge = "github" if schema == "github-workflows" else "gitlab"
    texts = [*workflow_files(THREE, (forge,)).values(), *rebalancing_files(THREE, (forge,), LOADS_AT).values()]
    paths = [tmp_path / f"{number}.yml" for number, _ in enumerate(texts)]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    call = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *map(str, paths)]

    assert subprocess.run(call, check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize("forge", FORGES)
def test_each_environment_has_its_own_check(forge):
    """Its spec under its overlay, its folder, and artifacts and a comment of its own name."""
    environments = make_environments(Path("deploy/spec.yaml"), Path("deploy"), [], "dev,prod")
    texts = [yaml.safe_load(each) for each in workflow_files(environments, (forge,)).values()]
    matrix = (
        texts[0]["jobs"]["check"]["strategy"]["matrix"]["include"]
        if forge == "github"
        else [
            {name.lower(): value for name, value in each.items()}
            for each in texts[0]["tidemill-check"]["parallel"]["matrix"]
        ]
    )
    told = "\n".join(workflow_files(environments, (forge,)).values())

    assert [(each["environment"], each["spec"], each["folder"]) for each in matrix] == [
        ("dev", "deploy/spec.yaml -f deploy/dev.release.yaml -f deploy/dev.yaml", "deploy/dev"),
        ("prod", "deploy/spec.yaml -f deploy/prod.release.yaml -f deploy/prod.yaml", "deploy/prod"),
    ]
    assert "for environment in dev prod; do" in told


def test_github_posts_a_comment_for_each_environment(job):
    """One that is missing keeps no other back."""
    _, comment, _ = workflow_files(THREE, ("github",)).values()
    marks = {f"{name}.md": f"<!-- tidemill {name} -->\nnews of {name}" for name in ("dev", "prod")}
    _keep(job, marks | {"dev.number": "7", "prod.number": "7"})
    for name, answer in {"calls": "", "artifacts": "5", "pulls": "abc", "comments": ""}.items():
        (answers_of(job) / name).write_text(answer)
    variables = {"GITHUB_REPOSITORY": "o/r", "CHECKED": "abc", "GITHUB_RUN_ID": "1"}
    done = _run(_step(comment, "Post the comments"), job, {"gh": GH, "unzip": UNZIP}, **variables)
    calls = (answers_of(job) / "calls").read_text()

    assert (done.returncode, done.stdout) == (0, "There is no comment for stage.\n")
    assert calls.count("--method POST") == 2


def test_init_writes_overlays_once(repository, capsys):
    """An environment's overlay is written where it is missing, is a right one, and belongs to its user then."""
    words = ["gitops", "init", "spec.yaml", "deploy", "--environments", "dev,prod"]
    first = main(words)
    (repository / "dev.yaml").write_text("name: mine\n")
    again = main(words)

    assert (first, again) == (0, 0)
    assert main(["validate", "spec.yaml", "-f", "prod.release.yaml", "-f", "prod.yaml"]) == 0
    assert (repository / "dev.yaml").read_text() == "name: mine\n"


def test_a_release_file_has_the_specs_images(repository):
    """It is the same for all environments, so that a copy of it is a promotion, and it changes nothing by itself."""
    images = {"image": "units:1", "tidemill_image": "copies:1", "gateway": {"image": "on"}}
    (repository / "images.yaml").write_text(json.dumps({"kubernetes": images}))
    main(["gitops", "init", "spec.yaml", "deploy", "-f", "images.yaml", "--environments", "dev,prod"])
    dev, prod = ((repository / f"{name}.release.yaml").read_text() for name in ("dev", "prod"))

    assert dev == prod
    assert yaml.safe_load(dev) == {"kubernetes": images}


# `tidemill`: notes the call, with the release file of stage as it is then.
NOTED = f"""#!{sys.executable}
import pathlib, sys
calls = pathlib.Path(__file__).parent / "answers" / "calls"
with open(calls, "a") as file:
    print(*sys.argv[1:], pathlib.Path("stage.release.yaml").read_text(), file=file)
"""


def _promote(forge, repository, before, last=""):
    """Run each job that promotes after a merge onto `before`, beside a last run at `last`; return results and calls."""
    text = workflow_files(THREE, (forge,))[PROMOTES[forge]]
    _git(repository, "push", "-q", "origin", "HEAD:refs/heads/merged")
    variables = {
        "BEFORE": before,
        "CI_COMMIT_BEFORE_SHA": before,
        "CI_DEFAULT_BRANCH": "merged",
        "GITHUB_SERVER_URL": "https://g",
        "GITHUB_REPOSITORY": "o/r",
        "GITHUB_REF_NAME": "main",
        "GITHUB_WORKFLOW_REF": "o/r/.github/workflows/tidemill-promote.yml@refs/heads/main",
        "CI_SERVER_URL": "https://g",
        "CI_PROJECT_URL": "https://g/o/r",
    }
    if forge == "github":
        script = _step(text, "Propose")
        pairs = yaml.safe_load(text)["jobs"]["promote"]["strategy"]["matrix"]["include"]
    else:
        script = _script(text, "tidemill-promote")
        pairs = yaml.safe_load(text)["tidemill-promote"]["parallel"]["matrix"]
    programs = {"tidemill": NOTED, "gh": GH}
    answers_of(repository).joinpath("workflows").write_text(last)
    done = []
    for each in pairs:
        done.append(
            _run(script, repository, programs, **variables, **{name.upper(): value for name, value in each.items()})
        )
        _git(repository, "checkout", "-q", "--", ".")
    calls = (answers_of(repository) / "calls").read_text().splitlines()

    assert [(each.returncode, each.stderr) for each in done] == [(0, "")] * len(done)
    return [each.stdout for each in done], [each for each in calls if each.startswith("gitops")], calls


@pytest.fixture
def released(repository):
    """A repository with a release file for each environment; what `repository` is, without changes that nobody made."""
    for each in THREE:
        each.release.write_text("image: old")
    _commit(repository)
    return repository


@pytest.mark.parametrize("forge", FORGES)
def test_a_merge_promotes_what_it_changed(forge, released):
    """The next environment is given a copy; an environment behind one that is as before is left alone."""
    before = _git(released, "rev-parse", "HEAD").strip()
    Path("dev.release.yaml").write_text("image: new")
    _commit(released)
    said, proposals, _ = _promote(forge, released, before)

    assert said[1].startswith("stage.release.yaml is as ")
    assert proposals == [
        "gitops propose spec.yaml -f stage.release.yaml -f stage.yaml deploy/stage "
        f"--forge {forge} --forge-url https://g image: new"
    ]


def test_a_cancelled_run_loses_no_promotion_on_github(released):
    """Of the runs that wait GitHub keeps the newest alone: that one looks at all since the last run that succeeded."""
    last = _git(released, "rev-parse", "HEAD").strip()
    Path("dev.release.yaml").write_text("image: new")
    _commit(released)
    before = _git(released, "rev-parse", "HEAD").strip()
    Path("stage.release.yaml").write_text("image: fixed")
    _commit(released)
    _, proposals, calls = _promote("github", released, before, last)

    assert [each.rpartition(": ")[2] for each in proposals] == ["new", "fixed"]
    assert calls[0].startswith(
        "api repos/o/r/actions/workflows/tidemill-promote.yml/runs?branch=main&status=success&per_page=1 "
    )


def test_a_job_that_promotes_takes_the_branch_as_it_is(released):
    """It may have waited for another one, and an older state would replace what that one has proposed."""
    before = _git(released, "rev-parse", "HEAD").strip()
    for image in ("new", "newer"):
        Path("dev.release.yaml").write_text(f"image: {image}")
        _commit(released)
    texts = {forge: workflow_files(THREE, (forge,))[PROMOTES[forge]] for forge in FORGES}
    checkout = yaml.safe_load(texts["github"])["jobs"]["promote"]["steps"][0]
    _git(released, "push", "-q", "origin", "HEAD:refs/heads/merged")
    _git(released, "checkout", "-q", "--detach", "HEAD^")
    variables = yaml.safe_load(texts["gitlab"])["tidemill-promote"]["parallel"]["matrix"][0]
    urls = {"CI_SERVER_URL": "https://g", "CI_PROJECT_URL": "https://g/o/r"}
    branch = {"CI_DEFAULT_BRANCH": "merged", "CI_COMMIT_BEFORE_SHA": before}
    _run(_script(texts["gitlab"], "tidemill-promote"), released, {"tidemill": NOTED}, **variables, **urls, **branch)

    assert checkout["with"]["ref"] == "${{ github.ref_name }}"
    assert (answers_of(released) / "calls").read_text().endswith(" image: newer\n")


PROMOTES = {"github": ".github/workflows/tidemill-promote.yml", "gitlab": ".gitlab/tidemill-promote.yml"}
REBALANCES = {"github": ".github/workflows/tidemill-loads.yml", "gitlab": ".gitlab/tidemill-loads.yml"}


@pytest.mark.parametrize("forge", FORGES)
def test_a_nightly_job_proposes_new_maps(forge, job):
    """It saves the loads that ranks have recorded, outside the checkout, and proposes what follows from them."""
    (job / "stage.release.yaml").write_text("")
    _git(job, "init", "-q")
    _git(job, "remote", "add", "origin", "https://g/o/r.git")
    text = rebalancing_files(ENVIRONMENTS, (forge,), LOADS_AT)[REBALANCES[forge]]
    if forge == "github":
        script, found = _step(text, "Propose"), yaml.safe_load(text)["jobs"]["loads"]["strategy"]["matrix"]["include"]
    else:
        script, found = _script(text, "tidemill-loads"), yaml.safe_load(text)["tidemill-loads"]["parallel"]["matrix"]
    variables = {name.upper(): value for name, value in found[0].items()}
    urls = {"GITHUB_SERVER_URL": "https://g", "CI_SERVER_URL": "https://g", "CI_PROJECT_URL": "https://g/o/r"}
    done = _run(
        script, job, {"tidemill": NOTED}, RUNNER_TEMP=str(job.parent), TMPDIR=str(job.parent), **urls, **variables
    )
    saves, proposes = (line.split() for line in (answers_of(job) / "calls").read_text().splitlines())

    assert (done.returncode, done.stderr) == (0, "")
    assert saves[:4] == ["experts", "--from", LOADS_AT, "-o"]
    assert Path(saves[4]).parent == job.parent
    assert proposes == [
        "gitops",
        "propose",
        "spec.yaml",
        "deploy",
        "--loads",
        saves[4],
        "--payback",
        "24",
        "--forge",
        forge,
        "--forge-url",
        "https://g",
    ]


def test_the_jobs_that_propose_run_only_what_was_merged():
    """They have the token, so no pull request starts them."""
    promote, loads = (
        yaml.safe_load(files[names["github"]])
        for files, names in (
            (workflow_files(THREE, ("github",)), PROMOTES),
            (rebalancing_files(THREE, ("github",), LOADS_AT), REBALANCES),
        )
    )

    assert (set(promote[True]), set(loads[True])) == ({"push"}, {"schedule", "workflow_dispatch"})
    assert promote[True]["push"] == {"branches": ["main"], "paths": ["dev.release.yaml", "stage.release.yaml"]}
    assert (promote["permissions"], loads["permissions"]) == (
        {"actions": "read", "contents": "read"},
        {"contents": "read"},
    )


@pytest.mark.parametrize("address", ["prometheus:9090", "http://ada:secret@prometheus:9090", "http://a b", "ftp://a"])
def test_loads_come_from_an_address_without_a_password(address):
    """It would be committed, and it is not repeated."""
    with pytest.raises(CallError, match="R621") as caught:
        require_loads(address, ())

    assert "secret" not in str(caught.value)


def test_loads_need_a_file_of_the_spec(repository, capsys):
    """The job could replace none, so it is not written; of the forge's files it is the only one."""
    words = ["gitops", "init", "spec.yaml", "deploy", "--gitlab", "--loads-from", LOADS_AT, "--format", "json"]
    written = main(words)
    told = json.loads(capsys.readouterr().out)
    (repository / "uniform.yaml").write_text("expert_load: null")
    refused = main([*words, "-f", "uniform.yaml"])

    assert (written, told) == (0, {"files": [".gitlab/tidemill-loads.yml"]})
    assert (refused, "R615" in capsys.readouterr().out) == (2, True)


@pytest.mark.parametrize("linked", [".github", ".github/workflows", ".github/workflows/tidemill-check.yml"])
def test_init_writes_through_no_link(linked, repository, capsys):
    """It would change what the link leads to, inside or outside the repository."""
    outside = repository.parent / "outside"
    outside.mkdir()
    (repository / linked).parent.mkdir(parents=True, exist_ok=True)
    (repository / linked).symlink_to(outside / "file.yml" if linked.endswith(".yml") else outside)
    status = main(["gitops", "init", "spec.yaml", "deploy"])

    assert status == 2
    assert "[R608]" in capsys.readouterr().err
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("names", ["", "dev,", "dev,dev", "Dev", "dev prod", "on", "1", "a" * 33, "dev,-"])
def test_names_that_could_be_misread_are_refused(names):
    """YAML reads some as no text, Kubernetes takes others for no name."""
    with pytest.raises(CallError, match="R620"):
        make_environments(Path("spec.yaml"), Path("deploy"), [], names)


# The fields that are used, with their types, from argoproj/argo-cd 37ee0097, manifests/crds/application-crd.yaml.
TEXT, WORDS = {"type": "string"}, {"type": "array", "items": {"type": "string"}}
FLAG, NUMBER = {"type": "boolean"}, {"type": "integer"}


def _object(**fields):
    return {"type": "object", "properties": fields, "additionalProperties": False}


APPLICATION_SPEC = _object(
    project=TEXT,
    sources={"type": "array", "items": _object(repoURL=TEXT, targetRevision=TEXT, path=TEXT)},
    destination=_object(name=TEXT, server=TEXT, namespace=TEXT),
    syncPolicy=_object(
        automated=_object(prune=FLAG, selfHeal=FLAG),
        syncOptions=WORDS,
        retry=_object(limit=NUMBER, backoff=_object(duration=TEXT, factor=NUMBER, maxDuration=TEXT)),
    ),
)


@pytest.mark.parametrize(("spec", "num_sources"), [("demo.yaml", 1), ("demo-day.yaml", 2)])
@pytest.mark.parametrize("names", [None, "dev,prod"])
def test_argo_cd_applies_definitions_and_plan(spec, num_sources, names):
    """In one sync, in which definitions come first and are never pruned; each environment goes to a cluster."""
    found = check_spec(DEMO_SPEC.with_name(spec))
    for each in make_environments(Path("spec.yaml"), Path("deploy"), (), names):
        files = engine_files(each, found, ("argocd",), "https://git.example/team/deployments.git")
        application, settings, *kinds = (yaml.safe_load(text) for text in files.values())
        jsonschema.validate(application["spec"], APPLICATION_SPEC)

        scripts = {
            name.removeprefix("resource.customizations.health."): text for name, text in settings["data"].items()
        }

        assert scripts.keys() == {path.stem for path in HEALTH.glob("*.lua")}
        assert all(text.rstrip() == (HEALTH / f"{name}.lua").read_text().rstrip() for name, text in scripts.items())
        assert [source["path"] for source in application["spec"]["sources"]][-1] == str(each.folder)
        assert len(application["spec"]["sources"]) == num_sources
        assert len(application["spec"]["destination"]) == 2
        assert [kind["kind"] for kind in kinds] == ["Kustomization", "CustomResourceDefinition"][: 2 * num_sources - 2]
        assert all(kind["commonAnnotations"]["argocd.argoproj.io/sync-wave"] == "-1" for kind in kinds[:1])


@pytest.mark.parametrize(
    "address",
    [
        None,
        "git@git.example:team/r.git",
        "https://user:pass@git.example/r",
        "https://token@git.example/r",
        "https://git.example/a b",
        "/srv/r",
    ],
)
def test_clusters_fetch_from_an_address(address):
    """Flux takes no other form of one, and a password would be committed."""
    with pytest.raises(CallError, match="R609"):
        require_repository(address)


@pytest.mark.parametrize("word", ["null", "on", "1e3"])
def test_a_word_of_yaml_stays_a_text(word):
    """As the name of a plan, its namespace or its folder; and so does an address that ends in a colon."""
    environment = Environment("prod", Path("spec.yaml"), (), Path(word))
    spec = read_spec(DEMO_SPEC)
    written = spec.written.model_copy(
        update={"name": word, "kubernetes": spec.written.kubernetes.model_copy(update={"namespace": word})}
    )
    files = engine_files(environment, replace(spec, written=written), ("argocd", "flux"), "https://git.example/o/r:")
    application = yaml.safe_load(files["clusters/prod/argocd.yaml"])
    repository = next(yaml.safe_load_all(files["clusters/prod/flux.yaml"]))

    assert application["spec"]["sources"][-1]["path"] == application["spec"]["destination"]["namespace"] == word
    assert isinstance(application["metadata"]["name"], str)
    assert isinstance(repository["metadata"]["name"], str)
    assert repository["spec"]["url"] == "https://git.example/o/r:"
