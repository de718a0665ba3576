"""Two changes of one folder, made on two branches: plain `git merge` joins them, and what it made is a plan."""

import subprocess
from itertools import combinations

import pytest

from planner.cli import main
from planner.compiler import run_passes
from planner.manifests.folder import files_of, kept_plan, stale_files, write_folder
from planner.plan.spread import join_plan
from planner.problems.errors import CallError
from planner.rules.check import change_spec, check_spec
from tests.planner.conftest import SPEC

WINDOWS = [
    {"at": "08:00", "prefill_units": 2, "decode_units": 2},
    {"at": "20:00", "prefill_units": 1, "decode_units": 1},
]
BASE = {"cluster.nodes": 12, "decode.units": None, "schedule.windows": WINDOWS, "kubernetes.controller": {"heal": {}}}
MORE_DECODE = [WINDOWS[0] | {"decode_units": 3}, WINDOWS[1]]
MORE_PREFILL = [WINDOWS[0] | {"prefill_units": 3}, WINDOWS[1]]
CHANGES = {
    "loads": {"expert_load.seed": 1},
    "decode unit": {"schedule.windows": MORE_DECODE},
    "port": {"gateway.port": 8001},
    "image": {"kubernetes.image": "runtime:2"},
    "prefill map": {"prefill.redundant_experts": 8},
}


@pytest.fixture(scope="module")
def spec(spec_file):
    """A day with a controller that heals: as many files as possible name units and nodes."""
    return change_spec(check_spec(spec_file(SPEC.replace("  units: 1\n", ""), "merged.yaml")), BASE)


def git(folder, *words):
    """Run git in the folder and return its exit status."""
    as_somebody = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *as_somebody, *words], cwd=folder, capture_output=True).returncode


def render(spec, folder):
    """Render as the command does, near what the folder keeps."""
    kept = kept_plan(folder)
    files = files_of(run_passes(spec, kept).deployed, kept)
    stale = stale_files(folder, files)
    write_folder(folder, files)
    return stale


def branches(spec, folder, *changes):
    """Commit the spec's folder, and each change of it on a branch of its own. Return the status of the merge."""
    render(spec, folder)
    git(folder, "init", "-q", "-b", "main")
    for number, change in enumerate(changes):
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", "change")
        git(folder, "checkout", "-q", "main") if number else None
        git(folder, "checkout", "-qb", f"branch-{number}")
        render(change_spec(spec, change), folder)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "change")
    return git(folder, "merge", "-q", "-m", "merge", "branch-0")


PAIRS = [each for each in combinations(CHANGES, 2) if each != ("loads", "prefill map")]


@pytest.mark.parametrize("names", PAIRS, ids=" and ".join)
def test_two_changes_merge(names, spec, tmp_path):
    """What Git makes is a plan, with the nodes of all units; rendering it once more changes nothing.

    Only a new unit may be stale: of what the other branch changed in all units, it has the old state.
    """
    folder, both = tmp_path / "deploy", CHANGES[names[0]] | CHANGES[names[1]]
    assert branches(spec, folder, *(CHANGES[name] for name in names)) == 0
    merged = join_plan(folder)
    stale = render(change_spec(spec, both), folder)

    assert {name for name in stale if "decode-2" not in name} == set()
    assert (len(merged.units_of("decode")), render(change_spec(spec, both), folder)) == (
        3 if "decode unit" in names else 2,
        (),
    )


CONFLICTS = {
    "units that take the same free nodes": ({"schedule.windows": MORE_DECODE}, {"schedule.windows": MORE_PREFILL}),
    "maps of one phase": (CHANGES["loads"], CHANGES["prefill map"]),
}


@pytest.mark.parametrize("kind", CONFLICTS)
def test_changes_that_cannot_both_be_do_not_merge(kind, spec, tmp_path):
    """Git says so, what it leaves is no plan, and the folder of either branch is a start for both changes."""
    folder, (one, two) = tmp_path / "deploy", CONFLICTS[kind]

    assert branches(spec, folder, one, two) != 0
    with pytest.raises(CallError):
        join_plan(folder)
    git(folder, "rm", "-rfq", ".")
    git(folder, "checkout", "branch-0", "--", ".")

    assert join_plan(folder).units
    assert render(change_spec(spec, two), folder)


def test_two_new_units_on_the_same_nodes_are_named(spec_file, tmp_path, capsys):
    """Git merges their files, which are two; S908 says which units share nodes, and how to render one of them anew."""
    path, folder = spec_file(SPEC.replace("nodes: 3", "nodes: 9"), "merged.yaml"), tmp_path / "deploy"
    spec = change_spec(check_spec(path), {"prefill.units": 1})
    both = {"prefill.units": 2}, {"decode.units": 2}

    assert branches(spec, folder, *both) == 0
    assert main(["render", str(path), "-o", str(folder)]) == 2
    said = capsys.readouterr().err
    assert 'nodes (["node-3", "node-4"]) must agree with river-prefill-1, which also has node-3' in said
    assert f"git rm -rfq {folder} && git checkout BRANCH -- {folder}" in said
    assert "--anew" not in said


def test_the_folder_is_folded(spec, tmp_path):
    """GitHub and GitLab go by these attributes of every file, the plan's too."""
    branches(spec, tmp_path / "deploy")
    words = ["git", "check-attr", "linguist-generated", "gitlab-generated", "--"]
    files = ["deployment-river-gateway.yaml", "plan/plan.yaml"]
    said = subprocess.run([*words, *files], cwd=tmp_path / "deploy", capture_output=True, text=True, check=True).stdout

    assert [line.endswith(": set") for line in said.splitlines()] == [True] * 4


def test_a_comment_and_an_estimate_change_no_file(spec_file, tmp_path, monkeypatch):
    """Nor does another version of tidemill that writes the same manifests: no file names a version."""
    folder = tmp_path / "deploy"
    gpu = SPEC.replace("gpu: cpu", "gpu: h800").replace("fp32", "fp8").replace("bundled:demo", "/models/river")
    main(["render", str(spec_file(gpu, "quiet.yaml")), "-o", str(folder)])
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    monkeypatch.setattr("planner.layout.memory.SOURCES", {"context": "another", "cuda_graphs": "x", "headroom": "x"})
    monkeypatch.setattr("planner.schedule.starts.MAPS_S", 60.0)
    main(["render", str(spec_file(f"# why\n{gpu}", "quiet.yaml")), "-o", str(folder)])

    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before
