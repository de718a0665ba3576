"""A step's draws on a GPU against the same on a CPU."""

import pytest
import torch

from runtime.kernels.device import HostLink, PinnedLink
from runtime.protocol.messages import Sampling
from runtime.serving.batched_sampling import PendingDraw, draw

ROWS, VOCAB = 100, 129_280
WISHES = [
    {"temperature": 0.0},
    {"temperature": 0.6, "top_p": 0.95},
    {"top_p": 0.95},  # wider than the candidates
    {"top_k": 40, "top_p": 0.9},
    {},
]


@pytest.fixture(scope="module")
def logits():
    return 3 * torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(7))


@pytest.fixture(scope="module")
def asks():
    common = {"max_tokens": 8, "temperature": 1.0, "top_p": 1.0, "stop_ids": []}
    return {
        row: PendingDraw(Sampling(**common | WISHES[row % len(WISHES)], seed=row, num_logprobs=row % 4 or None), row, 0)
        for row in range(ROWS)
    }


def test_a_gpu_draws_what_a_cpu_draws(device, logits, asks):
    """The same tokens; logprobs up to the rounding of another sum."""
    found = draw(logits.to(device), asks, PinnedLink(device))
    expected = draw(logits, asks, HostLink())

    assert {row: drawn.token_id for row, drawn in found.items()} == {
        row: drawn.token_id for row, drawn in expected.items()
    }
    for row, drawn in expected.items():
        if drawn.logprobs is not None:
            assert found[row].logprobs.chosen == pytest.approx(drawn.logprobs.chosen, abs=1e-5)


def test_what_else_is_in_a_step_does_not_matter_on_a_gpu(device, logits, asks):
    """To the last bit of every logprob, whatever kernels torch takes for more rows or fewer."""
    logits_BV, link = logits.to(device), PinnedLink(device)
    together = draw(logits_BV, asks, link)

    assert together == {row: draw(logits_BV[row : row + 1], {0: ask}, link)[0] for row, ask in asks.items()}
