"""Loads of GPUs with and without an expert map."""

from statistics import fmean

import pytest

from planner.estimate.gpu_loads import measure_gpu_loads
from planner.expert_map import Sizes, balance


def test_a_copy_halves_the_hottest_gpu():
    """Experts of 6, 2, 1 and 1 tokens, six slots on two GPUs: in order, copies go to experts 0 and 1 and load GPU 0."""
    found = measure_gpu_loads(balance(((6, 2, 1, 1),), 6, 2), ((6, 2, 1, 1),), Sizes(6, 2, 1))

    assert found.in_order == (1.0, 1.0), "3 + 1 + 1 and 1 + 3 + 1"
    assert found.mapped == (1.0, 1.0)


def test_loads_agree_with_the_map(plan_of, spec_text):
    """The fullest GPU of the layer shown is the map's, and no layer is better in order than the bound allows."""
    plan = plan_of(spec_text)
    for balance_of_phase in plan.balance.values():
        loads, expert_map = balance_of_phase.gpu_loads, plan.expert_maps[balance_of_phase.expert_map]

        assert max(loads.mapped) == pytest.approx(max(expert_map.max_over_mean), abs=1e-4)
        assert fmean(loads.mapped) == pytest.approx(1, abs=1e-3)
        assert all(each >= bound - 1e-4 for each, bound in zip(loads.max_in_order, expert_map.bound, strict=True))
