"""The fullest GPU of a step: against what was published."""

import pytest

from planner.estimate.throughput.copies import remote_share
from planner.estimate.throughput.engines import engine_model
from planner.estimate.throughput.imbalance import DRIFT_SHARE, MAX_DRIFT_SHARE, imbalance_of
from planner.estimate.throughput.intervals import evidence_for
from planner.estimate.throughput.predict import predict
from planner.estimate.throughput.stages import Imbalance
from planner.expert_map import balance
from planner.facts.drawn import draw_loads
from tests.benchmarks.throughput_ablations import main as ablations
from tests.planner.accuracy.published import DECODE, case_of

pytestmark = pytest.mark.slow

LOADS = draw_loads(1.01, 0, 4, 256, 8)


def test_a_step_of_the_published_size_is_as_uneven_as_published():
    """TensorRT-LLM, 9 slots on each of 32 ranks, 1,024 pairs each: 0.109 over the mean, if all of it lasts."""
    made = balance(LOADS, 288, 32, num_nodes=4)
    most, assumed = (
        imbalance_of(made, LOADS, 32, 4, 1024, num_nodes=4, drift_share=each).gpus - 1
        for each in (MAX_DRIFT_SHARE, DRIFT_SHARE)
    )

    assert pytest.approx(0.788, abs=0.001) == MAX_DRIFT_SHARE
    assert most == pytest.approx(0.109, abs=0.01)
    assert 0.06 < assumed < most


def test_fewer_pairs_leave_their_node_where_near_replicas_are_first():
    """All of an expert that each node has stay; of the others what the map's rule sends away."""
    equal, near = balance(LOADS, 64 * 6, 64, num_nodes=8), balance(LOADS, 64 * 6, 64, num_nodes=8, split="local_first")

    assert remote_share(equal, LOADS, 8) == 1 - 1 / 8
    assert 0.5 < remote_share(near, LOADS, 8) < 0.85


def test_a_range_has_room_for_the_most_drift():
    """Its low end is that of an evenly drifted unit less the family's width; the middle stays."""
    case = case_of(DECODE)
    evidence = evidence_for(engine_model("deepseek"), "decode", case.machine)
    narrow, wide = (predict(case, evidence, each).tokens_per_s_per_gpu for each in (None, Imbalance(1.2)))

    assert wide.mid == narrow.mid
    assert wide.low < narrow.low == pytest.approx(0.9 * narrow.mid)


def test_ablations_have_their_signs(capsys):
    """Overlap, balancing, one more slot, near replicas first, and two batches that lose where there is little work."""
    assert ablations() == 0
    assert "MISSED" not in capsys.readouterr().out
