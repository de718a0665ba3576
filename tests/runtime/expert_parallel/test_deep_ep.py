"""Our dispatchers over a slow reference of DeepEP have the results of one rank with all slots."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from runtime.errors import PeerLost
from runtime.expert_parallel.deep_ep import LowLatencyDispatcher, NormalDispatcher, deep_ep_form
from runtime.expert_parallel.dispatcher import LocalDispatcher, PlainRows, WeightsApplied
from runtime.expert_parallel.factory import new_dispatcher
from runtime.expert_parallel.group import SoloGroup
from runtime.expert_parallel.masked import MaskedDispatcher
from runtime.kernels import say
from runtime.kernels.backend import Backend
from runtime.kernels.batch_invariant import Batched
from runtime.kernels.fp8 import E4M3, Quantised, quantise_rows
from runtime.kernels.gpu.packages import HOPPER, Packages
from runtime.model.fp8 import Fp8Experts, Fp8Rows
from tests.runtime.closeness import error_in_norm
from tests.runtime.expert_parallel.computing_deep_ep import Meeting, new_deep_ep
from tests.runtime.kernels.gpu.computing_packages import ComputingDeepGemm
from tests.runtime.kernels.gpu.test_gpu_ops import CpuQuantising
from tests.runtime.on_cpu import TORCH_OPS

RANKS, SLOTS, HIDDEN, TOP_K, ALIGNMENT, CAPACITY = 2, 3, 2048, 3, 4, 8


class MetGroup(SoloGroup):
    """A rank of a unit whose ranks are threads."""

    def __init__(self, rank, meeting):
        self.rank, self.size, self.nodes = rank, meeting.num_ranks, (0,) * meeting.num_ranks
        self._meeting = meeting

    def gather(self, part):
        return self._meeting.exchange(self.rank, part)


def tokens(rank, number):
    """Return a rank's activations, slots (some of both ranks) and weights."""
    generator = torch.Generator().manual_seed(10 * rank + number)
    x_TD = torch.randn(number, HIDDEN, generator=generator).bfloat16()
    slots_TK = torch.rand(number, RANKS * SLOTS, generator=generator).topk(TOP_K).indices
    return x_TD, slots_TK, torch.rand(number, TOP_K, generator=generator)


def expert(x, slot):
    """Compute an expert that differs from slot to slot."""
    return (x.float() * (slot + 1)).bfloat16()


def dequantise(rows):
    if isinstance(rows, Quantised):
        return rows.codes.float() * rows.scales.repeat_interleave(128, -1)
    return rows.float()


def one_step(form, rank, meeting, step, is_fp8):
    """Dispatch, compute and combine on one rank. Return its sums and each slot's number of rows."""
    packages = Packages(HOPPER, ComputingDeepGemm(ALIGNMENT), None, new_deep_ep(meeting))
    ops, group = CpuQuantising(packages), MetGroup(rank, meeting)
    row_format = Fp8Rows(HIDDEN, False, ops) if is_fp8 else PlainRows(torch.bfloat16)
    if form is NormalDispatcher:
        dispatcher = NormalDispatcher(group, SLOTS, HIDDEN, row_format, ops)
    else:
        dispatcher = LowLatencyDispatcher(group, SLOTS, CAPACITY, HIDDEN, row_format, ops)
    dispatcher.begin_step(len(step[0]))
    dispatched = dispatcher.dispatch(*step).wait()
    rows, first = dispatched.rows, rank * SLOTS
    if form is NormalDispatcher:
        assert all(count % ALIGNMENT == 0 for count in rows.counts)
        parts = dequantise(rows.rows_RD).split(rows.counts)
        results = torch.cat([expert(part, first + slot) for slot, part in enumerate(parts)])
    else:
        results = torch.stack([expert(part, first + slot) for slot, part in enumerate(dequantise(rows.rows_MZD))])
    sums = dispatcher.combine(results, dispatched.drop_rows()).wait().sum()
    return sums, rows.counts_M, dispatched.sent_W


