"""The table for a GPU equals the reference, with slow references in place of kernels, on a CPU.

So what is ours is tested: which kernel is chosen, the order of its rows, what is put together before and taken apart
after. The kernels themselves have not been run.
"""

import pytest
import torch

from runtime.errors import RuntimeFailure
from runtime.kernels import fp8
from runtime.kernels.fp8 import E4M3, ExpertCodes, Quantised, quantise_matrix
from runtime.kernels.gpu.ops import GpuOps
from runtime.kernels.gpu.packages import BLACKWELL, HOPPER, Packages
from tests.runtime.closeness import error_in_norm
from tests.runtime.kernels.gpu.computing_packages import ComputingDeepGemm, ComputingFlashMla
from tests.runtime.on_cpu import CPU, TORCH_OPS

ALIGNMENT, HIDDEN, INTERMEDIATE, SLOTS = 8, 256, 128, 3


class CpuQuantising(GpuOps):
    """A table that quantises by the reference, because Triton's kernels need a GPU."""

    def __init__(self, packages):
        super().__init__(CPU, packages)

    def _quantise(self, x_RD, power_of_two):
        return fp8.quantise_rows(x_RD, power_of_two)

    def _quantise_gated(self, gate_up, power_of_two, counts_M=None):
        gate, up = gate_up.flatten(0, -2).chunk(2, -1)
        x = fp8.quantise_rows(torch.nn.functional.silu(gate) * up, power_of_two)
        shape = gate_up.shape[:-1]
        return Quantised(x.codes.unflatten(0, shape), x.scales.unflatten(0, shape))

    def _matmul_fp32(self, x_TD, w_ED):
        return x_TD.float() @ w_ED.float().mT


class PartialAttention(CpuQuantising):
    """A table with a kernel that attends to a part of the keys."""

    def _has_cudnn(self, q, k, v):
        return True

    def _attention_part(self, q, k, v, scale, *, is_causal):
        scores = scale * q.float() @ k.float().mT
        if is_causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
        return (scores.softmax(-1) @ v.float()).bfloat16(), scores.logsumexp(-1, keepdim=True)


@pytest.fixture
def ops():
    return CpuQuantising(Packages(HOPPER, ComputingDeepGemm(ALIGNMENT), ComputingFlashMla()))


def draw(*shape, seed=0, dtype=torch.bfloat16):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def experts():
    """Return the experts of three different slots."""

    def stacked(outputs, channels, seed):
        matrices = [quantise_matrix(draw(outputs, channels, seed=seed + slot) / channels**0.5) for slot in range(SLOTS)]
        return Quantised(*(torch.stack(parts) for parts in zip(*((w.codes, w.scales) for w in matrices), strict=True)))

    gate, up = stacked(INTERMEDIATE, HIDDEN, 10), stacked(INTERMEDIATE, HIDDEN, 20)
    gate_up = Quantised(torch.stack((gate.codes, up.codes), 1), torch.stack((gate.scales, up.scales), 1))
    return ExpertCodes(gate_up, stacked(HIDDEN, INTERMEDIATE, 30), power_of_two=False)


def test_a_projection_is_the_references(ops):
    """DeepGEMM computes projections of whole blocks, and torch the others."""
    for outputs, channels in ((24, 256), (20, 256), (24, 200)):
        x, w = fp8.quantise_rows(draw(5, channels)), quantise_matrix(draw(outputs, channels, seed=1))
        expected = TORCH_OPS.fp8_matmul(x, w, torch.bfloat16)

        assert ops.fp8_matmul(x, w, torch.bfloat16).equal(expected)


@pytest.mark.parametrize("requests", [0, 1, 5])
def test_queries_and_values_are_multiplied_to_where_they_are_read(ops, requests):
    """Absorbed queries and values equal the reference's, without copies."""
    q, up = draw(requests, 4, 24, dtype=torch.float32), draw(4 * (16 + 12), 32, seed=1, dtype=torch.float32)
    context = draw(requests, 4, 32, seed=2, dtype=torch.float32)
    absorbed, values = ops.absorb_query(q, up, 8, 12), ops.up_project_values(context, up, 12)

    assert absorbed.is_contiguous()
    torch.testing.assert_close(absorbed, TORCH_OPS.absorb_query(q, up, 8, 12))
    torch.testing.assert_close(values, TORCH_OPS.up_project_values(context, up, 12))


@pytest.mark.parametrize("counts", [[8, 0, 16], [3, 9, 0], [0, 0, 0], [1, 1, 1]])
def test_grouped_experts_are_the_references(ops, counts):
    """Slots that fill tiles are computed in place; others are moved apart and back."""
    x, counts_M = fp8.quantise_rows(draw(sum(counts), HIDDEN)), torch.tensor(counts)
    expected = TORCH_OPS.fp8_experts(x, counts, counts_M, experts())

    assert ops.fp8_experts(x, counts, counts_M, experts()).equal(expected)


def test_rows_that_travelled_may_fill_their_tiles(ops):
    """Dispatched rows 264 bytes apart, which DeepGEMM cannot read, are computed too."""
    packed = fp8.pack(fp8.quantise_rows(draw(24, HIDDEN)))
    for counts in ([8, 0, 16], [0, 0, 0]):
        x, counts_M = fp8.unpack(packed[: sum(counts)], HIDDEN), torch.tensor(counts)
        expected = TORCH_OPS.fp8_experts(x, counts, counts_M, experts())

        assert ops.fp8_experts(x, counts, counts_M, experts()).equal(expected)


