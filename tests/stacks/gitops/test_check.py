"""`tidemill gitops check` in two checkouts: that of the branch, and that of the change."""

import contextlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from stacks.cli import main
from tests.stacks.deployments import write_demo

FOLDER = ("spec.yaml", "deploy")
CHECK = ("gitops", "check", *FOLDER, "--base", "../base")


@pytest.fixture
def head(tmp_path, monkeypatch):
    """The change's checkout, which is the working directory and as yet has no change."""
    for name in ("base", "head"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        write_demo(tmp_path / name)
        main(["render", "spec.yaml", "-o", "deploy"])
    return tmp_path / "head"


def _run(capsys, *words):
    capsys.readouterr()
    status = main(words)
    return status, capsys.readouterr()


def _edit(path, old="port: 8000", new="port: 8001"):
    path.write_text(path.read_text().replace(old, new))


def test_a_rendered_change_passes_and_is_shown(head, capsys):
    """What runs is what the base's folder says, although the own folder has the change already."""
    _edit(head / "spec.yaml")
    main(["render", *FOLDER[:1], "-o", "deploy"])
    status, said = _run(capsys, *CHECK, "--fail-on", "outage,degraded,slo,stale")

    assert status == 0
    assert "  verdict   rolling" in said.out
    assert said.out.endswith("\npassed: outage, degraded, slo, stale\n")


@pytest.mark.parametrize("target", ["expert_load.json", "../base/expert_load.json"])
def test_the_plan_replaces_no_loads_of_either_checkout(head, capsys, target):
    """S904 for -o onto a file that the spec names, here and in the base."""
    before = (head / target).read_bytes()
    status, said = _run(capsys, *CHECK, "-o", target)

    assert (status, "[S904]" in said.err, (head / target).read_bytes()) == (2, True, before)


def test_a_folder_that_was_not_rendered_is_stale(head, capsys):
    """With the condition that is refused, without it the report alone says so; nothing is written either way."""
    _edit(head / "spec.yaml")
    before = {path: path.read_bytes() for path in head.rglob("*") if path.is_file()}
    refused, text = _run(capsys, *CHECK, "--fail-on", "outage,stale")
    allowed, document = _run(capsys, *CHECK, "--format", "json")

    assert (refused, allowed) == (3, 0)
    assert "refused by stale: tidemill render would change 5 files: " in text.out
    assert "service-demo-gateway.yaml" in json.loads(document.out)["stale"]
    assert {path: path.read_bytes() for path in head.rglob("*") if path.is_file()} == before


def test_a_base_that_was_stale_is_named_first(head, capsys):
    """Its pods may be others than its plan says."""
    _edit(head.parent / "base" / "deploy" / "service-demo-gateway.yaml")
    _edit(head / "spec.yaml", "port: 8000", "port: 8002")
    main(["render", *FOLDER[:1], "-o", "deploy"])
    _, said = _run(capsys, *CHECK)
    first = " ".join(said.out.partition("  verdict ")[0].split())

    assert "compared deploy was stale: its spec renders 1 file (service-demo-gateway.yaml) differently" in first


def _manifest_of_decode(checkout):
    (path,) = (checkout / "deploy").glob("*set-demo-decode-0.yaml")
    return path


@pytest.mark.parametrize("base", [("--base", "../base"), ()])
def test_a_unit_that_was_edited_by_hand_restarts_when_its_folder_is_repaired(base, head, capsys):
    """What runs is the edit, not what the plan beside it renders."""
    checkout = head.parent / "base" if base else head
    edited = _manifest_of_decode(checkout)
    image = re.search(r"image: \"(\S+)\"", edited.read_text())[1]
    _edit(edited, image, "by-hand:1")
    _, said = _run(capsys, "gitops", "check", *FOLDER, *base, "--format", "json")
    diff = json.loads(said.out)["diff"]
    changed = {each["name"]: (each["change"], each["values"]) for each in diff["units"] if each["change"] != "kept"}

    assert changed == {"demo-decode-0": ("restarted", {"image": ["by-hand:1", image]})}
    assert diff["verdict"] == "outage"


@pytest.mark.parametrize("text", ["a: [", "", "kind: Deployment\n", None])
def test_a_manifest_that_cannot_be_read_counts_as_another(text, head, capsys):
    """Nobody knows what runs then; a missing one starts a unit."""
    edited = _manifest_of_decode(head.parent / "base")
    if text is None:
        edited.unlink()
    else:
        edited.write_text(edited.read_text().splitlines()[0] + "\n" + text)
    status, said = _run(capsys, *CHECK, "--format", "json")
    units = {each["name"]: each["change"] for each in json.loads(said.out)["diff"]["units"]}

    assert (status, units["demo-decode-0"]) == (0, "new" if not text else "restarted")


@pytest.mark.parametrize(
    "name", ["Kustomization", ".argocd-source.yaml", "aChart.yaml", "templates/a.yaml", "README.md"]
)
def test_a_file_that_nobody_rendered_is_foreign(name, head, capsys):
    """Whatever its name, a GitOps tool may apply something else than was rendered and reviewed."""
    (head / "deploy" / name).parent.mkdir(exist_ok=True)
    (head / "deploy" / name).touch()
    status, said = _run(capsys, *CHECK, "--fail-on", "stale")

    assert status == 3
    assert f"more than the folder, or less: {name}; move that beside it, or undo it" in said.out


@pytest.mark.parametrize("place", [".", "deploy/plan"])
def test_flux_heeds_a_sourceignore_in_every_folder(place, head, capsys):
    """Above the folder or below it, such a file keeps rendered objects from being applied."""
    (head / place / ".sourceignore").write_text("*.yaml\n")
    status, said = _run(capsys, *CHECK, "--fail-on", "stale")
    name = "../.sourceignore" if place == "." else "plan/.sourceignore"

    assert status == 3
    assert f"more than the folder, or less: {name}; move that beside it, or undo it" in said.out


def test_a_folder_may_nest_deeper_than_calls(head, capsys):
    """Who changes a spec chooses how deep its checkout nests."""
    names = ["a"] * 1500
    try:
        with contextlib.chdir(head / "deploy"):
            for name in names:
                os.mkdir(name)
                os.chdir(name)
            Path("b").touch()
        status, said = _run(capsys, *CHECK, "--format", "json")
    finally:
        subprocess.run(["rm", "-r", str(head / "deploy" / "a")], check=True)  # pytest cannot remove it

    assert status == 0
    assert json.loads(said.out)["foreign"] == ["/".join([*names, "b"])]


def test_a_link_in_the_place_of_a_rendered_file_is_refused(head, capsys):
    """What it leads to may change without the folder, and tools treat links in their own ways."""
    (head / "deploy" / "kustomization.yaml").rename(head / "elsewhere.yaml")
    (head / "deploy" / "kustomization.yaml").symlink_to("../elsewhere.yaml")
    status, said = _run(capsys, *CHECK, "--fail-on", "stale")

    assert status == 2
    assert "deploy/kustomization.yaml: must not be a link" in said.err


def test_an_outage_is_refused(head, capsys):
    """Another expert map restarts the only unit of a phase."""
    _edit(head / "spec.yaml", "  redundant_experts: 4", "  redundant_experts: 8")
    main(["render", *FOLDER[:1], "-o", "deploy"])
    status, said = _run(capsys, *CHECK, "--fail-on", "outage,stale", "-o", "plan.json", "--format", "markdown")

    assert status == 3
    assert said.out.startswith("- refused by outage: outage")
    assert "| **outage** | Change of demo" in said.out
    assert json.loads((head / "plan.json").read_text())["name"] == "demo"


def test_an_environment_is_checked_under_its_overlay(head, capsys):
    """A price of the overlay is in the figures before and after; a base without the overlay has none to compare."""
    for checkout, price in ((head.parent / "base", 1), (head, 2)):
        (checkout / "prod.yaml").write_text(f"cost: {{usd_per_gpu_hour: {price}}}")
    check = (*CHECK, "-f", "prod.yaml", "--fail-on", "stale,cost+99%")
    dear, said = _run(capsys, *check)
    (head.parent / "base" / "prod.yaml").unlink()
    unknown, of_none = _run(capsys, *check)

    assert (dear, unknown) == (3, 3)
    assert "refused by cost+99%: a day costs $" in said.out
    assert "refused by cost+99%: what a day costs before the change is unknown" in of_none.out


def test_without_a_base_the_own_folder_is_what_runs(head, capsys):
    """So a change is looked at before it is rendered."""
    _edit(head / "spec.yaml")
    status, said = _run(capsys, "gitops", "check", *FOLDER, "--fail-on", "degraded", "--format", "json")
    report = json.loads(said.out)

    assert (status, report["diff"]["verdict"], report["objections"]) == (0, "rolling", [])


def test_the_first_change_has_nothing_to_compare_with(head, capsys):
    """The base has no folder yet."""
    shutil.rmtree(head.parent / "base" / "deploy")
    status, said = _run(capsys, *CHECK, "--fail-on", "outage,cost+10%,stale", "--format", "json")

    assert status == 0
    assert "diff" not in json.loads(said.out)


@pytest.mark.parametrize("place", ["deploy", "env"])
def test_a_link_that_leads_nowhere_is_no_empty_base(place, head, capsys):
    """Else whoever can have a link merged turns the gate off."""
    base = head.parent / "base"
    (base / "deploy").rename(base / "was")
    (base / place).symlink_to("nowhere")
    folder = "deploy" if place == "deploy" else "env/deploy"
    status, said = _run(capsys, "gitops", "check", "spec.yaml", folder, "--base", "../base", "--format", "json")

    assert status == 2
    assert [each["rule"][:4] for each in json.loads(said.out)["errors"]] == ["R608"]


def test_costs_before_are_those_of_the_bases_spec(head, capsys):
    """A price changes no file, so the folder does not have it; the base's spec does, while the folder is its own."""
    plan = "\ncost: {usd_per_gpu_hour: 1}\n"
    _edit(head.parent / "base" / "spec.yaml", "\ngateway:", f"{plan}gateway:")
    _edit(head / "spec.yaml", "\ngateway:", f"{plan.replace('1', '2')}gateway:")
    dear, said = _run(capsys, *CHECK, "--fail-on", "cost+99%,stale")
    allowed, _ = _run(capsys, *CHECK, "--fail-on", "cost+100%,stale")
    _edit(head.parent / "base" / "spec.yaml")
    unknown, of_another = _run(capsys, *CHECK, "--fail-on", "cost+100%")

    assert (dear, allowed, unknown) == (3, 0, 3)
    assert "refused by cost+99%: a day costs $" in said.out
    assert "refused by cost+100%: what a day costs before the change is unknown" in of_another.out
    assert "figures before the change are unknown" in " ".join(of_another.out.split())


def test_a_lower_price_hides_no_dearer_plan(head, capsys):
    """Two nodes more cost less a day than before at half the price, and two thirds more at the price before."""
    for checkout, cost in ((head.parent / "base", 2), (head, 1)):
        _edit(checkout / "spec.yaml", "\ngateway:", f"\ncost: {{usd_per_gpu_hour: {cost}}}\ngateway:")
    _edit(head / "spec.yaml", "\n  nodes: 3", "\n  nodes: 5")
    _edit(head / "spec.yaml", "\ndecode:", "\ndecode:\n  units: 2")
    main(["render", "spec.yaml", "-o", "deploy"])
    status, said = _run(capsys, *CHECK, "--fail-on", "cost+10%,stale")

    assert status == 3
    assert "refused by cost+10%: a day costs $480 instead of $288, 66.7% more by the base's yardsticks" in said.out
    assert "  yardstick moved: cost.usd_per_gpu_hour 2 -> 1\n" in said.out


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("gitops", "check", "none.yaml", "deploy"), "S101"),
        (("gitops", "check", *FOLDER, "--fail-on", "cost+10%"), "R602"),
        (("gitops", "check", *FOLDER, "--base", "../none"), "R603"),
        (("gitops", "check", "../head/spec.yaml", "deploy", "--base", "../base"), "R604"),
        ((*CHECK, "-f", "../head/spec.yaml"), "R604"),
    ],
)
def test_a_wrong_call_is_refused(words, rule, head, capsys):
    """Also as JSON, with the status of wrong calls."""
    status, said = _run(capsys, *words, "--format", "json")

    assert status == 2
    assert [each["rule"].split()[0] for each in json.loads(said.out)["errors"]] == [rule]


