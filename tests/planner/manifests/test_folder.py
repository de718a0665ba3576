"""The folder of manifests: what somebody changed by hand is not lost in silence."""

import errno
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cli import main
from planner.compiler import compile_plan
from planner.facts.files import MAX_FILE_BYTES
from planner.manifests import folder as writer
from planner.manifests.folder import files_of, kept_plan, stale_files, write_folder
from planner.manifests.render import render_files
from planner.problems.errors import CallError, OutputError
from planner.rules.check import check_spec, with_values
from tests.planner.conftest import SPEC

UNIT = "leaderworkerset-river-decode-0.yaml"


@pytest.fixture(scope="module")
def files(spec_file):
    """The right spec's manifests."""
    return render_files(compile_plan(check_spec(spec_file(SPEC, "rendered.yaml"))))


@pytest.fixture
def folder(files, tmp_path):
    """A folder that was rendered."""
    write_folder(tmp_path / "out", files)
    return tmp_path / "out"


def text_of(folder):
    """File name -> text."""
    return {path.name: path.read_text() for path in folder.iterdir()}


def append(path, text):
    """Change a file as an editor does."""
    path.write_text(path.read_text() + text)


@pytest.mark.parametrize("name", [UNIT, "kustomization.yaml"])
def test_a_file_that_somebody_changed_is_kept(folder, files, name):
    """S913 names it, and nothing in the folder is touched."""
    append(folder / name, "# by hand\n")
    before = text_of(folder)
    with pytest.raises(CallError) as error:
        write_folder(folder, files | {"namespace-tidemill.yaml": "new\n"})

    assert [(problem.rule[:4], Path(problem.file).name) for problem in error.value.findings] == [("S913", name)]
    assert text_of(folder) == before


def test_a_stale_file_that_somebody_changed_is_kept(folder, files):
    """It would be removed, which is a loss too."""
    append(folder / UNIT, "# by hand\n")
    with pytest.raises(CallError):
        write_folder(folder, {name: text for name, text in files.items() if name != UNIT})

    assert (folder / UNIT).read_text().endswith("# by hand\n")


def test_overwrite_replaces_what_somebody_changed(folder, spec_file):
    """As the message offers; without it the command exits with 2."""
    append(folder / UNIT, "# by hand\n")
    words = ["render", str(spec_file(SPEC, "rendered.yaml")), "-o", str(folder)]

    assert (main(words), main([*words, "--overwrite"]), main(words)) == (2, 0, 0)
    assert "by hand" not in (folder / UNIT).read_text()


@pytest.mark.parametrize("name", [UNIT, "kustomization.yaml", "plan.json"])
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


