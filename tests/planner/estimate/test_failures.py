"""What one failure costs: units that stop."""

import json

import pytest

from tests.planner.layout.test_memory import PAIR


@pytest.mark.slow
def test_the_plan_says_what_a_failure_stops(plan_of):
    """One GPU stops a unit, and the loss of the rack of all nodes stops both."""
    spec = PAIR | {
        "cluster": {"gpu": "h800", "nodes": 54, "gpus_per_node": 8, "rack_size": 54},
        "prefill": PAIR["prefill"] | {"ep_size": 32},
        "decode": PAIR["decode"] | {"units": 2},
    }
    failures = plan_of(json.dumps(spec, indent=1)).as_json()["failures"]

    assert failures["prefill"]["gpu"]["units"] == 1
    assert {domain: loss["of_units"] for domain, loss in failures["decode"].items()} == {
        "gpu": 2,
        "node": 2,
        "rack": 2,
    }
    assert failures["decode"]["rack"]["units"] == 2


def test_places_that_the_spec_does_not_name_are_left_out(plan_of):
    """Without racks there is no loss of a rack to report."""
    assert list(plan_of().as_json()["failures"]["decode"]) == ["gpu", "node"]


def test_a_node_without_a_rack_is_a_rack_of_its_own(plan_of):
    """One node of many that nobody gave a rack to: the loss of the others' racks is told all the same."""
    nodes = [{"name": f"n{index}", "rack": f"r{index // 4}"} for index in range(22)]
    del nodes[21]["rack"]
    plan = plan_of(json.dumps(PAIR | {"cluster": {"gpu": "h800", "nodes": nodes, "gpus_per_node": 8}}, indent=1))
    document = plan.as_json()
    decode = next(unit for unit in document["units"] if unit["phase"] == "decode")
    dark = [set(each["coverage"]["uncovered_experts"]) for each in document["expert_maps"].values()]

    assert "n21" in decode["nodes"]
    assert document["failures"]["decode"]["rack"]["units"] == 1
    assert all("rack" in each for each in dark)


def test_phases_on_different_gpus_have_their_own_racks(plan_of):
    """Nodes of another GPU are used by the phase that runs on it: their racks are lost too."""
    racks = {"a": ["h800"] * 4, "b": ["h200"] * 2}
    nodes = [
        {"name": f"{rack}{i}", "gpu": gpu, "rack": rack} for rack, gpus in racks.items() for i, gpu in enumerate(gpus)
    ]
    del nodes[5]["rack"]
    spec = PAIR | {
        "cluster": {"gpu": "h800", "nodes": nodes, "gpus_per_node": 8},
        "prefill": PAIR["prefill"] | {"gpu": "h200", "ep_size": 16, "redundant_experts": 16},
        "decode": PAIR["decode"] | {"ep_size": 32},
    }
    plan = plan_of(json.dumps(spec, indent=1))
    failures = plan.as_json()["failures"]

    assert failures["prefill"]["rack"] == failures["prefill"]["node"] | {"at": "b"}
    assert failures["decode"]["rack"] == {"units": 1, "of_units": 1, "at": "a"}
