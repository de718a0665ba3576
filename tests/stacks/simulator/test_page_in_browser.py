"""The page of a simulated day in Debian's chromium."""

import pytest

from stacks.simulator.flows.day import DayColumn, simulate_day
from stacks.simulator.flows.failures import Failure
from stacks.simulator.report.day_figures import PANELS, day_page
from stacks.simulator.variants import Variant
from tests.browser import assert_drawn, found_by_axe, launched_chromium, opened_page

pytestmark = pytest.mark.slow

SPANS = """[...document.querySelectorAll("#simulated .plot svg")].map((svg) => {
  const boxes = [...svg.querySelectorAll(".line")].map((line) => line.getBBox());
  return Math.max(...boxes.map(({ x, width }) => x + width)) - Math.min(...boxes.map(({ x }) => x));
})"""  # minutes from the first to the last point of each chart


@pytest.fixture(scope="module")
def url(published, tmp_path_factory):
    """The page of the published day, on which a node fails."""
    day = simulate_day(published, failures=[Failure("node-20", 720)])
    page = tmp_path_factory.mktemp("pages") / "day.html"
    page.write_text(day_page([DayColumn(Variant("as written", {}), day)]))
    return f"file://{page}"


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window."""
    with launched_chromium() as chromium:
        yield chromium


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (1400, "dark"), (420, "light"), (420, "dark")])
def test_a_simulated_day_is_drawn(browser, url, width, scheme):
    """Each chart of the day has lines from midnight to midnight, tables are whole, and notes say what failed."""
    with opened_page(browser, url, width, scheme) as page:
        assert_drawn(page, width)
        assert page.evaluate(SPANS) == [1440] * len(PANELS)
        assert "deepseek-r1-prefill-0 is out from 12:00 until midnight, because node-20 fails." in page.content()


def test_the_slider_marks_the_simulated_day(browser, url):
    """The time that the slider sets is marked in each chart of the day. Axe finds nothing on the page."""
    with opened_page(browser, url) as page:
        marks = page.locator("#simulated .now")
        before = [marks.nth(index).bounding_box()["x"] for index in range(marks.count())]
        page.locator("input[type=range]").fill("240")
        after = [marks.nth(index).bounding_box()["x"] for index in range(marks.count())]
        assert found_by_axe(page) == []

    assert len(before) == len(PANELS)
    assert [was - now > 100 for was, now in zip(before, after, strict=True)] == [True] * len(PANELS)
