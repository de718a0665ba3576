"""Write the generated pages: `python -m tests.docs`."""

from tests.docs.pages import PAGES

for path, page in PAGES.items():
    path.write_text(page(), encoding="utf-8", newline="\n")
