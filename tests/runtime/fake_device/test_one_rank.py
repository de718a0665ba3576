"""The benchmark of one rank builds its unit and takes its step at real sizes, as far as that needs no GPU."""

from contextlib import nullcontext

import pytest
import torch
from torch._subclasses import FakeTensorMode

from runtime.model import deepseek, moe
from tests.gpu.lone_rank import LoneRank, launched
from tests.gpu.planned_stages import planned_stages
from tests.gpu.played_peers import arriving
from tests.gpu.roofline import Rates, work_of_step
from tests.runtime.fake_device.deployments import plan_deployment
from tests.runtime.fake_device.ranks import KernelPath

SPECS = {"decode": "deepseek-h800.yaml", "prefill": "deepseek-h800.yaml", "mixed": "h200-single-node.yaml"}
H100 = Rates(2.9e12, 7.8e14, 1.4e15, "a test", 5e10, 5e10)
STAGES = {"attention 1", "attention core", "attention 2", "gate", "shared expert", "experts", "mlp", "head", "sum"}


class NoClock:
    """A clock that keeps only the stages' names."""

    def __init__(self):
        self.stages = set()

    def span(self, name, layer=None):
        self.stages.add(name)
        return nullcontext()


@pytest.fixture
def make_rank(monkeypatch):
    """Return a function that makes a rank of a phase on fake tensors: (deployment, rank, cache, names of stages)."""
    for module in (deepseek, moe):
        monkeypatch.setattr(module, "span", module.span)  # put back afterwards

    def make(phase):
        deployment, clock = plan_deployment(SPECS[phase], phase), NoClock()
        rank = LoneRank(deployment.config, launched(deployment), KernelPath(), clock, layers=5)
        return deployment, rank, rank.engine.new_cache(rank.launch.limits.kv_tokens), clock.stages

    with FakeTensorMode(), torch.no_grad():
        yield make


@pytest.mark.parametrize(("phase", "requests", "slots"), [("decode", 128, 2), ("prefill", 1, 9), ("mixed", 65, 32)])
def test_a_step_of_the_benchmark_runs(make_rank, phase, requests, slots):
    """A step has the stages of the benchmark's table, the unit's own dispatcher and one rank's slots."""
    deployment, rank, cache, stages = make_rank(phase)
    logits = rank.model.next_logits(*deployment.largest_step(), cache)
    found = {module.experts.gate_up.shape[0] for module in rank.model.modules() if hasattr(module, "experts")}

    assert logits.shape == (requests, 129_280)
    assert found == {rank.slots} == {slots}
    assert stages >= STAGES
    assert type(rank.model.dispatcher).__name__ == ("LowLatencyDispatcher" if phase == "decode" else "NormalDispatcher")


def test_the_gates_choices_take_replicas_in_turn(make_rank):
    """The rank has the plan's map, in which 32 slots of a layer hold second or third copies."""
    _, rank, _, _ = make_rank("decode")
    tables = [module.replicas for module in rank.model.modules() if hasattr(module, "replicas")]

    assert {(len(table._slots_S), len(table._first_E)) for table in tables} == {(288, 256)}


def least_seconds(phase, slots, ranks):
    """Return the least seconds of each stage of a phase's largest step, and the bound of each."""
    deployment = plan_deployment(SPECS[phase], phase)
    works = work_of_step(deployment.config, ranks, slots, *deployment.largest_step())
    bounds = {name: work.bounds(H100) for name, work in works.items()}
    return deployment, {name: max((seconds, by) for by, seconds in found.items()) for name, found in bounds.items()}


def test_decode_takes_at_least_what_its_weights_and_kv_take_to_be_read():
    """Decode takes at least the time to read all weights but the embedding's, and all latents."""
    deployment, least = least_seconds("decode", 2, 144)
    config, (_, decoding) = deployment.config, deployment.largest_step()
    kv = sum(chunk.end for chunk in decoding) * deployment.ledger.kv_bytes_per_token
    read = deployment.ledger.weight_bytes - 2 * config.vocab_size * config.hidden_size + kv

    assert 1 <= sum(seconds for seconds, _ in least.values()) * H100.copy_bytes_per_s / read < 1.2


def test_the_end_of_a_long_prompt_takes_at_least_what_its_attention_multiplies():
    """The end of a long prompt takes at least the time of its attention's products.

    16,384 queries see 24,576 keys on average, with 192 channels of a key and 128 of a value, in 128 heads.
    """
    _, least = least_seconds("prefill", 9, 32)
    seconds, by = least["attention core"]

    assert by == "matmul"
    assert seconds == pytest.approx(60 * 2 * 128 * 320 * 16384 * 24576.5 / H100.bf16_flop_per_s, rel=1e-3)
    assert 0.5 < seconds / sum(each for each, _ in least.values()) < 0.9


def test_the_planner_predicts_no_stage_of_decode_below_its_least():
    """The planner predicts no stage of decode below its least time."""
    deployment, least = least_seconds("decode", 2, 144)
    planned = planned_stages(deployment, *deployment.largest_step())

    assert planned["experts"] > least["experts"][0]
    assert planned["attention 2"] > least["attention core"][0]


@pytest.mark.parametrize(("num_tokens", "num_ranks", "slots"), [(8192, 32, 9), (2048, 8, 32), (100, 2, 144)])
def test_played_peers_send_what_an_even_unit_sends(num_tokens, num_ranks, slots):
    """Played peers send as many pairs as this rank's tokens have, spread over its slots."""
    num_came, num_twice, pairs_M = arriving(num_tokens, 8, num_ranks, slots)

    assert sum(pairs_M) == num_came + num_twice <= num_tokens * 8
    assert max(pairs_M) - min(pairs_M) <= 2
    assert num_came <= num_tokens * num_ranks
