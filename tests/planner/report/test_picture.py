"""Charts of a plan as PNG and SVG: the same bytes each time, alone in their file, and no name can break them."""

import struct
from xml.etree import ElementTree

import pytest

from planner.cli import CHARTS, main
from planner.compiler import compile_plan
from planner.report.page.figures import Bar, Bars, Segment, Table
from planner.report.page.sections import FIGURES
from planner.report.picture import Panel, Sheet, _draw_bars, draw_picture
from planner.rules.check import check_spec
from tests.planner.test_shipped_specs import SPECS

pytest.importorskip("matplotlib")

SVG = "{http://www.w3.org/2000/svg}"


def _width(png):
    return struct.unpack(">I", png[16:20])[0]


def test_a_plan_gives_the_same_picture_each_time(plan_of):
    """No clock, no style of the user's and no chance is in it."""
    import matplotlib as mpl

    first = [draw_picture(plan_of(), None, form, "experts") for form in ("png", "svg")]
    with mpl.rc_context({"font.size": 30, "svg.hashsalt": None}):
        again = [draw_picture(plan_of(), None, form, "experts") for form in ("png", "svg")]

    assert first == again


def test_a_picture_stands_alone(plan_of):
    """An SVG has outlines in place of letters, refers to nothing outside, and is titled with the plan's digest."""
    plan = plan_of()
    root = ElementTree.fromstring(draw_picture(plan, None, "svg"))
    titles = [each.text for each in root.iter("{http://purl.org/dc/elements/1.1/}title")]
    references = [value for each in root.iter() for name, value in each.attrib.items() if name.endswith("}href")]

    assert titles == [f"Plan {plan.name}, {plan.digest}"]
    assert list(root.iter(f"{SVG}text")) + list(root.iter(f"{SVG}image")) == []
    assert [each for each in references if not each.startswith("#")] == []


def test_every_chart_of_the_published_day_is_drawn():
    """It has all kinds of areas, lines, bars and nodes that a page has."""
    plan = compile_plan(check_spec(SPECS / "deepseek-h800.yaml"))

    assert _width(draw_picture(plan, None, "png")) == 1210


def test_a_change_has_two_columns(plan_of, spec_text):
    """The plan before stands beside the plan after, each as wide as a plan alone."""
    before, after = plan_of(), plan_of(spec_text.replace("units: 1", "units: 1\n  max_requests: 7"))

    assert _width(draw_picture(after, before, "png", "experts")) == 2 * _width(
        draw_picture(after, None, "png", "experts")
    )


def test_a_rack_s_name_is_no_formula(plan_of, spec_text):
    """Matplotlib would read text between dollars as TeX, and fail on this."""
    nodes = "".join(f"\n    - {{name: n{index}, rack: '$\\frac{{$'}}" for index in range(3))

    assert draw_picture(plan_of(spec_text.replace("  nodes: 3", f"  nodes:{nodes}")), None, "png", "nodes")


def test_a_bar_is_as_long_as_its_value():
    """Half of the largest value takes half of the line, from where the line begins."""
    from matplotlib.figure import Figure

    sheet = Sheet(Figure(), 11.0)
    bars = [Bar("", "", [Segment(0, 2, "range", ""), Segment(2, 4, "link", "")])]
    _draw_bars(Panel(sheet, 0.0, 10.0), Bars("", bars, Table((), ())), [8.0])
    line, first, second = (place for thing, place in sheet._drawn if len(place) == 4)

    assert (first[2], second[2]) == pytest.approx((line[2] / 4, line[2] / 4))
    assert (first[0], second[0]) == pytest.approx((line[0], line[0] + line[2] / 4))


def test_a_chart_that_the_plan_lacks_is_refused_by_name(spec_file, tmp_path, capsys):
    """A plan without kv_cache has no chart of it; the message lists those that it has. Nothing is written."""
    status = main(["report", str(spec_file()), "--format", "svg", "--chart", "kv", "-o", str(tmp_path / "kv.svg")])
    said = capsys.readouterr().err

    assert (status, (tmp_path / "kv.svg").exists()) == (2, False)
    assert "--chart (kv) must be a chart of the plan; the plan has no figures for it; name one of them: nodes, " in said


@pytest.mark.parametrize(
    ("form", "name"), [((), "a.png"), ((), "a.SVG"), (("--format", "png"), "a.svg"), (("--format", "svg"), "a.html")]
)
def test_an_ending_of_another_format_is_refused(spec_file, tmp_path, capsys, form, name):
    """S904: a page that is named as a picture opens nowhere."""
    status = main(["report", str(spec_file()), *form, "-o", str(tmp_path / name)])

    assert (status, "[S904]" in capsys.readouterr().err, (tmp_path / name).exists()) == (2, True, False)


def test_the_command_writes_a_picture_named_after_the_chart(spec_file, tmp_path, monkeypatch, capsys):
    """Without -o it lies here, under the given file's name and the chart's: a plan's own name replaces no file."""
    monkeypatch.chdir(tmp_path)
    spec = spec_file()

    assert main(["report", str(spec), "--format", "png", "--chart", "experts"]) == 0
    (written,) = tmp_path.glob("*-experts.png")
    assert written.name == f"{spec.stem}-experts.png"
    assert written.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.startswith(f"{written.name}: a picture of plan ")


def test_every_section_with_figures_is_a_chart():
    """--chart takes the ids of the page's sections, in its order, besides the one that has tables alone."""
    assert [*CHARTS, "why"] == ["nodes", *FIGURES]