def test_an_interrupted_run_can_be_repeated(folder, files, spec_file, monkeypatch):
    """Wherever it stopped: the folder is still ours, and what is half written is no change by hand."""
    other = SPEC.replace("port: 8000", "port: 8001").replace("runtime:0.1.0", "runtime:0.1.1")
    new = render_files(compile_plan(check_spec(spec_file(other, "other.yaml"))))
    write = writer._write
    for stop_at in range(len(files) + 1):
        calls = iter(range(len(files) + 1))

        def torn(path, text, calls=calls, stop_at=stop_at):
            is_last = next(calls) == stop_at
            write(path, text[: len(text) // 2] if is_last else text)
            if is_last:
                raise KeyboardInterrupt

        monkeypatch.setattr(writer, "_write", torn)
        with pytest.raises(KeyboardInterrupt):
            write_folder(folder, new)
        monkeypatch.setattr(writer, "_write", write)
        write_folder(folder, files)

        assert text_of(folder) == files


def test_a_folder_that_lists_no_digests_is_renewed(folder, files):
    """Nothing is known of it but that it is ours."""
    kustomization = folder / "kustomization.yaml"
    kustomization.write_text(writer._strip_digests(kustomization.read_text()))
    append(folder / UNIT, "# by hand\n")
    write_folder(folder, files)

    assert text_of(folder) == files


@pytest.mark.parametrize("name", [UNIT, "kustomization.yaml.partial"])
def test_nothing_is_written_through_a_link(name, files, folder, tmp_path):
    """The link goes, and what it points to stays."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("precious")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(elsewhere)
    write_folder(folder, files, overwrite=True)

    assert elsewhere.read_text() == "precious"
    assert text_of(folder) == dict(files)


HOSTILE = [
    "resources: 5\n",
    'resources: ["a\\0b"]\n',
    "x: 2020-13-45\nresources: []\n",
    "resources: [2020-99-99]\n",
    "resources: " + "[" * 200_000 + "\n",
    'resources: ["", ".", ".."]\n',
    "- 1\n",
]


@pytest.mark.slow
@pytest.mark.parametrize("text", HOSTILE)
def test_a_list_that_names_no_files_is_replaced(text, files, tmp_path):
    """Its first line says that the folder is ours; what follows may be anything."""
    (tmp_path / "kustomization.yaml").write_text(f"{writer.MARK}\n{text}")

    write_folder(tmp_path, files)

    assert text_of(tmp_path) == dict(files)


def test_a_list_reaches_no_file_outside_its_folder(files, tmp_path):
    """Whether somebody changed that is not ours to say."""
    folder = tmp_path / "out"
    folder.mkdir()
    outside = tmp_path / "precious"
    outside.write_text("mine")
    entry = f'  - "../precious"  # sha256:{"0" * 64}'
    (folder / "kustomization.yaml").write_text(f"{writer.MARK}\nresources:\n{entry}\n")

    write_folder(folder, files)

    assert outside.read_text() == "mine"
    assert text_of(folder) == dict(files)


def test_two_runs_at_once_do_not_mix(folder, files, monkeypatch):
    """Whoever comes into the middle of a run is told (S903), and the folder is the first one's as a whole."""
    write, refused = writer._write, []

    def disturbed(path, text):
        write(path, text)
        with pytest.raises(OutputError, match=r"another tidemill render is writing into it.*S903") as error:
            write_folder(folder, {**files, "namespace-other.yaml": "new\n"}, overwrite=True)
        refused.append(error)

    monkeypatch.setattr(writer, "_write", disturbed)
    write_folder(folder, files)

    assert len(refused) == len(files) + 1  # the list is written twice
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


def render(spec, folder, **options):
    """Render a spec as the command does: near the plan that the folder keeps."""
    kept = kept_plan(folder)
    plan = compile_plan(spec, kept)
    write_folder(folder, files_of(plan, kept), **options)
    return plan


@settings(max_examples=6)
@given(changes=st.lists(st.sampled_from(VARIANTS), min_size=2, max_size=4))
def test_rendering_twice_changes_nothing(changes, spec_file, tmp_path_factory):
    """Whatever plans the folder kept before, each spec's second run finds the files that its first one wrote."""
    folder, spec = tmp_path_factory.mktemp("kept"), check_spec(spec_file(SPEC, "rendered.yaml"))
    for change in changes:
        render(with_values(spec, change), folder)
        first = text_of(folder)
        render(with_values(spec, change), folder)

        assert text_of(folder) == first


def test_what_runs_stays_where_it_is(spec_file, tmp_path):
    """One more unit leaves the others on their nodes; a run anew may move them."""
    spec = check_spec(spec_file(SPEC, "rendered.yaml"))
    before = render(spec, tmp_path)
    after = render(with_values(spec, MORE_UNITS), tmp_path)

    assert before.nodes_by_unit.items() <= after.nodes_by_unit.items()
    assert compile_plan(with_values(spec, MORE_UNITS)).nodes_by_unit != after.nodes_by_unit


def test_a_price_changes_no_file(spec_file, tmp_path):
    """The folder's plan is renewed with what is deployed, and not with what that costs."""
    spec = check_spec(spec_file(SPEC, "rendered.yaml"))
    render(spec, tmp_path)
    before = text_of(tmp_path)
    render(with_values(spec, {"cost": {"usd_per_gpu_hour": 2.0}}), tmp_path)

    assert text_of(tmp_path) == before


def test_the_command_says_what_the_change_does(spec_file, tmp_path, capsys):
    """The first run has nothing to compare with; `--anew` looks at no plan of before."""
    old, new = (str(spec_file(SPEC.replace("8000", port), f"{port}.yaml")) for port in ("8000", "8001"))
    words = ["-o", str(tmp_path / "out")]
    said = []
    for call in ([old], [new], [old, "--anew"]):
        assert main(["render", *call, *words]) == 0
        said.append(capsys.readouterr().out.splitlines()[1:])

    assert said == [[], ["rolling: every unit goes on serving; takes 2 min"], []]


def test_a_folder_is_a_plan(spec_file, tmp_path, capsys):
    """`diff`, `render` and `--previous` take it; one without a plan is refused with what to do."""
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

    (tmp_path / "out" / "plan.json").unlink()
    capsys.readouterr()

    assert (main(["diff", folder, new]), main(["render", old, "-o", folder])) == (2, 0)
    assert "render its spec into the folder again [S905]" in capsys.readouterr().err


def test_a_plan_that_somebody_edited_stops_the_run(spec_file, tmp_path, capsys):
    """Its digest names it, and `--anew` replaces it; a file of that name that is no plan is somebody else's."""
    words = ["render", str(spec_file(SPEC, "rendered.yaml")), "-o", str(tmp_path / "out")]
    main(words)
    plan = tmp_path / "out" / "plan.json"
    plan.write_text(plan.read_text().replace("node-0", "node-9"))

    assert (main(words), main([*words, "--anew"]), main(words)) == (2, 0, 0)
    assert "render with --anew to plan as if nothing ran [S909]" in capsys.readouterr().err

    plan.write_text("my plan for today")

    assert (main(words), main([*words, "--anew"])) == (2, 2)
    assert plan.read_text() == "my plan for today"


def _remove_a_unit(folder):
    (folder / UNIT).unlink()


def _edit_a_unit(folder):
    append(folder / UNIT, "# by hand\n")


def _list_one_more(folder):
    (folder / "old.yaml").write_text("old\n")
    kustomization = folder / "kustomization.yaml"
    kustomization.write_text(kustomization.read_text().replace("resources:\n", 'resources:\n  - "old.yaml"\n'))


@pytest.mark.parametrize("change", [lambda _: None, _remove_a_unit, _edit_a_unit, _list_one_more])
def test_stale_files_are_those_that_writing_changes(change, folder, files):
    """Written, edited and removed ones alike; to ask changes nothing."""
    change(folder)
    before = text_of(folder)
    stale = stale_files(folder, files)

    assert text_of(folder) == before
    write_folder(folder, files, overwrite=True)
    after = text_of(folder)
    assert stale == tuple(sorted(name for name in before | after if before.get(name) != after.get(name)))


def test_of_a_folder_that_is_not_there_every_file_is_stale(files, tmp_path):
    """It is not made either."""
    assert stale_files(tmp_path / "none", files) == tuple(sorted(files))
    assert not (tmp_path / "none").exists()
