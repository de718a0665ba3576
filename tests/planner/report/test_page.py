"""The page of a plan: the plan's own numbers, the same bytes every time, and nothing that a name can break."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cli import main
from planner.compiler import compile_plan
from planner.facts.digest import pretty_json
from planner.plan.plan import Plan, document_digest
from planner.plan.row import Row
from planner.report.as_run import as_run
from planner.report.page.charts import show_kv_cache
from planner.report.page.day import show_day
from planner.report.page.figures import Bar, Bars, Line, Segment, Steps, Table, draw
from planner.report.page.nodes import show_nodes
from planner.report.page.page import plan_page
from planner.report.page.published import show_published
from planner.report.page.sections import sections_of
from planner.report.report import Report, format_microseconds, format_value
from planner.report.rows import report_of
from planner.report.text import plan_text
from planner.rules.check import change_spec, check_spec
from tests.planner.test_shipped_specs import SPECS

HOSTILE = "</script><script>alert(1)</script>"
TABLE = Table(("",), ())


class _Reader(HTMLParser):
    """The cells of each table by the id of its section, the script elements, and the widths of a bar's segments."""

    def __init__(self, page):
        super().__init__()
        self.cells, self.scripts, self.widths, self._section, self._is_cell = {}, [], [], "", False
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self._is_cell = tag == "td"
        if tag == "section":
            self._section = given["id"]
        elif self._is_cell:
            self.cells.setdefault(self._section, []).append("")
        elif tag == "script":
            self.scripts.append(given)
        elif tag == "i" and "style" in given:
            left, width = map(float, re.findall(r"[\d.]+", given["style"]))
            self.widths.append((self._section, left, width))

    def handle_endtag(self, tag):
        self._is_cell = self._is_cell and tag != "td"

    def handle_data(self, text):
        if self._is_cell:
            self.cells[self._section][-1] += text


def test_every_figure_of_the_plan_is_on_the_page(shipped):
    """The last table has each row of the JSON's report, in its order and with its value."""
    rows = [Row(**row) for row in json.loads(pretty_json(shipped.as_json()))["report"]]
    cells = _Reader(plan_page(shipped)).cells["rows"]

    assert list(zip(cells[::7], cells[1::7], cells[2::7], strict=True)) == [
        (row.section, row.name, format_value(row)) for row in rows
    ]


def test_bars_are_as_wide_as_their_bytes(shipped):
    """The segments of a GPU's memory fill what both phases may use, each with its share."""
    widths = [width for section, _, width in _Reader(plan_page(shipped)).widths if section == "memory"]
    parts = ("weights_bytes", "activation_bytes", "buffer_bytes", "reserve_bytes")
    sizes = [[getattr(shipped.memory[phase], part) for part in parts] for phase in ("prefill", "decode")]
    whole = shipped.memory["prefill"].gpu_bytes

    assert widths == pytest.approx(
        [100 * size / whole for found in sizes for size in (*found, whole - sum(found))], abs=0.01
    )


def test_the_day_is_short_where_the_plan_says_so(shipped):
    """The times of the strip above decode's units last as many hours as the plan counts, and are the ones it names."""
    _, decode = show_day(shipped, Report(shipped.report))
    (strip,) = (area for area in decode.areas if area.kind == "beyond")

    assert sum(end - begin for begin, end, *_ in strip.boxes) / 60 == shipped.demand["decode"].hours_beyond
    assert shipped.demand["decode"].times_beyond in decode.note


def test_deepseek_s_day_stands_beside_plans_of_its_spec_alone(shipped):
    """The shipped windows are the published ones at every time; with other traffic nothing published is shown."""
    nodes, figures = show_published(shipped, Report(shipped.report))
    other = change_spec(check_spec(SPECS / "deepseek-h800.yaml"), {"traffic.output_tokens": 160e9})

    assert nodes.reach == 278
    assert [planned for *_, planned, _ in nodes.table.rows] == [published for *_, published in nodes.table.rows]
    assert ("nodes taken on average, with warm-up and drain", "228.94", "226.75") in figures.rows
    assert [cost for title, *cost in figures.rows if title == "cost of the day"] == [["$87,912", "$87,072"]]
    assert not [planned for _, planned, _ in figures.rows if planned == "-"]
    assert list(show_published(compile_plan(other), Report(()))) == []


