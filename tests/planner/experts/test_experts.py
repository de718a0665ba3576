"""`tidemill experts`: the contract's keys, and every mistake of a call at once."""

import json

import numpy as np
import pytest

from planner.cli import main

KEYS = {
    "physical_to_logical",
    "logical_to_physical",
    "replica_count",
    "max_over_mean",
    "bound",
    "split",
    "moved_slots",
    "seconds",
}
RULE = "S605 must hold token counts from 0 to 9007199254740992, [layers][experts]"


@pytest.fixture
def loads_file(tmp_path):
    """Writes loads as .npy, or as JSON, and returns the path."""

    def write(loads, name="loads.npy"):
        path = tmp_path / name
        if name.endswith(".npy"):
            np.save(path, np.array(loads))
        else:
            path.write_text(json.dumps(loads))
        return str(path)

    return write


@pytest.fixture
def experts(capsys):
    """Runs the command with `--format json`; its exit status and its document."""

    def run(*words):
        status = main(["experts", *map(str, words), "--format", "json"])
        return status, json.loads(capsys.readouterr().out)

    return run


def test_the_answer_has_the_contracts_keys(loads_file, experts):
    """One expert twice as hot as three others, on two GPUs of three slots each."""
    path = loads_file([[6, 4, 1, 1]])
    status, document = experts(path, "--gpus", 2, "--nodes", 1, "--slots-per-gpu", 3)

    assert status == 0
    assert set(document) >= KEYS
    assert sorted(document["physical_to_logical"][0]) == [0, 0, 1, 1, 2, 3]
    assert document["replica_count"] == [[2, 2, 1, 1]]
    assert [[len(slots) for slots in layer] for layer in document["logical_to_physical"]] == [[2, 2, 1, 1]]
    assert document["split"] == "equal"
    assert document["moved_slots"] is None
    assert document["max_over_mean"] == document["bound"] == [1.0]
    assert document["seconds"] > 0


def test_logical_to_physical_is_the_inverse(loads_file, experts):
    """Each expert's list names the slots that hold it, rising."""
    _, document = experts(loads_file([[5, 1, 9, 3, 2]]), "--gpus", 3, "--nodes", 3)
    (slots,), (experts_of,) = document["physical_to_logical"], document["logical_to_physical"]

    assert [[slot for slot, held in enumerate(slots) if held == expert] for expert in range(5)] == experts_of


@pytest.mark.parametrize("name", ["loads.npy", "loads.json"])
def test_without_slots_each_gpu_has_just_enough(loads_file, experts, name):
    """5 experts on 3 GPUs: ceil(5 / 3) = 2 slots each, whichever way the loads are written."""
    status, document = experts(loads_file([[1, 2, 3, 4, 5]], name), "--gpus", 3, "--nodes", 1)

    assert (status, len(document["physical_to_logical"][0])) == (0, 6)


def test_means_of_counts_are_loads_too(loads_file, experts):
    """Halves of all loads give the same map."""
    loads = np.arange(1, 17).reshape(1, 16)
    maps = [
        experts(loads_file(each), "--gpus", 4, "--nodes", 2)[1]["physical_to_logical"] for each in (loads, loads / 2)
    ]

    assert maps[0] == maps[1]


def test_the_map_is_written_alike_every_time(loads_file, experts, tmp_path):
    """The file holds what is printed but for the seconds."""
    path = loads_file([[6, 3, 3, 3]])
    texts = []
    for _ in range(2):
        _, document = experts(path, "--gpus", 2, "--nodes", 1, "-o", tmp_path / "map.json")
        texts.append((tmp_path / "map.json").read_text())
    del document["seconds"]

    assert texts[0] == texts[1]
    assert json.loads(texts[0]) == document


def test_people_read_what_the_map_is_worth(loads_file, capsys):
    """The text names balance, bound and policy in at most 100 columns."""
    main(["experts", loads_file([[6, 3, 3, 3]]), "--gpus", "2", "--nodes", "1", "--slots-per-gpu", "3"])
    lines = capsys.readouterr().out.splitlines()

    assert max(map(len, lines)) <= 100
    assert "  max/mean load   1.0000 mean, 1.0000 worst (layer 0)" in lines
    assert "  policy          global (one node: nothing crosses nodes)" in lines


