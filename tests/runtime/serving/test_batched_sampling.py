"""The draw of a step's tokens all at once, as on a GPU, follows the reference's rules; here it runs on a CPU."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.kernels.device import HostLink
from runtime.protocol.messages import Sampling
from runtime.serving import batched_sampling
from runtime.serving.batched_sampling import DrawnToken, PendingDraw, draw, noise
from runtime.serving.sampling import _keep_top_k, _keep_top_p, draw_key, logprobs, sample

VOCAB, NUM_DRAWS = 300, 4000
FEW = 16  # candidates
SETTINGS = {
    "greedy": {"temperature": 0.0},
    "all": {},
    "hot": {"temperature": 2.0},
    "nucleus": {"temperature": 0.6, "top_p": 0.9},
    "wide nucleus": {"top_p": 0.999},
    "top_k": {"top_k": 9},
    "top_k and nucleus": {"top_k": 9, "top_p": 0.7},
    "top_k above the candidates": {"temperature": 2.0, "top_k": 20, "top_p": 0.9},
    "smallest": {"temperature": 5e-324, "top_p": 5e-324},
}
logit_lists = st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=30)


class CountingLink(HostLink):
    """A link that keeps each tensor that was copied to the host."""

    def __init__(self):
        self.shapes = []

    def to_host(self, x):
        self.shapes.append(tuple(x.shape))
        return x


@pytest.fixture
def few_candidates(monkeypatch):
    monkeypatch.setattr(batched_sampling, "NUM_BEST", FEW)


def sampling(**changes):
    values = {"max_tokens": 8, "temperature": 1.0, "top_p": 1.0, "seed": 1, "stop_ids": [3]}
    return Sampling(**values | changes)


def random_logits(rows, vocab=VOCAB, seed=3):
    return 4 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def stream(logits_V, settings, count=NUM_DRAWS):
    """Draw tokens from one row of logits at positions 0 to `count` - 1."""
    draws = {position: PendingDraw(settings, position, 0) for position in range(count)}
    drawn = draw(logits_V.expand(count, -1), draws, HostLink())
    return [drawn[position].token_id for position in range(count)]


def reference_probabilities(logits_V, settings):
    """Return the probabilities from which `sample` draws."""
    scores_V = (logits_V.double() - logits_V.max()) / settings.temperature
    return _keep_top_p(_keep_top_k(scores_V, settings.top_k).softmax(-1), settings.top_p)


def test_noise_is_splitmix64s():
    """The noise of token v is made of the upper 52 bits of SplitMix64's v-th output.

    The outputs for 1234567 are those that implementations of the generator are tested with (rosettacode.org,
    "Pseudo-random numbers/Splitmix64").
    """
    outputs = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    found = noise(torch.tensor([[1234567]]), torch.arange(5))[0]

    assert found.tolist() == pytest.approx([-math.log(((output >> 12) + 0.5) / 2**52) for output in outputs], rel=1e-12)


@given(logit_lists)
def test_greedy_is_the_references(logits):
    """At temperature 0 the first of the best tokens is drawn."""
    logits_V = torch.tensor(logits)
    drawn = draw(logits_V[None], {0: PendingDraw(sampling(temperature=0.0), 5, 0)}, HostLink())

    assert drawn[0].token_id == sample(logits_V, sampling(temperature=0.0), 5)


@pytest.mark.parametrize("name", [name for name in SETTINGS if name not in ("greedy", "smallest")])
def test_draws_follow_the_references_probabilities(name, few_candidates):
    """The counts of 4,000 draws fit the reference's probabilities, and no token that it cuts off is drawn."""
    logits_V, settings = random_logits(1)[0], sampling(**SETTINGS[name])
    expected_V = reference_probabilities(logits_V, settings) * NUM_DRAWS
    expected_V *= NUM_DRAWS / expected_V.sum()
    counts_V = torch.bincount(torch.tensor(stream(logits_V, settings)), minlength=VOCAB).double()
    often_V = expected_V >= 5  # the least that a chi-squared test is good for
    found = torch.cat((counts_V[often_V], counts_V[~often_V].sum()[None]))
    wanted = torch.cat((expected_V[often_V], expected_V[~often_V].sum()[None]))
    chi_squared = ((found - wanted)[wanted > 0] ** 2 / wanted[wanted > 0]).sum().item()
    freedom = int((wanted > 0).sum()) - 1

    assert counts_V[expected_V == 0].sum() == 0
    assert chi_squared < freedom + 4 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("top_p", [0.05, 0.3, 0.6, 0.95])
