"""Sampling on the host: greedy takes the best token, a draw depends on seed and position, and top_k and top_p bound it.

Penalties change the logits before that.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import RequestFailure
from runtime.protocol.messages import Sampling
from runtime.serving import sampling as sampling_module
from runtime.serving.sampling import finish_reason, logprobs, sample

NUM_DRAWS = 200
TINY = [1e-4, 1e-30, 1e-40, 1e-300, 5e-324]
logit_lists = st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=30)
seeds = st.integers(0, 2**63 - 1)
positions = st.integers(0, 2**20)


def sampling(**changes):
    values = {"max_tokens": 8, "temperature": 1.0, "top_p": 1.0, "seed": 1, "stop_ids": [3]}
    return Sampling(**values | changes)


def stream(logits, settings, first=0, count=NUM_DRAWS):
    return [sample(logits, settings, position) for position in range(first, first + count)]


@given(logit_lists, seeds, positions)
def test_temperature_zero_is_the_best_token(logits, seed, position):
    """At temperature 0 the best token is taken, whatever seed and position are."""
    chosen = sample(torch.tensor(logits), sampling(temperature=0.0, seed=seed), position)

    assert logits[chosen] == max(logits)


@given(logit_lists, seeds, positions, st.floats(0.1, 2), st.floats(0.05, 1))
def test_same_seed_and_position_draw_the_same_token(logits, seed, position, temperature, top_p):
    """A request draws the same token on another rank, or after other requests."""
    settings = sampling(seed=seed, temperature=temperature, top_p=top_p)
    first = sample(torch.tensor(logits), settings, position)
    torch.rand(7)
    sample(torch.tensor(logits), sampling(seed=seed + 1), position + 1)

    assert sample(torch.tensor(logits), settings, position) == first


def test_drawing_leaves_the_global_generator_alone():
    """A draw does not change torch's global random generator."""
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    sample(torch.zeros(10), sampling(), 0)

    assert torch.equal(torch.rand(3), expected)


def test_positions_draw_differently():
    """Positions of one request have different draws."""
    assert len(set(stream(torch.zeros(50), sampling()))) > 25


def test_seeds_draw_differently():
    """Two requests with one prompt and different seeds get different texts."""
    one, other = (stream(torch.zeros(50), sampling(seed=seed)) for seed in (1, 2))

    assert sum(a == b for a, b in zip(one, other, strict=True)) < NUM_DRAWS / 5


def test_neighbouring_seeds_do_not_share_shifted_streams():
    """The draw of seed s at position p + 1 is not that of seed s + 1 at position p."""
    one = stream(torch.zeros(50), sampling(seed=1), first=1)
    other = stream(torch.zeros(50), sampling(seed=2), first=0)

    assert sum(a == b for a, b in zip(one, other, strict=True)) < NUM_DRAWS / 5


@given(logit_lists, seeds, positions, st.floats(0.05, 1))
def test_a_draw_comes_from_the_nucleus(logits, seed, position, top_p):
    """The tokens that are more likely than the drawn one together have less than top_p."""
    probabilities = torch.tensor(logits).double().softmax(-1)
    drawn = sample(torch.tensor(logits), sampling(seed=seed, top_p=top_p), position)

    assert probabilities[probabilities > probabilities[drawn]].sum() < top_p + 1e-5


def test_every_token_of_the_nucleus_is_drawn_and_no_other():
    """A top_p of 0.6 keeps the first two of 0.4, 0.3, 0.2 and 0.1."""
    logits = torch.tensor([0.2, 0.4, 0.1, 0.3]).log()

    assert set(stream(logits, sampling(top_p=0.6))) == {1, 3}


@pytest.mark.parametrize(("temperature", "share"), [(1.0, 0.75), (0.5, 0.9)])
def test_draws_follow_the_probabilities(temperature, share):
    """Odds of 3 to 1 become 9 to 1 at half the temperature."""
    draws = stream(torch.tensor([3.0, 1.0]).log(), sampling(temperature=temperature), count=2000)

    assert draws.count(0) / len(draws) == pytest.approx(share, abs=0.04)


