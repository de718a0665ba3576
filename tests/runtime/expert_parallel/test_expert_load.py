"""The counters of experts are exact, and show the imbalance that a rank's tokens met."""

from collections import defaultdict

import pytest
import torch

from runtime.expert_parallel.expert_load import ExpertLoad
from runtime.expert_parallel.group import SoloGroup
from runtime.expert_parallel.overlap import OVERLAPS
from runtime.launch import read_unit_launch
from runtime.model.deepseek import DeepseekV3
from runtime.model.forward_batch import Chunk
from runtime.model.moe import MixtureOfExperts
from runtime.worker.rank_metrics import RankMetrics
from tests.runtime.launch_documents import UNIT, seal, write
from tests.runtime.on_cpu import backend, new_cache


def test_rows_add_up_by_layer_and_slot():
    """Each dispatch adds to its own layer."""
    load = ExpertLoad(torch.tensor([[0, 3], [2, 1]]), num_ranks=2)
    load.add(1, torch.tensor([5, 0]), torch.tensor([4, 2]))
    load.add(1, torch.tensor([1, 2]), torch.tensor([2, 0]))

    assert load.rows.tolist() == [[0, 0], [6, 2]]
    assert load.sent.tolist() == [[0, 0], [6, 2]]


def test_imbalance_is_the_most_over_the_mean():
    """With 6 and 2 rows for two ranks the imbalance is 6 / 4; without rows it is 1."""
    load = ExpertLoad(torch.tensor([[0, 3], [2, 1]]), num_ranks=2)
    load.add(1, torch.tensor([6, 2]), torch.tensor([6, 2]))

    assert load.imbalance().tolist() == [1.0, 1.5]


@pytest.mark.parametrize("overlap", OVERLAPS)
@torch.inference_mode()
def test_a_model_counts_what_its_gates_choose(small_config, filled, overlap):
    """In each layer the slots of an expert together count the tokens that chose it, over all steps."""
    experts = torch.tensor([[3, 1, 0, 2, 7, 6, 5, 4, 3, 1], [0, 1, 2, 3, 4, 5, 6, 7, 0, 0]])
    model = DeepseekV3(small_config, experts.tolist(), SoloGroup(), backend(), OVERLAPS[overlap])
    chosen = defaultdict(list)
    for mixture in [module for module in filled(model, 1).modules() if isinstance(module, MixtureOfExperts)]:
        layer = chosen[mixture.moe_layer]
        mixture.gate.register_forward_hook(lambda _, __, found, layer=layer: layer.append(found[0].flatten()))
    cache, table = new_cache(small_config, 64, torch.float32), []
    cache.allocate(table, 20)
    for start, end in ((0, 11), (11, 19)):
        model([Chunk(list(range(start, end)), start, table)], [], cache)
    model([], [Chunk([7], 19, table)], cache)
    found = torch.zeros(2, 8, dtype=torch.long).scatter_add_(1, experts, model.load.rows)
    expected = torch.stack([torch.cat(chosen[layer]).bincount(minlength=8) for layer in (0, 1)])

    assert torch.equal(found, expected)
    assert not torch.equal(found[0], found[1])


def test_every_layer_and_logical_expert_is_exported(small_config, random_model, tmp_path):
    """The metrics show the model's rows by layer, slot and expert; times and imbalance exist before any step."""
    model = random_model(small_config)
    model.load.add(1, torch.arange(8), torch.tensor([28]))
    metrics = RankMetrics(read_unit_launch(write(tmp_path, seal(UNIT))), 0)
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


def test_rows_stay_with_the_expert_that_they_were_counted_for():
    """A slot that gets another expert counts for that one; when the first expert returns, its count goes on."""
    load = ExpertLoad(torch.tensor([[0, 3]]), num_ranks=2)
    counted = []
    for experts in ([0, 3], [5, 3], [0, 3]):
        load.assign(0, experts)
        load.add(0, torch.tensor([2, 1]), torch.tensor([3, 0]))
        counted.append({(slot, expert): rows for _, slot, expert, rows in load.counted_rows()})

    assert counted == [{(0, 0): 2, (1, 3): 1}, {(0, 0): 2, (0, 5): 2, (1, 3): 2}, {(0, 0): 4, (0, 5): 2, (1, 3): 3}]
    assert load.sent.tolist() == [[3, 0]]
