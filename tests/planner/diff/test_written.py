"""A change as it is read: on one screen, in a comment that runs nothing, and as JSON of a known shape."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from planner.compiler import run_passes
from planner.diff.change import NodeMoves, Sides, UnitChange
from planner.diff.diff import compare_plans
from planner.diff.markdown import diff_markdown
from planner.diff.net import describe_net
from planner.diff.text import MAX_LINES, diff_text
from planner.problems.finding import Finding
from planner.rules.check import change_spec
from tests.docs.plan_schema import schema_of_changes
from tests.planner.diff.pairs import SMALL, base, changed

CAUSES = (
    "image",
    "expert map",
    "--max-num-seqs",
    "env NCCL_DEBUG",
    "KV format",
    "max_requests",
    "nodes",
    "priorityClassName",
)


@pytest.fixture(scope="module")
def change():
    """New expert loads, which restart all units."""
    return compare_plans(base(40)[1], changed(40, "expert loads"))


def test_it_begins_with_what_is_asked_first(change):
    """The verdict with its way, what it costs, what restarts and why; assumptions come last."""
    lines = diff_text(change).splitlines()
    topics = [line[2:12].strip() for line in lines[2:] if line[2:3].strip()]

    assert topics[:3] == ["verdict", "net", "restarted"]
    assert topics[-1] == "assumed"
    assert "prefill-0 to 3, decode-0 to 1: expert map" in diff_text(change)


def test_a_new_image_is_named():
    """Beside the one that runs: the number of a release is what a reviewer looks for."""
    text = " ".join(diff_text(compare_plans(base(40)[1], changed(40, "image"))).split())

    assert "image tidemill-runtime-gpu:0.1.0 -> registry.example.com/runtime:2" in text


def test_a_variables_value_is_not_repeated():
    """It may be private."""
    change = compare_plans(base(40)[1], changed(40, "environment"))

    assert "env NCCL_DEBUG" in diff_text(change)
    assert "INFO" not in json.dumps(change.as_json()["units"])


def test_equal_figures_share_a_line(change):
    """What differs has a line of its own, with an arrow."""
    text = diff_text(change)

    assert " -> " in text
    assert "as before: answered " in text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"cost": None}, "each day: $10,948 -> no GPU price"),
        (
            {"traffic": None, "cost.prices": None},
            "output tokens: $1.3685 ($1.3685 to $1.3766) -> no traffic",
        ),
        ({"traffic": None, "cost.prices": None}, "peak load, % of capacity: 59.0% -> no traffic"),
        ({"cost.prices": None}, "income each day: $36,670 ($36,454 to $36,670) -> no token prices"),
        ({"cluster.gpu": {"name": "own", "memory": "141GiB"}}, "not predicted: the rates of own are"),
        (None, "each day: $10,948 -> unknown"),
        (None, "assumed figures after the change are unknown: a rendered folder keeps none"),
    ],
)
def test_a_figure_that_only_one_plan_has_says_why(fields, said):
    """The other plan's spec does not ask for it, or nobody can predict it, or the plan is a folder's."""
    spec, before = base(40)
    after = run_passes(spec).deployed if fields is None else run_passes(change_spec(spec, fields)).plan
    text = " ".join(diff_text(compare_plans(before, after)).split())

    assert said in text


def test_nodes_are_named_by_their_numbers(change):
    """Ranges join what lies beside each other, in whatever order units hold them."""
    nodes = NodeMoves(taken=(), freed=("node-10", "node-3", "node-9", "node-2"))

    assert "freed: node-2 to node-3, node-9 to node-10" in diff_text(change.model_copy(update={"nodes": nodes}))


UNIT = st.builds(
    UnitChange,
    name=st.integers(0, 999).map(lambda number: f"{'a' * 40}-decode-{number}"),
    phase=st.just("decode"),
    change=st.sampled_from(["new", "moved", "restarted", "removed", "kept"]),
    why=st.lists(st.sampled_from(CAUSES), max_size=8).map(tuple),
    values=st.dictionaries(st.sampled_from(CAUSES), st.just(("v" * 120, "w" * 120))),
    in_turn=st.booleans(),
)


@given(units=st.lists(UNIT, max_size=60), nodes=st.lists(st.integers(0, 9999).map(lambda each: f"node-{each * 2}")))
def test_the_text_always_fits_a_screen(units, nodes, change):
    """Long names and long lists of reasons are cut, and the last line says where the rest is."""
    moves = change.nodes.model_copy(update={"taken": tuple(nodes), "freed": tuple(nodes)})
    text = diff_text(change.model_copy(update={"units": tuple(units), "nodes": moves}))

    assert text.count("\n") <= MAX_LINES
    assert "..." not in text or "--format json has what is cut" in text


def test_units_that_the_text_leaves_out_are_named_in_json(change):
    """The text counts them, and says where a reviewer of many units finds each of them."""
    names = [f"deepseek-r1-decode-{number}" for number in range(0, 60, 2)]
    unit = {"phase": "decode", "change": "restarted", "why": ("image",), "values": {}, "in_turn": False}
    many = change.model_copy(update={"units": tuple(UnitChange(name=name, **unit) for name in names)})
    text = " ".join(diff_text(many).split())

    assert "decode-8, decode-10, and 24 others (--format json names all): image" in text
    assert [each["name"] for each in many.as_json()["units"]] == names


HOSTILE = (
    "`a` @someone #1 !2 %3 gh-4 HTTPS://evil.example www.evil.example <img src=x onerror=alert(1)> | $x$ "
    "[b](https://evil.example) **c** 8fa59e27becfcc59d2cb7b3ad94f09ea4d0b5b1e \x1b[2J"
)


def test_a_comment_shows_what_a_spec_says_and_runs_none_of_it(change):
    """Markup, mentions, references, formulas and control characters of a name are text."""
    unit = UnitChange(
        name=HOSTILE,
        phase="decode",
        change="restarted",
        why=(HOSTILE,),
        values={HOSTILE: (HOSTILE, HOSTILE)},
        in_turn=False,
    )
    shown = diff_markdown(change.model_copy(update={"units": (unit,)}))
    (row,) = [line for line in shown.splitlines() if line.startswith("| restarted")]

    assert row.count("|") == 3
    assert not set("`$[]*\x1b") & set(row.removeprefix("| restarted | "))
    assert "<img" not in row
    assert "@someone" not in row
    assert "#1 " not in row
    assert not re.search(r"%3|gh-4|://|www\.|[\da-f]{7}", row, re.IGNORECASE)


@given(message=st.text(alphabet="$@<a ", max_size=4000), number=st.sampled_from([1, 2, 40, 4000]))
@settings(max_examples=15)
def test_a_comment_is_no_longer_than_a_forge_takes(message, number, change):
    """Whatever a plan warns of or assumes: lines are left out, and the last one says where they are."""
    warnings = (Finding("prefill", None, "W100 must be short", message, "say less"),) * number
    moves = change.warnings.model_copy(update={"new": warnings, "gone": warnings})
    text = diff_markdown(change.model_copy(update={"warnings": moves, "assumed": (message,) * number}))

    assert len(text) < 65_536
    assert number < 4000 or "--format json has what is cut" in text


def test_details_are_folded(change):
    """The table that everybody reads comes first; kept units, the day and assumptions are one click away."""
    shown, _, folded = diff_markdown(change).partition("<details>")

    assert "| verdict |" in shown
    assert "- **kept**: " in folded
    assert "- **assumed**: " in folded
    assert shown.startswith("| **rolling** | Change of deepseek-r1")


def test_figures_that_stay_are_folded_too(change):
    """A phase without a new figure says nothing that a reviewer has to read first."""
    sides = next(each for each in change.performance.values() if each.after)
    same = change.model_copy(update={"performance": {"decode": Sides(before=sides.after, after=sides.after)}})
    shown, _, folded = diff_markdown(same).partition("<details>")

    assert "| decode |" not in shown
    assert "- **decode**: as before: " in folded


def test_an_arrow_is_not_broken_in_two(change):
    """Browsers break a line between - and >."""
    shown = diff_markdown(change)

    assert " \N{RIGHTWARDS ARROW} " in shown.splitlines()[0]
    assert not re.search("->|-&#62;", re.sub("<!-- -->|<details>", "", shown))


def test_its_json_has_the_published_shape(change):
    """`docs/diff.schema.json` accepts it, and refuses a verdict that is none."""
    document = json.loads(json.dumps(change.as_json()))
    validator = Draft202012Validator(schema_of_changes())

    assert list(validator.iter_errors(document)) == []
    assert list(validator.iter_errors(document | {"verdict": "fine"})) != []


def test_what_a_change_costs_is_one_line_on_one_basis():
    """Income less cost of the day as it runs; without a controller all units stay on, and cost that."""
    spec, before = base(40)
    dearer = run_passes(change_spec(spec, {"cost.usd_per_gpu_hour": 3})).plan
    free = run_passes(change_spec(spec, {"cost.prices": None})).plan
    usd = before.cost.usd_per_day / 2
    (line,) = describe_net(compare_plans(before, dearer).net)
    (aside,) = describe_net(compare_plans(before, free).net)

    left = before.cost.revenue_usd_per_day - before.cost.usd_per_day
    assert line.startswith(
        f"the bill rises ${usd:,.0f} a day, income stays: the change costs ${usd:,.0f} a day "
        f"(${left:,.0f} -> ${left - usd:,.0f} left of a day's income); capacity of"
    )
    assert aside.startswith("the bill stays, income aside; capacity of all units, tokens/s: prefill ")


def test_a_quieter_night_is_a_larger_failure_domain():
    """All units of the night stop with one GPU, though the day has as many units as before."""
    spec, before = base(40)
    day, night = SMALL["schedule.windows"]
    after = run_passes(change_spec(spec, {"schedule.windows": [day, night | {"prefill_units": 1}]}), before).plan
    failures = [each.partition("failure")[2].strip() for each in diff_text(compare_plans(before, after)).splitlines()]

    assert "prefill, loss of one gpu, while fewest units are on: stops 1 of 2" in failures
