"""The folder of manifests: it is ours as a whole, and what somebody changed by hand is not replaced in silence."""

import errno
import json
from contextlib import nullcontext
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cli import main
from planner.compiler import compile_plan
from planner.facts.files import MAX_FILE_BYTES
from planner.facts.stamp import add_stamp
from planner.manifests import folder as writer
from planner.manifests.folder import files_of, kept_plan, stale_files, write_folder
from planner.problems.errors import CallError, OutputError
from planner.rules.check import change_spec, check_spec
from stacks import cli
from tests.planner.conftest import SPEC

UNIT = "leaderworkerset-river-decode-0.yaml"
PLANNED_UNIT = "plan/river-decode-0.yaml"


@pytest.fixture(scope="module")
def files(spec_file):
    """The right spec's manifests."""
    return files_of(compile_plan(check_spec(spec_file(SPEC, "rendered.yaml"))), None)


@pytest.fixture
def folder(files, tmp_path):
    """A folder that was rendered."""
    write_folder(tmp_path / "out", files)
    return tmp_path / "out"


def text_of(folder):
    """File name -> text."""
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def append(path, text):
    """Change a file as an editor does."""
    path.write_text(path.read_text() + text)


@pytest.mark.parametrize("name", [UNIT, "kustomization.yaml"])
def test_a_file_that_somebody_changed_is_replaced_and_named(name, spec_file, tmp_path, capsys):
    """A merge looks the same, and must not stop the next run. Without an edit nothing is named."""
    words = ["render", str(spec_file(SPEC, "rendered.yaml")), "-o", str(tmp_path / "out")]
    said = []
    for edit in ("", "# by hand\n", ""):
        if (tmp_path / "out").exists():
            append(tmp_path / "out" / name, edit)
        assert main(words) == 0
        said.append(capsys.readouterr().err)

    assert said == ["", f"replaced files that were edited, merged or of another version: {name}\n", ""]
    assert "by hand" not in (tmp_path / "out" / name).read_text()


@pytest.mark.parametrize("name", [UNIT, "kustomization.yaml", PLANNED_UNIT])
def test_a_file_that_is_longer_than_any_of_ours_is_not_read(folder, files, name):
    """S902 names it: one of zeros takes no room in a repository, and would fill the memory of who renders."""
    with (folder / name).open("a") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(CallError) as error:
        write_folder(folder, files)

    (problem,) = error.value.findings
    assert (problem.id, problem.file, problem.reason) == ("S902", str(folder / name), "it has more than 64 MiB")


def test_other_line_ends_are_no_change(folder, files):
    """Git writes CRLF on some machines."""
    (folder / UNIT).write_text((folder / UNIT).read_text(), newline="\r\n")

    write_folder(folder, files)