def test_a_base_that_is_wrong_keeps_no_change_out(head, capsys):
    """Its spec is what the change mends; its figures are unknown, and what runs is still known."""
    (head.parent / "base" / "spec.yaml").write_text("version: 1\n")
    status, said = _run(capsys, *CHECK, "--fail-on", "outage,stale")

    assert status == 0
    assert "verdict   no_restart" in said.out


def test_figures_in_a_folder_are_not_believed(head, capsys):
    """Anybody can write a plan with prices into a folder, as `plan -o` does."""
    base = head.parent / "base"
    _edit(base / "spec.yaml", "\ngateway:", "\ncost: {usd_per_gpu_hour: 9}\ngateway:")
    _edit(head / "spec.yaml", "\ngateway:", "\ncost: {usd_per_gpu_hour: 2}\ngateway:")
    main(["plan", str(base / "spec.yaml"), "-o", str(base / "deploy" / "plan.json")])
    (base / "spec.yaml").write_text("version: 1\n")
    status, said = _run(capsys, *CHECK, "--fail-on", "cost+10%")

    assert status == 3
    assert "what a day costs before the change is unknown" in said.out


def test_environments_may_not_share_nodes(head, capsys):
    """The one beside it has units on the same nodes, until one of them has nodes of its own."""
    (head / "other.yaml").write_text("name: other")
    main(["render", "spec.yaml", "-f", "other.yaml", "-o", "other"])
    call = ("gitops", "check", "spec.yaml", "-f", "other.yaml", "other", "--fail-on", "nodes")
    refused, text = _run(capsys, *call)
    (head / "other.yaml").write_text("name: other\ncluster: {nodes: [{name: a}, {name: b}, {name: c}, {name: d}]}")
    allowed, _ = _run(capsys, *call)
    ignored, _ = _run(capsys, "gitops", "check", *FOLDER)

    assert (refused, allowed, ignored) == (3, 0, 0)
    assert "refused by nodes: units of deploy are on 3 nodes of this plan's: node-0, node-1, node-2; give" in text.out


