"""The README shows every room of the house."""

from pathlib import Path

import pytest

import runtime

FOLDER = Path(runtime.__file__).parent
TABLES = [line.split("|")[1] for line in (FOLDER / "README.md").read_text().splitlines() if line.startswith("| `")]


@pytest.mark.parametrize(("folder", "prefix"), [("", ""), ("model", "model/"), ("gateway", "")])
def test_every_file_is_explained(folder, prefix):
    """Each module's name stands in the first column of a table; no row names one that is gone."""
    files = {f"{prefix}{path.name}" for path in (FOLDER / folder).glob("*.py") if path.name != "__init__.py"}
    named = {name for cell in TABLES for name in cell.split("`")[1::2]}

    assert files <= named
    assert all((FOLDER / name).exists() or (FOLDER / "gateway" / name).exists() for name in named)