def test_whole_groups_stay_on_a_node(loads_file, experts):
    """S805's right case: with --policy hierarchical each node holds whole groups of experts."""
    loads = [[9, 1, 1, 1, 5, 5, 2, 2]]
    _, document = experts(loads_file(loads), "--gpus", 4, "--nodes", 2, "--groups", 4, "--policy", "hierarchical")
    slots = document["physical_to_logical"][0]
    groups = [{expert // 2 for expert in slots[start : start + 4]} for start in (0, 4)]

    assert document["policy"] == "hierarchical"
    assert groups[0].isdisjoint(groups[1])


def test_auto_says_why(loads_file, experts):
    """3 groups cannot be spread over 2 nodes, so groups do not count."""
    _, document = experts(loads_file([[1] * 6]), "--gpus", 2, "--nodes", 2, "--groups", 3)

    assert document["policy"] == "global"
    assert document["policy_reason"] == "3 groups cannot spread evenly over 2 nodes"


def test_more_slots_than_experts_on_every_gpu(loads_file, experts):
    """Where nothing else is possible a GPU holds an expert twice, and all GPUs carry alike."""
    status, document = experts(loads_file([[1, 2]]), "--gpus", 2, "--nodes", 1, "--slots-per-gpu", 3)

    assert (status, document["physical_to_logical"], document["max_over_mean"]) == (0, [[0, 1, 1, 0, 1, 1]], [1.0])


def test_the_front_of_auto_ends_without_groups(loads_file, experts, capsys):
    """One expert with most of the load: no node can carry its group, so auto keeps none, and people read that."""
    words = (loads_file([[900, *[5] * 15]]), "--gpus", 8, "--nodes", 4, "--slots-per-gpu", 3, "--groups", 8)
    _, document = experts(*words)
    main(["experts", *map(str, words)])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.endswith("<- chosen"))

    assert document["front"][-1] == document["dispatch"]
    assert document["policy"] == document["dispatch"]["policy"] == "global"
    assert line.endswith("cross-node dispatch bytes, no groups kept  <- chosen")


@pytest.mark.parametrize(
    ("loads", "reason"),
    [
        ([[1, -2]], "layer 0, expert 1 is -2"),
        ([[1, float("nan")]], "layer 0, expert 1 is NaN"),
        ([[1, float("inf")]], "layer 0, expert 1 is Infinity"),
        ([1, 2], "it is one row of numbers"),
        ([[[1, 2]]], "it has more than two dimensions"),
        ([["a", "b"]], "layer 0, expert 0 is of type str"),
    ],
)
@pytest.mark.parametrize("name", ["loads.npy", "loads.json"])
def test_wrong_loads_are_described(loads_file, experts, loads, reason, name):
    """Negative, not a number, infinite, of another rank or no numbers: exit 2, with the reason."""
    path = loads_file(loads, name)
    status, document = experts(path, "--gpus", 1, "--nodes", 1)

    assert status == 2
    assert [(error["rule"], error["reason"]) for error in document["errors"]] == [(RULE, reason)]


def test_pickled_loads_are_not_opened(loads_file, experts):
    """A .npy of objects would run code: exit 2 instead."""
    path = loads_file([{"a": 1}])
    status, document = experts(path, "--gpus", 1, "--nodes", 1)

    assert (status, document["errors"][0]["rule"]) == (2, "S604 must be .npy or JSON")


@pytest.mark.parametrize("shape", ["(True, 8)", "(1, 8"])
def test_a_header_that_numpy_trips_over_is_refused(shape, tmp_path, experts):
    """It is read as Python, so that it can fail in ways of Python's own."""
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    path = tmp_path / "loads.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64))
    status, document = experts(path, "--gpus", 1, "--nodes", 1)

    assert (status, document["errors"][0]["rule"]) == (2, "S604 must be .npy or JSON")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"gpus": 0, "nodes": -1}, [("S801", [{"--gpus": 1}]), ("S801", [{"--nodes": 1}])]),
        ({"gpus": 5, "nodes": 2}, [("S802", [{"--gpus": 4}, {"--gpus": 6}])]),
        ({"gpus": 2, "nodes": 1, "slots-per-gpu": 3}, [("S803", [{"--slots-per-gpu": 4}])]),
        ({"gpus": 2, "nodes": 1, "groups": 3}, [("S804", [{"--groups": 2}, {"--groups": 4}])]),
        (
            {"gpus": 4, "nodes": 4, "groups": 2, "policy": "hierarchical"},
            [("S805", [{"--groups": 4}, {"--policy": "global"}])],
        ),
        (
            {"gpus": 3, "nodes": 2, "slots-per-gpu": 1, "groups": 5},
            [
                ("S802", [{"--gpus": 2}, {"--gpus": 4}]),
                ("S803", [{"--slots-per-gpu": 3}]),
                ("S804", [{"--groups": 4}, {"--groups": 8}]),
            ],
        ),
    ],
)
def test_every_mistake_of_a_call_is_said_at_once(loads_file, experts, options, found):
    """S801, S802, S803, S804, S805: exit 2, value, rule, reason and nearest fix of each."""
    words = [word for option, value in options.items() for word in (f"--{option}", value)]
    status, document = experts(loads_file([list(range(8))]), *words)

    assert status == 2
    assert facts_of(document) == found