def test_rows_that_fill_a_tile_do_not_matter(ops):
    """Rows that only fill up DeepEP's tiles do not affect the results."""
    counts, counts_M = [8, 16, 0], torch.tensor([5, 9, 0])
    x = fp8.quantise_rows(draw(24, HIDDEN))
    x.codes.view(torch.uint8)[5:8] = 0x7F  # not a number
    found = ops.fp8_experts(x, counts, counts_M, experts())
    expected = TORCH_OPS.fp8_experts(x, counts, counts_M, experts())

    assert found[:5].equal(expected[:5])
    assert found[8:17].equal(expected[8:17])


def test_masked_experts_are_the_references(ops):
    """Masked experts equal the reference in the rows that came."""
    counts_M, room = torch.tensor([4, 0, 2]), ops.row_alignment
    x = fp8.quantise_rows(draw(SLOTS * room, HIDDEN))
    x = Quantised(x.codes.unflatten(0, (SLOTS, room)), x.scales.unflatten(0, (SLOTS, room)))
    expected = TORCH_OPS.masked_fp8_experts(x, counts_M, experts(), 2)
    x.codes.view(torch.uint8)[1] = 0x7F
    found = ops.masked_fp8_experts(x, counts_M, experts(), 2)

    for slot, count in enumerate(counts_M.tolist()):
        assert found[slot, :count].equal(expected[slot, :count])


def test_prompts_attend_as_in_the_reference(ops):
    """A chunk's last query sees all keys of its request, and the first all but the later ones."""
    q, kv, k_rope = draw(7, 2, 24), draw(19, 2, 16 + 8, seed=1), draw(19, 8, seed=2)
    expected = TORCH_OPS.attend_causally(q, kv, k_rope, 8, 0.2)

    assert error_in_norm(ops.attend_causally(q, kv, k_rope, 8, 0.2).float(), expected.float()) < 0.01


@pytest.mark.parametrize("keys", [7, 8, 19, 4000])
def test_parts_of_the_keys_are_put_together(keys):
    """Attention to earlier keys and to the chunk's own is merged by their sums of exponentials."""
    ops = PartialAttention(Packages(HOPPER, None, None))
    q, kv, k_rope = draw(7, 2, 24) / 8, draw(keys, 2, 16 + 8, seed=1), draw(keys, 8, seed=2)
    in_fp32 = (x.float() for x in (q, kv, k_rope))
    expected = TORCH_OPS.attend_causally(*in_fp32, 8, 0.2)
    found = ops.attend_causally(q, kv, k_rope, 8, 0.2).float()

    assert max(error_in_norm(one, other) for one, other in zip(found, expected, strict=True)) < 0.01


@pytest.mark.parametrize("has_flash_mla", [True, False], ids=["FlashMLA", "request by request"])
def test_requests_attend_to_their_pages_as_in_the_reference(has_flash_mla):
    """FlashMLA attends if latents are DeepSeek-V3's, and torch request by request if not."""
    ops = CpuQuantising(Packages(HOPPER, None, ComputingFlashMla() if has_flash_mla else None))
    q, pages = draw(3, 2, 576), draw(5, 64, 576, seed=1)
    tables, lengths = torch.tensor([[0, 3], [4, 0], [2, 1]]), torch.tensor([100, 1, 128])
    expected = TORCH_OPS.attend_pages(q, pages, tables, lengths, 512, 0.05)
    found = ops.attend_pages(q, pages, tables, lengths, 512, 0.05)

    assert error_in_norm(found.float(), expected.float()) < 0.01
    assert ops.attend_pages(q[:0], pages, tables[:0], lengths[:0], 512, 0.05).shape == (0, 2, 512)


def test_flash_mla_is_told_of_a_step_once(ops, monkeypatch):
    """All layers of a micro-batch share one schedule."""
    schedules = []
    monkeypatch.setattr(ops.packages.flash_mla, "get_mla_metadata", lambda: (schedules.append(0), None))
    pages = draw(2, 64, 576)
    for length in (torch.tensor([70]), torch.tensor([3])):
        for layer in range(3):
            ops.attend_pages(draw(1, 2, 576, seed=layer), pages, torch.tensor([[0, 1]]), length, 512, 0.05)

    assert len(schedules) == 2


def test_on_blackwell_scales_must_be_powers_of_two():
    """On Blackwell a checkpoint is refused before loading if its scales are not powers of two."""
    with pytest.raises(RuntimeFailure, match="not powers of two"):
        CpuQuantising(Packages(BLACKWELL, ComputingDeepGemm(ALIGNMENT))).check_scales(power_of_two=False)

    CpuQuantising(Packages(BLACKWELL, ComputingDeepGemm(ALIGNMENT))).check_scales(power_of_two=True)
    CpuQuantising(Packages(BLACKWELL)).check_scales(power_of_two=False)
    CpuQuantising(Packages(HOPPER, ComputingDeepGemm(ALIGNMENT))).check_scales(power_of_two=False)


def test_without_packages_the_reference_serves():
    """Without packages every FP8 operation has the reference's bits."""
    ops = CpuQuantising(Packages(HOPPER))
    counts, counts_M = [2, 1, 3], torch.tensor([2, 1, 3])
    x, w = fp8.quantise_rows(draw(6, HIDDEN)), quantise_matrix(draw(24, HIDDEN, seed=1))

    assert ops.fp8_matmul(x, w, torch.bfloat16).equal(TORCH_OPS.fp8_matmul(x, w, torch.bfloat16))
    assert ops.fp8_experts(x, counts, counts_M, experts()).equal(TORCH_OPS.fp8_experts(x, counts, counts_M, experts()))
    assert ops.quantise_rows(draw(6, HIDDEN), False).codes.dtype == E4M3