def test_the_page_tells_the_day_as_it_runs(shipped):
    """Without a controller all units are on at every hour, in words and pictures, and a change to one shows both."""
    spec = check_spec(SPECS / "deepseek-h800.yaml")
    unswitched = compile_plan(change_spec(spec, {"kubernetes.controller": None}))
    page, both = plan_page(unswitched), plan_page(shipped, unswitched)
    always_on, scheduled = (nodes.facts["states"] for nodes in next(sections_of(shipped, unswitched)).pairs[0])

    assert "$106,752 a day at $2 per GPU-hour, $87,912 with kubernetes.controller;" in page
    assert [len(units) for _, units in always_on] == [38]
    assert min(len(units) for _, units in scheduled) == 10
    assert show_published_nodes(unswitched) == ["278", "278"]
    assert "$106,752 a day" in both
    assert "$87,912 a day" in both


def show_published_nodes(plan):
    """The planned nodes, at most and on average, beside those of DeepSeek's day."""
    _, table = show_published(as_run(plan), report_of(plan))
    return [planned for title, planned, _ in table.rows if title.startswith("nodes")]


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        (("balance", "decode", "gpu_loads", "in_order"), [1.0], "must agree with itself"),
        (("balance", "decode", "gpu_loads", "moe_layer"), 99, "must agree with itself"),
        (("failures",), {}, "report"),
        (("failures", "decode", "gpu", "of_units"), 0, "must agree with itself"),
        (("failures", "decode"), {}, "report"),
        (("failures", "prefill"), None, "failures.prefill"),
    ],
)
def test_a_plan_that_was_edited_and_sealed_again_ends_in_no_traceback(
    keys, value, said, plan_of, spec_text, tmp_path, capsys
):
    """Its spec names a file, so its figures are not computed anew; those that contradict each other are refused."""
    document = json.loads(pretty_json(plan_of(spec_text).as_json()))
    *parents, last = keys
    part = document
    for key in parents:
        part = part[key]
    part[last] = value
    document["document_digest"] = document_digest(document)
    (tmp_path / "plan.json").write_text(pretty_json(document))
    status = main(["report", str(tmp_path / "plan.json"), "-o", str(tmp_path / "plan.html")])

    assert status in (0, 2)
    assert status == 0 or said in capsys.readouterr().err


def test_pages_are_made_from_the_plan_and_not_from_its_rows(shipped):
    """Whoever edits the rows of a PLAN.json, and seals it again, changes nothing that people read."""
    edited = shipped.with_sections(report=tuple(replace(row, value="0", note="x") for row in shipped.report))

    assert plan_page(edited) == plan_page(shipped)
    assert plan_text(edited, full=True) == plan_text(shipped, full=True)


def test_special_days_have_pictures_of_their_own(plan_of, spec_text):
    """A day with other windows follows the usual one; before the first window the units are those of the last."""
    windows = [
        {"at": "06:00", "prefill_units": 2, "decode_units": 1},
        {"at": "20:00", "prefill_units": 1, "decode_units": 1},
    ]
    saturday = {"days": ["saturday"], "windows": windows[1:]}
    text = spec_text.replace("  units: 1\n", "").replace("nodes: 3", "nodes: 4")
    plan = plan_of(f"{text}schedule: {json.dumps({'timezone': 'UTC', 'windows': windows, 'other_days': [saturday]})}\n")
    prefill, _, on_saturday, _ = show_day(plan, Report(plan.report))

    assert [area.boxes for area in prefill.areas] == [[(0, 1440, 0, 1)], [(360, 1200, 1, 2)]]
    assert (on_saturday.title, len(on_saturday.areas)) == ("prefill on saturday", 1)


def test_a_plan_of_before_has_a_page(shipped):
    """Without the loads, stretches and cases that plans did not have, the figures that need them say less."""
    document = shipped.as_json()
    del document["cost"]["cases"]
    for phase in document["phases"]:
        del document["balance"][phase]["gpu_loads"], document["demand"][phase]["stretches"]
    page = plan_page(Plan.model_validate_json(json.dumps(document)))

    assert "with these slots, no map is below this bound" in page
    assert "experts in order" not in page


def test_a_timeline_waits_as_long_as_the_plan_predicts(shipped):
    """The picture is made of the plan's stages, and comes to the exposed time of the prediction."""
    page = plan_page(shipped)

    for each in shipped.performance.values():
        assert f", {format_microseconds(each.exposed_us)} of them waiting" in page