def test_an_interrupted_run_can_be_repeated(files, spec_file, tmp_path, monkeypatch):
    """Wherever it stopped, a first run too: the folder is still ours, and no file of it looks changed by hand."""
    other = SPEC.replace("port: 8000", "port: 8001").replace("runtime:0.1.0", "runtime:0.1.1")
    new = files_of(compile_plan(check_spec(spec_file(other, "other.yaml"))), None)
    write = writer._write_file
    for stop_at in range(len(files)):

        def torn(calls, folder, name, text, stop_at=stop_at):
            if next(calls) == stop_at:
                (folder / writer.PARTIAL).write_text(text[: len(text) // 2])
                raise KeyboardInterrupt
            write(folder, name, text)

        for folder in (tmp_path / f"first-{stop_at}", tmp_path / "again"):
            calls = iter(range(len(files)))
            monkeypatch.setattr(writer, "_write_file", partial(torn, calls))
            with pytest.raises(KeyboardInterrupt):
                write_folder(folder, new)
            monkeypatch.setattr(writer, "_write_file", write)
            write_folder(folder, files)

            assert text_of(folder) == files


@pytest.mark.parametrize("name", [UNIT, writer.PARTIAL, PLANNED_UNIT])
def test_nothing_is_written_through_a_link(name, files, folder, tmp_path):
    """What it points to stays; a link in place of a file of ours is somebody's, and refused (S902)."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("precious")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(elsewhere)
    with nullcontext() if name == writer.PARTIAL else pytest.raises(CallError, match="S902"):
        write_folder(folder, files)

    assert elsewhere.read_text() == "precious"


def test_no_plan_is_written_through_a_linked_folder(files, folder, tmp_path):
    """S901 names the link; what it points to is somebody else's."""
    (folder / "plan").rename(tmp_path / "elsewhere")
    (folder / "plan").symlink_to(tmp_path / "elsewhere")
    before = text_of(tmp_path / "elsewhere")
    with pytest.raises(CallError, match=r"plan: must be a folder; it is a link.*S901"):
        write_folder(folder, files | {PLANNED_UNIT: "new"})

    assert text_of(tmp_path / "elsewhere") == before


def test_two_runs_at_once_do_not_mix(folder, files, monkeypatch):
    """Whoever comes into the middle of a run is told (S903), and the folder is the first one's as a whole."""
    write, refused = writer._write_file, []

    def disturbed(*words):
        write(*words)
        with pytest.raises(OutputError, match=r"another tidemill render is writing into it.*S903") as error:
            write_folder(folder, {**files, "namespace-other.yaml": "new\n"})
        refused.append(error)

    monkeypatch.setattr(writer, "_write_file", disturbed)
    write_folder(folder, files)

    assert len(refused) == len(files)
    assert text_of(folder) == files


def test_a_file_system_without_locks_of_folders_is_written(files, tmp_path, monkeypatch):
    """NFS locks what is open for writing, which no folder is."""

    def flock(*_):
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(writer.fcntl, "flock", flock)
    write_folder(tmp_path, files)

    assert text_of(tmp_path) == files


@pytest.mark.parametrize("below", ["", "a/b"])
@pytest.mark.parametrize("leads_to", ["nowhere", "link"])
def test_a_link_that_leads_nowhere_is_named(below, leads_to, files, tmp_path):
    """S901 names the link, be it a folder's above; nothing is made where it points to."""
    (tmp_path / "link").symlink_to(tmp_path / leads_to)
    with pytest.raises(CallError, match=rf"{tmp_path}/link: must be a folder; it is a link that leads nowhere.*S901"):
        write_folder(tmp_path / "link" / below, files)

    assert [path.name for path in tmp_path.iterdir()] == ["link"]


MORE_UNITS = {"cluster.nodes": 5, "prefill.units": 2}
VARIANTS = (
    {},
    MORE_UNITS,
    {"cluster.nodes": 6, "decode.redundant_experts": 0},
    {"expert_load.seed": 7},
    {"prefill.redundant_experts": 8, "expert_load.seed": 3},
    {"gateway.port": 8001},
)


def render(spec, folder):
    """Render a spec as the command does: near the plan that the folder keeps."""
    kept = kept_plan(folder)
    plan = compile_plan(spec, kept)
    write_folder(folder, files_of(plan, kept))
    return plan


@settings(max_examples=6)
@given(changes=st.lists(st.sampled_from(VARIANTS), min_size=2, max_size=4))
def test_rendering_twice_changes_nothing(changes, spec_file, tmp_path_factory):
    """Whatever plans the folder kept before, each spec's second run finds the files that its first one wrote."""
    folder, spec = tmp_path_factory.mktemp("kept"), check_spec(spec_file(SPEC, "rendered.yaml"))
    for change in changes:
        render(change_spec(spec, change), folder)
        first = text_of(folder)
        render(change_spec(spec, change), folder)

        assert text_of(folder) == first


def test_running_units_keep_their_nodes(spec_file, tmp_path):
    """One more unit leaves the others on their nodes; with `--anew` they may move."""
    spec = check_spec(spec_file(SPEC, "rendered.yaml"))
    before = render(spec, tmp_path)
    after = render(change_spec(spec, MORE_UNITS), tmp_path)

    assert before.nodes_by_unit.items() <= after.nodes_by_unit.items()
    assert compile_plan(change_spec(spec, MORE_UNITS)).nodes_by_unit != after.nodes_by_unit


def test_a_price_changes_no_file(spec_file, tmp_path):
    """The folder's plan is renewed with what is deployed, and not with what that costs."""
    spec = check_spec(spec_file(SPEC, "rendered.yaml"))
    render(spec, tmp_path)
    before = text_of(tmp_path)
    render(change_spec(spec, {"cost": {"usd_per_gpu_hour": 2.0}}), tmp_path)

    assert text_of(tmp_path) == before


def test_the_command_says_what_the_change_does(spec_file, tmp_path, capsys):
    """The first run has nothing to compare with; `--anew` plans as if nothing ran, and says what that does."""
    old, new = (str(spec_file(SPEC.replace("8000", port), f"{port}.yaml")) for port in ("8000", "8001"))
    words = ["-o", str(tmp_path / "out")]
    said = []
    for call in ([old], [new], [old, "--anew"]):
        assert main(["render", *call, *words]) == 0
        said.append(capsys.readouterr().out.splitlines()[1:])

    assert said == [[], *[["rolling: every unit goes on serving; takes 2 min", "at least one gateway stays up"]] * 2]


DAY = """\
schedule:
  windows: [{at: "08:00", prefill_units: 2, decode_units: 2}, {at: "20:00", prefill_units: 1, decode_units: 1}]
traffic: {input_tokens: 1.0e+9, output_tokens: 1.0e+6}
"""


@pytest.mark.parametrize("more", ["", "  controller: {turns: now}\n"])
def test_a_change_is_judged_by_the_days_demand(more, spec_file, tmp_path, capsys):
    """`render`, `diff` and `gitops check` call the same restart rolling, since the units that are left are enough."""
    spec = SPEC.replace("gpu: cpu", "gpu: h800").replace("fp32", "fp8").replace("bundled:demo", "/models/river")
    spec = spec.replace("nodes: 3", "nodes: 12").replace("  units: 1\n", "") + more + DAY
    old, new = (str(spec_file(spec.replace("0.1.0", image), f"{image}.yaml")) for image in ("0.1.0", "0.2.0"))
    folder, ways = str(tmp_path / "out"), []
    main(["render", old, "-o", folder])
    for words in (["gitops", "check", new, folder], ["diff", folder, new], ["render", new, "-o", folder]):
        capsys.readouterr()
        cli.main([*words, "--format", "json"])
        found = json.loads(capsys.readouterr().out)
        ways.append(found.get("diff", found)["ways"])

    assert ways[0]["pulumi"]["verdict"] == "rolling"
    assert ways[1:] == ways[:1] * 2


@pytest.mark.parametrize(
    ("key", "other", "whose"),
    [("name", "lake", "lake in namespace tidemill"), ("namespace", "prod", "river in namespace prod")],
)
def test_a_folder_of_another_name_is_left_alone(key, other, whose, spec_file, tmp_path, capsys):
    """Somebody may have left out -f: S902 says whose folder it is, and `--anew` replaces it."""
    spec = spec_file(SPEC, "rendered.yaml")
    overlay = spec_file(f"{key}: {other}\n" if key == "name" else f"kubernetes: {{{key}: {other}}}\n", f"{key}.yaml")
    folder = str(tmp_path / "out")
    main(["render", str(spec), "-f", str(overlay), "-o", folder])
    before = text_of(tmp_path / "out")
    for words in (["render", str(spec), "-o", folder], ["gitops", "check", str(spec), folder]):
        capsys.readouterr()

        assert cli.main(words) == 2
        assert f"must be the folder of river in namespace tidemill; it is that of {whose}" in capsys.readouterr().err

    assert text_of(tmp_path / "out") == before
    assert cli.main(["gitops", "check", str(spec), folder, "-f", str(overlay)]) == 0
    assert main(["render", str(spec), "-o", folder, "--anew"]) == 0


def test_a_folder_is_a_plan(spec_file, tmp_path, capsys):
    """`diff`, `render` and `--previous` take it."""
    old, new = (str(spec_file(SPEC.replace("8000", port), f"{port}.yaml")) for port in ("8000", "8001"))
    folder = str(tmp_path / "out")
    main(["render", old, "-o", folder])
    calls = (
        ["diff", folder, new],
        ["render", folder, "-o", str(tmp_path / "copy")],
        ["plan", new, "--previous", folder],
    )

    assert [main(call) for call in calls] == [0, 0, 0]
    assert text_of(tmp_path / "copy") == text_of(tmp_path / "out")


@pytest.mark.parametrize("name", ["plan/plan.yaml", UNIT])
def test_a_folder_is_carried_out_only_as_reviewers_saw_it(name, folder, spec_file, tmp_path, capsys):
    """S908 names manifests that its plan would not render; a diff compares the plan, and says so."""
    (folder / name).write_text((folder / name).read_text().replace("runtime:0.1.0", "runtime:9"))
    given, out = str(folder), str(tmp_path / "copy")
    for words in (["render", given, "-o", out], ["up", given, "--detach"]):
        assert cli.main(words) == 2
        assert f"{folder / UNIT}: must agree with the plan beside it" in capsys.readouterr().err

    assert cli.main(["diff", given, str(spec_file(SPEC, "rendered.yaml"))]) == 0
    assert "manifests were edited, merged" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("left", "runs"), [("plan.json", "{folder}/plan.json"), ("none", "PLAN.json, the plan of ")])
def test_a_folder_of_an_earlier_version_is_told_what_to_do(left, runs, folder, spec_file, capsys):
    """S905: planned as if nothing ran, units that run would move; so no command does that unasked."""
    spec = str(spec_file(SPEC, "rendered.yaml"))
    main(["plan", spec, "-o", str(folder / left)])
    for path in (folder / "plan").iterdir():
        path.unlink()
    for words in (
        ["render", spec, "-o", str(folder)],
        ["gitops", "check", spec, str(folder)],
        ["diff", str(folder), spec],
    ):
        capsys.readouterr()

        assert cli.main(words) == 2
        assert f"into a new folder with --previous {runs.format(folder=folder)}" in capsys.readouterr().err

    assert main(["render", spec, "-o", str(folder), "--anew"]) == 0


def test_a_plan_that_somebody_edited_stops_the_run(spec_file, tmp_path, capsys):
    """Its file's digest names it, and `--anew` replaces it."""
    words = ["render", str(spec_file(SPEC, "rendered.yaml")), "-o", str(tmp_path / "out")]
    main(words)
    unit = tmp_path / "out" / PLANNED_UNIT
    unit.write_text(unit.read_text().replace("node-1", "node-9"))

    assert main(words) == 2
    assert f"{PLANNED_UNIT}: must match the digest in its first line" in capsys.readouterr().err
    assert [main([*words, "--anew"]), main(words)] == [0, 0]


def _remove_a_unit(folder):
    (folder / UNIT).unlink()


def _edit_a_unit(folder):
    append(folder / UNIT, "# by hand\n")


def _keep_one_more(folder):
    (folder / "plan" / "old.yaml").write_text(add_stamp("old\n"))
    (folder / "readme.yaml").write_text("not ours\n")


@pytest.mark.parametrize("change", [lambda _: None, _remove_a_unit, _edit_a_unit, _keep_one_more])
def test_stale_files_are_those_that_writing_changes(change, folder, files):
    """Written, edited and removed ones alike; to ask changes nothing."""
    change(folder)
    before = text_of(folder)
    stale = stale_files(folder, files)

    assert text_of(folder) == before
    write_folder(folder, files)
    after = text_of(folder)
    assert stale == tuple(sorted(name for name in before | after if before.get(name) != after.get(name)))


def test_of_a_folder_that_is_not_there_every_file_is_stale(files, tmp_path):
    """It is not made either."""
    assert stale_files(tmp_path / "none", files) == tuple(sorted(files))
    assert not (tmp_path / "none").exists()
