"""Who may import whom: between packages, and from room to room of a package, of the gateway and of the simulator.

`stacks -> planner -> templates`; `runtime` stands alone; nothing imports `stacks`. A room is a folder of a package, or
a file beside the folders.
"""

import ast
from functools import cache
from graphlib import TopologicalSorter
from itertools import combinations
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = {"planner", "templates", "stacks", "runtime"}

# package, or room with rooms -> its rooms, floor by floor: a room may import the rooms of lower floors, and no other
FLOORS = {
    "planner": (
        "cli > diff, guide, accuracy, experts > command, compiler > manifests > report > plan > search > candidate"
        " > rules > cost > schedule, engines > estimate > placement > layout"
        " > spec > expert_map > families > facts > problems"
    ),
    "stacks": (
        "cli, __main__ > gitops > doctor, controller > program > provider, live, simulator > kube, local"
        " > measured, day"
    ),
    "runtime": (
        "__main__ > offline > worker, gateway > serving > model > expert_parallel > kv > kernels > protocol"
        " > launch, checkpoint, trace > errors"
    ),
    "runtime.gateway": "serve > core > tenants > telemetry > ranks > edge",
    "stacks.simulator": "cli > call > report > flows, requests > variants > speed",
}

# room -> all that it may import of its package, where that is less than the floors below it
NARROWER = {
    "runtime.gateway": {"protocol", "launch", "checkpoint", "errors"},
    "runtime.kernels": {"errors"},
    "runtime.protocol": {"errors"},
}

WITHOUT_TORCH = ("runtime.gateway", "runtime.protocol")

# package -> Python files outside rooms, `__init__.py` not counted
MAX_LOOSE_FILES = {"planner": 2, "runtime": 6, "stacks": 2}

# package -> what it may not import, at any depth
FORBIDDEN = {
    "planner": {"stacks", "runtime", "torch", "pulumi", "kubernetes", "socket", "urllib", "datetime"},
    "templates": OURS,
    "runtime": {"planner", "templates", "stacks", "pulumi", "kubernetes"},
    "stacks": {"runtime", "torch"},
}

# What the simulator imports all the same: the gateway's own choice of ranks, which needs neither torch nor `runtime`'s
# dependencies.
SIMULATED = {"runtime.gateway.ranks.router", "runtime.gateway.ranks.answer_lengths", "runtime.protocol.counting"}

# What `compile_plan` calls, itself or by asking a candidate; no other module of the planner runs a pass.
PASSES = {
    *("decide", "decide_near", "require_feasible", "place_units", "failure_domains", "plan_schedule", "balance"),
    *("rebuilt_sections", "report_failures", "predict_phases", "estimate_cost"),
}


def modules(package):
    """Every Python file of `package`."""
    return sorted((ROOT / package).rglob("*.py"))


@cache
def imports(path):
    """(module, name) of every import in the file at `path`, wherever it stands."""
    return tuple(_imports(ast.walk(ast.parse(path.read_text())), path))


def _imports(nodes, path):
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield from ((node.module, alias.name) for alias in node.names)


# The planner's one file that knows dates: it may import `datetime`, and may not ask what time it is.
KNOWS_DATES = Path("planner/facts/calendar.py")
ASKS_THE_TIME = {"now", "today", "utcnow", "time", "localtime", "gmtime"}


@pytest.mark.parametrize("package", FORBIDDEN)
def test_packages_import_only_downwards(package):
    """The planner touches no cluster and no clock, the runtime no plan, and stacks start the runtime as a process."""
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in modules(package)
        for module, _ in imports(path)
        if module.split(".")[0] in FORBIDDEN[package] - ({"datetime"} if path == ROOT / KNOWS_DATES else set())
        and not (module in SIMULATED and path.is_relative_to(ROOT / "stacks" / "simulator"))
    ]

    assert wrong == []


def test_the_file_that_knows_dates_asks_no_clock():
    """It turns instants into what clocks show, and somebody else says which instant it is."""
    names = {
        node.attr for node in ast.walk(ast.parse((ROOT / KNOWS_DATES).read_text())) if isinstance(node, ast.Attribute)
    }

    assert names.isdisjoint(ASKS_THE_TIME)


def room_of(module, package):
    """Return the room of a package's module: `planner.spec` for `planner.spec.yaml`. A package itself is no room."""
    return ".".join(module.split(".")[: package.count(".") + 2]) if module.startswith(f"{package}.") else None


def arrows(package):
    """(room, imported room, where) of all imports between rooms of `package`; training scripts are not shipped."""
    for path in modules(package.replace(".", "/")):
        if path.is_relative_to(ROOT / "runtime" / "demo"):
            continue
        room = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts), package)
        for module, name in imports(path):
            target = room_of(f"{module}.{name}" if module == package else module, package)
            if target and target != room:
                yield room, target, path.relative_to(ROOT).as_posix()


def floors(package):
    """The rooms of each floor, from the top."""
    return [[f"{package}.{room}" for room in floor.split(", ")] for floor in FLOORS[package].split(" > ")]


def broken(package, found):
    """What the contracts of `package` forbid among the arrows `found`."""
    floor_of = {room: number for number, rooms in enumerate(floors(package)) for room in rooms}
    for room, target, where in found:
        allowed = NARROWER.get(room)
        if floor_of[room] >= floor_of[target] or (allowed is not None and target.split(".")[1] not in allowed):
            yield f"{where}: {room} may not import {target}"


