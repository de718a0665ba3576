"""The benchmark of one rank builds its unit and takes its step at real sizes: what of it needs no GPU to be tried."""

from contextlib import nullcontext

import pytest
import torch
from torch._subclasses import FakeTensorMode

from runtime.model import deepseek, moe
from tests.gpu.lone_rank import LoneRank
from tests.runtime.fake_device.deployments import deployed
from tests.runtime.fake_device.ranks import KernelPath


class NoClock:
    """Keeps the names of the stages."""

    def __init__(self):
        self.stages = set()

    def span(self, name, layer=None):
        self.stages.add(name)
        return nullcontext()


@pytest.mark.parametrize(("phase", "requests"), [("decode", 128), ("prefill", 1)])
def test_a_step_of_the_benchmark_runs(phase, requests, monkeypatch):
    """With the stages that its table has, and the slots of one rank of the unit."""
    for module in (deepseek, moe):
        monkeypatch.setattr(module, "span", module.span)  # put back afterwards
    clock, deployment = NoClock(), deployed("deepseek-h800.yaml", phase)
    with FakeTensorMode(), torch.no_grad():
        rank = LoneRank(deployment, deployment.largest_step(), KernelPath(), clock, layers=5)
        logits = rank.step()
        slots = {module.experts.gate_up.shape[0] for module in rank.model.modules() if hasattr(module, "experts")}
        least_s = rank.least_seconds(bytes_per_s=3e12, flop_per_s=1e15)

    assert logits.shape == (requests, 129_280)
    assert slots == {{"decode": 2, "prefill": 9}[phase]}
    assert {"attention 1", "attention 2", "gate", "shared expert", "experts", "mlp", "head"} <= clock.stages
    assert 0.005 < least_s < 2
