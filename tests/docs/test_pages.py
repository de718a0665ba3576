"""The pages that are written from the code say what the code says."""

import re

import pytest

from planner.guide.fields import describe_field
from tests.docs.pages import PAGES
from tests.docs.plan_schema import schema_of_plans
from tests.docs.rooms_table import ROOT
from tests.planner.spec.spec_schema import all_kinds

OF_LAUNCH_DOCUMENTS = {"_UnitDocument", "_GatewayDocument", "_NamedMap", "_TokenKv", "_Checkpoint"}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_generated_page_is_up_to_date(path):
    """`python -m tests.docs` would write the page as it stands."""
    assert path.read_text() == PAGES[path](), "write it again with python -m tests.docs"


def test_every_field_has_a_row():
    """The page of the spec has each field of the schema in a table."""
    page = PAGES[ROOT / "docs" / "spec.md"]()
    fields = {path.rpartition(".")[2].removesuffix("[]") for path, _ in all_kinds() if path}

    assert sorted(field for field in fields if f"| `{field}` |" not in page) == []


@pytest.mark.parametrize("key", ["description", "examples"])
def test_a_field_that_says_nothing_is_named(key):
    """Whoever adds a field without its description reads which one it is."""
    field = {"type": "integer", "description": "How many.", "examples": [1]}

    assert describe_field("units", field, {"title": "PhaseSpec"}).takes == "a whole number"
    with pytest.raises(ValueError, match=rf"PhaseSpec\.units has no {key}: "):
        describe_field("units", {name: each for name, each in field.items() if name != key}, {"title": "PhaseSpec"})


def test_a_heading_names_each_place_once():
    """A section that may stand alone or in a list is found at one path twice."""
    headings = re.findall("^## (.*)", PAGES[ROOT / "docs" / "spec.md"](), re.MULTILINE)

    assert [each for each in headings if len(set(each.split(", "))) < len(each.split(", "))] == []


def test_every_rule_has_a_row():
    """The page of the rules has each id that the sources name, and the page of errors says what its group is of."""
    sources = "".join(path.read_text() for room in ("planner", "stacks") for path in (ROOT / room).rglob("*.py"))
    page, errors = PAGES[ROOT / "docs" / "rules.md"](), (ROOT / "docs" / "errors.md").read_text()
    rules = set(re.findall(r'"([SWR]\d{3})\b', sources))

    assert sorted(rule for rule in rules if f"| {rule} |" not in page) == []
    assert sorted({rule[:2] for rule in rules if f"{rule[:2]}xx" not in errors}) == []


def test_every_key_of_a_plan_is_on_its_page():
    """Those of launch documents have a schema of their own."""
    schema, page = schema_of_plans(), (ROOT / "docs" / "plan-json.md").read_text()
    sections = [schema, *(each for name, each in schema["$defs"].items() if name not in OF_LAUNCH_DOCUMENTS)]
    said = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", page))))

    assert sorted({key for each in sections for key in each.get("properties", {})} - said) == []
