"""Triton's one pass against torch's several: in Triton's interpreter, which computes on a CPU."""

import pytest
import torch

from tests.runtime.kernels.gpu import interpreted_fused, triton_without_gpu
from tests.runtime.kernels.gpu.interpreted_fused import CHOSEN, DTYPES, ROTATED
from tests.runtime.on_cpu import TORCH_OPS


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """case -> tensors, from one process for all of them."""
    return triton_without_gpu.interpreted(interpreted_fused, tmp_path_factory.mktemp("interpreted"))


@pytest.mark.parametrize("case", ROTATED)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("neighbours", [True, False])
def test_pairs_are_rotated_as_in_the_reference(found, case, dtype, neighbours):
    """In place, up to a step of BF16, which the interpreter truncates to; what lies beside them stays."""
    wide, angles, rotated = found[f"rotated {case} {dtype} {neighbours}"]
    expected = wide.float()
    TORCH_OPS.rotate(expected[..., 4:], angles.cos(), angles.sin(), neighbours)

    assert rotated[..., :4].equal(wide[..., :4])
    torch.testing.assert_close(rotated.float(), expected, rtol=2**-6 if dtype == torch.bfloat16 else 1e-5, atol=1e-2)


def test_keys_are_joined_with_the_part_that_heads_share(found):
    """To the bit."""
    own, shared, keys = found["joined"]

    assert keys.equal(torch.cat((own, shared[:, None].expand(-1, own.shape[1], -1)), -1))


@pytest.mark.parametrize("case", CHOSEN)
def test_experts_are_chosen_as_in_the_reference(found, case):
    """The same ones in the same order; of no token there are none."""
    scores, experts = found[f"chosen {case}"]

    assert experts.equal(TORCH_OPS.choose_experts(scores, *CHOSEN[case][1:]))
    assert found["none"][0].shape == (0, 3)


@pytest.mark.whole
@pytest.mark.parametrize("capability", [90, 100])
@pytest.mark.parametrize("kernel", ["rotate_pairs", "join_keys", "choose"])
def test_it_compiles_for_the_gpus(capability, kernel):
    """To machine code, on a machine that has no GPU."""
    from runtime.kernels.gpu import fused

    rows, table, number = "*bf16", "*fp32", "i32"
    arguments = {
        "rotate_pairs": ((rows, table, table, *[number] * 5), {"HALF": 32, "NEIGHBOURS": True, "HEADS": 16}),
        "join_keys": ((rows, rows, rows, *[number] * 4), {"OWN": 128, "SHARED": 64, "HEADS": 16}),
        "choose": ((table, "*i64", number), {"GROUPS": 8, "SIZE": 32, "NUM_BEST": 2, "TOPK_GROUP": 4, "TOP_K": 8}),
    }
    function = getattr(fused, kernel)
    types, constants = arguments[kernel]
    names = dict(zip(function.arg_names, types, strict=False))
    compiled = triton_without_gpu.compiled(function, names, constants, capability)

    assert f".target sm_{capability}" in compiled.asm["ptx"]
    assert compiled.asm["cubin"]