def facts_of(document):
    """The id and changes of each error: what programs read."""
    return [(error["rule"][:4], error.get("changes", [])) for error in document["errors"]]


def test_sizes_beyond_any_unit_are_refused_at_once(loads_file, experts):
    """S810, S811, S812: what would be searched for ever is a mistake with its limit."""
    path = loads_file([[1] * 8])
    _, many_gpus = experts(path, "--gpus", 100_000_000_000, "--nodes", 1)
    _, many_slots = experts(path, "--gpus", 4, "--nodes", 1, "--slots-per-gpu", 5000, "--first-layer", -7)

    assert facts_of(many_gpus) == [("S811", [{"--gpus": 4096}])]
    assert facts_of(many_slots) == [("S812", [{"--slots-per-gpu": 4098}]), ("S810", [{"--first-layer": 0}])]


def test_wrong_loads_do_not_hide_wrong_sizes(tmp_path, experts):
    """A missing file and no GPUs: two mistakes."""
    status, document = experts(tmp_path / "none.npy", "--gpus", 0, "--nodes", 1)

    assert status == 2
    assert {error["rule"][:4] for error in document["errors"]} == {"S603", "S801"}


@pytest.fixture
def map_file(loads_file, experts, tmp_path):
    """A map of two layers of eight experts on two GPUs, written with -o; the path."""
    path = tmp_path / "previous.json"
    experts(loads_file([[8, 7, 6, 5, 4, 3, 2, 1]] * 2), "--gpus", 2, "--nodes", 1, "-o", path)
    return path


def test_nothing_moves_from_a_map_that_is_good(loads_file, experts, map_file):
    """The loads that it was made for. When what one GPU holds becomes hot, slots change."""
    held = [set(row[:4]) for row in json.loads(map_file.read_text())["physical_to_logical"]]
    same = loads_file([[8, 7, 6, 5, 4, 3, 2, 1]] * 2)
    other = loads_file([[80 if expert in each else 1 for expert in range(8)] for each in held], "other.npy")
    moved = [
        experts(path, "--gpus", 2, "--nodes", 1, "--previous", map_file)[1]["moved_slots"] for path in (same, other)
    ]

    assert moved[0] == 0 < moved[1]


def test_a_previous_map_of_other_sizes_is_refused(loads_file, experts, map_file):
    """S807: three layers, and a map of two."""
    status, document = experts(loads_file([[1] * 8] * 3), "--gpus", 2, "--nodes", 1, "--previous", map_file)
    (error,) = document["errors"]

    assert (status, error["path"]) == (2, "--previous")
    assert error["rule"] == "S807 must have shape [3][8] (layers, slots) and hold each of 8 experts"
    assert error["reason"] == "it has [2][8]"


