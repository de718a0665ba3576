"""Triton's one pass equals torch's several, in Triton's interpreter on a CPU."""

import pytest
import torch

from runtime.kernels.gpu.contracts import round_up_for_tma
from runtime.kernels.ops import Ops
from tests.runtime.kernels.gpu import interpreted_fused, triton_without_gpu
from tests.runtime.kernels.gpu.interpreted_fused import CHOSEN, DTYPES, PLACED, ROTATED, TURNS
from tests.runtime.on_cpu import CPU, TORCH_OPS


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return case -> tensors, from one process for all cases."""
    return triton_without_gpu.run_interpreted(interpreted_fused, tmp_path_factory.mktemp("interpreted"))


@pytest.mark.parametrize("case", ROTATED)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("neighbours", [True, False])
def test_pairs_are_rotated_as_in_the_reference(results, case, dtype, neighbours):
    """Pairs are rotated in place as in the reference, up to a step of BF16, and their neighbours stay."""
    wide, angles, rotated = results[f"rotated {case} {dtype} {neighbours}"]
    expected = wide.float()
    TORCH_OPS.rotate(expected[..., 4:], angles.cos(), angles.sin(), neighbours)

    assert rotated[..., :4].equal(wide[..., :4])
    torch.testing.assert_close(rotated.float(), expected, rtol=2**-6 if dtype == torch.bfloat16 else 1e-5, atol=1e-2)


def test_keys_are_joined_with_the_part_that_heads_share(results):
    """Keys equal the reference to the bit."""
    own, shared, keys = results["joined"]

    assert keys.equal(torch.cat((own, shared[:, None].expand(-1, own.shape[1], -1)), -1))


@pytest.mark.parametrize("case", CHOSEN)
def test_experts_are_chosen_and_weighed_as_in_the_reference(results, case):
    """Experts, their order and weights equal the reference, by sigmoid or softmax, with and without a bias."""
    logits, bias, experts, weights = results[f"chosen {case}"]
    expected_experts, expected_weights = TORCH_OPS.choose_and_weigh(logits, bias, CHOSEN[case][2])

    assert experts.equal(expected_experts)
    torch.testing.assert_close(weights, expected_weights)
    assert [each.shape for each in results["none"]] == [(0, 3), (0, 3)]


@pytest.mark.parametrize("case", TURNS)
def test_replicas_take_turns_as_in_the_reference(results, case):
    """Replicas take turns as in the reference, even after two thousand million tokens."""
    *arguments, slots = results[f"in turn {case}"]

    assert slots.equal(TORCH_OPS.replicas_in_turn(*arguments))


def new_tiled_ops(alignment):
    """Return the reference with slots that begin at multiples of `alignment`."""
    ops = Ops(CPU)
    ops.row_alignment = alignment
    return ops


@pytest.mark.parametrize("case", PLACED)
def test_pairs_get_the_rows_of_the_reference(results, case):
    """Pairs get the reference's rows, slot after slot, each slot in order and from a whole tile on."""
    _, _, num_slots, alignment = PLACED[case]
    slots, *_ = results[f"arrived {case}"]
    places, counts = results[f"placed {case}"]
    expected_places, expected_counts = new_tiled_ops(alignment).place_rows(slots, num_slots)

    assert places.equal(expected_places)
    assert counts.equal(expected_counts)


@pytest.mark.parametrize("case", PLACED)
def test_tokens_are_spread_over_their_rows(results, case):
    """Each row of a token has its codes, scales or BF16, with the scales as DeepGEMM reads them."""
    slots, x, codes, scales, _ = results[f"arrived {case}"]
    places, counts = results[f"placed {case}"]
    codes_of_rows, scales_of_rows, rows = results[f"spread {case}"]
    tokens, choices = (slots >= 0).nonzero(as_tuple=True)
    at = places[tokens, choices]

    assert codes_of_rows[at].equal(codes[tokens])
    assert scales_of_rows[at].equal(scales[tokens])
    assert rows[at].equal(x[tokens])
    assert len(at) == counts.sum()
    assert scales_of_rows.stride() == (1, round_up_for_tma(len(rows), scales.element_size()))


@pytest.mark.parametrize("case", PLACED)
def test_only_a_tokens_own_rows_are_added(results, case):
    """A token's own rows are added in FP32 and rounded once. Filling rows of NaN do not matter."""
    _, x, _, _, weights = results[f"arrived {case}"]
    places, _ = results[f"placed {case}"]
    (added,) = results[f"added {case}"]
    expected = x.float() * weights.nan_to_num().sum(1, keepdim=True)

    torch.testing.assert_close(added.float(), expected, rtol=2**-6, atol=1e-6)
    assert added[(places < 0).all(1)].count_nonzero() == 0


@pytest.mark.whole
@pytest.mark.parametrize("capability", [90, 100])
@pytest.mark.parametrize(
    "kernel",
    [
        "rotate_pairs",
        "join_keys",
        "choose_experts",
        "take_turns",
        "count_pairs",
        "place_pairs",
        "copy_to_places",
        "add_placed",
    ],
)
def test_it_compiles_for_the_gpus(capability, kernel):
    """The kernels compile to machine code without a GPU."""
    from runtime.kernels.gpu import fused

    rows, table, number, index = "*bf16", "*fp32", "i32", "*i64"
    gate = {"GROUPS": 8, "SIZE": 32, "NUM_BEST": 2, "TOPK_GROUP": 4, "TOP_K": 8, "PLACES": 8}
    gate |= {"IS_SOFTMAX": False, "IS_BIASED": True, "IS_NORMALISED": True}
    placed = {"GROUPS": 64, "TOP_K": 8, "WORDS": fused.WORDS}
    arguments = {
        "rotate_pairs": ((rows, table, table, *[number] * 5), {"HALF": 32, "NEIGHBOURS": True, "HEADS": 16}),
        "join_keys": ((rows, rows, rows, *[number] * 4), {"OWN": 128, "SHARED": 64, "HEADS": 16}),
        "choose_experts": ((table, table, index, table, number, "fp32"), gate),
        "take_turns": ((*[index] * 5, number, index), {"TOP_K": 8, "PAIRS": fused.PAIRS}),
        "count_pairs": ((index, "*i32", number, number), {"PAIRS": fused.PAIRS}),
        "place_pairs": ((index, index, index, number, number), {"PAIRS": fused.PAIRS}),
        "copy_to_places": (("*i32", "*i32", table, table, index, *[number] * 6), placed),
        "add_placed": ((rows, index, table, rows, number), {"TOP_K": 8, "CHANNELS": fused.CHANNELS}),
    }
    function = getattr(fused, kernel)
    types, constants = arguments[kernel]
    names = dict(zip(function.arg_names, types, strict=False))
    compiled = triton_without_gpu.compile_kernel(function, names, constants, capability)

    assert f".target sm_{capability}" in compiled.asm["ptx"]
    assert compiled.asm["cubin"]
