"""The compiled loops equal torch: in float64, or bit for bit where they only compare."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runtime.expert_parallel.dispatcher import ContiguousRows
from runtime.kernels import say
from runtime.kernels.backend import choose_backend
from runtime.kernels.cpu import kernels as cpu_kernels
from runtime.kernels.cpu import ops as cpu_ops
from runtime.kernels.cpu.ops import CpuOps, LoopOps, RowLoopOps
from runtime.kernels.ops import Ops
from runtime.model.forward_batch import Chunk
from runtime.model.layers import Linear
from runtime.model.moe import LocalExperts
from runtime.protocol.counting import PAGE_TOKENS
from tests.runtime.closeness import error_in_norm
from tests.runtime.on_cpu import TORCH_OPS, backend, new_cache


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).bfloat16()


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("size", [1, 31, 160])
@pytest.mark.parametrize("sums", [1, 2, 17])
def test_each_row_is_multiplied_by_the_matrix(rows: int, size: int, sums: int) -> None:
    """Matmuls of any size equal float64's, up to rounding in FP32 or BF16."""
    x, w = random(rows, size), random(sums, size)
    expected = x.double() @ w.double().T

    y = cpu_kernels.linear(x, w, torch.float32)

    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    assert cpu_kernels.linear(x, w).equal(y.bfloat16())


def gated_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Compute the gated MLP in float64."""
    x, gate, up, down = (tensor.double() for tensor in (x, gate, up, down))
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T


@pytest.mark.parametrize(("rows", "size", "width"), [(1, 24, 12), (3, 33, 17), (5, 64, 1)])
def test_a_gated_mlp_is_rounded_once(rows: int, size: int, width: int) -> None:
    """The gated MLP equals float64's, up to one rounding to BF16 and FP32's."""
    x, gate, up, down = random(rows, size), random(width, size), random(size, width).T, random(size, width)

    y = cpu_kernels.gated_mlp(x, gate, up.contiguous(), down)

    torch.testing.assert_close(y.double(), gated_mlp(x, gate, up, down), rtol=2**-8, atol=1e-3)


def test_a_gate_of_any_size_opens_or_closes() -> None:
    """silu of numbers whose e^x is beyond FP32 is the number or 0, and NaN stays NaN."""
    x = torch.tensor([[100.0], [-100.0], [0.0], [torch.nan]]).bfloat16()
    one = torch.ones(1, 1).bfloat16()

    assert cpu_kernels.gated_mlp(x[:3], one, one, one).tolist() == [[9984.0], [pytest.approx(0, abs=1e-30)], [0.0]]
    assert cpu_kernels.gated_mlp(x[3:], one, one, one).isnan().all()


@pytest.mark.parametrize("counts", [[1], [0, 5, 1, 0, 2], [4, 8, 3, 7], [0, 0, 1]])
def test_each_row_goes_through_the_expert_of_its_slot(counts: list[int]) -> None:
    """Each row is replaced by its slot's expert's result, for any number of rows in a slot."""
    rows, gate_up, down = random(sum(counts), 33), random(len(counts), 2 * 17, 33), random(len(counts), 33, 17)
    parts = zip(rows.split(counts), gate_up, down, strict=True)
    expected = torch.cat([gated_mlp(x, *both.split(17), matrix) for x, both, matrix in parts])

    cpu_kernels.experts_mlp(rows, torch.tensor(counts), gate_up, down)

    torch.testing.assert_close(rows.double(), expected, rtol=2**-8, atol=1e-3)


def test_a_projection_of_one_row_is_that_of_many_up_to_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row alone (by a loop) and beside others (by torch) agrees to BF16's last place."""
    projection = Linear(nn.Parameter(random(48, 64) / 8), LoopOps())
    x = random(32, 64)
    asked = []
    monkeypatch.setattr(
        cpu_kernels, "linear", lambda x, w, linear=cpu_kernels.linear: asked.append(len(x)) or linear(x, w)
    )

    alone, together = projection(x[:1]), projection(x)[:1]

    assert asked == [1]
    torch.testing.assert_close(alone, together, rtol=2**-7, atol=2**-7)


