"""What a README's recipe says will be noticed is noticed."""

import re
from typing import get_args

import pytest

from planner.facts.map_files import FILE_TYPES, Engine
from tests.docs.rooms_table import ROOT


def test_every_engine_is_exported_in_a_test():
    """The tests of map formats write a map for each engine, to be held against a file written by hand."""
    tests = (ROOT / "tests" / "planner" / "facts" / "test_map_files.py").read_text()

    assert FILE_TYPES.keys() == set(get_args(Engine))

    assert [engine for engine in get_args(Engine) if f'export_map("{engine}", ' not in tests] == []


@pytest.mark.parametrize("name", ["Containerfile", "Containerfile.gpu"])
def test_an_image_is_built_with_the_files_that_it_names(name):
    """The files of the checkout that a Containerfile names are among those that `.dockerignore` lets in."""
    named = set(re.findall(r"/src/([\w.-]+)", (ROOT / name).read_text()))
    let_in = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}

    assert named
    assert named <= let_in


def test_every_template_has_a_row():
    """The README of the templates says of each what object it is and what fills its holes."""
    text = (ROOT / "templates" / "README.md").read_text()
    names = [path.name.removesuffix(".yaml.j2") for path in (ROOT / "templates").glob("*.j2")]

    assert sorted(name for name in names if f"| `{name}` |" not in text) == []
