"""The runtime has no code that runs data, and no socket on all addresses."""

import ast
from pathlib import Path

import pytest

RUNTIME = Path(__file__).parents[2] / "runtime"
FORBIDDEN_MODULES = {"pickle", "dill", "cloudpickle", "marshal", "shelve", "multiprocessing"}
FORBIDDEN_NAMES = {
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "recv_object_list",
    "scatter_object_list",
    "send_object_list",
}
SOURCES = sorted(RUNTIME.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(RUNTIME)))
def test_nothing_is_unpickled_and_nothing_binds_everywhere(path):
    """No module uses pickle, torch.load, object collectives or a wildcard address."""
    tree = ast.parse(path.read_text())

    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                assert not {name.name.partition(".")[0] for name in names} & FORBIDDEN_MODULES
            case ast.ImportFrom(module=module):
                assert (module or "").partition(".")[0] not in FORBIDDEN_MODULES
            case ast.Attribute(value=ast.Name(id="torch"), attr=name):
                assert name not in {"load", "save"}
            case ast.Attribute(attr=name) | ast.Name(id=name):
                assert name not in FORBIDDEN_NAMES
            case ast.Call(keywords=keywords):
                assert not [key for key in keywords if key.arg == "allow_pickle" and ast.literal_eval(key.value)]
            case ast.Constant(value=value):
                assert value not in ("0.0.0.0", "::")


def test_there_is_something_to_look_at():
    """The search finds the sources."""
    assert len(SOURCES) > 30