@pytest.mark.parametrize(("us", "text"), [(0.0, "0.0 µs"), (999.4, "999.4 µs"), (1000, "1.0 ms"), (36689.1, "36.7 ms")])
def test_a_time_has_the_unit_of_its_size(us, text):
    """Nobody reads thirty-seven thousand microseconds."""
    assert format_microseconds(us) == text


def test_words_beside_charts_say_what_the_bars_show(shipped):
    """KV in use, the maps beside their bounds, the share of a layer in which links are busy, and the income's range."""
    page = plan_page(shipped)
    decode, stages = shipped.performance["decode"], shipped.performance["decode"].stages_us
    busy = [2 * (each["dispatch"] + each["combine"]) for each in (stages, shipped.performance["prefill"].stages_us)]
    found = re.findall(r"A layer takes ([\d,.]+) (ms|µs)", page)
    layers = [float(each.replace(",", "")) * {"ms": 1e3, "µs": 1}[unit] for each, unit in found]
    shares = [float(each) / 100 for each in re.findall(r"in use for ([\d.]+)% of it", page)]
    mean = sum(shipped.expert_maps[shipped.balance["decode"].expert_map].max_over_mean) / 58

    assert f"; {decode.kv_tokens_in_use / shipped.memory['decode'].kv_tokens:.1%} in use at the operating point" in page
    assert f"Mean of the layers {mean:.3f}, their bound 1.622; worst layer 2.023." in page
    assert shares == pytest.approx([busy[1] / layers[0], busy[0] / layers[1]], abs=0.001)
    assert "$556,095 a day at the expected speed ($292,544 to $561,503)" in page


def test_a_bar_of_shares_is_held_against_all(shipped):
    """A hit rate of 36.4% does not fill its line."""
    (found,) = show_kv_cache(shipped, Report(shipped.report))

    assert draw(found).bars[-1].segments[0][1] == f"{100 * shipped.kv_cache.sizes[-1].hit_rate:.2f}%"


def test_nodes_know_the_hours_of_their_units(shipped):
    """The states of the picture are the schedule's, from midnight, and every node is in the rack of the spec."""
    shown = show_nodes(shipped)
    names = [unit["name"] for unit in shown.facts["units"]]
    at_night = next(units for begin, units in shown.facts["states"] if begin == 210)

    assert {names[unit] for unit in at_night} == set(
        next(step for step in shipped.schedule.steps if step.at == "03:30").units
    )
    assert [len(cells) for _, cells in shown.racks] == [4] * 69 + [2]
    assert [each["leader"] for each in shown.facts["units"]] == [unit.nodes[0] for unit in shipped.units]


def test_a_lost_unit_s_way_back_is_said(plan_of, spec_text):
    """A spare is named with the minutes that a move takes; without one an idle node is offered."""
    idle, spare = (
        show_nodes(plan_of(spec_text.replace("nodes: 3", f"nodes: 4{more}"))).facts["recovery"]["decode"]
        for more in ("", "\n  spares: [node-3]")
    )

    assert idle.startswith(
        "No node is a spare, so it is out until repair; with cluster.spares: [node-3] the unit serves"
    )
    assert re.fullmatch(r"On a spare \(node-3\) it serves again after \d+ min\.", spare)


@pytest.mark.parametrize("more", ["", "\n  controller: {heal: {}}"])
def test_a_dead_node_s_unit_is_healed_where_there_is_a_spare(plan_of, spec_text, more):
    """With `heal` and a spare nobody has to do anything; without, the page says what to call."""
    plan = plan_of(
        spec_text.replace("nodes: 3", "nodes: 4\n  spares: [node-3]").replace("kubernetes:", f"kubernetes:{more}")
    )

    assert show_nodes(plan).facts["healed"] == (list(plan.phases) if more else [])


def test_a_spec_and_its_plan_give_the_same_page(tmp_path, capsys):
    """Nothing of the page depends on whether the plan was just made or read, nor on the file's name."""
    spec, plan = SPECS / "h20.yaml", tmp_path / "plan.json"
    assert main(["plan", str(spec), "-o", str(plan)]) == 0
    for given_file, page in ((spec, "one.html"), (plan, "two.html")):
        assert main(["report", str(given_file), "-o", str(tmp_path / page), "--format", "json"]) == 0

    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()
    assert json.loads(capsys.readouterr().out.partition("}\n")[2])["file"] == str(tmp_path / "two.html")


