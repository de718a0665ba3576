"""Which taints keep units away."""

import json

import pytest

from planner.layout.nodes import repelling_taint
from planner.spec.pods import TolerationSpec
from tests.planner.conftest import SPEC
from tests.planner.spec.wrong_specs import data_of

GPU = "nvidia.com/gpu=present:NoSchedule"


@pytest.mark.parametrize(
    ("taints", "tolerations", "keeping_away"),
    [
        ([], [], None),
        ([GPU], [], GPU),
        (["a:PreferNoSchedule"], [], None),
        ([GPU], [{"key": "nvidia.com/gpu", "operator": "Exists"}], None),
        ([GPU], [{"key": "nvidia.com/gpu", "value": "present"}], None),
        ([GPU], [{"key": "nvidia.com/gpu", "value": "absent"}], GPU),
        ([GPU], [{"key": "nvidia.com/gpu"}], GPU),
        (["a:NoExecute"], [{"key": "a"}], None),
        ([GPU], [{"operator": "Exists"}], None),
        ([GPU], [{"operator": "Exists", "effect": "NoExecute"}], GPU),
        ([GPU, "b:NoExecute"], [{"key": "nvidia.com/gpu", "operator": "Exists"}], "b:NoExecute"),
        (["b:NoExecute"], [{"operator": "Exists", "effect": "NoExecute", "seconds": 60}], "b:NoExecute"),
    ],
)
def test_a_tolerated_taint_keeps_nobody_away(taints, tolerations, keeping_away):
    """As Kubernetes' scheduler decides; tolerated for some seconds is not tolerated."""
    found = repelling_taint(taints, [TolerationSpec.model_validate(each) for each in tolerations])

    assert found == keeping_away


def test_the_plan_uses_nodes_whose_taints_its_pods_tolerate(plan_of):
    """Without the toleration the units are on the other nodes, and the plan says why."""
    tainted = [{"name": f"n{index}", "taints": [GPU] if index < 2 else []} for index in range(5)]
    spec = data_of(SPEC)
    spec["cluster"] |= {"nodes": tainted}
    tolerant = spec | {"kubernetes": {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}}
    without, with_it = plan_of(json.dumps(spec)), plan_of(json.dumps(tolerant))

    assert without.placement.unusable_nodes == dict.fromkeys(("n0", "n1"), f"tainted {GPU}")
    assert with_it.placement.unusable_nodes == {}
    assert {node for unit in without.units for node in unit.nodes} == {"n2", "n3", "n4"}
    assert {node for unit in with_it.units for node in unit.nodes} == {"n0", "n1", "n2"}