def test_nobody_can_write_other_loads_into_a_folder(head, capsys):
    """A folder names no loads, since nothing follows from them there, and what it does not render is stale."""
    kept = head / "deploy" / "plan" / "plan.yaml"
    has_loads = "expert_load.json" in kept.read_text().partition('"spec"')[0]
    _edit(kept, '"inputs": {', f'"inputs": {{"expert_load.json": "sha256:{"0" * 64}",')
    status, said = _run(capsys, *CHECK, "--fail-on", "stale")

    assert (has_loads, status) == (False, 3)
    assert "refused by stale: tidemill render would change 1 file: plan/plan.yaml" in said.out


def test_a_kustomization_that_may_break_the_folder_is_stale(head, capsys):
    """What it changes may be a name that stands in arguments and launch files."""
    (head / ".git").mkdir()
    (head / "prod").mkdir()
    (head / "prod" / "kustomization.yaml").write_text("resources: [../deploy]\nnamePrefix: prod-\n")
    _, document = _run(capsys, *CHECK, "--format", "json")
    status, _ = _run(capsys, *CHECK, "--fail-on", "stale")

    assert json.loads(document.out)["foreign"] == ["namePrefix of ../prod/kustomization.yaml"]
    assert status == 3


@pytest.mark.parametrize(
    "content", ["resources: [../elsewhere]", "resources: [https://git.example/a.git//deploy]", None]
)
def test_a_kustomization_that_leaves_the_folder_is_stale(content, head, capsys):
    """Tools that apply it would apply something else, at a commit that nobody has checked."""
    for checkout, text in ((head.parent / "base", "resources: [../deploy]"), (head, content)):
        (checkout / ".git").mkdir()
        (checkout / "prod").mkdir()
        if text is not None:
            (checkout / "prod" / "kustomization.yaml").write_text(text)
    status, said = _run(capsys, *CHECK, "--fail-on", "stale")

    assert status == 3
    assert "../prod/kustomization.yaml (which no longer builds on the folder)" in said.out


