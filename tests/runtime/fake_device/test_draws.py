"""On a fake GPU at DeepSeek-V3's size, a step's draws wait for nothing and fit the step's memory.

Torch's sorts on a GPU have workspaces besides their results, which fake tensors do not show.
"""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from runtime.kernels.device import HostLink
from runtime.protocol.bounds import MAX_LOGPROBS
from runtime.protocol.messages import Sampling
from runtime.serving import batched_sampling
from runtime.serving.batched_sampling import PendingDraw
from tests.runtime.fake_device.deployments import plan_deployment
from tests.runtime.fake_device.watcher import DeviceWatcher

REQUESTS = 128
RULES = [
    batched_sampling._take_best,
    batched_sampling._draw_from_all,
    batched_sampling._draw_from_best,
    batched_sampling._draw_from_sorted,
]


@pytest.mark.parametrize("rule", RULES)
def test_draws_neither_wait_nor_need_more_than_a_step(rule):
    """The host waits only for the result, and the draws fit the memory that a step's layers free."""
    deployment, sampling = plan_deployment("deepseek-h800.yaml", "decode"), Sampling(8, 1.0, 0.9, 1, [])
    groups = batched_sampling._group_rows(dict.fromkeys(range(REQUESTS), rule))
    numbers = [number for _, of_group in groups for number in of_group]
    vocab_size = deployment.config.vocab_size
    settings = batched_sampling._pack_settings(
        [PendingDraw(sampling, 0, 0)] * REQUESTS, numbers, vocab_size, HostLink()
    )
    watcher = DeviceWatcher()
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), watcher:
        with watcher.allocations.count_allocations("step"):
            logits_BV = torch.empty(REQUESTS, vocab_size, device="cuda")
        with watcher.allocations.count_allocations("draws"):
            settings_on_device = settings.to("cuda", non_blocking=True)
            found = batched_sampling._draw_on_device(logits_BV, groups, settings_on_device, MAX_LOGPROBS)

    assert found.shape == (REQUESTS, 2 + 1 + 2 * MAX_LOGPROBS)
    assert logits_BV.nbytes + watcher.allocations.most["draws"] < deployment.ledger.activations
