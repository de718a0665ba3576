"""Triton's quantising equals the reference in Triton's interpreter, and compiles for its GPUs.

The interpreter computes on a CPU. Its casts to e4m3 and BF16 do not round as a GPU's do, so values may be a step of
e4m3 apart, and three where two casts to BF16 come before. Whether the kernels are right on a GPU is for `tests/gpu`.
"""

import json

import pytest
import torch

from runtime.kernels import fp8
from tests.runtime.kernels.gpu import interpreted, triton_without_gpu

CASES = list(interpreted.CASES)


MOST = 0.95  # of values lie so far from a power of two that the interpreter rounds them as a GPU does


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return case -> tensors, from one process for all cases."""
    return triton_without_gpu.run_interpreted(interpreted, tmp_path_factory.mktemp("interpreted"))


@pytest.mark.parametrize("case", CASES)
def test_rows_are_quantised_as_in_the_reference(results, case):
    """Scales equal the reference, and values are within a few steps of e4m3."""
    _, power_of_two, is_gated, counts = interpreted.CASES[case]()
    x = results[f"{case} x"]
    rows = x.flatten(0, -2)
    if is_gated:
        gate, up = rows.chunk(2, -1)
        rows = torch.nn.functional.silu(gate) * up
    expected = fp8.quantise_rows(rows, power_of_two)
    came = torch.ones(len(rows), dtype=torch.bool)
    if counts is not None:
        came = (torch.arange(x.shape[1]) < counts[:, None]).flatten()
    for layout in ("by rows", "by columns"):
        codes, scales = results[f"{case} {layout} codes"], results[f"{case} {layout} scales"]
        scales = scales.flatten(0, -2)[came]

        torch.testing.assert_close(scales, expected.scales[came], rtol=2**-6 if is_gated else 0, atol=0)
        group_scales = scales.repeat_interleave(fp8.BLOCK, -1)
        values = codes.flatten(0, -2)[came].float() * group_scales
        expected_values = expected.codes[came].float() * expected.scales[came].repeat_interleave(fp8.BLOCK, -1)
        a_step = torch.maximum(expected_values.abs() * 2**-3, group_scales * 2**-9)

        error = (values - expected_values).abs()

        # The interpreter drops the carry of a mantissa that rounds up: it makes 64 of 127.9, where a GPU makes 128.
        assert (error <= a_step * (3.1 if is_gated else 1.1)).float().mean() > MOST
        assert (error <= expected_values.abs() / 2 + a_step).all()
        if counts is not None:  # rows that did not come are left as they were
            assert not codes.view(torch.uint8).flatten(0, -2)[~came].any()


def test_scales_by_columns_lie_as_deep_gemm_reads_them(results):
    """Each group's scales lie together, and begin at a multiple of 16 bytes."""
    strides = json.loads(results["strides"])

    assert strides["5 rows"] == [1, 8]
    assert strides["3 slots of 6 rows"] == [8 * 2, 1, 8]


@pytest.mark.whole
@pytest.mark.parametrize("capability", [90, 100])
@pytest.mark.parametrize("is_gated", [False, True])
def test_it_compiles_for_the_gpus(capability, is_gated):
    """The kernel compiles to machine code without a GPU."""
    from runtime.kernels.gpu import quantise

    pointers = {"x": "*bf16", "codes": "*fp8e4nv", "scales": "*fp32", "counts": "*i32"}
    numbers = dict.fromkeys(("room", "size", "slot_stride", "row_stride", "group_stride"), "i32")
    flags = {"IS_MASKED": is_gated, "IS_GATED": is_gated, "POWER_OF_TWO": True, "GROUPS": 8, "BLOCK": 128}
    constants = {**flags, "LARGEST": 448.0, "MIN_MAGNITUDE": 1e-4}
    compiled = triton_without_gpu.compile_kernel(quantise.quantise_groups, pointers | numbers, constants, capability)

    assert f".target sm_{capability}" in compiled.asm["ptx"]
    assert compiled.asm["cubin"]
