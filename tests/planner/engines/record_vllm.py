"""Record vLLM's command line from its wheel: python -m tests.planner.engines.record_vllm vllm-0.33.0-....whl

Run by hand when vLLM's version changes. It reads sources and runs none of them: each option with the type that its
configuration class declares, names of literals written out. What a parser would say otherwise (nargs, actions) is in
the declaration too: `bool` is a flag, `list[...]` takes several values, a class takes JSON.
"""

import ast
import json
import sys
import zipfile
from pathlib import Path

TABLE = Path(__file__).parent / "vllm-options.json"
WRITTEN_AS_JSON = ("EPLBConfig", "KVTransferConfig")
FOLDERS = ("vllm/config/", "vllm/engine/arg_utils.py", "vllm/entrypoints/common/cli_args.py")


def main() -> None:
    """Write the table."""
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        names = [name for name in wheel.namelist() if name.startswith(FOLDERS) and name.endswith(".py")]
        trees = [ast.parse(wheel.read(name)) for name in names]
    aliases = {key: value for tree in trees for key, value in _aliases(tree)}
    fields = {key: _written_out(value, aliases) for tree in trees for key, value in _fields(tree)}
    options = {name: fields[name[2:].replace("-", "_")] for tree in trees for name in _options(tree, fields)}
    options |= {_option(name): kind for tree in trees for name, kind in _frontend(tree, aliases)}
    version = Path(sys.argv[1]).name.split("-")[1]
    classes = {name: dict(found) for tree in trees for name, found in _classes(tree) if name in WRITTEN_AS_JSON}
    table = {"version": version, "options": dict(sorted(options.items())), "classes": classes}
    TABLE.write_text(json.dumps(table, indent=1) + "\n")


def _aliases(tree):
    """Names of literals."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text = ast.unparse(node.value)
            if text.startswith("Literal["):
                yield node.targets[0].id, text


def _fields(tree):
    """The annotated fields of all classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, ast.unparse(node.annotation)


def _classes(tree):
    """The fields of each class."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name, _fields(node)


def _options(tree, fields):
    """Options that are added under the name of a field."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            for word in node.args:
                text = word.value if isinstance(word, ast.Constant) else ""
                if isinstance(text, str) and text.startswith("--") and text[2:].replace("-", "_") in fields:
                    yield text


def _frontend(tree, aliases):
    """Fields of the server's own arguments, which become options by their names."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name.endswith("FrontendArgs"):
            yield from ((name, _written_out(kind, aliases)) for name, kind in _fields(node))


def _option(name):
    return "--" + name.replace("_", "-")


def _written_out(kind, aliases):
    for name, literal in aliases.items():
        kind = literal if kind == name else kind
    return kind


if __name__ == "__main__":
    main()
