"""The page of a plan in Debian's chromium: it draws, answers, prints, and can be read by everybody."""

from contextlib import ExitStack

import pytest

from planner.compiler import compile_plan
from planner.report.page.page import plan_page
from planner.rules.check import change_spec, check_spec
from tests.browser import assert_drawn, found_by_axe, opened_page
from tests.planner.test_shipped_specs import SPECS

pytestmark = pytest.mark.slow

VIEWS = [(1400, "light"), (1400, "dark"), (420, "light"), (420, "dark")]


@pytest.fixture(scope="module")
def files(tmp_path_factory, shipped):
    """Files of the published day's page, of a change of it beside it, and of a small day with all that a page has."""
    folder = tmp_path_factory.mktemp("pages")
    spec = check_spec(SPECS / "deepseek-h800.yaml")
    fewer = compile_plan(change_spec(spec, {"slo.tpot_ms": 50, "schedule": None, "decode.units": 8}), shipped)
    windows = [{"at": f"{8 * number:02}:00", "prefill_units": number, "decode_units": 1} for number in (1, 2)]
    small = {"cluster.nodes": 27, "traffic.input_tokens": 40e9, "traffic.output_tokens": 20e9, "slo.tpot_ms": 50}
    small_plan = compile_plan(change_spec(spec, small | {"schedule.windows": windows}))
    pages = {
        "small": plan_page(small_plan),
        "plan": plan_page(shipped),
        "change": plan_page(fewer, shipped, [("verdict", ["rolling"])]),
    }
    for name, page in pages.items():
        (folder / f"{name}.html").write_text(page)
    return {name: f"file://{folder}/{name}.html" for name in pages}


@pytest.fixture
def opened(browser, files):
    """A function: a page, opened at a width and in a colour scheme. No page may write to the console."""
    with ExitStack() as pages:

        def opened(name="plan", width=1400, scheme="light"):
            return pages.enter_context(opened_page(browser, files[name], width, scheme))

        yield opened


@pytest.mark.parametrize("name", ["plan", "change"])
@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_everything_is_drawn(opened, name, width, scheme):
    """Each segment and path has a size, no table is cut, and nothing is wider than the window."""
    assert_drawn(opened(name, width, scheme), width)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(opened, scheme):
    """Contrast, names and keys, also where a node is chosen and tables are open."""
    page = opened("small", 420, scheme)
    page.evaluate("document.querySelectorAll('#day details, #why details').forEach((each) => { each.open = true; })")
    page.locator(".racks button").first.focus()

    assert found_by_axe(page) == []


def test_the_slider_turns_units_off(opened):
    """At 04:00 two decode units are on: of 278 nodes 68 keep their colour, and the days' marks move."""
    page = opened()
    before = page.locator(".now").first.bounding_box()["x"]
    page.locator("input[type=range]").fill("240")

    assert page.locator(".racks button:not(.off)").count() == 68
    assert page.locator("output").inner_text() == "04:00"
    assert page.locator(".now").first.bounding_box()["x"] < before


SEARCH = "Find a node, rack or unit"
RACK_5 = "--fail node-20@12:00 --fail node-21@12:00 --fail node-22@12:00 --fail node-23@12:00"
ANSWERS = {
    "rack-5": f"tidemill simulate SPEC {RACK_5}",
    "Rack 5": "rack-5 lost at 12:00: stops prefill-0, prefill-1: 2 of 29 prefill units (traffic asks the other 27 for ",
    "decode 8": "stops decode-8: 1 of 9 decode units (traffic asks the other 8 for ",
    "decode-1": "decode-1 needs all of its nodes: node-",
    "d3": "stops decode-3: 1 of 9 decode units (traffic asks the other 8 for ",
    "node-1": "is its leader, with rank 0. No node is a spare",
    "node-21": "If node-21 is dead, bring it back, or let its pods go: kubectl delete node node-21",
    "node-0": "tidemill simulate SPEC --fail node-0@12:00",
    "36": "node-36: deepseek-r1-",
    "racks-5": "Nothing here is called racks-5; nearest: rack-5, ",
}


def test_a_name_is_answered(opened):
    """A node, a rack or a unit, typed as people write it, says what it stops, and what to call next."""
    page = opened()
    answers = {}
    for name in ANSWERS:
        page.get_by_label(SEARCH).fill(name)
        answers[name] = page.locator(".answer").inner_text()

    assert [name for name, says in ANSWERS.items() if says not in answers[name]] == []


@pytest.mark.parametrize(("hour", "beyond"), [(18, ""), (12, ", so some of it waits or is refused")])
def test_a_loss_says_what_is_asked_of_the_rest(opened, shipped, hour, beyond):
    """Eight of nine decode units take what the hour asks of nine, and more than their most they cannot."""
    page = opened()
    page.locator("input[type=range]").fill(str(60 * hour))
    page.get_by_label(SEARCH).fill("decode-1")
    (asked,) = (each for each in shipped.demand["decode"].stretches if each.at == f"{hour:02}:00")
    share = 100 * asked.asked_tokens_per_s / (asked.most_tokens_per_s * 8 / 9)

    assert f"the other 8 for {share:.1f}% of the most that they make{beyond})" in page.locator(".answer").inner_text()


def test_nodes_answer_to_keys_and_to_the_pointer(opened):
    """One stop of the Tab key, arrows from node to node; the pointer shows another one while it is there."""
    page = opened()
    page.locator(".racks button").first.focus()
    page.keyboard.press("ArrowRight")
    answer = page.locator(".answer")

    assert "node-1: deepseek-r1-decode-0" in answer.inner_text()
    page.locator('[data-node="20"]').hover()
    assert "node-20: deepseek-r1-prefill-0" in answer.inner_text()
    legend = page.locator(".nodes .legend").inner_text()
    assert "decode units, dark and light by turns" in legend
    assert "chosen: lost\nother nodes of the units that stop with it" in legend
    page.locator("h1").hover()
    assert "node-1: deepseek-r1-decode-0" in answer.inner_text()
    assert page.locator('.racks button[tabindex="0"]').count() == 1


def test_it_prints(opened):
    """A few pages of PDF, without what only a screen can do."""
    page = opened()
    page.emulate_media(media="print")

    assert page.pdf(format="A4").startswith(b"%PDF")
    assert not page.locator(".ask").is_visible()
