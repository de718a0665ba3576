"""The contracts accept the arguments of the packages' own tests, and refuse a change of any one.

The accepted shapes are those of the packages' tests: github.com/deepseek-ai/DeepGEMM 54e22612 tests/generators.py lines
123-190 (enumerate_normal, enumerate_m_grouped_contiguous, enumerate_m_grouped_masked); FlashMLA 9241ae3e
tests/test_flash_mla_dense_decoding.py lines 179-193; DeepEP dd758caf tests/legacy/test_low_latency.py lines 262-268 and
docs/legacy.md ("Performance").
"""

import pytest
import torch

from runtime.kernels.fp8 import E4M3, Quantised
from runtime.kernels.gpu.contracts import (
    NORMAL_SIZES,
    BrokenContract,
    check_combine,
    check_dispatch,
    check_flash_mla,
    check_gemm,
    check_grouped_gemm,
    check_low_latency_combine,
    check_low_latency_dispatch,
    check_masked_gemm,
    round_up_for_tma,
)

META = torch.device("meta")
BF16, FP32, INT32, INT64 = torch.bfloat16, torch.float32, torch.int32, torch.int64
NK = [(2112, 7168), (576, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048)]
GROUPED_NK = [(6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048)]


def empty(*shape, dtype=FP32):
    return torch.empty(shape, dtype=dtype, device=META)


