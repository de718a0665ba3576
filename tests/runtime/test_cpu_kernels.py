"""Compiled loops against torch: in float64, or bit for bit where they only compare."""

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from runtime.model import cpu_kernels
from runtime.model.batching import Alone, Together
from runtime.model.layers import Linear
from runtime.model.moe import LocalExperts, choose_experts


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).bfloat16()


@pytest.mark.parametrize("counts", [[1], [0, 5, 1, 0, 2], [4, 8, 3, 7], [0, 0, 1]])
@pytest.mark.parametrize("size", [1, 31, 160])
def test_each_row_is_multiplied_by_the_matrix_of_its_slot(counts: list[int], size: int) -> None:
    """Slots of any number of rows, none too, and rows of any length give what float64 gives, up to FP32's rounding."""
    x, w = random(sum(counts), size), random(len(counts), 17, size)

    y = cpu_kernels.grouped_matmul(x, counts, w)

    parts = zip(x.double().split(counts), w.double(), strict=True)
    torch.testing.assert_close(y.double(), torch.cat([rows @ matrix.T for rows, matrix in parts]), rtol=1e-5, atol=1e-5)


def test_a_projection_of_one_row_is_that_of_many_up_to_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row alone goes through the loops, beside others through torch, and its result differs by BF16's last place."""
    projection = Linear(64, 48, bias=False, dtype=torch.bfloat16)
    x = random(32, 64)
    asked = []
    monkeypatch.setattr(
        cpu_kernels, "linear", lambda x, w, linear=cpu_kernels.linear: asked.append(len(x)) or linear(x, w)
    )

    alone, together = projection(x[:1]), projection(x)[:1]

    assert asked == [1]
    torch.testing.assert_close(alone, together, rtol=2**-7, atol=2**-7)


def test_experts_of_few_rows_are_those_of_many_up_to_rounding(small_config) -> None:
    """All slots at once give what slot after slot gives, in the rows' own places."""
    experts = LocalExperts(4, small_config, torch.bfloat16, Together())
    for parameter in experts.parameters():
        parameter.data = random(*parameter.shape) / 8
    rows, counts = random(6, small_config.hidden_size), [3, 0, 1, 2]
    expected = torch.cat([experts.expert(slot, part) for slot, part in enumerate(rows.split(counts)) if len(part)])

    with torch.inference_mode():
        results = experts(rows, counts)

    assert results is rows
    torch.testing.assert_close(results, expected.detach(), rtol=2e-2, atol=2e-2)


def test_deterministic_experts_do_not_come_here(small_config, monkeypatch: pytest.MonkeyPatch) -> None:
    """In deterministic mode the number of rows chooses no kernel."""
    experts = LocalExperts(2, small_config, torch.bfloat16, Alone())
    for parameter in experts.parameters():
        parameter.data = random(*parameter.shape)
    monkeypatch.setattr(cpu_kernels, "_loops", partial(pytest.fail, "loops were asked for"))

    with torch.inference_mode():
        results = experts(random(2, small_config.hidden_size), [1, 1])

    assert results.isfinite().all()


@pytest.mark.parametrize("shape", [(1, 512), (5, 33), (3, 2, 24), (0, 8)])
def test_a_norm_is_rounded_once(shape: tuple[int, ...]) -> None:
    """Rows of any length, aligned or not, in any number of dimensions: float64's norm, in the nearest BF16."""
    x, weight = random(*shape) * 3, random(shape[-1])

    y = cpu_kernels.rms_norm(x, weight, 1e-6)

    expected = torch.nn.functional.rms_norm(x.double(), shape[-1:], weight.double(), 1e-6)
    torch.testing.assert_close(y, expected.bfloat16(), rtol=2**-7, atol=0)
    assert (y == expected.bfloat16()).double().mean() > 0.99 or not y.numel()


def test_a_norm_of_no_numbers_is_none() -> None:
    """NaN and infinity do not become numbers when they are rounded."""
    y = cpu_kernels.rms_norm(torch.tensor([[torch.nan, 1.0], [torch.inf, 1.0]]).bfloat16(), random(2), 1e-6)

    assert y[:, 0].isnan().all()


@pytest.mark.parametrize(
    ("num_experts", "groups", "num_best", "topk_group", "top_k"),
    [(64, 8, 2, 4, 8), (16, 1, 1, 1, 6), (12, 4, 1, 3, 2), (8, 4, 2, 1, 2)],
)
def test_experts_are_chosen_as_by_torch(
    num_experts: int, groups: int, num_best: int, topk_group: int, top_k: int
) -> None:
    """The same experts in the same order, for the groupings of V3 and V2, scores below 0 (biased) included."""
    scores = torch.randn(200, num_experts, generator=torch.Generator().manual_seed(0))

    chosen = cpu_kernels.choose_experts(scores, groups, num_best, topk_group, top_k)

    assert chosen.equal(choose_experts(scores, groups, num_best, topk_group, top_k))


@pytest.mark.parametrize(
    ("rows", "dtype", "threads", "wins"),
    [
        (4, torch.bfloat16, 1, True),
        (5, torch.bfloat16, 1, False),
        (0, torch.bfloat16, 1, False),
        (1, torch.float32, 1, False),
        (1, torch.bfloat16, 2, False),
    ],
)
def test_loops_are_for_cpu_kernels_in_bf16_on_one_thread(
    rows: int, dtype: torch.dtype, threads: int, wins: bool
) -> None:
    """Everything else is torch's."""
    torch.set_num_threads(threads)

    assert cpu_kernels.matmul_wins(torch.zeros(rows, 8, dtype=dtype)) == wins