def test_a_previous_map_without_an_expert_is_refused(loads_file, experts, tmp_path):
    """S807 again: expert 1 has no slot."""
    path = tmp_path / "map.json"
    path.write_text("[[0, 0]]")
    _, document = experts(loads_file([[1, 2]]), "--gpus", 2, "--nodes", 1, "--previous", path)

    assert [error["reason"] for error in document["errors"]] == ["layer 0 differs in expert 1"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "it is not JSON"),
        ("{}", "it has no list of rows under physical_to_logical or physical_to_logical_map"),
        ("[[0, 1], [0]]", "its rows differ in length"),
        ('[["a"]]', "it holds something else than whole numbers"),
    ],
)
def test_a_file_that_is_no_map_is_refused(loads_file, experts, tmp_path, text, reason):
    """S806: exit 2, with the reason."""
    path = tmp_path / "map.json"
    path.write_text(text)
    status, document = experts(loads_file([[1, 2]]), "--gpus", 2, "--nodes", 1, "--previous", path)

    assert (status, [error["reason"] for error in document["errors"]]) == (2, [reason])
    assert document["errors"][0]["rule"] == "S806 must hold an expert map, [layers][slots]"


def test_export_writes_the_engines_file(loads_file, experts, tmp_path):
    """The file is SGLang's; stdout has the answer as ever."""
    path = tmp_path / "sglang.json"
    words = ("--gpus", 2, "--nodes", 1, "--export", "sglang", "-o", path)
    _, document = experts(loads_file([[1, 2, 3, 4]]), *words)

    assert json.loads(path.read_text()) == {"physical_to_logical_map": document["physical_to_logical"]}


def test_deepseek_v3_gets_61_rows_for_sglang(loads_file, experts, tmp_path):
    """58 MoE layers from layer 3 on: rows 3 to 60 are the map, rows 0 to 2 hold every expert as well."""
    path = tmp_path / "sglang.json"
    loads = np.random.default_rng(1).integers(1, 99, (58, 8))
    words = ("--gpus", 4, "--nodes", 1, "--slots-per-gpu", 3, "--export", "sglang", "--first-layer", 3, "-o", path)
    _, document = experts(loads_file(loads), *words)
    rows = json.loads(path.read_text())["physical_to_logical_map"]

    assert len(rows) == 61
    assert rows[3:] == document["physical_to_logical"]
    assert all(set(row) == set(range(8)) for row in rows)


@pytest.fixture
def sglang_map(loads_file, experts, tmp_path):
    """A map of two MoE layers after one dense layer, as SGLang reads it, and the loads; paths."""
    loads, path = loads_file([[8, 7, 6, 5, 4, 3, 2, 1]] * 2), tmp_path / "sglang.json"
    experts(loads, "--gpus", 2, "--nodes", 1, "--export", "sglang", "--first-layer", 1, "-o", path)
    return loads, path


def test_the_moe_rows_of_sglangs_map_are_the_map_in_service(sglang_map, experts, tmp_path):
    """Nothing moves from it for the same loads, and the next export has its dense row again, without being told."""
    loads, path = sglang_map
    words = ("--gpus", 2, "--nodes", 1, "--previous", path, "--export", "sglang", "-o", tmp_path / "next.json")
    status, document = experts(loads, *words)

    assert (status, document["moved_slots"], document["first_layer"]) == (0, 0, 1)
    assert (tmp_path / "next.json").read_text() == path.read_text()


def test_a_map_with_another_number_of_dense_layers_is_refused(sglang_map, experts):
    """S807: three rows are no map of two layers after two dense ones."""
    loads, path = sglang_map
    _, document = experts(loads, "--gpus", 2, "--nodes", 1, "--previous", path, "--first-layer", 2)

    assert [error["reason"] for error in document["errors"]] == ["it has [3][8]"]


