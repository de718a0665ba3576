"""Figures of a plan that was read are those that this version computes. No file that only a plan names is opened."""

import json
import os
from html import unescape
from pathlib import Path

import pytest

from planner.cli import main
from planner.compiler import run_passes
from planner.diff.figures import COMPUTED, compute_figures
from planner.diff.read import read_pair
from planner.facts import files
from planner.facts.digest import pretty_json
from planner.plan.load import load_plan
from planner.plan.plan import document_digest
from planner.problems.errors import CallError
from planner.report.rows import report_of
from planner.rules.check import change_spec, check_spec
from tests.planner.test_shipped_specs import SPECS

INVENTED = {
    "performance": lambda each: each["decode"]["tpot_ms"].update(mid=1.0),
    "cost": lambda each: each.update(usd_per_day=1.0),
    "balance": lambda each: each["decode"]["gpu_loads"].update(moe_layer=3),
    "failures": lambda each: each["decode"]["node"].update(units=0),
    "memory": lambda each: each["decode"].update(activation_bytes=1),
    "gpu": lambda each: each.update(nic_gbps=10000.0),
    "warnings": lambda each: each.clear(),
    "assumed": lambda each: each.clear(),
}


@pytest.fixture(scope="module")
def spec():
    """A spec of the catalog's model, with a price and a warning."""
    changes = {"cost": {"usd_per_gpu_hour": 2.0}, "kubernetes.image": "tidemill-runtime:0.1.0"}
    return change_spec(check_spec(SPECS / "h800-one-pair.yaml"), changes)


@pytest.fixture(scope="module")
def document(spec):
    """The JSON of its plan."""
    return json.loads(pretty_json(run_passes(spec).plan.as_json()))


def sealed(document):
    """The bytes of a plan whose digests fit, whatever it says."""
    return pretty_json(document | {"document_digest": document_digest(document)}).encode()


def load(document, path):
    return load_plan(sealed(document), path)


@pytest.mark.parametrize("section", INVENTED)
def test_an_invented_figure_is_replaced_and_told(section, document, tmp_path):
    """Whoever edits a figure can seal the plan again: its digest and the document's fit, and the figure does not."""
    invented = json.loads(json.dumps(document))
    INVENTED[section](invented[section])
    honest, edited = load(document, tmp_path), load(invented, tmp_path)
    computed, (note,) = compute_figures(edited, "of this plan")

    assert edited.digest == honest.digest
    assert report_of(computed).rows == report_of(honest).rows
    assert all(getattr(computed, name) == getattr(honest, name) for name in COMPUTED if name != "warnings")
    assert f"figures of this plan are computed anew: its file has others ({section})" in note


def test_a_plan_file_without_its_report_is_refused(document, tmp_path):
    """It passed for a rendered folder's plan, which has no figures to compute, and its own were shown unchecked."""
    with pytest.raises(CallError, match="must be a plan that tidemill wrote; it has no report; "):
        load({name: value for name, value in document.items() if name != "report"}, tmp_path)


@pytest.mark.parametrize(
    "decision",
    [
        {"path": "decode.ep_size", "value": 8},
        {"path": "decode.tpot", "value": 3.1},
        {"path": "decode.units", "value": 2},
    ],
)
def test_a_decision_that_the_spec_does_not_have_is_refused(decision, document, tmp_path):
    """The page lists decisions with their reasons, and the diff those that differ, as the planner's own."""
    decisions = [*document["decisions"], decision | {"why": "as measured on this cluster"}]
    with pytest.raises(CallError, match=f"value .{decision['value']}. must agree with spec; the parts of this plan"):
        load(document | {"decisions": decisions}, tmp_path)


@pytest.mark.parametrize("name", sorted(path.name for path in SPECS.glob("*.yaml")))
def test_an_unedited_plan_stays_as_it_is(name, tmp_path):
    """Each shipped plan, made anew and near itself, with the files that its spec lends: nothing is replaced or told."""
    spec = check_spec(SPECS / name)
    made = run_passes(spec)
    for each in (made, run_passes(spec, made.plan)):
        read = load(json.loads(pretty_json(each.plan.as_json())), tmp_path)
        computed, notes = compute_figures(read, "of this plan", spec)

        assert computed is read
        assert notes == ()


