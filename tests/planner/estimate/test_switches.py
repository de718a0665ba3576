"""What a unit's first change of its map takes, by the plan."""

import pytest

from planner.compiler import compile_plan
from planner.estimate.switches import predict_first_switch
from planner.rules.check import change_spec, check_spec
from tests.planner.test_shipped_specs import SPECS

CPU_EXPERT, GPU_EXPERT = 148_000, 44_050_944  # bytes


@pytest.mark.parametrize(
    ("moves", "seconds", "stall_s"),
    [(90, (1.6, 2.5), (0.119, 0.206)), (7, (0.4, 0.7), (0.016, 0.06))],
)
def test_cpu_nodes_take_what_was_measured(moves, seconds, stall_s):
    """Three ranks with four MoE layers, as in docs/performance.md; few moves have fixed times all the same."""
    found = predict_first_switch("cpu", moves * CPU_EXPERT, CPU_EXPERT, 4, 36, 3)

    assert seconds[0] <= found.seconds <= seconds[1]
    assert stall_s[0] <= found.stall_s <= stall_s[1]


def test_a_gpu_takes_what_was_measured():
    """Two ranks of seven wide layers received 24 experts each in 10.5 s, and a round took effect in 11.4 ms."""
    found = predict_first_switch("cuda", 48 * GPU_EXPERT, GPU_EXPERT, 7, 40, 2)

    assert found.seconds == pytest.approx(10.5, rel=0.15)
    assert found.stall_s == pytest.approx(12 * 0.0114, rel=0.05)


def test_a_plan_states_the_largest_change():
    """Its experts and bytes are what max_bytes allows, at most all slots, and times are marked as assumed."""
    spec = check_spec(SPECS / "h200-single-node.yaml")
    rows = {}
    for limit in ("20GB", "999TB", "1kB"):
        plan = compile_plan(
            change_spec(spec, {"expert_load.live": {"every": "1h", "min_gain": 0.1, "max_bytes": limit}})
        )
        rows[limit] = {each.name: each for each in plan.report if each.section == "live_maps.mixed"}
        expert_bytes = plan.live_maps["mixed"].expert_bytes

    assert rows["20GB"]["change_experts"].value == 20_000_000_000 // expert_bytes
    assert rows["999TB"]["change_bytes"].value == expert_bytes * sum(
        len(slots) for each in plan.expert_maps.values() for slots in each.physical_to_logical
    )
    assert rows["20GB"]["change_s"].provenance == "assumed"
    assert "change_s" not in rows["1kB"]
    assert "live_maps" not in {each.section.partition(".")[0] for each in compile_plan(spec).report}
