"""DeepSeek's kernels and ours against the reference on the same GPU, at DeepSeek-V3's sizes.

DeepGEMM adds in another order than the reference, so results are compared by their distance, as DeepGEMM's own tests do
(github.com/deepseek-ai/DeepGEMM 54e22612 tests/generators.py, QuantConfig.max_diff: 0.001).
"""

import pytest
import torch

from runtime.kernels import fp8
from runtime.kernels.fp8 import ExpertCodes, Quantised, quantise_matrix
from runtime.kernels.ops import GateRule, Ops
from tests.runtime.closeness import error_in_norm

CLOSE = 0.01
HIDDEN, INTERMEDIATE, SLOTS = 7168, 2048, 3


def package(ops, name):
    """The package, or a skip that says what is missing."""
    module = getattr(getattr(ops, "packages", None), name, None)
    return module or pytest.skip(f"needs {name}, which is not installed or not made for this GPU")


def matrices(drawn, *shape, seed):
    """Quantised matrices of each slot, with scales that are powers of two."""
    parts = [quantise_matrix(drawn(*shape, seed=seed + slot) / shape[-1] ** 0.5, True) for slot in range(SLOTS)]
    return Quantised(torch.stack([w.codes for w in parts]), torch.stack([w.scales for w in parts]))


@pytest.fixture
def experts(drawn):
    gate, up = matrices(drawn, INTERMEDIATE, HIDDEN, seed=10), matrices(drawn, INTERMEDIATE, HIDDEN, seed=20)
    gate_up = Quantised(torch.stack((gate.codes, up.codes), 1), torch.stack((gate.scales, up.scales), 1))
    return ExpertCodes(gate_up, matrices(drawn, HIDDEN, INTERMEDIATE, seed=30), power_of_two=True)


@pytest.mark.parametrize("power_of_two", [False, True])
def test_rows_are_quantised_to_the_bit(ops, drawn, power_of_two):
    """Scales and codes, whatever layout the scales have."""
    package(ops, "deep_gemm")
    x = drawn(37, HIDDEN)
    found, expected = ops.quantise_rows(x, power_of_two), fp8.quantise_rows(x, power_of_two)

    assert found.scales.equal(expected.scales)
    assert found.codes.view(torch.uint8).equal(expected.codes.view(torch.uint8))


@pytest.mark.parametrize("rows", [1, 128, 4096])
@pytest.mark.parametrize(("outputs", "channels"), [(576, 7168), (24576, 1536), (7168, 16384), (7168, 2048)])
def test_projections(ops, reference, drawn, rows, outputs, channels):
    """Sizes of DeepSeek-V3's attention and MLPs."""
    package(ops, "deep_gemm")
    x = ops.quantise_rows(drawn(rows, channels), power_of_two=True)
    w = quantise_matrix(drawn(outputs, channels, seed=1) / channels**0.5, power_of_two=True)
    expected = reference.fp8_matmul(x, w, torch.bfloat16)

    assert error_in_norm(ops.fp8_matmul(x, w, torch.bfloat16).float(), expected.float()) < CLOSE


def test_the_gate_adds_in_fp32(ops, reference, drawn):
    """What is multiplied is BF16, so the logits are the reference's but for the order of additions."""
    x, w = drawn(300, HIDDEN), drawn(256, HIDDEN, seed=1)

    assert ops.gate_logits(x, w).dtype == torch.float32
    assert error_in_norm(ops.gate_logits(x, w), reference.gate_logits(x, w)) < 1e-5


def test_experts_are_chosen_and_weighed_as_in_the_reference(ops, reference, drawn):
    """Best first, of the groups whose two best are best; of scores that differ by rounding either may come first."""
    logits, bias = drawn(300, 256).float(), drawn(256, seed=1).float() / 100
    rule = GateRule(False, 8, 2, 4, 8, is_normalised=True, factor=2.5)
    (experts, weights), expected = (each.choose_and_weigh(logits, bias, rule) for each in (ops, reference))
    found, wanted = ((logits.sigmoid() + bias).gather(1, chosen) for chosen in (experts, expected[0]))

    assert (found - wanted).abs().max() < 1e-6
    assert error_in_norm(weights, expected[1]) < 1e-5
    assert all(len(set(chosen)) == 8 for chosen in experts.tolist())


def test_replicas_take_turns(ops, reference, device):
    """To the number, whatever the turn."""
    generator = torch.Generator(device).manual_seed(0)
    experts = torch.randint(256, (300, 8), generator=generator, device=device)
    num_replicas = torch.randint(1, 4, (256,), generator=generator, device=device)
    slots, first = torch.arange(768, device=device), num_replicas.cumsum(0) - num_replicas
    for turn in (0, 16, 2**31 - 5):
        tables = experts, slots, first, num_replicas, torch.tensor(turn, device=device)

        assert ops.replicas_in_turn(*tables).equal(reference.replicas_in_turn(*tables))