def test_former_loads_are_those_in_the_bases_checkout(head, capsys):
    """The change may have replaced their file, or removed it as here."""
    rows = json.loads((head / "expert_load.json").read_text())
    (head / "expert_load.json").unlink()
    (head / "new.json").write_text(json.dumps([row[::-1] for row in rows]))
    _edit(head / "spec.yaml", "expert_load.json", "new.json")
    main(["render", "spec.yaml", "-o", "deploy"])
    _, said = _run(capsys, *CHECK)
    text = " ".join(said.out.split())

    assert "yardstick moved: expert_load; nothing else changes, so the verdict is for the new loads alone" in text
    assert "nobody knows" not in text


def test_a_new_time_zone_is_judged(head, capsys):
    """A promise is looked for in the hours of the former clock too."""
    window = '{{at: "00:00", prefill_units: 1, decode_units: 1}}'
    day = f"\nschedule: {{{{timezone: {{}}, windows: [{window}]}}}}\nslo: {{{{ttft_ms: 1}}}}"
    for checkout, zone in ((head.parent / "base", "UTC"), (head, "Asia/Shanghai")):
        with (checkout / "spec.yaml").open("a") as spec:
            spec.write(day.format(zone))
        shutil.rmtree(checkout / "deploy")
        main(["render", str(checkout / "spec.yaml"), "-o", str(checkout / "deploy")])
    status, said = _run(capsys, *CHECK, "--fail-on", "slo,stale")

    assert status == 3
    assert "yardstick moved: schedule.timezone UTC -> Asia/Shanghai" in said.out
    assert "refused by slo: slo.ttft_ms" in said.out


