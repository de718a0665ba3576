"""`tidemill diff`, and what `tidemill plan --previous` says beside the plan."""

import json

import pytest

from planner.cli import main
from planner.diff.read import NEW_IS_PLANNED, OLD_IS_PLANNED
from tests.planner.test_shipped_specs import SPECS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The demo's spec and plan, and a spec with another port."""
    folder = tmp_path_factory.mktemp("diff")
    text = (SPECS / "demo.yaml").read_text().replace("../../runtime", str(SPECS.parents[1] / "runtime"))
    (folder / "old.yaml").write_text(text)
    (folder / "new.yaml").write_text(text.replace("port: 8000", "port: 8001"))
    main(["plan", str(folder / "old.yaml"), "-o", str(folder / "old.json")])
    return folder


def _run(capsys, *words):
    capsys.readouterr()
    status = main([str(word) for word in words])
    return status, capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "notes"), [("old.json", [NEW_IS_PLANNED]), ("old.yaml", [OLD_IS_PLANNED, NEW_IS_PLANNED])]
)
def test_specs_are_planned_and_the_change_says_so(old, notes, folder, capsys):
    """A plan is taken as it stands; either way the gateway alone restarts."""
    status, out = _run(capsys, "diff", folder / old, folder / "new.yaml", "--format", "json")
    change = json.loads(out)

    assert (status, change["verdict"]) == (0, "rolling")
    assert change["compared"] == notes
    assert {each["name"]: each["why"] for each in change["units"] if each["change"] == "restarted"} == {
        "demo-gateway": ["ports"]
    }


def test_it_is_written_in_three_ways(folder, capsys):
    """Text, markdown and JSON say the same verdict."""
    shown = [
        _run(capsys, "diff", folder / "old.json", folder / "new.yaml", f"--format={form}")[1]
        for form in ("text", "markdown", "json")
    ]

    assert "  verdict   rolling: every unit goes on serving" in shown[0]
    assert "| verdict | rolling: every unit goes on serving" in shown[1]
    assert json.loads(shown[2])["verdict"] == "rolling"


def test_a_plan_beside_another_ends_with_the_change(folder, capsys):
    """Without `--previous` there is nothing to compare with."""
    _, alone = _run(capsys, "plan", folder / "new.yaml")
    _, beside = _run(capsys, "plan", folder / "new.yaml", "--previous", folder / "old.json")

    assert "verdict" not in alone
    assert "restarted gateway: ports" in beside


def test_the_plans_json_has_the_change_and_is_still_a_plan(folder, capsys):
    """`diff` is covered by the document's digest; the plan that `-o` writes is the plan alone."""
    words = ("plan", folder / "new.yaml", "--previous", folder / "old.json", "--format=json", "-o", folder / "new.json")
    _, beside = _run(capsys, *words)
    (folder / "beside.json").write_text(beside)
    (folder / "edited.json").write_text(beside.replace('"verdict": "rolling"', '"verdict": "no_restart"'))
    _, change = _run(capsys, "diff", folder / "old.json", folder / "beside.json", "--format=json")
    status, _ = _run(capsys, "diff", folder / "old.json", folder / "edited.json")

    same = {"compared": None}  # a plan's own file lends it nothing
    assert json.loads(beside)["diff"] | same == json.loads(change) | same
    assert "diff" not in json.loads((folder / "new.json").read_text())
    assert status == 2


def test_a_plan_that_cannot_run_is_refused(folder, capsys):
    """The status is that of `render`: there are no pods to compare."""
    text = (folder / "old.yaml").read_text()
    (folder / "bare.yaml").write_text(text.replace("  checkpoint: bundled:demo ", "  # "))
    status, _ = _run(capsys, "diff", folder / "old.json", folder / "bare.yaml")
    beside, out = _run(capsys, "plan", folder / "bare.yaml", "--previous", folder / "old.json")

    assert status == 3
    assert (beside, "verdict" in out) == (0, False)


@pytest.mark.parametrize(
    "words",
    [("diff", "old.yaml", "same.yaml"), ("report", "old.yaml", "--previous", "same.yaml")],
    ids=lambda each: each[0],
)
def test_a_spec_is_not_compared_with_itself(words, folder, capsys):
    """It does not say what runs, whatever name the file has and whatever overlays are read with it."""
    (folder / "same.yaml").unlink(missing_ok=True)
    (folder / "same.yaml").symlink_to(folder / "old.yaml")
    (folder / "image.yaml").write_text("gateway: {port: 8003}")
    paths = [folder / word if word.endswith("yaml") else word for word in words]

    assert main([*map(str, paths), "-f", str(folder / "image.yaml")]) == 2
    assert "must not be both OLD and NEW" in capsys.readouterr().err


def test_overlays_of_both_sides_are_named(folder, capsys):
    """Whoever changed the overlay itself would see no change, so that comes before the verdict."""
    (folder / "prod.yaml").write_text("gateway: {port: 8002}")
    _, out = _run(capsys, "diff", folder / "old.yaml", folder / "new.yaml", "-f", folder / "prod.yaml")
    first, verdict = out.index("compared  OLD and NEW are both read under"), out.index("verdict   no_restart")

    assert first < verdict
    assert "prod.yaml" in out[first:verdict]


def test_rendering_says_what_it_changed(folder, capsys):
    """As text and as JSON: nothing the second time."""
    words = ("render", folder / "old.yaml", "-o", folder / "deploy")
    said = [_run(capsys, *words)[1] for _ in range(2)]
    document = json.loads(_run(capsys, "render", folder / "new.yaml", "-o", folder / "deploy", "--format=json")[1])

    assert [each.splitlines()[0].rpartition(", ")[2] for each in said] == ["24 changed", "unchanged"]
    assert {"plan/plan.yaml", "service-demo-gateway.yaml"} <= set(document["changed"]) < set(document["files"])
