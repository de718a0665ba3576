"""Phases on several GPUs: each on the nodes that have its own."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from planner.facts.catalog import GPUS
from planner.facts.digest import pretty_json
from planner.placement.place import place_units
from planner.plan.load import load_plan
from planner.problems.errors import InfeasibleError
from planner.report.text import plan_text
from planner.spec.cluster import ClusterSpec
from planner.spec.kubernetes import KubernetesSpec

MIXED_GPUS = [
    *({"name": f"a{index}", "rack": f"r{index // 2}"} for index in range(4)),
    *({"name": f"b{index}", "rack": f"r{2 + index // 2}", "gpu": "h20"} for index in range(2)),
    {"name": "c0", "rack": "r3", "gpu": "mi300x"},
]


def two_gpus(found_of, **changes):
    """Prefill on four nodes of H800, decode on two of H20, and a node of neither."""
    phase = {"precision": "fp8", "max_request_tokens": 8192}
    spec = {
        "version": 1,
        "name": "mixed-pools",
        "model": "deepseek-r1",
        "cluster": {"gpu": "h800", "gpus_per_node": 8, "nodes": MIXED_GPUS},
        "prefill": {"ep_size": 32, "redundant_experts": 32} | phase,
        "decode": {"ep_size": 16, "gpu": "h20"} | phase,
    }
    for path, value in changes.items():
        section, key = path.split("__")
        spec[section][key] = value
    return found_of(json.dumps(spec, indent=1))


def test_a_phase_stands_on_nodes_with_its_gpu(found_of):
    """Each with its own memory, and each pool has its own counts and bounds."""
    plan = two_gpus(found_of)
    nodes = {unit.phase: set(unit.nodes) for unit in plan.units}
    document = plan.plan.as_json()

    assert nodes == {"prefill": {"a0", "a1", "a2", "a3"}, "decode": {"b0", "b1"}}
    assert plan.placement.unusable == {"c0": "has mi300x"}
    assert [memory.gpu_bytes for memory in plan.memory] == [GPUS["h800"].usable_bytes, GPUS["h20"].usable_bytes]
    assert [each.name for each in plan.placement.objectives] == ["racks (h800)", "racks (h20)", "rack_loss (h20)"]
    assert {phase: each["gpu"] for phase, each in document["phases"].items()} == {"prefill": "h800", "decode": "h20"}
    assert document["phase_gpus"]["decode"]["usable_bytes"] == GPUS["h20"].usable_bytes
    assert " with h20: " in " ".join(plan_text(plan.plan).split())


def test_a_gpu_with_too_few_nodes_says_which(found_of):
    """Nodes of another GPU do not help."""
    with pytest.raises(InfeasibleError) as error:
        two_gpus(found_of, decode__ep_size=32)

    assert error.value.findings[0].message.startswith(
        "cluster.nodes must have at least 4 usable nodes of h20 (units x nodes of a unit: decode 1 x 4), but there "
        "are only 2; units do not share"
    )


def test_two_pools_are_placed_near_a_previous_plan(found_of):
    """Planned after itself nothing moves, on either GPU."""
    plan = two_gpus(found_of)
    before = {unit.name: unit.nodes for unit in plan.units}
    written = SimpleNamespace(name="mixed-pools", schedule=None, kubernetes=KubernetesSpec(), gpu_names=("h800", "h20"))
    cluster = ClusterSpec.model_validate({"gpu": "h800", "gpus_per_node": 8, "nodes": MIXED_GPUS})
    gpu_of = {layout.phase: GPUS[layout.gpu] for layout in plan.layouts}
    spec = SimpleNamespace(written=written, cluster=cluster, gpu_of=gpu_of.__getitem__)
    again = place_units(spec, plan.layouts, before)

    assert {unit.name: unit.nodes for unit in again.units} == before
    assert again.method == "previous"


def test_a_unit_moves_only_to_spares_with_its_gpu(found_of):
    """Launch files name those of the phase's own pool, and the plan reads back."""
    more = [{"name": "a4", "rack": "r4"}, {"name": "b2", "rack": "r4", "gpu": "h20"}]
    plan = two_gpus(found_of, cluster__nodes=[*MIXED_GPUS, *more], cluster__spares=["a4", "b2"])
    spares = {each["phase"]: each["spares"] for each in plan.plan.launch_documents.values() if each["kind"] == "unit"}

    assert spares == {"prefill": ["a4"], "decode": ["b2"]}
    assert plan.placement.spares == ("a4", "b2")
    assert plan.placement.unusable == {"c0": "has mi300x"}
    assert load_plan(pretty_json(plan.plan.as_json()).encode(), Path("plan.json")).as_json() == plan.plan.as_json()


def domains_of(plan, unit):
    """Return the domains that a unit stands in, of 18 nodes each, in a row."""
    return {int(node.removeprefix("node-")) // 18 for node in unit.nodes}


@pytest.mark.parametrize("places", [{}, {"rack_size": 18}, {"rack_size": 36, "leaf_size": 36}])
def test_a_unit_stays_in_one_nvlink_domain_where_one_has_room(found_of, places):
    """Domains of 18 nodes of four GB200, whatever else the spec names: dispatch inside one takes no NIC."""
    phase = {"precision": "fp8", "max_request_tokens": 8192}
    spec = {
        "version": 1,
        "name": "racks",
        "model": "deepseek-r1",
        "cluster": {"gpu": "gb200", "gpus_per_node": 4, "nodes": 72} | places,
        "prefill": {"ep_size": 32, "units": 3} | phase,
        "decode": {"ep_size": 64, "units": 2} | phase,
    }
    plan = found_of(json.dumps(spec, indent=1))
    first = plan.placement.objectives[0]

    assert [len(domains_of(plan, unit)) for unit in plan.units] == [1] * 5
    assert (first.name, first.value, first.is_proven) == ("domains", 5, True)
