"""A plan as the files of a rendered folder: what is read is what was written, and nothing else is accepted."""

import json
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.compiler import run_passes
from planner.facts.digest import pretty_json
from planner.facts.stamp import add_stamp, split_stamp
from planner.manifests.render import render_files
from planner.plan.plan import Plan
from planner.plan.spread import SHARED_FILE, join_plan, spread_plan
from planner.problems.errors import CallError
from planner.rules.check import check_spec
from tests.planner.conftest import SPEC
from tests.planner.engines.test_documents import PAIR
from tests.planner.plan.test_load import SCHEDULE, edited, leaves, other
from tests.planner.test_shipped_specs import SPECS

ENGINES = {"sglang": "five_stage", "vllm": "dual_batch"}
DECODE, MAP = "plan/river-decode-0.yaml", "plan/decode-map.yaml"


def write(plan, folder):
    """Write a plan's files as `render` does."""
    for name, text in spread_plan(plan).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def plan(spec_file):
    """A plan that is carried out, with a schedule."""
    return run_passes(check_spec(spec_file(SPEC.replace("  units: 1\n", "") + SCHEDULE, "spread.yaml"))).deployed


@pytest.fixture
def folder(plan, tmp_path):
    """A folder that keeps it."""
    return write(plan, tmp_path)


@pytest.mark.parametrize("name", ["demo-day.yaml", "h200-single-node.yaml", "deepseek-h800.yaml", "sglang", "vllm"])
def test_what_is_read_is_what_was_written(name, tmp_path):
    """The same digest, manifests, day and files, though most of a plan is not stored."""
    path = SPECS / name
    if name in ENGINES:
        (path := tmp_path / name).write_text(PAIR.replace("ENGINE", name).replace("OVERLAP", ENGINES[name]))
    plan = run_passes(check_spec(path)).deployed
    read = join_plan(write(plan, tmp_path))

    assert read.digest == plan.digest
    assert (read.spec_digest, read.phases, read.timetable) == (plan.spec_digest, plan.phases, plan.timetable)
    assert render_files(read) == render_files(plan)
    assert spread_plan(read) == spread_plan(plan)


def test_a_folder_of_before_is_read_without_keys_that_had_no_effect(plan, folder):
    """An upgrade moves no unit; a former key that had an effect is refused."""
    document = stored(folder)
    document["spec"] |= {"cost": {"usd_per_gpu_hour": 2.0, "supplies": [], "prices": None}}
    store(folder, SHARED_FILE, document)
    known = join_plan(folder)
    document["spec"]["cost"]["supplies"] = [{"nodes": 3}]
    store(folder, SHARED_FILE, document)

    assert known.digest == plan.digest
    with pytest.raises(CallError, match=r"spec\.cost\.supplies is a key that this version"):
        join_plan(folder)


def test_estimates_and_reasons_are_not_stored(plan, folder):
    """A better estimate changes no file."""
    read = join_plan(folder)

    assert (read.performance, read.cost, read.report, read.decisions, read.warnings) == (None, None, None, (), ())
    assert not {"estimates", "report", "digest", "schedule", "document_digest", "placement"} & stored(folder).keys()


def stored(folder, name=SHARED_FILE):
    """What a file says."""
    return json.loads(split_stamp((folder / name).read_text())[0])


def store(folder, name, document):
    """Write a file again, with the digest of what it says now."""
    text = pretty_json(document)
    (folder / name).write_text(add_stamp(text, with_digest=name != SHARED_FILE))


def refusal(folder):
    """The one finding of a folder that is refused, with its file's name."""
    with pytest.raises(CallError) as error:
        join_plan(folder)
    (finding,) = error.value.findings
    return finding.id, str(Path(finding.file).relative_to(folder)), finding


@pytest.mark.parametrize("name", [DECODE, MAP])
def test_an_edited_file_is_refused(name, folder):
    """S909, with its name: its first line has the digest of the rest. Without that line it is no file of ours."""
    text = (folder / name).read_text()
    (folder / name).write_text(text.replace("1", "2", -1))

    assert refusal(folder)[:2] == ("S909", name)
    (folder / name).write_text(text.partition("\n")[2])
    assert refusal(folder)[:2] == ("S909", name)


WRONG_UNITS = {
    "no node of the cluster": (["node-1", "node-9"], "S908"),
    "another unit's node": (["node-0", "node-1"], "S908"),
    "one node twice": (["node-1", "node-1"], "S908"),
    "too few nodes": (["node-1"], "S908"),
    "no node": ([], "S906"),
    "a number": ([1, 2], "S906"),
}


