"""Counters of experts: exact sums, and the imbalance that tokens met."""

import torch

from runtime.expert_load import ExpertLoad
from runtime.launch import read_unit_launch
from runtime.rank_metrics import RankMetrics
from tests.runtime.launch_documents import UNIT, sealed, write


def test_rows_add_up_by_layer_and_slot():
    """Each dispatch adds to its own layer."""
    load = ExpertLoad(torch.tensor([[0, 3], [2, 1]]), num_ranks=2)
    load.add(1, [5, 0], [4, 2])
    load.add(1, [1, 2], [2, 0])

    assert load.rows.tolist() == [[0, 0], [6, 2]]
    assert load.sent.tolist() == [[0, 0], [6, 2]]


def test_imbalance_is_the_most_over_the_mean():
    """6 and 2 rows for two ranks: 6 / 4; a layer without rows is even."""
    load = ExpertLoad(torch.tensor([[0, 3], [2, 1]]), num_ranks=2)
    load.add(1, [6, 2], [6, 2])

    assert load.imbalance().tolist() == [1.0, 1.5]


def test_every_layer_and_logical_expert_is_exported(small_config, random_model, tmp_path):
    """Rows by layer, slot and expert are what the model counted; times and imbalance are there before any step."""
    model = random_model(small_config)
    model.load.add(1, list(range(8)), [28])
    metrics = RankMetrics(read_unit_launch(write(tmp_path, sealed(UNIT))), 0)
    metrics.watch(model)
    samples = {
        (sample.name, sample.labels.get("moe_layer"), sample.labels.get("expert")): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
    }

    assert [samples["tidemill_expert_rows_total", "1", str(expert)] for expert in range(8)] == list(range(8))
    assert samples["tidemill_expert_load_imbalance", "1", None] == 1
    assert samples["tidemill_dispatch_seconds_count", None, None] == 0
    assert samples["tidemill_combine_seconds_sum", None, None] == 0