@pytest.mark.parametrize("package", FLOORS)
def test_rooms_import_only_downwards(package):
    """No room imports one of its own floor or of a floor above."""
    assert list(broken(package, arrows(package))) == []


@pytest.mark.parametrize("package", FLOORS)
def test_every_room_stands_on_a_floor(package):
    """A new folder or file needs its place in the contract, and the contract names none that is gone."""
    there = {
        f"{package}.{path.stem}"
        for path in (ROOT / package.replace(".", "/")).iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }

    assert there - {f"{package}.__init__", "runtime.demo"} == {room for floor in floors(package) for room in floor}


@pytest.mark.parametrize("package", FLOORS)
def test_every_arrow_against_the_contract_is_caught(package):
    """Each room importing any room beside or above it breaks the contract."""
    rooms = [(number, room) for number, floor in enumerate(floors(package)) for room in floor]
    for (upper, above), (lower, below) in combinations(rooms, 2):
        assert list(broken(package, [(below, above, "x.py")]))
        if upper == lower:
            assert list(broken(package, [(above, below, "x.py")]))


@pytest.mark.parametrize(("room", "allowed"), NARROWER.items())
def test_a_narrower_contract_is_caught_too(room, allowed):
    """A room with a list of its own may import nothing else, however low it lies."""
    package = room.split(".")[0]
    others = {each for floor in floors(package) for each in floor} - {f"{package}.{each}" for each in allowed} - {room}

    assert all(list(broken(package, [(room, other, "x.py")])) for other in others)


@pytest.mark.parametrize("room", WITHOUT_TORCH)
def test_rooms_that_need_no_torch_import_none(room):
    """Neither they nor anything that they import, at any depth."""
    files = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in modules("runtime")}
    waiting = [name for name in files if name.startswith(f"{room}.")]
    seen = set(waiting)
    while waiting:
        name = waiting.pop()
        for module, part in imports(files[name]):
            assert module.partition(".")[0] != "torch", f"{name} imports {module}"
            new = {each for each in (module, f"{module}.{part}") if each in files} - seen
            waiting += new
            seen |= new


@pytest.mark.parametrize(("package", "most"), MAX_LOOSE_FILES.items())
def test_few_files_lie_outside_rooms(package, most):
    """`ls` explains the architecture, so nearly everything has a room."""
    loose = [path.name for path in (ROOT / package).glob("*.py") if path.name != "__init__.py"]

    assert len(loose) <= most, loose


@pytest.mark.parametrize("package", sorted(OURS))
def test_every_room_says_what_it_is(package):
    """A room's `__init__.py` begins with one sentence."""
    folders = (ROOT / package).rglob("__init__.py")
    firsts = {path: (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines() for path in folders}

    assert [str(path) for path, lines in firsts.items() if not lines or not lines[0].endswith((".", ":"))] == []


@pytest.mark.parametrize("package", sorted(OURS))
def test_no_file_imports_itself_in_a_circle(package):
    """Not by way of others either, nor inside a function: each file can be read after those that it imports."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in modules(package)}
    imported = {
        name: {other for module, part in imports(path) for other in (module, f"{module}.{part}") if other in names}
        for name, path in names.items()
    }

    assert len(list(TopologicalSorter(imported).static_order())) == len(names)


def test_only_one_file_speaks_to_kubernetes():
    """The file that makes the requests, and one that reads quantities; everything else hands manifests around."""
    importers = {
        path.relative_to(ROOT).as_posix()
        for path in modules("stacks")
        for module, _ in imports(path)
        if module.split(".")[0] == "kubernetes"
    }

    assert importers == {"stacks/kube/connection.py", "stacks/kube/quantities.py"}


def test_the_doctors_judgement_needs_no_cluster():
    """Facts and needs in, findings out: of the room's files only three know a way to a cluster."""
    rooms = {"stacks.kube.api", "stacks.kube.connection", "stacks.kube.lifecycle"}
    knowing = {
        path.name
        for path in modules("stacks/doctor")
        for module, name in imports(path)
        if rooms & {module, f"{module}.{name}"}
    }

    assert knowing == {"examination.py", "probing.py", "reading.py"}


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
def test_only_commands_print(package):
    """A command is in a `cli.py`, what all share in `planner/command`; everything else returns or raises."""
    printing = {
        path.relative_to(ROOT).as_posix()
        for path in modules(package)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }

    assert {path for path in printing if not path.endswith("cli.py") and "planner/command/" not in path} == set()


def test_only_the_compiler_knows_the_passes():
    """A pass that calls another would hide the order: it is a candidate's, and those know it who ask one.

    `rebuild.py` makes the schedule that a plan stores, and `plan.py` that which a plan is carried out by. `load.py`
    makes what runs once more, to compare. `experts.py` balances loads without a spec. `rows.py` asks what the day would
    cost with a controller.
    """
    importers = {
        path.name
        for path in modules("planner")
        for module, name in imports(path)
        if name in PASSES and not module.startswith(("planner.expert_map.", "planner.placement."))
    }

    assert importers == {
        "candidate.py",
        "compiler.py",
        "decided.py",
        "experts.py",
        "feasible.py",
        "fit.py",
        "load.py",
        "plan.py",
        "repair.py",
        "rebuild.py",
        "rows.py",
    }