@pytest.mark.parametrize("wrong", WRONG_UNITS)
def test_nodes_that_the_spec_does_not_give_are_refused(wrong, folder):
    """With a digest that fits, as a merge or a person with patience could leave them."""
    nodes, rule = WRONG_UNITS[wrong]
    store(folder, DECODE, {"nodes": nodes})

    assert refusal(folder)[:2] == (rule, DECODE)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda rows: [[0] * len(row) for row in rows], "S908"),
        (lambda rows: [row[1:] for row in rows], "S908"),
        (lambda rows: [[], *rows[1:]], "S906"),
        (lambda rows: [], "S906"),
    ],
)
def test_a_map_that_the_phase_cannot_have_is_refused(change, rule, folder):
    """Every layer has the phase's slots and all of its experts."""
    store(folder, MAP, {"physical_to_logical": change(stored(folder, MAP)["physical_to_logical"])})

    assert refusal(folder)[:2] == (rule, MAP)


def test_a_file_too_many_or_too_few_is_refused(folder):
    """As a merge may leave them; what others put there is theirs."""
    (folder / "plan" / "notes.yaml").write_text("mine\n")
    join_plan(folder)
    (folder / DECODE).rename(folder / "plan" / "river-decode-1.yaml")

    assert refusal(folder)[:2] == ("S905", DECODE)
    store(folder, DECODE, stored(folder, "plan/river-decode-1.yaml"))
    assert refusal(folder)[:2] == ("S908", "plan/river-decode-1.yaml")


@pytest.mark.parametrize(
    ("keys", "value", "rule"),
    [
        (("version",), 4, "S907"),
        (("version",), True, "S907"),
        (("more",), 1, "S906"),
        (("spec", "decode", "more"), 1, "S906"),
        (("spec", "decode", "ep_size"), 0, "S906"),
        (("spec", "schedule", "warm_up"), "auto", "S906"),
        (("spec", "name"), "../river", "S209"),
        (("spec", "kubernetes", "namespace"), "a b", "S209"),
        (("model", "num_routed_experts"), 31, "S908"),
        (("inputs", "config.json"), "none", "S906"),
        (("kv_bytes_per_token",), 0, "S906"),
    ],
)
def test_a_shared_file_that_says_wrong_things_is_refused(keys, value, rule, folder):
    """It has no digest, because most changes touch it: it is checked as a spec and as a plan are."""
    document = stored(folder)
    part = document
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = value
    store(folder, SHARED_FILE, document)

    found = refusal(folder)
    assert found[1] == (MAP if keys[0] == "model" else SHARED_FILE).replace("decode", "prefill")
    assert found[0] == rule


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_no_edit_of_the_shared_file_is_a_traceback(data, plan, folder):
    """Each value by itself is refused, or is another plan."""
    document = json.loads(split_stamp(spread_plan(plan)[SHARED_FILE])[0])
    keys = data.draw(st.sampled_from(list(leaves(document))))
    value = data.draw(st.sampled_from([other, lambda _: None, lambda _: -1, lambda _: {}, lambda _: "auto"]))
    store(folder, SHARED_FILE, edited(document, keys, value))
    try:
        found = join_plan(folder)
    except CallError as error:
        found = error.findings[0]

    assert isinstance(found, Plan) or found.file == str(folder / SHARED_FILE) or "plan" in found.file


def test_git_may_change_line_ends(folder):
    """As it does on some machines."""
    digest = join_plan(folder).digest
    for path in (folder / "plan").iterdir():
        path.write_text(path.read_text(), newline="\r\n")

    assert join_plan(folder).digest == digest


def test_the_repair_of_a_folder_can_be_pasted(plan, tmp_path):
    """Whatever the folder is called."""
    folder = tmp_path / "a; folder"
    (folder / "plan").mkdir(parents=True)
    for name, text in spread_plan(plan).items():
        (folder / name).write_text(text)
    (folder / MAP).write_text("edited")
    with pytest.raises(CallError) as refused:
        join_plan(folder)
    (repair,) = re.findall(r"\((git .*)\)", str(refused.value.findings[0].fix))

    assert shlex.split(repair) == [
        "git",
        "rm",
        "-rfq",
        str(folder),
        "&&",
        "git",
        "checkout",
        "BRANCH",
        "--",
        str(folder),
    ]
