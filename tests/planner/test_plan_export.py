"""`tidemill plan --export`: a plan's expert maps as files that other engines read."""

import json
from itertools import chain

import pytest
import yaml

from planner.cli import main

PHASES = {"prefill": 2, "decode": 4}  # the test spec's, with their GPUs


@pytest.fixture
def exported(spec_file, tmp_path, capsys):
    """A function: the plan's JSON, and phase -> text of what `--export ENGINE` wrote beside it."""

    def export(engine, suffix):
        status = main(["plan", str(spec_file()), "--export", engine, "-o", str(tmp_path / "plan.json")])
        told = capsys.readouterr().err
        paths = {phase: tmp_path / f"plan.{phase}.{engine}.{suffix}" for phase in PHASES}
        assert status == 0
        assert told == "".join(f"{path}: the expert map of {phase} for {engine}\n" for phase, path in paths.items())
        return json.loads((tmp_path / "plan.json").read_text()), {
            phase: path.read_text() for phase, path in paths.items()
        }

    return export


def rows_of(plan, phase):
    """The map of a phase in the plan's JSON."""
    return plan["expert_maps"][plan["balance"][phase]["expert_map"]]["physical_to_logical"]


def test_sglang_gets_a_row_for_every_layer_of_the_model(exported):
    """The test model's first layer is dense: in each phase's file its row comes before those of four MoE layers."""
    plan, texts = exported("sglang", "json")
    for phase, text in texts.items():
        rows = json.loads(text)["physical_to_logical_map"]
        assert len(rows) == 5
        assert rows[1:] == rows_of(plan, phase)


def test_tensorrt_llm_counts_layers_from_the_first_moe_layer(exported):
    """Keys 1 to 4 of a model of five layers, the first of them dense."""
    plan, texts = exported("tensorrt-llm", "yaml")
    for phase, text in texts.items():
        assignments = yaml.safe_load(text)["initial_global_assignments"]
        assert assignments == dict(enumerate(rows_of(plan, phase), start=1))


def test_vllm_ascend_gets_the_phases_gpus(exported):
    """A device for each GPU of a unit, which are two in prefill and four in decode."""
    plan, texts = exported("vllm-ascend", "json")
    for phase, text in texts.items():
        layers = json.loads(text)["layer_list"]
        devices = [[each["device_expert"] for each in layer["device_list"]] for layer in layers]
        assert {len(of_layer) for of_layer in devices} == {PHASES[phase]}
        assert [list(chain(*of_layer)) for of_layer in devices] == rows_of(plan, phase)