def test_experts_of_few_rows_are_those_of_many_up_to_rounding(small_config) -> None:
    """All slots in one call give the results of slot after slot, in the rows' own places."""
    experts = LocalExperts(4, small_config, backend(torch.bfloat16))
    for parameter in experts.parameters():
        parameter.data = random(*parameter.shape) / 8
    rows, counts = random(6, small_config.hidden_size), [3, 0, 1, 2]
    expected = torch.cat([experts.expert(slot, part) for slot, part in enumerate(rows.split(counts)) if len(part)])

    with torch.inference_mode():
        results = experts(ContiguousRows(rows, torch.tensor(counts), counts))

    assert results is rows
    assert error_in_norm(results, expected.detach()) < 0.008  # BF16 rounds once more, or once less


def test_experts_of_many_rows_see_few_numbers_of_rows(small_config, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot's rows are computed with some of the next slots', whose own results stay right."""
    experts = LocalExperts(6, small_config, backend(torch.bfloat16))
    for parameter in experts.parameters():
        parameter.data = random(*parameter.shape) / 8
    counts = [20, 0, 3, 40, 1, 17]
    rows = random(sum(counts), small_config.hidden_size)
    expected = torch.cat([experts.expert(slot, part) for slot, part in enumerate(rows.split(counts)) if len(part)])
    seen = []
    monkeypatch.setattr(
        experts.ops,
        "expert",
        lambda rows, *others, expert=experts.ops.expert, **out: seen.append(len(rows)) or expert(rows, *others, **out),
    )

    with torch.inference_mode():
        results = experts(ContiguousRows(rows, torch.tensor(counts), counts))

    assert seen == [32, 16, 48, 16, 17]
    assert results is rows
    assert error_in_norm(results, expected.detach()) < 0.008  # BF16 rounds once more, or once less


def test_deterministic_experts_do_not_come_here(small_config, monkeypatch: pytest.MonkeyPatch) -> None:
    """In deterministic mode the number of rows does not choose the kernel."""
    experts = LocalExperts(2, small_config, backend(torch.bfloat16, deterministic=True))
    for parameter in experts.parameters():
        parameter.data = random(*parameter.shape)
    monkeypatch.setattr(cpu_kernels, "experts_mlp", partial(pytest.fail, "loops were asked for"))

    with torch.inference_mode():
        results = experts(ContiguousRows(random(2, small_config.hidden_size), torch.tensor([1, 1]), [1, 1]))

    assert results.isfinite().all()


@pytest.mark.parametrize("shape", [(1, 512), (5, 33), (3, 2, 24), (0, 8)])
def test_a_norm_is_rounded_once(shape: tuple[int, ...]) -> None:
    """The norm equals float64's in the nearest BF16, for rows of any length, alignment and number of dimensions."""
    x, weight = random(*shape) * 3, random(shape[-1])

    y = cpu_kernels.rms_norm(x, weight, 1e-6)

    expected = torch.nn.functional.rms_norm(x.double(), shape[-1:], weight.double(), 1e-6)
    torch.testing.assert_close(y, expected.bfloat16(), rtol=2**-7, atol=0)
    assert (y == expected.bfloat16()).double().mean() > 0.99 or not y.numel()


def test_a_norm_of_no_numbers_is_none() -> None:
    """NaN and infinity stay so in a norm."""
    y = cpu_kernels.rms_norm(torch.tensor([[torch.nan, 1.0], [torch.inf, 1.0]]).bfloat16(), random(2), 1e-6)

    assert y[:, 0].isnan().all()


def test_a_gates_many_rows_are_multiplied_in_fp32() -> None:
    """The gate equals float64 up to FP32's rounding, and FP32 that was never BF16 is not rounded."""
    x, w = random(300, 160), random(24, 160)
    precise = torch.randn(300, 160)

    y, after = cpu_kernels.wide_linear(x, w), precise @ precise.T

    assert y.dtype == torch.float32
    torch.testing.assert_close(y.double(), x.double() @ w.double().T, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(after.double(), precise.double() @ precise.double().T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("num_queries", "num_keys"), [(1, 1), (1, 70), (5, 5), (64, 64), (3, 130)])
def test_a_query_weighs_the_keys_up_to_its_own(num_queries: int, num_keys: int) -> None:
    """The softmax equals float64's in the nearest BF16, and later keys get 0."""
    scores = random(3, num_queries, num_keys) * 30
    later = torch.ones(num_queries, num_keys, dtype=torch.bool).triu(num_keys - num_queries + 1)
    expected = scores.double().masked_fill(later, -torch.inf).softmax(-1)

    weights = cpu_kernels.causal_softmax(scores)

    assert weights is scores
    assert not weights[:, later].any()
    torch.testing.assert_close(weights.double(), expected, rtol=2**-8, atol=1e-30)


def test_one_query_weighs_as_among_others() -> None:
    """A query's weights do not depend on other queries, bit for bit."""
    scores = random(2, 40, 100)
    alone = [scores[:, t : t + 1, : 61 + t].contiguous() for t in range(40)]

    weights = cpu_kernels.causal_softmax(scores)

    for t, own in enumerate(alone):
        assert cpu_kernels.causal_softmax(own).equal(weights[:, t : t + 1, : 61 + t])


def test_weights_of_no_numbers_are_none() -> None:
    """A NaN among the scores makes its row's weights NaN, and no other's."""
    scores = random(1, 2, 3)
    scores[0, 1, 0] = torch.nan

    weights = cpu_kernels.causal_softmax(scores)

    assert weights[0, 1].isnan().all()
    assert weights[0, 0].isfinite().all()


@pytest.mark.parametrize("is_one", [False, True])
def test_an_mlps_halves_are_multiplied_in_one_pass(is_one: bool) -> None:
    """silu(gate) * up equals float64's, rounded once, for two tensors or two halves of one."""
    gate, up = torch.linspace(-120, 120, 11 * 2 * 37).view(11, -1).bfloat16().chunk(2, -1)
    if not is_one:
        gate, up = gate.contiguous(), random(11, 37)
    expected = F.silu(gate.double()) * up.double()

    product = cpu_kernels.silu_product(gate, up)

    torch.testing.assert_close(product.double(), expected, rtol=2**-8, atol=1e-30)


@pytest.mark.parametrize(
    ("num_experts", "groups", "num_best", "topk_group", "top_k"),
    [(64, 8, 2, 4, 8), (16, 1, 1, 1, 6), (12, 4, 1, 3, 2), (8, 4, 2, 1, 2)],
)
def test_experts_are_chosen_as_by_torch(
    num_experts: int, groups: int, num_best: int, topk_group: int, top_k: int
) -> None:
    """The experts and their order equal torch's for V3's and V2's groups, negative scores included."""
    scores = torch.randn(200, num_experts, generator=torch.Generator().manual_seed(0))

    chosen = cpu_kernels.choose_experts(scores, groups, num_best, topk_group, top_k)

    assert chosen.equal(TORCH_OPS.choose_experts(scores, groups, num_best, topk_group, top_k))


def test_of_equal_experts_the_first_are_chosen() -> None:
    """The first expert of equal scores wins, below zero as above."""
    for score in (0.5, -0.5):
        chosen = cpu_kernels.choose_experts(torch.full((1, 12), score), 4, 2, 2, 3)

        assert chosen.tolist() == [[0, 1, 2]]


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
def test_loops_are_for_few_rows_in_bf16_on_one_thread(
    rows: int, dtype: torch.dtype, threads: int, wins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loops compute few rows in BF16 on one thread, and torch everything else."""
    torch.set_num_threads(threads)
    ops, asked = backend(dtype).ops, []
    monkeypatch.setattr(cpu_kernels, "linear", lambda x, w: asked.append(x))

    ops.linear(torch.zeros(rows, 8, dtype=dtype), torch.zeros(3, 8, dtype=dtype))

    assert bool(asked) == wins


@pytest.mark.parametrize(
    ("dtype", "threads", "deterministic", "table"),
    [
        (torch.bfloat16, 1, False, LoopOps),
        (torch.float8_e4m3fn, 1, False, LoopOps),
        (torch.bfloat16, 1, True, RowLoopOps),
        (torch.float8_e4m3fn, 1, True, RowLoopOps),
        (torch.float32, 1, False, CpuOps),
        (torch.float32, 1, True, CpuOps),
        (torch.bfloat16, 2, False, CpuOps),
    ],
)
def test_one_table_fits_a_model(dtype: torch.dtype, threads: int, deterministic: bool, table: type) -> None:
    """The table follows from type and threads; a deterministic one has only loops that compute each row alone."""
    torch.set_num_threads(threads)

    assert type(backend(dtype, deterministic).ops) is table


@pytest.mark.parametrize("table", [CpuOps, RowLoopOps, LoopOps])
def test_widened_products_are_rounded_once(table: type[CpuOps]) -> None:
    """Without instructions for BF16, products are FP32's, rounded once."""
    ops, rows, k = table(widens=True), random(40, 32), random(3, 9, 32)
    gate_up, down = random(48, 32), random(32, 24)

    scores, linear = ops.scores(random(3, 7, 32), k, 0.3), ops.linear(rows, gate_up)
    expert = ops.expert(rows, gate_up, down, out=(out := rows.clone()))

    assert scores.equal((random(3, 7, 32).float() @ k.float().mT * 0.3).bfloat16())
    assert linear.equal((rows.float() @ gate_up.float().T).bfloat16())
    assert expert.data_ptr() == out.data_ptr()
    torch.testing.assert_close(out, table().expert(rows, gate_up, down), rtol=2**-6, atol=2**-4)


@pytest.mark.parametrize(
    ("instructions", "highest", "dtype", "widens"),
    [
        (set(), "DEFAULT", torch.bfloat16, True),
        (set(), "DEFAULT", torch.float8_e4m3fn, True),
        (set(), "DEFAULT", torch.float32, False),
        ({"avx512_bf16"}, "DEFAULT", torch.bfloat16, False),
        ({"amx_bf16"}, "AVX512_CORE_AMX", torch.bfloat16, False),
        ({"amx_bf16", "avx512_bf16"}, "AVX512_CORE_VNNI", torch.bfloat16, True),
    ],
)
def test_bf16_is_widened_where_the_core_has_no_instructions_for_it(
    instructions: set[str],
    highest: str,
    dtype: torch.dtype,
    widens: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without instructions for BF16 matrices are widened, and the log names the faster precision."""
    found = {name: name in instructions for name in ("avx512_bf16", "amx_bf16")}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found)
    monkeypatch.setattr(cpu_ops.platform, "machine", lambda: "x86_64")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", highest)
    say._said.clear()

    table = backend(dtype).ops

    assert table._widens == widens
    assert ("no instructions for BF16" in capsys.readouterr().err) == widens


def test_another_device_gets_torchs_operations() -> None:
    """Another device than a CPU gets torch's operations."""
    ops = choose_backend(torch.device("cuda"), torch.bfloat16, deterministic=False).ops

    assert type(ops) is Ops
    assert ops.device == torch.device("cuda")


def test_a_row_has_the_same_bits_in_any_company_under_the_deterministic_table() -> None:
    """Every operation that the deterministic table overrides computes each row alone."""
    ops = RowLoopOps()
    x, up, weight = random(40, 64), random(40, 64, 1)[..., 0], random(64)
    scores = torch.rand(40, 16, generator=torch.Generator().manual_seed(0))

    assert set(vars(RowLoopOps)) & set(vars(Ops)) - {"__doc__", "__module__", "prepare"} == {
        *("rms_norm", "silu_product", "rotate", "causal_softmax", "choose_experts", "sort_by_slot")
    }
    for t in range(40):
        assert ops.rms_norm(x[t : t + 1], weight, 1e-6).equal(ops.rms_norm(x, weight, 1e-6)[t : t + 1])
        assert ops.silu_product(x[t : t + 1], up[t : t + 1]).equal(ops.silu_product(x, up)[t : t + 1])
        assert ops.choose_experts(scores[t : t + 1], 4, 2, 2, 4).equal(
            ops.choose_experts(scores, 4, 2, 2, 4)[t : t + 1]
        )


@pytest.mark.parametrize("neighbours", [True, False])
@pytest.mark.parametrize("heads", [None, 1, 3])
def test_heads_rotate_as_by_torch(heads: int | None, neighbours: bool) -> None:
    """The last part of each head or token is rotated in place, and the part before it stays."""
    shape = (5, 6 + 4) if heads is None else (5, heads, 6 + 4)
    x, angles = random(*shape), torch.arange(10.0).view(5, 2)
    cos, sin = angles.cos(), angles.sin()
    expected = x.clone()
    TORCH_OPS.rotate(expected[..., 6:], cos, sin, neighbours)

    cpu_kernels.rotate(x[..., 6:], cos, sin, neighbours)

    torch.testing.assert_close(x, expected, rtol=2**-7, atol=1e-6)
    assert x[..., :6].equal(expected[..., :6])


@pytest.mark.parametrize(("requests", "heads"), [(1, 1), (1, 8), (3, 5)])
def test_latent_attention_is_absorbed_as_by_torch(requests: int, heads: int) -> None:
    """Absorbed queries and values equal torch's."""
    nope, rope, value, latent = 7, 4, 5, 17
    up, q, context = (
        random(heads * (nope + value), latent),
        random(requests, heads, nope + rope),
        random(3, heads, latent),
    )
    to_keys, to_values = up.double().unflatten(0, (heads, -1)).split((nope, value), 1)

    absorbed = cpu_kernels.absorb_query(q, up, rope, value)
    values = cpu_kernels.up_project_values(context, up, value)

    expected = torch.einsum("bhn,hnl->bhl", q[..., :nope].double(), to_keys)
    torch.testing.assert_close(absorbed[..., :latent].double(), expected, rtol=2**-8, atol=1e-3)
    assert absorbed[..., latent:].equal(q[..., nope:])
    expected = torch.einsum("bhl,hvl->bhv", context.double(), to_values).flatten(1)
    torch.testing.assert_close(values.double(), expected, rtol=2**-8, atol=1e-3)


@pytest.mark.parametrize("heads", [1, 6])
def test_requests_attend_to_their_own_positions_in_their_pages(heads: int) -> None:
    """Attention equals float64's over each request's positions, whatever else is in its last page."""
    latent, page, lengths = 17, 8, [1, 8, 19]
    pages, q, tables = random(6, page, 21), random(3, heads, 21), torch.tensor([[4, 0, 0], [2, 0, 0], [5, 3, 1]])
    pages[4, 1:], pages[1, 3:] = torch.nan, torch.nan

    contexts = cpu_kernels.attend(q, pages, tables, torch.tensor(lengths), latent, 0.3)

    for query, table, length, context in zip(q.double(), tables, lengths, contexts, strict=True):
        keys = pages[table].flatten(0, 1)[:length].double()
        expected = (0.3 * query @ keys.T).softmax(-1) @ keys[:, :latent]
        torch.testing.assert_close(context.double(), expected, rtol=2**-8, atol=1e-5)


def test_decode_attends_alike_in_loops_and_in_torch(small_config, random_model, monkeypatch) -> None:
    """A decode step has the same logits up to rounding, by loops or by torch."""
    model = random_model(replace(small_config, max_position_embeddings=128), dtype=torch.bfloat16)
    chunks = [Chunk([7], 70, [1, 0]), Chunk([3], 5, [2])]
    logits = []
    for max_scores in (2**14, 0):
        monkeypatch.setattr(cpu_ops, "MAX_SCORES", max_scores)
        cache = new_cache(small_config, 3 * PAGE_TOKENS, torch.bfloat16)
        cache._pages.copy_(random(*cache._pages.shape))
        with torch.inference_mode():
            logits.append(model.next_logits([], chunks, cache))

    assert error_in_norm(*logits) < 0.03  # torch rounds scores and weights to BF16
    assert not logits[0].equal(logits[1])


@pytest.mark.parametrize("pairs", [(0, 3), (1, 8), (40, 3)])
def test_pairs_are_sorted_by_slot_as_by_torch(pairs: tuple[int, int]) -> None:
    """Pairs are counted and sorted by slot as torch does, in their order."""
    slots = torch.randint(9, pairs, generator=torch.Generator().manual_seed(0))

    counts, pair_of_row, row_of_pair = cpu_kernels.sort_by_slot(slots, 10)

    assert counts.equal(slots.flatten().bincount(minlength=10))
    assert pair_of_row.equal(slots.flatten().argsort(stable=True))
    assert pair_of_row[row_of_pair].equal(torch.arange(slots.numel()))
    assert all(map(torch.equal, TORCH_OPS.sort_by_slot(slots, 10), (counts, pair_of_row, row_of_pair)))


def test_a_tokens_rows_are_weighed_where_they_lie() -> None:
    """Each token's weighted sum equals float64's, rounded once, wherever its rows lie."""
    rows, row_of_pair, weights = random(12, 33), torch.randperm(12).view(4, 3), torch.rand(4, 3)

    y = cpu_kernels.weighted_sum(rows, row_of_pair, weights)

    expected = (rows[row_of_pair].double() * weights.double()[..., None]).sum(1)
    torch.testing.assert_close(y.double(), expected, rtol=2**-8, atol=1e-6)
