"""Write the generated pages: `python -m tests.docs`."""

from pathlib import Path
from tempfile import TemporaryDirectory

from planner.estimate.throughput.engines import engine_model, engines_json
from tests.docs.accuracy_page import ENGINES
from tests.docs.pages import PAGES
from tests.planner.conftest import write_spec_folder
from tests.planner.spec.messages import MESSAGES, messages_page
from tests.stacks.messages import LOCAL_MESSAGES, local_messages_page

with TemporaryDirectory() as folder:
    messages = messages_page(write_spec_folder(Path(folder)))
with TemporaryDirectory() as folder:
    local_messages = local_messages_page(Path(folder))
for path, text in ((MESSAGES, messages), (LOCAL_MESSAGES, local_messages)):
    path.write_text(text, encoding="utf-8", newline="\n")  # first: the page of rules has examples of them

for path, page in PAGES.items():
    path.write_text(page(), encoding="utf-8", newline="\n")
    if path == ENGINES:  # what follows is predicted with the new constants
        engines_json.cache_clear()
        engine_model.cache_clear()