def test_a_recording_by_sglang_numbers_the_layers_of_its_map(experts, tmp_path):
    """A dump with two dense layers gives a file with two more rows, and key 2 first in TensorRT-LLM's."""
    dump, path = tmp_path / "dump.json", tmp_path / "map"
    dump.write_text(json.dumps({"logical_count": [[0] * 4, [0] * 4, [4, 3, 2, 1]]}))
    words = (dump, "--gpus", 2, "--nodes", 1, "-o", path, "--export")
    _, document = experts(*words, "sglang")
    rows = json.loads(path.read_text())["physical_to_logical_map"]
    experts(*words, "tensorrt-llm")

    assert (document["first_layer"], len(document["physical_to_logical"]), len(rows)) == (2, 1, 3)
    assert "\n  2: [" in path.read_text()


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm", "vllm-ascend"])
def test_a_map_that_was_exported_can_be_the_one_in_service(engine, loads_file, experts, tmp_path):
    """Nothing moves from SGLang's file, or the JSON beside another engine's, and the export is as it was."""
    loads, path, again = loads_file([[8, 7, 6, 5, 4, 3, 2, 1]] * 2), tmp_path / "map", tmp_path / "again"
    words = ("--gpus", 2, "--nodes", 1, "--slots-per-gpu", 5, "--export", engine)
    _, document = experts(loads, *words, "-o", path)
    previous = path if engine == "sglang" else loads_file(document, "map.json")
    status, next_one = experts(loads, *words, "--previous", previous, "-o", again)

    assert (status, next_one["moved_slots"]) == (0, 0)
    assert again.read_text() == path.read_text()


@pytest.mark.parametrize(
    ("rows", "is_recorded", "reason"),
    [
        ([[0, 0], [3, 1], [0, 0]], True, "its row 2 has none"),
        ([[3, 1], [0, 0], [0, 0]], True, "its row 1 has none"),
        ([[3, 1], [0, 0], [3, 1]], False, "its row 1 has none"),
        ([[0, 0], [3, 1]], False, "its row 0 has none"),
        ([[0, 0], [0, 0]], False, "its row 0 has none"),
    ],
)
def test_a_layer_without_load_was_not_recorded(rows, is_recorded, reason, loads_file, experts, tmp_path):
    """S606: its map was called as good as can be, on loads that nobody measured."""
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"logical_count": rows} if is_recorded else rows))
    status, document = experts(path, "--gpus", 2, "--nodes", 1)

    assert status == 2
    assert document["errors"][0]["rule"] == f"S606 must have load in every MoE layer, and {reason}"


def test_layers_that_a_table_routes_get_equal_loads_when_numbered(experts, tmp_path):
    """--first-layer 0 says that a recording's rows of zeros are MoE layers: TensorRT-LLM wants a key for each."""
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"logical_count": [[0, 0], [0, 0], [3, 1]]}))
    _, told = experts(path, "--gpus", 2, "--nodes", 1, "--first-layer", 0)
    _, untold = experts(path, "--gpus", 2, "--nodes", 1)

    assert [(len(each["physical_to_logical"]), each["first_layer"]) for each in (told, untold)] == [(3, 0), (1, 2)]
    assert told["max_over_mean"] == [1, 1, 1.5]


def test_rows_of_dense_layers_in_a_plain_matrix_are_left_out_when_told(loads_file, experts):
    """--first-layer 1 and a first row of zeros: one MoE layer; where that row has load there are two."""
    words = ("--gpus", 2, "--nodes", 1, "--first-layer", 1)
    _, document = experts(loads_file([[0, 0, 0, 0], [4, 3, 2, 1]]), *words)
    status, _ = experts(loads_file([[0, 0, 0, 1], [4, 3, 2, 1]]), *words)

    assert (len(document["physical_to_logical"]), document["first_layer"]) == (1, 1)
    assert status == 2  # S820: the option counts for nothing


def test_a_hole_among_the_layers_is_no_dense_layer(experts, tmp_path):
    """Where other rows are empty too, no --first-layer helps: the fix is a new recording, whatever was given."""
    path = tmp_path / "loads.json"
    path.write_text("[[0, 0], [1, 2], [0, 0], [3, 4]]")
    sizes = ("--gpus", 2, "--nodes", 1)

    for words in ((), ("--first-layer", 1)):
        _, document = experts(path, *sizes, *words)

        assert [(each["rule"][:4], each["fix"]) for each in document["errors"]] == [
            ("S606", "record the loads again, in every layer")
        ]