@pytest.mark.parametrize("numbers", [(5, 8), (1, 0), (0, 0), (7, 7)], ids=str)
@pytest.mark.parametrize("is_fp8", [False, True], ids=["BF16", "FP8"])
@pytest.mark.parametrize("form", [NormalDispatcher, LowLatencyDispatcher])
def test_sums_are_those_of_one_rank_with_all_slots(form, is_fp8, numbers):
    """Sums, counts of slots and pairs of ranks are those of one rank with all slots, even without tokens."""
    steps, meeting = [tokens(rank, number) for rank, number in enumerate(numbers)], Meeting(RANKS)
    with ThreadPoolExecutor(RANKS) as threads:
        found = list(threads.map(lambda rank: one_step(form, rank, meeting, steps[rank], is_fp8), range(RANKS)))
    chosen = torch.cat([step[1].flatten() for step in steps]).bincount(minlength=RANKS * SLOTS).view(RANKS, SLOTS)

    for rank, (sums, counts, sent) in enumerate(found):
        x_TD, slots_TK, weights_TK = steps[rank]
        if is_fp8:
            x_TD = dequantise(quantise_rows(x_TD)).bfloat16()
        local = LocalDispatcher(RANKS * SLOTS, PlainRows(torch.bfloat16), TORCH_OPS)
        dispatched = local.dispatch(x_TD, slots_TK, weights_TK).wait()
        parts = dispatched.rows.rows_RD.split(dispatched.rows.counts)
        results = torch.cat([expert(part, slot) for slot, part in enumerate(parts)])
        expected = local.combine(results, dispatched).wait().sum()

        assert sums.shape == expected.shape
        assert error_in_norm(sums.float(), expected.float()) < 0.012 or not len(sums)
        assert counts.tolist() == chosen[rank].tolist()
        assert sent.tolist() == (slots_TK // SLOTS).flatten().bincount(minlength=RANKS).tolist()


def test_both_forms_say_who_weighs_and_that_sums_have_no_order():
    """Both forms declare that combine applies weights and that sums have no order."""
    for form in (NormalDispatcher, LowLatencyDispatcher):
        assert form.weights_applied is WeightsApplied.BY_COMBINE
        assert not form.sums_in_order


def test_a_third_exchange_is_not_begun():
    """A third exchange at once is refused, because it would overwrite the first one's buffer."""
    meeting = Meeting(1)
    ops = CpuQuantising(Packages(HOPPER, None, None, new_deep_ep(meeting)))
    dispatcher = LowLatencyDispatcher(MetGroup(0, meeting), SLOTS, CAPACITY, HIDDEN, PlainRows(torch.bfloat16), ops)
    dispatcher._buffer = type("Buffer", (), {"low_latency_dispatch": lambda *a, **k: (0, 0, 0, 0, lambda: None)})()
    x_TD, slots_TK, weights_TK = tokens(0, 2)
    first = dispatcher.dispatch(x_TD, slots_TK % SLOTS, weights_TK)
    dispatcher.dispatch(x_TD, slots_TK % SLOTS, weights_TK)

    with pytest.raises(AssertionError, match="third exchange"):
        dispatcher.dispatch(x_TD, slots_TK % SLOTS, weights_TK)
    dispatcher._num_under_way = 2
    first.wait()
    dispatcher.dispatch(x_TD, slots_TK % SLOTS, weights_TK)


@pytest.mark.parametrize(
    ("said", "raised"), [("DeepEP error: CPU recv timeout", PeerLost), ("Failed: Assertion error", RuntimeError)]
)
def test_a_peer_that_sends_no_counts_is_lost(said, raised):
    """When DeepEP has waited 100 s for counts, the peer is lost; other errors pass unchanged."""
    meeting = Meeting(RANKS)
    ops, buffer_class = CpuQuantising(Packages(HOPPER)), new_deep_ep(meeting).Buffer

    def fail(*_, **__):
        raise RuntimeError(said)

    dispatcher = NormalDispatcher(MetGroup(0, meeting), SLOTS, HIDDEN, PlainRows(torch.bfloat16), ops)
    dispatcher._buffer = buffer_class.__new__(buffer_class)
    dispatcher._buffer.dispatch = fail
    with pytest.raises(raised, match=said) as error:
        dispatcher.dispatch(*tokens(0, 2))

    assert type(error.value) is raised


@pytest.mark.parametrize("num_tokens", [0, 1, CAPACITY])
@pytest.mark.parametrize("form", [LowLatencyDispatcher, MaskedDispatcher])
def test_tiles_are_chosen_for_a_full_unit(form, num_tokens):
    """Tiles are chosen for the rows of a full unit, even if this rank has no tokens."""
    meeting = Meeting(1)
    ops, group = CpuQuantising(Packages(HOPPER, None, None, new_deep_ep(meeting))), MetGroup(0, meeting)
    rows = PlainRows(torch.bfloat16)
    if form is MaskedDispatcher:
        dispatcher = MaskedDispatcher(group, SLOTS, CAPACITY, rows, ops)
    else:
        dispatcher = LowLatencyDispatcher(group, SLOTS, CAPACITY, HIDDEN, rows, ops)
    x_TD, _, weights_TK = tokens(0, num_tokens)
    slots_TK = torch.arange(SLOTS).repeat(num_tokens, 1)
    dispatcher.begin_step(num_tokens)
    dispatched = dispatcher.dispatch(x_TD, slots_TK, weights_TK).wait()

    assert dispatched.rows.expected_rows == CAPACITY * TOP_K // SLOTS


class UnitRank(SoloGroup):
    """A rank of a unit with these nodes."""

    def __init__(self, nodes):
        self.rank, self.size, self.nodes = 0, len(nodes), tuple(nodes)


def place_on_nodes(num_nodes, ranks_per_node):
    return UnitRank([node for node in range(num_nodes) for _ in range(ranks_per_node)])


@pytest.mark.parametrize(
    ("group", "hidden", "top_k", "capacity", "form"),
    [
        (place_on_nodes(18, 8), 7168, 8, 64, LowLatencyDispatcher),
        (place_on_nodes(9, 8), 7168, 8, 64, LowLatencyDispatcher),
        (place_on_nodes(4, 8), 7168, 8, None, NormalDispatcher),
        (place_on_nodes(1, 8), 7168, 8, None, NormalDispatcher),
        (place_on_nodes(9, 8), 7168, 8, None, "no configuration for 72 ranks"),
        (place_on_nodes(8, 4), 7168, 8, None, "8 ranks on each node, not 4 to 4"),
        (place_on_nodes(4, 8), 7100, 8, None, "multiple of 128 channels"),
        (place_on_nodes(5, 2), 7168, 8, 64, "multiple of 8 ranks, not 10"),
        (place_on_nodes(1, 8), 1024, 8, 64, "no rows of 1024 channels"),
        (place_on_nodes(1, 8), 7168, 12, 64, "11 choices of a token, not 12"),
        (place_on_nodes(1, 1), 7168, 8, None, None),
    ],
)
def test_the_form_fits_the_unit_or_the_log_says_why_not(group, hidden, top_k, capacity, form, capsys, monkeypatch):
    """A unit gets the form of DeepEP that fits it; if none fits, the log says once why not."""
    monkeypatch.setattr(say, "_said", set())
    ops = CpuQuantising(Packages(HOPPER, None, None, object()))
    rows, x_1D = Fp8Rows(hidden, False, ops), torch.zeros(1, hidden, dtype=torch.bfloat16)
    found = [deep_ep_form(group, 2, top_k, rows, x_1D, ops, capacity) for _ in range(2)]
    said = capsys.readouterr().err

    if isinstance(form, type):
        assert [type(each) for each in found] == [form] * 2
        assert said == ""
    else:
        assert found == [None, None]
        assert said.count("\n") == (form is not None)
        assert (form or "") in said


def test_without_deep_ep_our_exchanges_serve(small_config):
    """Without DeepEP a unit that decodes gets the masked exchange."""
    ops = CpuQuantising(Packages(HOPPER))
    ops.device = torch.device("cuda")
    rows, x_1D = Fp8Rows(2048, False, ops), torch.zeros(1, 2048, dtype=torch.bfloat16)
    found = new_dispatcher(place_on_nodes(1, 8), 2, 8, rows, x_1D, Backend(E4M3, ops, Batched()), 64)

    assert type(found) is MaskedDispatcher


def test_masked_rows_of_deep_ep_go_through_the_experts(small_config):
    """The FP8 experts take codes and scales in the form of DeepEP's low-latency dispatch."""
    config = replace(small_config, hidden_size=HIDDEN, moe_intermediate_size=256)
    ops = CpuQuantising(Packages(HOPPER, ComputingDeepGemm(ALIGNMENT), None, new_deep_ep(Meeting(1))))
    group = MetGroup(0, Meeting(1))
    dispatcher = LowLatencyDispatcher(group, SLOTS, CAPACITY, HIDDEN, Fp8Rows(HIDDEN, False, ops), ops)
    experts = Fp8Experts(SLOTS, config, Backend(E4M3, ops, Batched()))
    for values in experts.parameters():
        is_codes = values.dtype == E4M3
        values.copy_(torch.ones(values.shape) if is_codes else torch.full(values.shape, 2**-6))
    dispatcher._buffer = new_deep_ep(Meeting(1)).Buffer.__new__(new_deep_ep(Meeting(1)).Buffer)
    dispatcher._buffer.rank = 0
    x_TD, slots_TK, weights_TK = tokens(0, 4)
    dispatched = dispatcher.dispatch(x_TD, slots_TK.remainder(SLOTS).sort().values, weights_TK).wait()
    results = experts(dispatched.rows)

    assert results.shape == (SLOTS, CAPACITY, HIDDEN)
    for slot, count in enumerate(dispatched.rows.counts_M.tolist()):
        assert results[slot, :count].isfinite().all()