@pytest.mark.parametrize("changes", [{name: tiny} for name in ("temperature", "top_p") for tiny in TINY], ids=str)
def test_the_smallest_values_are_greedy(changes):
    """With the smallest temperature or top_p, a draw takes the best token and does not fail."""
    assert sample(torch.tensor([1.0, 30.0, -5.0]), sampling(**changes), 0) == 1


def test_a_top_p_of_one_sorts_nothing_and_draws_the_same(monkeypatch):
    """A top_p of 1 sorts nothing, and draws the tokens of the next smaller top_p."""
    logits = 4 * torch.randn(5000, generator=torch.Generator().manual_seed(3))
    sorted_draws = stream(logits, sampling(top_p=1 - 2**-53))

    def never(*_, **__):
        raise AssertionError("it sorts")

    monkeypatch.setattr(torch.Tensor, "sort", never)

    assert stream(logits, sampling()) == sorted_draws


@pytest.mark.parametrize("decimals", [0, 1, 9])  # few leave many equals
@pytest.mark.parametrize("num_best", [1, 7, 64, 1024])
def test_a_nucleus_among_the_best_few_is_that_of_a_sort(num_best, decimals, monkeypatch):
    """A nucleus found among the best few is that of a full sort, to the bit."""
    monkeypatch.setattr(sampling_module, "NUM_BEST", num_best)
    generator = torch.Generator().manual_seed(5)
    for top_p in (1e-9, 0.1, 0.5, 0.8, 0.95, 0.999, 1 - 2**-53):
        logits = (3 * torch.randn(300, generator=generator)).round(decimals=decimals)
        probabilities = logits.double().softmax(-1)

        assert sampling_module._keep_top_p(probabilities, top_p).equal(nucleus_by_a_sort(probabilities, top_p))


def nucleus_by_a_sort(probabilities, top_p):
    """Return the nucleus by a full sort: the slow reference."""
    ordered, order = probabilities.sort(descending=True)
    beyond = ordered.cumsum(-1) - ordered >= top_p
    return torch.zeros_like(probabilities).scatter(-1, order, ordered.masked_fill(beyond, 0.0))


def test_a_nucleus_of_few_tokens_sorts_nothing(monkeypatch):
    """A nucleus of few tokens needs no full sort, even with DeepSeek-V3's vocabulary."""
    logits = 12 * torch.randn(129_280, generator=torch.Generator().manual_seed(3))

    def never(*_, **__):
        raise AssertionError("it sorts")

    monkeypatch.setattr(torch.Tensor, "sort", never)

    assert stream(logits, sampling(top_p=0.95), count=1)


@given(logit_lists, seeds, positions, st.integers(1, 30))
def test_a_draw_is_one_of_the_top_k(logits, seed, position, top_k):
    """Fewer than top_k tokens are more likely than the drawn one."""
    drawn = sample(torch.tensor(logits), sampling(seed=seed, top_k=top_k), position)

    assert sum(logit > logits[drawn] for logit in logits) < top_k


def test_every_one_of_the_top_k_is_drawn_and_no_other():
    """A top_k of 2 draws two of four tokens, and top_p counts their probabilities among themselves."""
    logits = torch.tensor([0.2, 0.4, 0.1, 0.3]).log()

    assert set(stream(logits, sampling(top_k=2))) == {1, 3}
    assert set(stream(logits, sampling(top_k=2, top_p=0.57))) == {1}  # 0.4 of 0.7 is 0.571


@given(
    logit_lists,
    st.lists(st.integers(0, 29), max_size=12),
    st.floats(-2, 2),
    st.floats(-2, 2),
)
def test_penalties_are_openais_formula(logits, generated, frequency, presence):
    """Penalties give logit - count x frequency - (count > 0) x presence, and leave the logits unchanged."""
    generated = [token for token in generated if token < len(logits)]
    settings = sampling(temperature=0.0, frequency_penalty=frequency, presence_penalty=presence)
    given_logits = torch.tensor(logits)
    chosen = sample(given_logits, settings, 0, generated)
    expected = [
        logit - generated.count(token) * frequency - (token in generated) * presence
        for token, logit in enumerate(logits)
    ]

    assert expected[chosen] == pytest.approx(max(expected), abs=1e-4)
    assert given_logits.tolist() == logits


