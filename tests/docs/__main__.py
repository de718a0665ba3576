"""Write the generated pages: `python -m tests.docs`."""

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.docs.pages import PAGES
from tests.planner.conftest import write_spec_folder
from tests.planner.spec.messages import MESSAGES, messages_page

with TemporaryDirectory() as folder:
    messages = messages_page(write_spec_folder(Path(folder)))
MESSAGES.write_text(messages, encoding="utf-8", newline="\n")  # first: the page of rules has examples of it

for path, page in PAGES.items():
    path.write_text(page(), encoding="utf-8", newline="\n")
