"""Benchmarks run by hand, so that here at least what they import from each other and from tests is there."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = sorted((ROOT / "tests" / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_what_a_benchmark_imports_is_there(path):
    """Each name of ours that it imports is defined, imported or assigned at the top of its module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (module := file_of(node.module)):
            missing = {alias.name for alias in node.names} - names_in(module)
            assert not missing, f"{node.module} lacks {missing}"


def file_of(module):
    """The file of a module of ours; None for a library's."""
    place = ROOT.joinpath(*module.split("."))
    files = (place.with_suffix(".py"), place / "__init__.py")
    return next((each for each in files if each.exists()), None)


def names_in(path):
    """What a module has at its top, and the modules beside it where it is a package."""
    found = {each.stem for each in path.parent.iterdir()} if path.name == "__init__.py" else set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return found