def test_another_image_from_a_kustomization_restarts_pods(head, capsys):
    """It takes the place of the rendered one, so the pods that it ends count like those of a changed spec."""
    for checkout, tag in ((head.parent / "base", 1), (head, 2)):
        (checkout / ".git").mkdir()
        (checkout / "prod").mkdir()
        text = f"resources: [../deploy]\nimages: [{{name: tidemill-runtime, newTag: '{tag}'}}]\n"
        (checkout / "prod" / "kustomization.yaml").write_text(text)
    status, said = _run(capsys, *CHECK, "--fail-on", "outage,stale")

    assert status == 3
    assert "restarted gateway, prefill-0, decode-0: images of ../prod/kustomization.yaml" in " ".join(said.out.split())
    assert "refused by outage: outage" in said.out


@pytest.mark.parametrize("change", ["name: other", "kubernetes: {namespace: other}"])
def test_what_runs_is_not_renamed(change, head, capsys):
    """Service, gateway, controller and units of the old name would end, though those of the new one start."""
    for checkout, text in ((head.parent / "base", "{}"), (head, change)):
        (checkout / "prod.yaml").write_text(text)
    refused, render = _run(capsys, "render", "spec.yaml", "-f", "prod.yaml", "-o", "deploy")
    _, anew = _run(capsys, "render", "spec.yaml", "-f", "prod.yaml", "-o", "deploy", "--anew")
    status, said = _run(capsys, *CHECK, "-f", "prod.yaml")

    assert (refused, status) == (2, 2)
    assert render.err == said.err
    assert "outage" in anew.out
    assert "deploy: must be the folder of" in said.err
    assert "that is a second deployment: keep the old spec and this folder as they are" in said.err
