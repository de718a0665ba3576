"""The published day's plan, and a browser that opens pages."""

import pytest

from planner.compiler import compile_plan
from planner.rules.check import check_spec
from tests.browser import launched_chromium
from tests.planner.test_shipped_specs import SPECS


@pytest.fixture(scope="session")
def shipped():
    """The plan of the published day."""
    return compile_plan(check_spec(SPECS / "deepseek-h800.yaml"))


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window. While it is there, no test can start an event loop of its own."""
    with launched_chromium() as chromium:
        yield chromium
