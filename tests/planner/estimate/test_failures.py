"""What one failure costs: units that stop, and experts that nobody else has."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.estimate.failures import _count_dark, _dark_experts
from tests.planner.layout.test_memory import PAIR


@st.composite
def maps(draw):
    """A unit of several nodes and a map of a few layers on it, any experts anywhere."""
    nodes, per_node, slots = draw(st.integers(1, 5)), draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 3))
    physical = nodes * per_node * slots
    logical = draw(st.integers(1, physical))
    layers = draw(st.lists(st.permutations([s % logical for s in range(physical)]).map(tuple), min_size=1, max_size=3))
    layout = SimpleNamespace(
        nodes_per_unit=nodes,
        ep_size=nodes * per_node,
        num_physical_experts=physical,
        num_logical_experts=logical,
    )
    return SimpleNamespace(physical_to_logical=tuple(layers)), layout


@given(case=maps())
def test_dark_experts_are_those_that_are_left_nowhere(case):
    """The slow reference: take a node's slots away and see who is missing, layer by layer."""
    expert_map, layout = case
    per_node = layout.num_physical_experts // layout.nodes_per_unit
    for node in range(layout.nodes_per_unit):
        missing = [
            layout.num_logical_experts - len(set(slots[: node * per_node] + slots[(node + 1) * per_node :]))
            for slots in expert_map.physical_to_logical
        ]

        assert _dark_experts(expert_map, layout, layout.nodes_per_unit)[node] == max(missing)
        assert _count_dark(expert_map, layout, (node,)) == max(missing)


@given(case=maps())
def test_a_larger_loss_darkens_no_fewer(case):
    """All nodes together are all experts, and one more is never less."""
    expert_map, layout = case
    lost = [_count_dark(expert_map, layout, tuple(range(n))) for n in range(layout.nodes_per_unit + 1)]

    assert lost == sorted(lost)
    assert (lost[0], lost[-1]) == (0, layout.num_logical_experts)


@pytest.mark.slow
def test_the_plan_says_what_a_failure_stops(plan_of):
    """One GPU stops a unit, and half of the cluster darkens more experts than a node does."""
    spec = PAIR | {
        "cluster": {"gpu": "h800", "nodes": 54, "gpus_per_node": 8, "rack_size": 4, "power_domain_size": 27},
        "prefill": PAIR["prefill"] | {"ep_size": 32},
        "decode": PAIR["decode"] | {"units": 2},
    }
    failures = plan_of(json.dumps(spec, indent=1)).as_json()["failures"]

    assert failures["prefill"]["gpu"]["units"] == 1
    assert {domain: loss["of_units"] for domain, loss in failures["decode"].items()} == {
        "gpu": 2,
        "node": 2,
        "rack": 2,
        "power": 2,
    }
    assert failures["decode"]["node"]["dark_experts"] <= 16 <= failures["decode"]["power"]["dark_experts"]


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
    assert (
        document["failures"]["decode"]["rack"]["dark_experts"] > document["failures"]["decode"]["node"]["dark_experts"]
    )
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
    assert failures["decode"]["rack"]["dark_experts"] == 256