def rows(*shape, by_columns=False):
    """Return codes, and a scale for each 128 channels."""
    *lead, size, channels = shape
    groups = -(-channels // 128)
    scales = empty(*lead, size, groups)
    if by_columns:
        column = round_up_for_tma(size, 4)
        strides = (*(column * groups for _ in lead), 1, column)
        scales = torch.empty_strided((*lead, size, groups), strides, device=META)
    return Quantised(empty(*shape, dtype=E4M3), scales)


def matrix(*shape):
    """Return codes, and a scale for each block of 128 x 128."""
    *lead, outputs, channels = shape
    return Quantised(empty(*shape, dtype=E4M3), empty(*lead, -(-outputs // 128), -(-channels // 128)))


def gemm(m=128, n=576, k=7168, by_columns=False):
    return {"x": rows(m, k, by_columns=by_columns), "w": matrix(n, k), "out_RO": empty(m, n, dtype=BF16)}


def grouped(m=4 * 8192, groups=4, n=6144, k=7168):
    return {
        "x": rows(m, k),
        "w": matrix(groups, n, k),
        "out_RO": empty(m, n, dtype=BF16),
        "slot_of_row_R": empty(m, dtype=INT32),
        "alignment": 128,
    }


def masked(groups=6, room=4096, n=6144, k=7168, by_columns=False):
    return {
        "x": rows(groups, room, k, by_columns=by_columns),
        "w": matrix(groups, n, k),
        "out_MZO": empty(groups, room, n, dtype=BF16),
        "counts_M": empty(groups, dtype=INT32),
        "expected_rows": 1024,
        "alignment": 128,
    }


def flash_mla(batch=6, heads=128, pages=64):
    return {
        "q_BSHC": empty(batch, 1, heads, 576, dtype=BF16),
        "pages_JSHC": empty(pages, 64, 1, 576, dtype=BF16),
        "tables_BJ": empty(batch, 8, dtype=INT32),
        "lengths_B": empty(batch, dtype=INT32),
        "value_size": 512,
    }


def dispatch(tokens=4096, ranks=32, x=None):
    return {
        "x": rows(tokens, 7168) if x is None else x,
        "slots_TK": empty(tokens, 8, dtype=INT64),
        "weights_TK": empty(tokens, 8),
        "num_ranks": ranks,
        "num_slots": 288 if 288 % ranks == 0 else 320 if 320 % ranks == 0 else 16 * ranks,
    }


def low_latency(tokens=128, ranks=144):
    return {
        "x_TD": empty(tokens, 7168, dtype=BF16),
        "slots_TK": empty(tokens, 8, dtype=INT64),
        "weights_TK": empty(tokens, 8),
        "num_ranks": ranks,
        "num_slots": 288,
        "capacity": 128,
    }


def back(ranks=144):
    rows_MZD = empty(288 // ranks, ranks * 128, 7168, dtype=BF16)
    return {"rows_MZD": rows_MZD, "num_ranks": ranks, "num_slots": 288, "capacity": 128}


@pytest.mark.parametrize("by_columns", [False, True], ids=["by rows", "by columns"])
@pytest.mark.parametrize("m", [1, 128, 4096])
def test_deep_gemms_shapes_are_taken(m, by_columns):
    """Plain and grouped matmuls of DeepGEMM's shapes are accepted."""
    for n, k in NK:
        check_gemm(**gemm(m, n, k, by_columns))
    for n, k in GROUPED_NK:
        check_grouped_gemm(**grouped(4 * 8192, 4, n, k))
        check_masked_gemm(**masked(32, 4096, n, k, by_columns))


def test_rows_as_they_travel_are_taken():
    """Dispatched rows, 7,392 bytes apart with scales behind the codes, are accepted."""
    travelled = empty(256, 7392, dtype=E4M3)[:, :7168]
    check_gemm(Quantised(travelled, empty(256, 56)), matrix(576, 7168), empty(256, 576, dtype=BF16))


def test_flash_mlas_shapes_are_taken():
    """Any number of heads and any batch except an empty one are accepted."""
    for batch in (1, 2, 6, 64, 128):
        for heads in (1, 3, 9, 63, 64, 126, 128):
            check_flash_mla(**flash_mla(batch, heads))


def test_deep_eps_shapes_are_taken():
    """Every size with a configuration is accepted in FP8 and BF16; low latency also without tokens."""
    for ranks in NORMAL_SIZES:
        check_dispatch(**dispatch(ranks=ranks))
        check_dispatch(**dispatch(ranks=ranks, x=empty(4096, 7168, dtype=BF16)))
    for ranks in (8, 16, 32, 72, 96, 144, 288):
        check_low_latency_dispatch(**low_latency(ranks=ranks))
        check_low_latency_combine(**back(ranks))
    check_low_latency_dispatch(**low_latency(tokens=0))
    check_dispatch(**dispatch(tokens=0))
    check_combine(empty(100, 7168, dtype=BF16))


BROKEN = [
    (check_gemm, gemm, {"out_RO": empty(128, 576, dtype=FP32)}, "not BF16"),
    (check_gemm, gemm, {"out_RO": empty(576, 128, dtype=BF16).T}, "contiguous"),
    (check_gemm, gemm, {"out_RO": empty(128, 577, dtype=BF16)}, "result is"),
    (check_gemm, gemm, {"w": matrix(576, 7040)}, "x has 7168 channels"),
    (check_gemm, gemm, {"x": rows(128, 7100)}, "no multiple of 128"),
    (check_gemm, gemm, {"x": Quantised(empty(128, 7168, dtype=BF16), empty(128, 56))}, "not e4m3"),
    (check_gemm, gemm, {"x": Quantised(empty(7168, 128, dtype=E4M3).T, empty(128, 56))}, "must be contiguous"),
    (check_gemm, gemm, {"x": Quantised(empty(128, 7169, dtype=E4M3)[:, :7168], empty(128, 56))}, "not aligned"),
    (check_gemm, gemm, {"x": Quantised(empty(128, 7184, dtype=E4M3)[:, 8:7176], empty(128, 56))}, "first row"),
    (check_gemm, gemm, {"x": Quantised(empty(128, 7168, dtype=E4M3), empty(128, 55))}, "scales are"),
    (check_gemm, gemm, {"x": Quantised(empty(128, 7168, dtype=E4M3), empty(128, 56, dtype=BF16))}, "not FP32"),
    (check_gemm, gemm, {"x": Quantised(empty(128, 7168, dtype=E4M3), empty(128, 112)[:, ::2])}, "neither by rows"),
    (check_gemm, lambda: gemm(m=126), {"x": Quantised(empty(126, 7168, dtype=E4M3), empty(56, 126).T)}, "neither"),
    (check_gemm, gemm, {"w": Quantised(empty(576, 7168, dtype=E4M3), empty(56, 5).T)}, "matrix's scales must"),
    (check_gemm, gemm, {"w": Quantised(empty(576, 7168, dtype=E4M3), empty(4, 56))}, "matrix's scales are"),
    (check_gemm, gemm, {"out_RO": torch.empty(128, 576, dtype=BF16)}, "arguments lie on"),
    (check_grouped_gemm, grouped, {"slot_of_row_R": empty(4 * 8192, dtype=INT64)}, "not torch.int32"),
    (check_grouped_gemm, grouped, {"slot_of_row_R": empty(8192, dtype=INT32)}, "an argument is"),
    (check_grouped_gemm, grouped, {"alignment": 96}, "no multiple of the alignment"),
    (check_grouped_gemm, grouped, {"w": matrix(6144, 7168)}, "3 dimensions"),
    (check_masked_gemm, masked, {"counts_M": empty(6, dtype=INT64)}, "not torch.int32"),
    (check_masked_gemm, masked, {"expected_rows": 0}, "must be positive"),
    (check_masked_gemm, lambda: masked(room=96), {}, "room for 96 rows in a slot is no multiple of 128"),
    (check_masked_gemm, masked, {"w": matrix(5, 6144, 7168)}, "matrices of 5"),
    (
        check_masked_gemm,
        masked,
        {"x": Quantised(empty(6, 4096, 7392, dtype=E4M3)[..., :7168], empty(6, 4096, 56))},
        "codes apart",
    ),
    (check_flash_mla, flash_mla, {"tables_BJ": empty(6, 8, dtype=INT64)}, "not int32"),
    (check_flash_mla, flash_mla, {"lengths_B": empty(6, dtype=INT64)}, "not torch.int32"),
    (check_flash_mla, flash_mla, {"q_BSHC": empty(6, 1, 128, 192, dtype=BF16)}, "not 576"),
    (check_flash_mla, flash_mla, {"q_BSHC": empty(6, 1, 128, 576, dtype=FP32)}, "must be BF16"),
    (check_flash_mla, flash_mla, {"pages_JSHC": empty(64, 128, 1, 576, dtype=BF16)}, "not 64"),
    (check_flash_mla, flash_mla, {"pages_JSHC": empty(64, 64, 2, 576, dtype=BF16)}, "one head"),
    (check_flash_mla, flash_mla, {"value_size": 576}, "not 512"),
    (check_flash_mla, flash_mla, {"tables_BJ": empty(8, 6, dtype=INT32).T}, "table must be contiguous"),
    (check_flash_mla, lambda: flash_mla(batch=0), {}, "must be a request"),
    (check_dispatch, dispatch, {"num_ranks": 72, "num_slots": 288}, "no configuration"),
    (check_dispatch, dispatch, {"x": empty(7168, 4096, dtype=BF16).T}, "contiguous matrix"),
    (check_dispatch, dispatch, {"x": empty(4096, 7168)}, "not BF16"),
    (check_dispatch, dispatch, {"x": rows(4096, 7100)}, "multiple of"),
    (check_dispatch, dispatch, {"slots_TK": empty(4096, 8, dtype=INT32)}, "not torch.int64"),
    (check_dispatch, dispatch, {"weights_TK": empty(4096, 8, dtype=BF16)}, "not torch.float32"),
    (check_dispatch, dispatch, {"weights_TK": empty(8, 4096).T}, "not contiguous"),
    (check_dispatch, dispatch, {"num_slots": 290}, "not shared equally"),
    (check_low_latency_dispatch, low_latency, {"x_TD": empty(128, 7168)}, "not BF16"),
    (check_low_latency_dispatch, low_latency, {"x_TD": empty(128, 1024, dtype=BF16)}, "no kernel"),
    (check_low_latency_dispatch, low_latency, {"capacity": 127}, "more than the capacity"),
    (check_low_latency_dispatch, low_latency, {"num_ranks": 9, "num_slots": 288}, "multiple of"),
    (check_low_latency_combine, back, {"rows_MZD": empty(2, 18432, 7168)}, "not BF16"),
    (check_low_latency_combine, back, {"capacity": 64}, "not of"),
    (check_combine, lambda: {"rows_RD": empty(9, 7168)}, {}, "not BF16"),
]


@pytest.mark.parametrize(("check", "accepted", "changes", "sentence"), BROKEN)
def test_one_change_is_refused(check, accepted, changes, sentence):
    """One wrong argument is refused and named."""
    arguments = accepted()
    if changes:
        check(**arguments)
    with pytest.raises(BrokenContract, match=sentence):
        check(**{**arguments, **changes})
