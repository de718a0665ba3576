"""Write docs/report.png, what a browser shows of the published day's page: `python -m tests.docs.page_picture`.

By hand, after a change of the page: another chromium draws other pixels. The page answers what fails with a rack at
04:00, and has the day below.
"""

from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from planner.compiler import compile_plan
from planner.report.page.page import plan_page
from planner.rules.check import check_spec
from tests.browser import launched_chromium, opened_page
from tests.docs.rooms_table import ROOT

WIDTH, MARGIN, NUM_COLOURS = 1280, 10, 64


def main():
    """Draw the page, and cut out the sections of nodes and of the day."""
    with TemporaryDirectory() as folder, launched_chromium() as chromium:
        file = Path(folder) / "page.html"
        spec = check_spec(ROOT / "stacks" / "specs" / "deepseek-h800.yaml")
        file.write_text(plan_page(compile_plan(spec)))
        with opened_page(chromium, f"file://{file}", WIDTH) as page:
            page.locator("input[type=range]").fill(str(4 * 60))
            page.get_by_label("Find a node, rack or unit").fill("rack-5")
            page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
            nodes, day = (page.locator(f"#{section}").bounding_box() for section in ("nodes", "day"))
            left, top = nodes["x"] - MARGIN, nodes["y"] - MARGIN
            size = {"width": nodes["width"] + 2 * MARGIN, "height": day["y"] + day["height"] - top + MARGIN}
            picture = page.screenshot(full_page=True, clip={"x": left, "y": top, **size})
    Image.open(BytesIO(picture)).convert("RGB").quantize(NUM_COLOURS).save(ROOT / "docs" / "report.png", optimize=True)


if __name__ == "__main__":
    main()