def test_the_nucleus_is_the_references(top_p, few_candidates):
    """Every token of the reference's nucleus is drawn, and no other."""
    logits_V = random_logits(1, vocab=40)[0] / 4
    kept_V = reference_probabilities(logits_V, sampling(top_p=top_p))

    assert set(stream(logits_V, sampling(top_p=top_p))) == set(kept_V.nonzero().flatten().tolist())


def test_a_nucleus_ends_at_the_first_of_equals():
    """The top_p cut keeps the lowest ids of equally likely tokens, as many as it needs."""
    assert set(stream(torch.zeros(10), sampling(top_p=0.35))) == {0, 1, 2, 3}
    assert set(stream(torch.zeros(4), sampling(top_p=0.5))) == {0, 1}
    assert set(stream(torch.zeros(10), sampling(top_k=3))) == set(range(10))  # each equals the third


@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 4.0])
def test_the_number_of_candidates_does_not_matter(spread, monkeypatch):
    """With few candidates the same token is drawn as from the whole vocabulary, whichever equals were left out."""
    logits_BV = (random_logits(60) / 4 * spread).round(decimals=1)  # with many equals
    draws = {row: PendingDraw(settings, row, 0) for row, settings in enumerate(mixed_settings(60))}
    drawn = []
    for number in (1, 2, FEW, VOCAB - 1, VOCAB):
        monkeypatch.setattr(batched_sampling, "NUM_BEST", number)
        drawn.append(draw(logits_BV, draws, HostLink()))

    assert all(each == drawn[0] for each in drawn)


def mixed_settings(count):
    """Return all kinds of sampling in turn."""
    kinds = list(SETTINGS.values())
    return [sampling(**kinds[row % len(kinds)], seed=row, num_logprobs=row % 3 or None) for row in range(count)]


@pytest.mark.parametrize("count", [2, 31, 70])
def test_what_else_is_in_a_step_does_not_matter(count, few_candidates):
    """A row's token and logprobs are the same to the bit, alone or beside other rows in any order."""
    logits_BV, settings = random_logits(count), mixed_settings(count)
    draws = {row: PendingDraw(settings[row], 7 * row, 0) for row in range(count)}
    together = draw(logits_BV, draws, HostLink())
    turned = draw(logits_BV.flip(0), {count - 1 - row: ask for row, ask in draws.items()}, HostLink())
    alone = {row: draw(logits_BV[row : row + 1], {0: ask}, HostLink())[0] for row, ask in draws.items()}

    assert together == alone
    assert {count - 1 - row: drawn for row, drawn in turned.items()} == alone


def test_seeds_and_positions_draw_differently():
    """Draws of neighbouring seeds and positions agree no more often than by chance, even if shifted."""
    one, other = (stream(torch.zeros(50), sampling(seed=seed), count=1000) for seed in (1, 2))

    assert sum(a == b for a, b in zip(one, other, strict=True)) < 50
    assert sum(a == b for a, b in zip(one[1:], one[:-1], strict=True)) < 50
    assert sum(a == b for a, b in zip(one[1:], other[:-1], strict=True)) < 50
    assert max(Counter(zip(one[1:], one[:-1], strict=True)).values()) < 8  # of 2,500 pairs


@pytest.mark.parametrize("name", ["greedy", "all", "nucleus", "wide nucleus"])
def test_logprobs_are_the_references(name, few_candidates):
    """A row's logprobs are those of its token and of as many of the best tokens as its request wants."""
    logits_BV = random_logits(3)
    settings = [sampling(**SETTINGS[name], num_logprobs=number) for number in (None, 0, 20)]
    drawn = draw(logits_BV, {row: PendingDraw(each, row, 0) for row, each in enumerate(settings)}, HostLink())
    expected = [logprobs(logits_BV[row], drawn[row].token_id, each) for row, each in enumerate(settings)]

    assert drawn[0].logprobs is None
    for row in (1, 2):
        found = drawn[row].logprobs
        assert found.chosen == pytest.approx(expected[row].chosen, abs=1e-5)
        assert [token_id for token_id, _ in found.best] == [token_id for token_id, _ in expected[row].best]
        assert [value for _, value in found.best] == pytest.approx([value for _, value in expected[row].best], abs=1e-5)


