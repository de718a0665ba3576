"""The pages of `docs/` that are written from the code.

`python -m tests.docs` writes them; `test_pages.py` fails while one is stale.

They are made here and not in the planner, because the examples of rules are the cases of the tests.
"""

from pathlib import Path

from tests.docs.rules_page import rules_page
from tests.docs.spec_page import spec_page

__all__ = ["PAGES", "ROOT"]

ROOT = Path(__file__).parents[2]
PAGES = {ROOT / "docs" / "spec.md": spec_page, ROOT / "docs" / "rules.md": rules_page}
