"""What is written by hand: rooms named as they are, pages short, links that lead somewhere, pages listed."""

import ast
import re
from pathlib import Path

import pytest

from tests.docs.rooms_table import ROOT, rooms
from tests.test_layering import FLOORS

PACKAGES = ("planner", "stacks")
READMES = [f"{folder}/README.md" for folder in ("planner", "stacks", "stacks/provider", "templates", "tests")]
MAX_WORDS = 900
FOLDERS = ("planner", "templates", "stacks", "runtime", "tests", "docs")
TEXTS = sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
MAX_COLUMNS = 120
FENCED = re.compile(r"^ *```.*?^ *```$", re.M | re.S)
NO_PROSE = re.compile(r" *(\||<!--|(- )?!?\[[^\]]*\]\([^)]*\)[.,]?$)")  # a row, a mark, a link alone


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_has_its_sentence(package):
    """A package's README has a row for each room, with the sentence of the room's own `__init__.py`."""
    text = (ROOT / package / "README.md").read_text()
    missing = [f"| `{name}` | {sentence} |" for name, sentence in rooms(package)]

    assert [row for row in missing if row not in text] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_the_floors_are_as_imports_may_go(package):
    """A package's README says the order of its rooms as `test_layering.py` holds it."""
    assert f"`{FLOORS[package]}`" in " ".join((ROOT / package / "README.md").read_text().split())


@pytest.mark.parametrize("path", READMES)
def test_a_readme_is_a_page(path):
    """The README of a package, and that of the tests, has at most 900 words, as `wc -w` counts them."""
    assert len((ROOT / path).read_text().split()) <= MAX_WORDS


def test_prose_is_wrapped():
    """Outside tables, code and links that stand alone, no line is longer than a line of code may be."""
    found = {str(path.relative_to(ROOT)): long_lines(path.read_text()) for path in TEXTS}

    assert {path: lines for path, lines in found.items() if lines} == {}
    assert len(found) > 20


@pytest.mark.parametrize(
    ("text", "is_long"),
    [
        ("word " * 25, True),
        ("- " + "word " * 25, True),
        (f"[a page]({'x' * 120}) and more", True),
        (f"- [a page]({'x' * 120})", False),
        ("| " + "word " * 25 + "|", False),
        (f"   ```\n{'word ' * 25}\n   ```", False),
        (f"```\ncode\n```\n{'word ' * 25}", True),
    ],
)
def test_a_long_line_of_prose_is_found(text, is_long):
    """A line counts unless it is a table's row, code, or a link that stands alone."""
    assert bool(long_lines(text)) is is_long


def long_lines(text):
    """The lines of prose that are too long."""
    lines = FENCED.sub("", text).splitlines()
    return [line for line in lines if len(line) > MAX_COLUMNS and not NO_PROSE.match(line)]


def test_links_lead_somewhere():
    """Every relative link names a file or folder, and every anchor a heading of it."""
    links = [(path, link) for path in TEXTS for link in LINK.findall(path.read_text())]

    assert [(str(path.relative_to(ROOT)), link) for path, link in links if not leads_somewhere(path, link)] == []
    assert len(links) > 100


def leads_somewhere(path, link):
    """Whether `link` in the page at `path` is there; others' sites are not asked."""
    if re.match(r"https?:", link):
        return True
    name, _, anchor = link.partition("#")
    target = path.parent / name if name else path
    return target.exists() and (not anchor or anchor in anchors(target))


def anchors(path: Path):
    """Those of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


STOP = re.compile(r"^\| \d+ \| `([^`]+)` \| `([^`]+)` \|", re.M)


def test_stops_of_the_walk_through_are_there():
    """Every stop names a file and a function or class that stands at its top level."""
    stops = STOP.findall((ROOT / "docs" / "walkthrough-ep-size.md").read_text())
    absent = [stop for stop in stops if stop[1] not in defined_in(ROOT / stop[0])]

    assert absent == []
    assert len(stops) > 20


def defined_in(path):
    """The functions and classes at the top level of a file."""
    body = ast.parse(path.read_text()).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def test_every_design_page_is_listed_once():
    """The front page of the design pages has a row for each of the others."""
    front = ROOT / "docs" / "design" / "README.md"
    pages = [path.name for path in front.parent.glob("*.md") if path != front]
    rows = "\n".join(line for line in front.read_text().splitlines() if line.startswith(("| [", "For all packages")))

    assert [page for page in pages if rows.count(f"]({page})") != 1] == []


def test_every_user_page_is_listed():
    """The index of `docs` leads to each page that stands beside it."""
    index = ROOT / "docs" / "README.md"
    links = set(LINK.findall(index.read_text()))

    assert {path.name for path in index.parent.glob("*.md")} - {index.name} - links == set()


# What a docstring does not begin with: such a sentence has no subject, and reads as a riddle.
NO_BEGINNING = re.compile(
    r'^ *"""(?:Of|By|With|Without|In|On|At|For|From|To|As|Over|Under|Between|Beside|Below|Above|After|Before|Within'
    r"|Into|Until|Than|Against|Through|Among|Beyond|Near|That|Which|Whose|Where|Who)\b.*",
    re.M,
)


def test_docstrings_begin_with_a_subject_or_a_verb():
    """No docstring of the packages begins with a preposition or a relative word."""
    paths = (path for package in FLOORS for path in (ROOT / package).rglob("*.py"))
    found = {str(path.relative_to(ROOT)): NO_BEGINNING.findall(path.read_text()) for path in paths}

    assert {path: texts for path, texts in found.items() if texts} == {}
    assert len(found) > 100