def test_the_page_and_the_diff_show_what_was_computed(document, spec, tmp_path, capsys):
    """The invented price stands nowhere; page, diff and `plan --previous` say that the file has other figures."""
    invented = json.loads(json.dumps(document))
    invented["cost"]["usd_per_day"] = 77_777.0
    (tmp_path / "plan.json").write_bytes(sealed(invented))
    path, page = str(tmp_path / "plan.json"), tmp_path / "page.html"
    assert main(["report", path, "-o", str(page)]) == 0
    assert main(["diff", path, path]) == 0
    assert main(["plan", spec.document.file, "--previous", path]) == 0
    shown, said = unescape(page.read_text()), " ".join(capsys.readouterr().out.split())

    assert "77,777" not in shown + said
    assert "figures of this plan are computed anew: its file has others (cost), edited or of another version" in shown
    assert said.count("figures before the change are computed anew") == 2


@pytest.fixture
def opened(monkeypatch):
    """The paths that are opened while the test runs."""
    found, open_file = [], os.open
    monkeypatch.setattr(files.os, "open", lambda path, *flags: found.append(path) or open_file(path, *flags))
    return found


NAMED = {
    "a config": lambda spec, name: spec | {"model": {"config": name}},
    "loads": lambda spec, name: spec | {"expert_load": {"file": name}},
    "a trace": lambda spec, name: spec | {"traffic": {"input_tokens": 1e9, "output_tokens": 1e9, "trace": name}},
}


@pytest.mark.parametrize("change", NAMED.values(), ids=NAMED)
@pytest.mark.parametrize("inside", [True, False])
def test_a_file_that_only_a_plan_names_is_not_opened(change, inside, document, spec, tmp_path, opened):
    """Not even if it has the digest that the plan states. The figures are the file's then, and a note says so."""
    secret = tmp_path / "secret"
    secret.write_text("{}")
    name = "secret" if inside else str(secret)
    (tmp_path / "spec.yaml").write_text(json.dumps(spec.document.data))
    foreign = document | {"spec": change(document["spec"], name), "inputs": {name: f"sha256:{'0' * 64}"}}
    plan = load(document, tmp_path).with_sections(written=foreign["spec"], inputs=foreign["inputs"])
    kept, (note,) = compute_figures(plan, "before the change", check_spec(tmp_path / "spec.yaml"))

    assert kept is plan
    assert note.endswith(f"nobody has checked them: {name} is not in it, and no file is opened that only a plan names")
    assert secret not in map(Path, opened)


def test_a_change_of_loads_opens_the_new_ones_only(document, spec, tmp_path, opened):
    """What runs was planned for a file of last week. Its units are judged under today's, and the note has no place."""
    rows = json.dumps([[1000 + 10 * (expert % 7) for expert in range(256)] for _ in range(58)])
    for name in ("monday.json", "tuesday.json"):
        (tmp_path / name).write_text(rows if name == "tuesday.json" else rows.replace("1000", "1040"))
        data = spec.document.data | {"expert_load": {"file": name}}
        (tmp_path / name.replace(".json", ".yaml")).write_text(json.dumps(data))
    assert main(["plan", str(tmp_path / "monday.yaml"), "-o", str(tmp_path / "monday.plan")]) == 0
    opened.clear()
    pair = read_pair(tmp_path / "monday.plan", tmp_path / "tuesday.yaml")

    assert {os.path.basename(path) for path in opened} == {"monday.plan", "tuesday.yaml", "tuesday.json"}
    assert pair.judged is not pair.before
    assert not [note for note in pair.notes if "figures before the change" in note]
    assert pair.remeasured.unknown.startswith("monday.json is not opened, because only a plan names it")


def test_speeds_that_measurements_correct_are_told_not_to_be_computed(document, tmp_path):
    """The file of measurements is not in the plan either."""
    correction = {"file": "ours.json", "digest": f"sha256:{'0' * 64}", "num_rows": 1, "factor": 9.0}
    calibrated = json.loads(json.dumps(document))
    calibrated["performance"]["decode"]["calibration"] = correction | {"error_before": 0.1, "error_after": 0.0}
    plan = load(calibrated, tmp_path)
    kept, (note,) = compute_figures(plan, "of this plan")

    assert kept is plan
    assert note.endswith("nobody has checked them: the measurements (ours.json) are not in it")


def test_a_plan_without_figures_has_none_to_compute(spec):
    """Such as a rendered folder's."""
    deployed = run_passes(spec).deployed

    assert compute_figures(deployed, "of this plan") == (deployed, ())
