"""Ten questions of whoever is on call and of whoever pays, answered by a plan's page as by the plan's JSON."""

import json

import pytest

from planner.compiler import compile_plan
from planner.diff.diff import compare_plans
from planner.diff.wording import topics
from planner.report.page.page import plan_page
from planner.rules.check import change_spec, check_spec
from tests.browser import opened_page
from tests.planner.test_shipped_specs import SPECS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def said(shipped):
    """The plan's JSON."""
    return json.loads(json.dumps(shipped.as_json()))


@pytest.fixture(scope="module")
def page(browser, shipped, tmp_path_factory):
    """The plan's page, with its folded tables open."""
    file = tmp_path_factory.mktemp("page") / "plan.html"
    file.write_text(plan_page(shipped))
    with opened_page(browser, f"file://{file}") as page:
        page.evaluate("document.querySelectorAll('main details').forEach((each) => { each.open = true; })")
        yield page


def lost(page, name, at):
    """What the page answers about a node or rack that is lost at an hour."""
    page.locator("input[type=range]").fill(str(60 * at))
    page.get_by_label("Find a node, rack or unit").fill(name)
    return page.locator(".answer").inner_text()


def section(page, name):
    return page.locator(f"#{name}").inner_text()


def test_what_fails_with_rack_5(page, said):
    """The rack's nodes carry two units, and both stop."""
    stopped = {unit["name"][12:] for unit in said["units"] if {f"node-{n}" for n in range(20, 24)} & {*unit["nodes"]}}

    assert stopped == {"prefill-0", "prefill-1"}
    assert "stops prefill-0, prefill-1: 2 of 29 prefill units" in lost(page, "rack-5", 12)


def test_when_decode_is_full(page, said):
    """From the first minute to the last of each stretch that asks for more than all units make."""
    stretches = said["demand"]["decode"]["stretches"]
    full = {each["at"] for each in stretches if each["asked_tokens_per_s"] > each["most_tokens_per_s"]}
    note = section(page, "day").partition("Traffic asks for more than the units make at most: ")[2].split(".")[0]
    periods = [[60 * int(end[:2]) + int(end[3:]) for end in each.split("-")] for each in note.split(", ")]

    assert {each["at"] for each in stretches if any(a <= minute(each["at"]) < b for a, b in periods)} == full != set()


def minute(at):
    return 60 * int(at[:2]) + int(at[3:])


def test_what_a_change_costs(browser, shipped, said, tmp_path):
    """The page of a change says both days' cost, in words and in the two figures."""
    fewer = compile_plan(change_spec(check_spec(SPECS / "deepseek-h800.yaml"), {"cost.usd_per_gpu_hour": 3}), shipped)
    after, file = fewer.cost.usd_per_day, tmp_path / "change.html"
    changes = [(each.name, each.lines) for each in topics(compare_plans(shipped, fewer))]
    file.write_text(plan_page(fewer, shipped, changes))
    with opened_page(browser, f"file://{file}") as page:
        words, figures = section(page, "change"), section(page, "cost")

    more = after - said["cost"]["usd_per_day"]
    left = f"($468,183 → ${468_183 - more:,.0f} left of a day's income)"
    assert f"the bill rises ${more:,.0f} a day, income stays: the change costs ${more:,.0f} a day {left}" in words
    assert "capacity of all units, tokens/s: prefill " in words
    assert f"each day: ${said['cost']['usd_per_day']:,.0f} → ${after:,.0f}" in words
    assert [f"${usd:,.0f} a day" in figures for usd in (said["cost"]["usd_per_day"], after)] == [True, True]


@pytest.mark.parametrize("node", ["node-5", "node-100"])
def test_what_a_node_that_dies_at_three_stops(page, said, node):
    """A unit that is on stops; one that is off is missed when it is due again."""
    unit = next(unit["name"] for unit in said["units"] if node in unit["nodes"])
    steps = {step["at"]: step["units"] for step in said["schedule"]["steps"]}
    on = [name for name in steps["03:00"] if "-decode-" in name]
    due = min(at for at, units in steps.items() if at > "03:00" and unit in units)
    stops = f"stops {unit[12:]}: 1 of {len(on)} decode units"

    assert (stops if unit in on else f"stops no unit that is on; off: {unit[12:]} until {due}.") in lost(page, node, 3)


