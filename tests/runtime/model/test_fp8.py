"""FP8 has DeepSeek's codes and scales, bit for bit, and its matmuls, MLPs and experts have float64's results."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from runtime.expert_parallel.dispatcher import ContiguousRows
from runtime.kernels.fp8 import E4M3, dequantise_matrix, pack, quantise_matrix, quantise_rows, unpack
from runtime.model.fp8 import Fp8Experts, Fp8Linear, Fp8Rows
from runtime.model.layers import GatedMlp
from tests.runtime import fp8_reference as reference
from tests.runtime.on_cpu import TORCH_OPS, backend

SIZES = [(1, 1), (3, 128), (5, 127), (2, 300), (130, 192), (257, 129)]


def draw_matrix(rows, columns, seed=0, dtype=torch.float32):
    """Draw normal numbers, with some rows far larger, some far smaller, and some zero."""
    generator = torch.Generator().manual_seed(seed)
    factors = torch.tensor([1.0, 1e4, 1e-3, 1e-7, 0.0])[torch.arange(rows) % 5]
    return (torch.randn(rows, columns, generator=generator) * factors[:, None]).to(dtype)


def code_bytes(quantised):
    return quantised.codes.view(torch.uint8).tolist()


def test_every_code_means_what_the_format_says():
    """All 254 numbers of e4m3 decode to the format's values, and encode back."""
    for code in [code for code in range(256) if code % 128 != 127]:
        value = torch.tensor([code], dtype=torch.uint8).view(E4M3).item()
        assert value == reference.code_value(code)
        assert reference.nearest_code(value) == code


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("power_of_two", [False, True], ids=["any scale", "powers of two"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_rows_are_the_reference_to_the_bit(size, dtype, power_of_two):
    """Codes and scales of rows equal the reference, for all sizes and magnitudes."""
    x = draw_matrix(*size, dtype=dtype)
    found = quantise_rows(x, power_of_two)
    codes, scales = reference.quantise_rows(x.tolist(), power_of_two)

    assert code_bytes(found) == codes
    assert found.scales.tolist() == scales


@given(values=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=130))
def test_any_row_is_the_reference_to_the_bit(values):
    """Codes and scales equal the reference for any row, subnormal and enormous numbers included."""
    for power_of_two in (False, True):
        found = quantise_rows(torch.tensor([values]), power_of_two)
        codes, scales = reference.quantise_rows([values], power_of_two)

        assert code_bytes(found) == codes
        assert found.scales.tolist() == scales


def test_a_scale_that_is_a_power_of_two_already_stays():
    """Magnitudes from 448 down to just above 224 have the scale 1."""
    scales = [quantise_rows(torch.tensor([[value]]), power_of_two=True).scales.item() for value in (448, 225, 224, 449)]

    assert scales == [1, 1, 0.5, 2]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_matrices_are_the_reference_to_the_bit(size):
    """Codes and scales of matrices equal the reference, also if 128 does not divide their sizes."""
    w = draw_matrix(*size)
    found = quantise_matrix(w)
    codes, scales = reference.quantise_matrix(w.tolist())

    assert code_bytes(found) == codes
    assert found.scales.tolist() == scales
    torch.testing.assert_close(dequantise_matrix(found).double(), reference.matrix_in_float64(w), rtol=1e-6, atol=0)


def test_a_row_does_not_depend_on_its_neighbours():
    """A row quantised alone has the bits that it has among others."""
    x = draw_matrix(20, 300)
    together = quantise_rows(x)
    for row in range(len(x)):
        alone = quantise_rows(x[row : row + 1])
        assert torch.equal(alone.codes.view(torch.uint8)[0], together.codes.view(torch.uint8)[row])
        assert torch.equal(alone.scales[0], together.scales[row])


@pytest.mark.parametrize(("size", "num_bytes"), [(7168, 7392), (192, 200), (1, 5)])
def test_a_row_travels_as_codes_and_scales(size, num_bytes):
    """A row travels as 7,392 bytes at DeepSeek-V3's hidden size, and arrives unchanged."""
    x = quantise_rows(draw_matrix(6, size))
    packed = pack(x)
    back = unpack(packed, size)

    assert packed.shape == (6, num_bytes)
    assert packed.dtype == torch.uint8
    assert torch.equal(back.codes.view(torch.uint8), x.codes.view(torch.uint8))
    assert torch.equal(back.scales, x.scales)
    assert unpack(packed[:0], size).codes.shape == (0, size)
    assert pack(quantise_rows(draw_matrix(0, size))).shape == (0, num_bytes)


def new_linear(w):
    """Return an Fp8Linear with these weights."""
    return set_matrix(Fp8Linear(w.shape[1], w.shape[0], TORCH_OPS), w)


@torch.no_grad()
def set_matrix(linear, w):
    quantised = quantise_matrix(w)
    linear.weight.copy_(quantised.codes)
    linear.weight_scale_inv.copy_(quantised.scales)
    return linear


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_projection_is_the_float64_product_of_what_was_quantised(size):
    """A projection is the float64 product of the quantised inputs, up to rounding."""
    w, x = draw_matrix(*size), draw_matrix(7, size[1], seed=1)
    expected = reference.product(x, w)
    scale = expected.abs().amax(-1, keepdim=True).clamp(min=1e-30)

    assert ((new_linear(w)(x).double() - expected) / scale).abs().max() < 1e-5
    in_bf16 = new_linear(w)(x.bfloat16())
    assert in_bf16.dtype == torch.bfloat16


def slow_mlp(x, gate, up, down):
    """Compute the MLP with float64 matmuls of FP8 inputs, rounded to BF16 between them, as DeepSeek does."""

    def rounded(y):
        return y.float().bfloat16()

    hidden = F.silu(rounded(reference.product(x.float(), gate))) * rounded(reference.product(x.float(), up))
    return rounded(reference.product(hidden.float(), down)).double()


def bf16_mlp(x, gate, up, down):
    return (F.silu(x @ gate.bfloat16().T) * (x @ up.bfloat16().T)) @ down.bfloat16().T


@pytest.fixture(scope="module")
def matrices():
    """Return gate, up and down of hidden size 192 and intermediate size 144, so that no block ends with a matrix."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(size, generator=generator) / size[1] ** 0.5 for size in ((144, 192), (144, 192), (192, 144))]


def assert_is(found, expected, unquantised):
    """Assert that `found` is as near to the slow reference as BF16 allows, far nearer than without quantising."""
    error = (found.double() - expected).norm() / expected.norm()
    effect = (unquantised.double() - expected).norm() / expected.norm()
    print(f"from the float64 reference {error:.1e}, from BF16 without FP8 {effect:.1e}")
    assert error < 0.01
    assert error < effect / 4


def test_a_gated_mlp_is_the_slow_one(matrices):
    """The gated MLP of dense layers and the shared expert equals the slow one."""
    x = draw_matrix(5, 192)[:1].repeat(5, 1).bfloat16() * torch.arange(1, 6)[:, None]
    mlp = GatedMlp(192, 144, E4M3, TORCH_OPS)
    for linear, w in zip((mlp.gate_proj, mlp.up_proj, mlp.down_proj), matrices, strict=True):
        set_matrix(linear, w)

    assert_is(mlp(x), slow_mlp(x, *matrices), bf16_mlp(x, *matrices))


def new_rows(x, counts):
    """Return rows as the experts get them, `counts` for each slot."""
    return ContiguousRows(Fp8Rows(x.shape[1], False, TORCH_OPS).quantise(x), torch.tensor(counts), counts)


def test_local_experts_are_the_slow_ones(matrices, small_config):
    """The local experts equal the slow ones for rows packed for the wire, also if one gets no rows."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(6, 192, generator=generator).bfloat16()
    sizes = {"hidden_size": 192, "moe_intermediate_size": 144}
    experts = Fp8Experts(3, replace(small_config, **sizes), backend(E4M3))
    for slot in range(3):
        tensors = experts.tensors(slot)
        for name, w in zip(("gate_proj", "up_proj", "down_proj"), matrices, strict=True):
            quantised = quantise_matrix(w * (slot + 1))
            tensors[f"{name}.weight"].copy_(quantised.codes)
            tensors[f"{name}.weight_scale_inv"].copy_(quantised.scales)
    found = experts(new_rows(x, [4, 0, 2]))
    tripled = [3 * w for w in matrices]

    assert_is(found[:4], slow_mlp(x[:4], *matrices), bf16_mlp(x[:4], *matrices))
    assert_is(found[4:], slow_mlp(x[4:], *tripled), bf16_mlp(x[4:], *tripled))
    assert experts(new_rows(x[:0], [0, 0, 0])).shape == (0, 192)
