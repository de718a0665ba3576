"""The table of rooms in `CONTRIBUTING.md`, from the first sentence of each room's `__init__.py`."""

import ast
import re
from pathlib import Path

__all__ = ["ROOT", "contributing_page", "rooms"]

ROOT = Path(__file__).parents[2]
PACKAGES = ("planner", "templates", "stacks", "runtime")
MARKED = re.compile(r"(<!-- rooms, .*? -->\n).*?(<!-- end of rooms -->\n)", re.S)


def contributing_page() -> str:
    """The page as it stands, with the table written anew."""
    rows = [
        f"| `{package}/{name}` | {sentence} |"
        for package in PACKAGES
        for name, sentence in [*_whole(package), *rooms(package)]
    ]
    table = "\n".join(["| room | is |", "|---|---|", *rows])
    return MARKED.sub(rf"\1{table}\n\2", (ROOT / "CONTRIBUTING.md").read_text())


def rooms(package):
    """(name, first paragraph of its docstring) of each folder of `package` that holds code."""
    for init in sorted((ROOT / package).glob("*/__init__.py")):
        yield f"{init.parent.name}/", _sentence(init)


def _whole(package):
    """The package itself, where it has no rooms."""
    return [] if any(rooms(package)) else [("", _sentence(ROOT / package / "__init__.py"))]


def _sentence(init):
    docstring = ast.get_docstring(ast.parse(init.read_text())) or ""
    return " ".join(docstring.split("\n\n")[0].split())
