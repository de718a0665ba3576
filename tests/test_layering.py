"""Who may import whom. `stacks -> planner -> templates`; `runtime` stands alone; nothing imports `stacks`."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = {"planner", "templates", "stacks", "runtime"}

# package -> what it may not import, at any depth
FORBIDDEN = {
    "planner": {"stacks", "runtime", "torch", "pulumi", "kubernetes", "socket", "urllib", "datetime"},
    "templates": OURS,
    "runtime": {"planner", "templates", "stacks", "pulumi", "kubernetes"},
    "stacks": {"runtime", "torch"},
}

# What `compile_plan` calls, in order; no other module of the planner runs a pass.
PASSES = {
    *("decide", "lay_out", "fit_memory", "place_units", "plan_schedule", "balance"),
    *("expected_traffic", "report_failures", "launch_documents", "runtime_refusals"),
}


def modules(package):
    """Every Python file of `package`."""
    return sorted((ROOT / package).rglob("*.py"))


def imports(path):
    """(module, name) of every import in the file at `path`, wherever it stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize("package", FORBIDDEN)
def test_packages_import_only_downwards(package):
    """The planner touches no cluster and no clock, the runtime no plan, and stacks start the runtime as a process."""
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in modules(package)
        for module, _ in imports(path)
        if module.split(".")[0] in FORBIDDEN[package]
    ]

    assert wrong == []


@pytest.mark.parametrize("package", sorted(OURS))
def test_no_file_imports_itself_in_a_circle(package):
    """Not by way of others either, nor inside a function: each file can be read after those that it imports."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in modules(package)}
    imported = {
        name: {other for module, part in imports(path) for other in (module, f"{module}.{part}") if other in names}
        for name, path in names.items()
    }

    assert len(list(TopologicalSorter(imported).static_order())) == len(names)


def test_only_the_provider_speaks_to_kubernetes():
    """And in it only the file that makes the requests: everything else hands manifests around."""
    importers = {
        path.relative_to(ROOT).as_posix()
        for path in modules("stacks")
        for module, _ in imports(path)
        if module.split(".")[0] == "kubernetes"
    }

    assert importers == {"stacks/kube/connection.py"}


def test_of_the_planner_only_the_command_line_looks_at_a_clock():
    """`tidemill experts` says how long its map took; what it computes cannot depend on that."""
    clocked = {path.name for path in modules("planner") for module, _ in imports(path) if module == "time"}

    assert clocked == {"cli.py"}


def test_templates_hold_no_python():
    """Only a docstring, so that the folder is a package."""
    (init,) = modules("templates")
    (docstring,) = ast.parse(init.read_text()).body

    assert isinstance(docstring, ast.Expr)


@pytest.mark.parametrize("package", ["planner", "stacks"])
def test_only_cli_files_print(package):
    """Everything else returns or raises."""
    printing = {
        path.relative_to(ROOT).as_posix()
        for path in modules(package)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }

    assert {path for path in printing if not path.endswith("cli.py")} == set()


def test_only_the_compiler_knows_the_passes():
    """A pass that calls another would hide the order. `experts.py` runs one pass alone: a map without a plan."""
    importers = {
        path.name
        for path in modules("planner")
        for module, name in imports(path)
        if name in PASSES and not module.startswith(("planner.expert_map.", "planner.placement."))
    }

    assert importers == {"compiler.py", "experts.py"}
