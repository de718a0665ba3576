"""A report that anybody may have written is shown as text, or refused."""

import json

import pytest

from planner.problems.errors import CallError
from stacks.cli import main
from stacks.gitops.comment import MAX_BYTES, comment_on
from tests.stacks.deployments import write_demo

HOSTILE = "</details> <img src=x> [click](http://x.example) @maintainers #1 `code` | **bold** ::set-env::\n\n# title"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The report of a change of nothing."""
    folder = tmp_path_factory.mktemp("report")
    spec = write_demo(folder)
    main(["render", str(spec), "-o", str(folder / "deploy")])
    path = folder / "report.json"
    with pytest.MonkeyPatch.context() as patch, path.open("w") as file:
        patch.setattr("sys.stdout", file)
        main(["gitops", "check", str(spec), str(folder / "deploy"), "--fail-on", "stale", "--format", "json"])
    return json.loads(path.read_text())


def _comment(tmp_path, document):
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    (tmp_path / "report.json").write_bytes(content)
    return comment_on(tmp_path / "report.json")


def _is_inert(comment):
    """Return whether a forge shows the hostile text, and reads nothing in it."""
    read = ("<img", "[click]", "`code`", "**bold**", "@maintainers", " #1", "\n# title")
    return comment.count("</details>") <= 1 and not any(each in comment for each in read)


@pytest.mark.parametrize(
    "place", [("name",), ("conditions", 0), ("diff", "name"), ("diff", "units", 0, "name"), ("diff", "assumed", 0)]
)
def test_text_in_a_report_is_shown_as_it_is(place, report, tmp_path):
    """Wherever it stands, it is no markup, notifies nobody and begins no line."""
    document = json.loads(json.dumps(report))
    document["diff"]["assumed"] = [""]
    document["diff"]["units"][0] |= {"change": "restarted", "why": [HOSTILE]}
    *parents, last = place
    inner = document
    for each in parents:
        inner = inner[each]
    inner[last] = HOSTILE

    assert _is_inert(_comment(tmp_path, document))


def test_mistakes_are_shown_as_they_are(tmp_path):
    """Those of a spec that is wrong; a long list is cut."""
    mistake = {"file": HOSTILE, "line": 1, "column": 2, "rule": "S103 x", "message": HOSTILE, "fix": "more keys"}
    comment = _comment(tmp_path, {"valid": False, "errors": [mistake] * 22})

    assert _is_inert(comment)
    assert comment.endswith("&#91;S103&#93;\n- and 2 more\n")


def _changed(report, **diff):
    return report | {"diff": report["diff"] | diff}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda _: b"",
        lambda _: b"[1]",
        lambda _: b"\xff",
        lambda _: b"[" * 100_000,
        lambda _: b" " * (MAX_BYTES + 1),
        lambda _: {"errors": [{"message": 1}]},
        lambda report: report | {"more": 1},
        lambda report: _changed(report, verdict="fine"),
        lambda report: _changed(report, ways={}),
        lambda report: _changed(report, ways={"pulumi": report["diff"]["ways"]["pulumi"]}, verdict="outage"),
        lambda report: _changed(report, minutes=10**400),
        lambda report: _changed(report, name="x" * 20_000),
        lambda report: json.dumps(_changed(report, minutes=7)).replace('"minutes": 7', '"minutes": NaN').encode(),
    ],
)
def test_what_is_no_report_is_refused(wrong, report, tmp_path):
    """Too large, no JSON, other keys or values: one sentence, and nothing of it is printed."""
    with pytest.raises(CallError, match="R605") as caught:
        _comment(tmp_path, wrong(report))

    assert len(str(caught.value)) < 500


def test_each_environment_has_a_comment_of_its_own(report, tmp_path):
    """It begins with a mark that no other has, and a name is no way to write another mark or markup."""
    (tmp_path / "report.json").write_text(json.dumps(report))
    comments = {name: comment_on(tmp_path / "report.json", name) for name in ("", "dev", "prod")}
    with pytest.raises(CallError, match="R605"):
        comment_on(tmp_path / "report.json", "dev --> <img")

    assert len({each.partition("\n")[0] for each in comments.values()}) == 3
    assert comments["dev"].startswith("<!-- tidemill dev -->\n**dev**\n\n")
