"""The pages that are written from the code, whole or in part.

`python -m tests.docs` writes them; `test_pages.py` fails while one is stale.

They are made here and not in the planner, because the examples of rules are the cases of the tests.
"""

from planner.guide.rules import EXAMPLES
from tests.docs.accuracy_page import ENGINES, accuracy_page, engines_file
from tests.docs.diff_page import diff_page
from tests.docs.layouts_page import layouts_page
from tests.docs.plan_schema import diff_schema, plan_schema
from tests.docs.rooms_table import ROOT, contributing_page
from tests.docs.rules_page import examples_of_rules, rules_page
from tests.docs.spec_page import spec_page

__all__ = ["PAGES"]

PAGES = {
    ENGINES: engines_file,  # first: predictions are made with it
    ROOT / "docs" / "accuracy.md": accuracy_page,
    EXAMPLES: examples_of_rules,  # before the next: the page of rules is made from it
    ROOT / "docs" / "spec.md": spec_page,
    ROOT / "docs" / "rules.md": rules_page,
    ROOT / "docs" / "plan.schema.json": plan_schema,
    ROOT / "docs" / "diff.schema.json": diff_schema,
    ROOT / "docs" / "diff.md": diff_page,
    ROOT / "docs" / "published-layouts.md": layouts_page,
    ROOT / "CONTRIBUTING.md": contributing_page,
}
