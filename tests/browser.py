"""Debian's chromium without a window, and pages that are opened in it and must neither complain nor call anybody."""

import os
import shutil
from contextlib import contextmanager
from importlib.util import find_spec

import pytest

UNSEEN = """[...document.querySelectorAll(".track i, .plot svg path")].filter((each) => {
  const { width, height } = each.getBoundingClientRect();
  return !(width && (height || each.matches(".line")));
}).map((each) => each.outerHTML)"""  # parts of charts that have no size
CUT = """[...document.querySelectorAll(".figure > .scroll")].filter((each) =>
  each.scrollWidth > each.clientWidth || each.scrollHeight > each.clientHeight
).map((each) => each.outerHTML)"""  # tables that are not folded, and of which one sees a part


@contextmanager
def launched_chromium():
    """Chromium while the block runs. The test is skipped where something is missing, and CI fails."""
    lacking = [name for name in ("playwright", "axe_playwright_python") if find_spec(name) is None]
    lacking += [] if shutil.which("chromium") else ["chromium (Debian's package)"]
    if lacking:
        say = pytest.fail if os.environ.get("CI") else pytest.skip
        say(f"pages cannot be looked at without {', '.join(lacking)}")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield chromium
        chromium.close()


@contextmanager
def opened_page(chromium, url, width=1400, scheme="light"):
    """The page at `url`, at a width and in a colour scheme. It may not write to the console, nor ask for another."""
    said = []
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.extend([request.url] * (request.url != url)))
    page.goto(url)
    try:
        yield page
    finally:
        context.close()
    assert said == []


def assert_drawn(page, width):
    """Each segment and path of the page has a size, no table is cut, and nothing is wider than the window."""
    page.evaluate("document.querySelectorAll('details.both').forEach((each) => { each.open = true; })")
    assert page.evaluate(UNSEEN) + page.evaluate(CUT) == []
    assert page.evaluate("document.documentElement.scrollWidth") == width


def found_by_axe(page):
    """What keeps somebody from reading or using the page, as axe finds it: [(rule, the first such element)]."""
    from axe_playwright_python.sync_playwright import Axe

    return [(each["id"], each["nodes"][0]["html"]) for each in Axe().run(page).response["violations"]]