def test_what_more_traffic_costs(page, said):
    """With a fifth more the same units cost the same, and answer and earn what the plan predicts."""
    (case,) = (each for each in said["cost"]["cases"] if each["name"] == "20% more traffic")
    cost, answered, income, _ = section(page, "cost").partition("20% more traffic\t")[2].split("\n")[0].split("\t")

    assert (cost, answered) == (f"${case['usd_per_day']:,.0f}", f"{case['answered_share']:.1%}")
    assert income == f"${case['revenue_usd_per_day']:,.0f}"


def test_which_values_are_assumed(page, said):
    """The table has every assumed row, and the summary names the kinds."""
    table = section(page, "why").partition("Assumed")[2]
    rows = [row for row in said["report"] if row["section"] == "assumed"]

    assert [row["name"] for row in rows if row["name"] not in table or row["note"] not in table] == []
    assert [row["name"] for row in rows if not row["note"]] == []
    assert "speed of tidemill\tnever measured\tnobody has measured prefill units" in table
    assert "; nobody has measured decode units on tidemill" in table
    assert "speed of tidemill (never measured)" in section(page, "summary")
    assert len(rows) >= 9


def test_how_full_a_decode_gpu_is(page, said):
    """Room for KV, and how much of it the operating point fills."""
    memory, in_use = said["memory"]["decode"], said["performance"]["decode"]["kv_tokens_in_use"]

    rest = "weights 25.2 GB, activations 478.0 MB, exchange buffers 1.5 GB, reserve: CUDA graphs, libraries 6.5 GB"

    assert f"The rest: {rest}" in section(page, "memory")
    assert sum(memory[f"{each}_bytes"] for each in ("weights", "activation", "buffer", "reserve")) / 1e9 == (
        pytest.approx(25.2 + 0.478 + 1.5 + 6.5, abs=0.1)
    )
    assert (
        f"of {memory['gpu_bytes'] / 1e9:.1f} GB are room for KV: {memory['kv_tokens']:,} tokens; "
        f"{in_use / memory['kv_tokens']:.1%} in use at the operating point"
    ) in section(page, "memory")


def test_how_busy_the_links_are(page, said):
    """Both phases' exchanges as a share of a layer, and what the KV cache reads and writes on a node."""
    reads = said["kv_cache"]["read_bytes_per_s_per_node"]
    shares = [each.split("%")[0] for each in section(page, "stages").split("in use for ")[1:]]

    assert [float(each) > 50 for each in shares] == [True, True]
    assert f"a node then reads {reads / 1e9:.1f} GB/s and writes " in section(page, "kv")


def test_how_near_the_expert_map_is_to_its_bound(page, said):
    """The mean over layers beside the bound's."""
    found = said["expert_maps"][said["balance"]["decode"]["expert_map"]]
    mean, bound = (sum(found[name]) / len(found[name]) for name in ("max_over_mean", "bound"))

    assert f"Mean of the layers {mean:.3f}, their bound {bound:.3f}; worst layer {max(found['max_over_mean']):.3f}" in (
        section(page, "experts")
    )


def test_which_units_are_on_at_three(page, said):
    """The page names them, with the nodes that they take, before a node is chosen."""
    (step,) = (each for each in said["schedule"]["steps"] if each["at"] == "03:00")
    counts = {phase: step[f"{phase}_units"] for phase in ("prefill", "decode")}
    ranges = " and ".join(f"{on} {phase} ({phase}-0 to {on - 1})" for phase, on in counts.items())

    assert f"14 of 38 units are on at 03:00, on {step['nodes']} of 278 nodes: {ranges}." in lost(page, "", 3)


def test_when_units_are_switched(page, said):
    """Each step of the schedule begins a row of the decode units' numbers, with as many units on."""
    rows = [row.split("\t") for row in section(page, "day").rpartition("Numbers")[2].split("\n") if "\t" in row]
    on = {row[0]: row[2] for row in rows}
    steps = said["schedule"]["steps"]

    assert {step["at"]: on[step["at"]] for step in steps} == {step["at"]: str(step["decode_units"]) for step in steps}