def test_no_name_becomes_markup_and_no_secret_is_shown(plan_of, spec_text):
    """A rack called like the end of a script stays words; values of kubernetes.env and passwords are left out."""
    nodes = "".join(f"\n    - {{name: n{index}, rack: '{HOSTILE} http://eve:hunter2@h'}}" for index in range(3))
    text = spec_text.replace("  nodes: 3", f"  nodes:{nodes}")
    text = text.replace("  namespace: tidemill", "  namespace: tidemill\n  env: {TOKEN: hunter2}")
    page = plan_page(plan_of(text))

    assert HOSTILE not in page
    assert [each.get("type") for each in _Reader(page).scripts] == ["application/json", None]
    assert "hunter2" not in page


def test_a_change_stands_on_top_with_each_figure_beside_the_earlier_one(spec_file, spec_text, tmp_path):
    """The page begins with the lines of the diff, and both plans are drawn to one scale."""
    before, after = (
        spec_file(spec_text),
        spec_file(spec_text.replace("units: 1", "units: 1\n  max_requests: 7"), "b.yaml"),
    )
    page = tmp_path / "change.html"
    assert main(["plan", str(before), "-o", str(tmp_path / "old.json")]) == 0
    assert main(["report", str(after), "--previous", str(tmp_path / "old.json"), "-o", str(page)]) == 0
    text = page.read_text()

    assert text.index("What the change does") < text.index("In short")
    assert '<a href="#change">What the change does</a><a href="#summary">In short</a>' in text
    assert "restarted</dt><dd>gateway, decode-0: max_requests" in text
    assert text.count('<p class="side">before</p>') == text.count('<p class="side">after</p>') > 0
    assert "before and after alike</p>" in text, "no unit moves"


def test_nodes_that_keep_their_units_are_drawn_once(shipped):
    """Another load draws no second grid, but other hours do. The dashed line has a legend."""
    changes = ({}, {"demand": None}, {"schedule": None})
    pages = [plan_page(shipped.model_copy(update=fields), shipped) for fields in changes]

    assert [page.count('class="racks"') for page in pages] == [1, 1, 2]
    assert plan_page(shipped).count('class="now"') == plan_page(shipped).count("the time chosen at the nodes") > 0


def test_a_figure_stands_beside_the_earlier_one_of_its_subject(shipped):
    """Where the planner decides nothing any more, what is assumed still stands beside what was assumed."""
    after = compile_plan(change_spec(check_spec(SPECS / "deepseek-h800.yaml"), {"decode.units": 9, "schedule": None}))
    (why,) = (section for section in sections_of(after, shipped) if section.id == "why")
    titles = [tuple(figure and figure.title.split(":")[0] for figure in pair) for pair in why.pairs]

    assert titles[0] == ("Decided by the planner", None)
    assert [(old, new) for old, new in titles if None not in (old, new) and old != new] == []
    assert ("Assumed", "Assumed") in titles


def test_a_rendered_folder_has_no_page(spec_file, tmp_path, capsys):
    """It keeps no figures: the page of its spec has them."""
    main(["render", str(spec_file()), "-o", str(tmp_path / "deploy")])

    assert main(["report", str(tmp_path / "deploy"), "-o", str(tmp_path / "page.html")]) == 2
    assert "S912" in capsys.readouterr().err


@given(st.floats(1e-6, 1e15))
def test_an_axis_reaches_as_high_as_what_is_drawn(value):
    """Its numbers are at most six, from 0 %, and a line at the highest value stays inside."""
    drawn = draw(Steps("", 1, (), (), (Line("asked", ((0, value),)),), TABLE, {}, ""))
    ((_, path, _),) = drawn.paths

    assert 2 <= len(drawn.y_ticks) <= 6
    assert 0 <= int(path.split(" ")[1]) <= 1000
    assert (drawn.y_ticks[0][0], drawn.y_ticks[-1][0]) == ("0.00%", "100.00%")


@given(st.floats(0, 1e15), st.floats(0, 1e15))
def test_bars_of_two_plans_have_one_scale(one, two):
    """The longer of two bars fills the line, and the other its share of it."""
    old, new = (Bars("", [Bar("x", "", [Segment(0, each, "range", "")])], TABLE) for each in (one, two))
    (((_, width, *_),),) = (bar.segments for bar in draw(old, new).bars)

    assert width == f"{100 * one / (max(one, two) or 1):.2f}%"