@pytest.mark.parametrize("neighbours", [True, False])
def test_pairs_are_rotated_as_in_the_reference(ops, reference, drawn, device, neighbours):
    """Heads and the vector that they share are rotated, and the channels beside them stay."""
    angles = torch.rand(37, 32, device=device) * 1000
    for wide in (drawn(37, 128, 192), drawn(37, 576)):
        found, expected = wide.clone(), wide.clone()
        ops.rotate(found[..., -64:], angles.cos(), angles.sin(), neighbours)
        reference.rotate(expected[..., -64:], angles.cos(), angles.sin(), neighbours)

        assert found[..., :-64].equal(wide[..., :-64])
        assert error_in_norm(found.float(), expected.float()) < 1e-4


def test_rows_that_deep_ep_brings(ops, drawn, device):
    """They get the places of the reference, lie there as they came, and are added up as they are there."""
    generator = torch.Generator(device).manual_seed(0)
    slots = torch.rand(3000, 64, generator=generator, device=device).topk(8).indices
    slots, weights = slots.masked_fill(slots >= 9, -1), torch.rand(3000, 8, generator=generator, device=device)
    tiled = Ops(device)
    tiled.row_alignment = ops.row_alignment
    (places, counts), expected = ops.place_rows(slots, 9), tiled.place_rows(slots, 9)
    num_rows = sum(-(-count // ops.row_alignment) * ops.row_alignment for count in counts.tolist())
    x, here = fp8.quantise_rows(drawn(3000, HIDDEN), False), places >= 0
    found, rows = ops.spread_rows(x, places, num_rows), tiled.spread_rows(x, places, num_rows)
    results, at = drawn(num_rows, HIDDEN, seed=1), places[here]

    assert places.equal(expected[0])
    assert counts.equal(expected[1])
    assert found.codes.view(torch.uint8)[at].equal(rows.codes.view(torch.uint8)[at])
    assert found.scales[at].equal(rows.scales[at])
    sums = [each.add_rows(results, places, weights).float() for each in (ops, tiled)]
    assert error_in_norm(*sums) < CLOSE


@pytest.mark.parametrize("counts", [[128, 0, 256], [3, 200, 77]])
def test_grouped_experts(ops, reference, drawn, experts, counts, device):
    """Whole tiles, and such that are moved apart."""
    package(ops, "deep_gemm")
    x, counts_M = ops.quantise_rows(drawn(sum(counts), HIDDEN), True), torch.tensor(counts, device=device)
    expected = reference.fp8_experts(x, counts, counts_M, experts)

    assert error_in_norm(ops.fp8_experts(x, counts, counts_M, experts).float(), expected.float()) < CLOSE


@pytest.mark.parametrize("expected_rows", [1, 24, 128])
def test_masked_experts(ops, reference, drawn, experts, device, expected_rows):
    """Rows beyond a slot's count may hold anything, and rows of the next slot are its own."""
    package(ops, "deep_gemm")
    counts, room = torch.tensor([64, 3, 5], device=device), ops.row_alignment
    x = ops.quantise_rows(drawn(SLOTS * room, HIDDEN), True)
    x = Quantised(x.codes.unflatten(0, (SLOTS, room)), x.scales.contiguous().unflatten(0, (SLOTS, room)))
    found = ops.masked_fp8_experts(x, counts, experts, expected_rows)
    expected = reference.masked_fp8_experts(x, counts, experts, expected_rows)

    for slot, count in enumerate(counts.tolist()):
        if count:
            assert error_in_norm(found[slot, :count].float(), expected[slot, :count].float()) < CLOSE


def test_decode_attention(ops, reference, drawn, device):
    """Over pages, of requests of any length, by FlashMLA or request by request."""
    q, pages = drawn(5, 128, 576) / 10, drawn(40, 64, 576, seed=1) / 10
    tables = torch.randperm(40, device=device).view(5, 8)
    lengths = torch.tensor([1, 64, 65, 500, 512], device=device)
    expected = reference.attend_pages(q, pages, tables, lengths, 512, 192**-0.5)

    assert error_in_norm(ops.attend_pages(q, pages, tables, lengths, 512, 192**-0.5).float(), expected.float()) < CLOSE


def test_queries_and_values_in_the_space_of_latents(ops, reference, drawn):
    """They are written where attention and the output projection read them, and nothing is copied after."""
    q, context, up = drawn(64, 128, 192), drawn(64, 128, 512, seed=1), drawn(128 * 256, 512, seed=2) / 512**0.5
    found = ops.absorb_query(q, up, 64, 128), ops.up_project_values(context, up, 128)
    expected = reference.absorb_query(q, up, 64, 128), reference.up_project_values(context, up, 128)

    assert all(error_in_norm(one.float(), other.float()) < CLOSE for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(("queries", "keys"), [(300, 300), (77, 1000), (1024, 3072), (1, 1)])
def test_prompt_attention(ops, reference, drawn, queries, keys):
    """A chunk at the end of its request sees what came before, and each other causally."""
    q, kv, k_rope = drawn(queries, 128, 192), drawn(keys, 128, 256, seed=1), drawn(keys, 64, seed=2)
    expected = reference.attend_causally(q, kv, k_rope, 128, 192**-0.5)

    assert error_in_norm(ops.attend_causally(q, kv, k_rope, 128, 192**-0.5).float(), expected.float()) < CLOSE
