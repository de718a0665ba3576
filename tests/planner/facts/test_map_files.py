"""Files of other engines, held by data written by hand after their sources (named in `map_files.py`)."""

import json
from typing import get_args

import pytest
import yaml

from planner.facts.loads import moe_rows, read_loads
from planner.facts.map_files import Engine, export_map, read_map

ROWS = ((0, 1, 2, 3), (4, 5, 6, 7))  # two layers, two GPUs of two slots: as in vllm-ascend's own test

VLLM = {
    "moe_layer_count": 2,
    "layer_list": [
        {
            "layer_id": 0,
            "device_count": 2,
            "device_list": [{"device_id": 0, "device_expert": [0, 1]}, {"device_id": 1, "device_expert": [2, 3]}],
        },
        {
            "layer_id": 1,
            "device_count": 2,
            "device_list": [{"device_id": 0, "device_expert": [4, 5]}, {"device_id": 1, "device_expert": [6, 7]}],
        },
    ],
}

TENSORRT_LLM = """\
initial_global_assignments:
  3: [0, 1, 2, 3]
  4: [4, 5, 6, 7]
num_slots: 4
layer_updates_per_iter: 0
"""


def test_sglang_reads_physical_to_logical_map():
    """Its --init-expert-location takes this key and no other."""
    assert json.loads(export_map("sglang", ROWS, 2, 0)) == {"physical_to_logical_map": [[0, 1, 2, 3], [4, 5, 6, 7]]}


def test_sglang_gets_a_row_for_every_layer_of_the_model():
    """Row i is layer i, so three dense layers get three rows first: slot s holds expert s, and then all again."""
    rows = [[3, 1, 0, 2, 0, 1], [2, 3, 1, 0, 3, 3]]
    written = json.loads(export_map("sglang", rows, 2, 3))["physical_to_logical_map"]

    assert written == [[0, 1, 2, 3, 0, 1]] * 3 + rows


def test_tensorrt_llm_counts_its_layers_from_the_dense_ones():
    """DeepSeek's first three layers are dense; the file is YAML with a list for each layer."""
    text = export_map("tensorrt-llm", ROWS, 2, 3)

    assert text == TENSORRT_LLM
    assert yaml.safe_load(text)["initial_global_assignments"] == {3: [0, 1, 2, 3], 4: [4, 5, 6, 7]}


def test_vllm_ascend_reads_the_experts_of_each_device():
    """As vllm-ascend's expert_map_path wants it."""
    assert json.loads(export_map("vllm-ascend", ROWS, 2, 0)) == VLLM


def test_vllm_itself_has_no_file_of_maps():
    """The format is vllm-ascend's and is called so: vLLM reads no file of maps."""
    assert get_args(Engine) == ("sglang", "tensorrt-llm", "vllm-ascend")


@pytest.mark.parametrize("key", ["physical_to_logical", "physical_to_logical_map"])
def test_maps_of_ours_and_of_sglang_are_read(tmp_path, key):
    """What was exported can be the previous map."""
    path = tmp_path / "map.json"
    path.write_text(json.dumps({key: ROWS}))

    assert read_map(path).rows == ROWS


def test_rows_of_dense_layers_come_before_those_of_a_map_for_sglang(tmp_path):
    """The first 3 of SGLang's 61 rows are no MoE layers'; a map of ours has a row for each MoE layer."""
    path = tmp_path / "map.json"
    path.write_text(export_map("sglang", [[1, 0]] * 58, 2, 3))
    theirs = read_map(path)
    path.write_text(json.dumps({"physical_to_logical": theirs.rows}))

    assert (len(theirs.rows), theirs.num_dense_layers(58)) == (61, 3)
    assert read_map(path).num_dense_layers(58) == 0


@pytest.mark.parametrize("counts", [[[1, 2], [3, 4]], [[[1, 0], [1, 4]], [[0, 2], [2, 0]]]])
def test_sglang_dumps_are_loads(tmp_path, counts):
    """`logical_count` of one step or of several, which are added up."""
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"logical_count": counts}))

    assert read_loads(path, "dump.json").loads == ((1, 2), (3, 4))


@pytest.mark.parametrize("in_steps", [False, True])
def test_the_61_rows_that_sglang_records_are_58_moe_layers(tmp_path, in_steps):
    """The dense layers' rows of zeros are left out, and the first row that stays is layer 3."""
    path = tmp_path / "dump.json"
    counts = [[0, 0]] * 3 + [[layer, 1] for layer in range(58)]
    path.write_text(json.dumps({"logical_count": [counts, [[0, 0]] * 61] if in_steps else counts}))

    found = read_loads(path, "dump.json")

    assert (found.loads, found.first_layer) == (tuple(map(tuple, counts[3:])), 3)


def test_rows_of_zeros_are_loads_where_they_are_not_numbered(tmp_path):
    """A plain matrix has a row for each MoE layer, so a layer without tokens stays."""
    path = tmp_path / "loads.json"
    path.write_text("[[0, 0], [1, 2]]")

    found = read_loads(path, "loads.json")

    assert (found.loads, found.first_layer) == (((0, 0), (1, 2)), None)


NUM_DENSE, NUM_MOE = 2, 4
HASHED = [True, True, False, False]
ROW, ZEROS, EQUAL = (3, 1), (0, 0), (1, 1)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([ZEROS, ZEROS, ROW, ROW, ROW, ROW], [ROW] * 4),
        ([ROW] * 4, [ROW] * 4),
        ([ZEROS] * 4 + [ROW] * 2, [EQUAL, EQUAL, ROW, ROW]),
        ([ZEROS, ZEROS, ROW, ROW], [EQUAL, EQUAL, ROW, ROW]),
        ([ROW, ZEROS, ROW, ROW], [ROW, EQUAL, ROW, ROW]),
        ([ZEROS] * 5 + [ROW], [EQUAL, EQUAL, ZEROS, ROW]),
        ([ROW, ZEROS, ROW, ROW, ROW, ROW], [ROW, ZEROS, ROW, ROW, ROW, ROW]),
        ([ROW] * 5, [ROW] * 5),
        ([ROW], [ROW]),
    ],
)
def test_a_model_knows_which_rows_are_of_moe_layers(rows, expected):
    """Dense layers' are left out; a layer that a table routes has equal loads; rows of another model stay."""
    assert moe_rows(tuple(rows), NUM_DENSE, HASHED) == tuple(expected)


def test_tensorrt_llms_recording_is_told_how_to_become_loads(tmp_path):
    """S604: a rank's file has the counts of one rank, which are no loads before they are added up."""
    (tmp_path / "rank0.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")

    assert "add up the tensors of all ranks by layer" in read_loads(tmp_path / "rank0.safetensors", "r").fix


def test_a_dump_without_a_token_is_refused(tmp_path):
    """S605: nothing tells its dense layers, and there is nothing to balance."""
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"logical_count": [[0, 0], [0, 0]]}))
    finding = read_loads(path, "dump.json")

    assert (finding.rule[:4], finding.reason) == ("S605", "no token was recorded")


@pytest.mark.parametrize(("descr", "shape"), [("|V0", (9, 9)), ("|S0", (9, 9)), ("<f8", (9, 0)), ("<f8", (9, 9))])
def test_a_header_that_promises_more_than_follows_is_refused(tmp_path, descr, shape):
    """S604: a file of 70 bytes must not be read as millions of numbers."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}".encode().ljust(117) + b"\n"
    (tmp_path / "loads.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)

    assert read_loads(tmp_path / "loads.npy", "loads.npy").rule.startswith("S604")