def test_a_vocabulary_may_be_smaller_than_the_logprobs_asked_for():
    """A request for more logprobs than there are tokens gets all of them."""
    drawn = draw(torch.zeros(1, 4), {0: PendingDraw(sampling(num_logprobs=20), 0, 0)}, HostLink())

    assert {token_id for token_id, _ in drawn[0].logprobs.best} == {0, 1, 2, 3}


def test_a_step_takes_one_copy_to_the_host(few_candidates):
    """A step takes one copy of a few numbers a row, if the candidates suffice."""
    settings = [sampling(), sampling(temperature=0.0, num_logprobs=3), sampling(top_p=0.5), sampling(top_k=4)] * 10
    link = CountingLink()
    draw(random_logits(40), {row: PendingDraw(each, row, 0) for row, each in enumerate(settings)}, link)
    ((rows, columns),) = link.shapes

    assert rows <= 3 * batched_sampling.ROWS
    assert columns < 50


def test_a_wide_nucleus_takes_a_second_copy(few_candidates):
    """A nucleus wider than the candidates takes a second copy, of its row alone."""
    link = CountingLink()
    logits_BV = random_logits(2)
    logits_BV[1] = 0
    drawn = draw(logits_BV, {row: PendingDraw(sampling(top_p=0.5), row, 0) for row in (0, 1)}, link)

    assert [columns for _, columns in link.shapes] == [2, 2]
    assert all(isinstance(each, DrawnToken) for each in drawn.values())


@pytest.mark.parametrize(
    "changes",
    [
        {"frequency_penalty": 0.1},
        {"presence_penalty": -0.1},
        {"repetition_penalty": 1.1},
        {"logit_bias": {4: 1.0}},
        {"min_tokens": 4},
        {"json_schema": "{}"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_needs_more_than_logits_is_left_to_the_reference(changes):
    """A row whose draw needs more than logits comes to the host unchanged, and no other row does."""
    logits_BV, link = random_logits(3), CountingLink()
    draws = {row: PendingDraw(sampling(**changes if row == 1 else {}), 0, 3) for row in range(3)}
    drawn = draw(logits_BV, draws, link)

    assert drawn[1].equal(logits_BV[1])
    assert isinstance(drawn[0], DrawnToken)
    assert isinstance(drawn[2], DrawnToken)
    assert link.shapes[1:] == [(1, VOCAB)]


def test_min_tokens_that_are_there_are_no_reason_to_ask_the_reference():
    """Once a request has its min_tokens, its draw needs only logits."""
    drawn = draw(random_logits(1), {0: PendingDraw(sampling(min_tokens=4), 0, 4)}, HostLink())

    assert isinstance(drawn[0], DrawnToken)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", SETTINGS)
def test_logits_that_are_no_numbers_are_left_to_the_reference(name, wrong):
    """A row of NaN is left to the reference, which names the fault; the rows beside it are drawn."""
    logits_BV = random_logits(2)
    logits_BV[0, 5] = wrong
    drawn = draw(logits_BV, {row: PendingDraw(sampling(**SETTINGS[name]), 0, 0) for row in (0, 1)}, HostLink())

    assert isinstance(drawn[0], torch.Tensor)
    assert isinstance(drawn[1], DrawnToken)


def test_rows_that_nobody_asks_for_are_not_drawn():
    """A step in which every prompt goes on copies nothing to the host."""
    link = CountingLink()

    assert draw(random_logits(4), {}, link) == {}
    assert set(draw(random_logits(4), {2: PendingDraw(sampling(), 0, 0)}, link)) == {2}
    assert len(link.shapes) == 1


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**31))
def test_a_key_fits_the_arithmetic(seed, position):
    """A draw's key is at least 0 and below 2^63 for any seed."""
    assert 0 <= draw_key(seed, position) < 2**63