def test_a_penalty_ends_a_repetition():
    """A penalty ends the repetition of the best token, greedy or drawn."""
    logits, generated = torch.tensor([3.0, 2.0, -50.0]), []
    for position in range(4):
        generated.append(sample(logits, sampling(temperature=0.0, frequency_penalty=0.6), position, generated))

    assert generated == [0, 0, 1, 0]
    assert {sample(logits, sampling(presence_penalty=2.0, temperature=0.01), n, [0]) for n in range(20)} == {1}


@given(
    logit_lists, st.lists(st.integers(0, 29), max_size=8), st.lists(st.integers(0, 29), max_size=8), st.floats(0.1, 2)
)
def test_a_repetition_penalty_is_transformers_formula(logits, prompt_ids, generated, penalty):
    """The repetition penalty divides positive logits and multiplies negative ones, for tokens of prompt and output."""
    prompt_ids, generated = ([token for token in ids if token < len(logits)] for ids in (prompt_ids, generated))
    settings = sampling(temperature=0.0, repetition_penalty=penalty)
    chosen = sample(torch.tensor(logits), settings, 0, generated, prompt_ids)
    expected = [
        (logit * penalty if logit < 0 else logit / penalty) if token in {*prompt_ids, *generated} else logit
        for token, logit in enumerate(logits)
    ]

    assert expected[chosen] == pytest.approx(max(expected), abs=1e-4)


@given(logit_lists, st.integers(0, 29), st.integers(0, 20))
def test_logprobs_are_of_the_logits_as_the_model_made_them(logits, token_id, num_logprobs):
    """Logprobs are the log-softmax of the model's logits, without penalties, best first."""
    token_id %= len(logits)
    settings = sampling(temperature=0.3, top_k=1, frequency_penalty=2.0, num_logprobs=num_logprobs)
    expected = torch.tensor(logits).double().softmax(-1).log()
    found = logprobs(torch.tensor(logits), token_id, settings)

    assert found.chosen == pytest.approx(expected[token_id].item(), abs=1e-4)
    assert [value for _, value in found.best] == pytest.approx(
        expected.sort(descending=True).values[:num_logprobs].tolist(), abs=1e-4
    )
    assert all(value == pytest.approx(expected[other].item(), abs=1e-4) for other, value in found.best)


def test_nobody_pays_for_a_penalty_that_nobody_asked_for():
    """Without a repetition penalty the prompt is not read."""
    assert sample(torch.tensor([0.0, 1.0]), sampling(temperature=0.0), 0, prompt_ids=None) == 1


def test_nobody_pays_for_logprobs_that_nobody_asked_for():
    """Without logprobs the result is None, not an empty list."""
    assert logprobs(torch.zeros(4), 2, sampling()) is None


def test_a_bias_moves_a_tokens_logit():
    """A bias of 100 makes a token certain and one of -100 impossible, without changing the logits in place."""
    logits = torch.tensor([3.0, 2.0, 1.0])
    for temperature in (0.0, 1.0):
        for bias, chosen in (({2: 100.0}, 2), ({0: -100.0, 2: -100.0}, 1)):
            assert sample(logits, sampling(temperature=temperature, logit_bias=bias), 0) == chosen
    assert logits.tolist() == [3, 2, 1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_stops_before_min_tokens(temperature):
    """A stop token that would be the best is not drawn before min_tokens."""
    settings = sampling(temperature=temperature, stop_ids=[0, 99], min_tokens=2, repetition_penalty=0.01)
    logits = torch.tensor([60.0, 2.0, 1.0])

    assert [sample(logits, settings, 0, [1] * n, [0]) == 0 for n in range(4)] == [False, False, True, True]


def test_a_request_that_may_draw_nothing_fails_alone():
    """If every token is a stop token before min_tokens, the request fails."""
    with pytest.raises(RequestFailure, match="before min_tokens"):
        sample(torch.zeros(2), sampling(stop_ids=[0, 1], min_tokens=1), 0)


@given(st.integers(0, 9), st.integers(1, 20), st.integers(1, 20))
def test_finish_reason(token_id, num_generated, max_tokens):
    """A stop token gives "stop", the last allowed token "length", any other None; "stop" comes first."""
    reason = finish_reason(token_id, num_generated, sampling(max_tokens=max_tokens, stop_ids=[3, 7]))

    assert reason == ("stop" if token_id in (3, 7) else "length" if num_generated >= max_tokens else None)
