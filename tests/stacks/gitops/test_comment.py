"""A report that anybody may have written is shown as text, or refused."""

import json
import re
from contextlib import suppress

import pytest
from markdown_it import MarkdownIt

from planner.diff.markdown import BREAK
from planner.problems.errors import CallError
from stacks.cli import main
from stacks.gitops.comment import MAX_BYTES, comment_on
from tests.stacks.deployments import write_demo

HOSTILE = (
    "/approve </details> <img src=x> [click](http://x.example) ![x](x.png) @maintainers #1 !2 ~bug &3 $4 ^alert#5 "
    "PROJ-6 `code` | **bold** ~~gone~~ www.x.example {+a+} ::set-env::\n\n/approve\n# title"
)
OURS = re.compile(
    r"<!-- tidemill |- |\| |\|:--|nothing runs from this folder yet|</?details>|$"
)  # how our own lines begin
# What forges read behind markdown, in the text that it leaves.
READ = re.compile(r"@\w|[#!&$%]\d|~\w|\^alert|PROJ-6|://|www\.|\{\+")


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


@pytest.fixture(scope="module")
def changed(report, tmp_path_factory):
    """The report of a change that has something to say on most subjects."""
    folder = tmp_path_factory.mktemp("changed")
    spec = write_demo(folder)
    main(["render", str(spec), "-o", str(folder / "deploy")])
    text = spec.read_text().replace("nodes: 3", "nodes: 4")
    (folder / "loads.json").write_text(json.dumps([[each + 1 for each in range(32)]] * 4))
    spec.write_text(text.replace("expert_load.json", "loads.json") + "\nkubernetes: {image: runtime:2}\n")
    path = folder / "report.json"
    with pytest.MonkeyPatch.context() as patch, path.open("w") as file:
        patch.setattr("sys.stdout", file)
        main(["gitops", "check", str(spec), str(folder / "deploy"), "--fail-on", "outage,stale", "--format", "json"])
    return json.loads(path.read_text())


def _structure(comment):
    """Return what a reader of markdown sees in it beside text, and the texts between HTML tags."""
    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(comment)
    flat = [inner for each in tokens for inner in (each.children or [each])]
    html = [each.content for each in flat if each.type.startswith("html") and each.content != BREAK]
    shapes = [each.type for each in flat if each.type not in ("text", "html_inline")]
    return (shapes, html), [each.content for each in flat if each.type == "text"]


def _string_places(value, place=()):
    """Yield the place of each string in a JSON value, and of each key that a report may choose."""
    if isinstance(value, str):
        yield place
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from _string_places(each, (*place, key))


def _replaced(document, place, text):
    """Return the document with another text at a place."""
    if not place:
        return text
    copy = document.copy()
    copy[place[0]] = _replaced(document[place[0]], place[1:], text)
    return copy


def test_no_text_of_a_report_is_more_than_text(changed, tmp_path):
    """Each string of it, wherever it stands: no line begins with it, and it makes no markup, link or mention."""
    shown = 0
    for document in (changed, {name: each for name, each in changed.items() if name != "diff"}):
        for place in _string_places(document):
            comments = []
            for text in (HOSTILE, "plain"):
                with suppress(CallError):
                    comments.append(_comment(tmp_path, _replaced(document, place, text)))
            if len(comments) < 2:  # it is a name, a digest or one of a few words: refused
                continue
            (structure, texts), (plain, _) = map(_structure, comments)
            shown += "approve" in comments[0]

            assert structure == plain, place
            assert all(map(OURS.match, comments[0].splitlines())), place
            assert not any(map(READ.search, texts)), place
    assert shown > 20


@pytest.mark.parametrize("place", [("name",), ("diff", "name"), ("diff", "units", 0, "name")])
@pytest.mark.parametrize("name", ["/approve", "@team", "Team", "a b", "", "a" * 64, "1a", "a\n/approve"])
def test_no_plan_and_no_unit_has_a_forged_name(name, place, changed, tmp_path):
    """A name is one that Kubernetes objects can have."""
    with pytest.raises(CallError, match="R605"):
        _comment(tmp_path, _replaced(changed, place, name))


def test_mistakes_are_shown_as_they_are(tmp_path):
    """Those of a spec that is wrong; a long list is cut."""
    mistake = {"file": HOSTILE, "line": 1, "column": 2, "rule": "S103 x", "message": HOSTILE, "fix": "more keys"}
    comment = _comment(tmp_path, {"valid": False, "errors": [mistake] * 22})

    assert all(map(OURS.match, comment.splitlines()))
    assert not any(map(READ.search, _structure(comment)[1]))
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
