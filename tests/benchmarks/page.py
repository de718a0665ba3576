"""How long a browser takes for a plan's page: `python -m tests.benchmarks.page`, exit 1 on a missed goal.

In Debian's chromium it opens in turn the published system's page of 278 nodes, its page beside the plan before a
change, its simulated day, and an empty page, which shows what the browser itself takes. A page is drawn when two frames
have followed its `load` event; each chart must then have a size. Goals: the median of RUNS is under 2 s for each page,
and no file is larger than 3 MB. CPU time, for machines that are never idle, is that of the page's own process, which
parses, lays out, runs the script and paints, but does not compose the picture.
"""

import os
import statistics
import sys
import tempfile
from pathlib import Path

from planner.compiler import compile_plan, run_passes
from planner.report.page.page import plan_page
from planner.rules.check import change_spec, check_spec
from stacks.simulator.flows.day import DayColumn, simulate_day
from stacks.simulator.report.day_figures import day_page
from stacks.simulator.variants import Variant
from tests.benchmarks.goals import Goals
from tests.browser import assert_drawn, launched_chromium, opened_page

PUBLISHED = Path(__file__).parents[2] / "stacks" / "specs" / "deepseek-h800.yaml"
RUNS, WIDTH = 5, 1400
MOST_S, MOST_BYTES = 2.0, 3_000_000
EMPTY = "<!doctype html><title>empty</title>"
DRAWN = """() => new Promise((drawn) => {
  const frames = () => requestAnimationFrame(() => requestAnimationFrame(() => drawn(performance.now() / 1000)));
  if (document.readyState === "complete") frames(); else addEventListener("load", frames);
})"""  # seconds from the navigation to the second frame


def main():
    """Measure the pages in turn, print medians, and hold them against the goals."""
    goals, pages = Goals(), {"empty": EMPTY, **written_pages()}
    with tempfile.TemporaryDirectory() as folder, launched_chromium() as chromium:
        files = {name: Path(folder, f"{name}.html") for name in pages}
        for name, file in files.items():
            file.write_text(pages[name])
        rounds = [{name: opened(chromium, file) for name, file in files.items()} for _ in range(RUNS)]
    print(f"load {os.getloadavg()[0]:.1f}; medians of {RUNS}; chromium {chromium.version}")
    medians = {name: [statistics.median(each[name][part] for each in rounds) for part in (0, 1)] for name in files}
    for name, (wall, cpu) in medians.items():
        size, times = len(pages[name].encode()), wall / medians["empty"][0]
        print(f"{name:10}{size / 1e6:6.2f} MB{wall:8.3f} s, {times:5.1f} times the empty page's{cpu:8.3f} s of CPU")
        goals.check(f"{name}: seconds", wall, "<", MOST_S)
        goals.check(f"{name}: bytes", size, "<", MOST_BYTES)
    return goals.report()


def written_pages():
    """The pages, by name."""
    spec = check_spec(PUBLISHED)
    passed = run_passes(spec)
    plan = compile_plan(spec)
    fewer = compile_plan(change_spec(spec, {"schedule": None, "prefill.units": 29, "decode.units": 8}), plan)
    day = DayColumn(Variant("as written", {}), simulate_day(passed))
    return {"plan": plan_page(plan), "change": plan_page(fewer, plan), "simulated": day_page([day])}


def opened(chromium, file):
    """Seconds until the page is drawn, and seconds of CPU time of its process until then."""
    with opened_page(chromium, f"file://{file}", WIDTH) as page:
        seconds = page.evaluate(DRAWN)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        found = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
        assert_drawn(page, WIDTH)
    return seconds, found["ProcessTime"]


if __name__ == "__main__":
    sys.exit(main())
