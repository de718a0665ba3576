"""Which places a token goes to: a slow reference that looks at every choice of groups."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.facts.gate import Gate, reach_probability


@st.composite
def served(draw):
    """Draw what some places serve of some groups, and a gate that picks among the groups."""
    num_groups, num_places = draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 4))
    row = st.lists(st.integers(0, 9), min_size=num_places, max_size=num_places).filter(any)
    rows = draw(st.lists(row, min_size=num_groups, max_size=num_groups))
    return np.array([rows], dtype=float), Gate(draw(st.integers(1, 8)), draw(st.integers(1, num_groups)))


@given(case=served())
def test_a_token_goes_to_every_place_with_one_of_its_experts(case):
    """All choices of groups are equally likely, and a pair is at a place with the share of the group served there."""
    loads, gate = case
    _, num_groups, num_places = loads.shape
    num_picked = min(gate.groups_per_token, gate.experts_per_token)
    found = reach_probability(loads, gate)[0]
    for place in range(num_places):
        missed = [
            np.prod([missing(loads[0], group, place, gate, num_picked) for group in picked])
            for picked in combinations(range(num_groups), num_picked)
        ]
        assert found[place] == pytest.approx(1 - np.mean(missed))


def missing(loads, group, place, gate, num_picked):
    """The probability that none of a picked group's pairs goes to the place; of half a pair, half of it."""
    pairs = max(gate.experts_per_token * len(loads) / num_picked * loads[group].sum() / loads.sum(), 1)
    miss = 1 - loads[group][place] / loads[group].sum()
    whole = int(pairs)
    return miss**whole * (1 - (pairs - whole) * (1 - miss))


@given(gates=st.tuples(st.integers(1, 8), st.integers(1, 8)).map(sorted))
def test_fewer_groups_are_on_fewer_places(gates):
    """Where each place holds whole groups, a gate that picks fewer of them reaches fewer places."""
    whole = np.repeat(np.eye(4), 2, axis=0)[None]  # two of eight groups on each of four places
    fewer, more = (reach_probability(whole, Gate(8, groups)).sum() for groups in gates)

    assert fewer <= more + 1e-12


def test_without_groups_experts_are_drawn_independently():
    """Eight experts miss a place with a quarter of the load with probability (3/4)^8."""
    found = reach_probability(np.full((1, 1, 4), 5.0), Gate(8, 4))

    assert found[0] == pytest.approx([1 - (3 / 4) ** 8] * 4)


def test_a_group_without_load_is_nowhere():
    """Nothing is divided by nothing: a token of that group goes to no place."""
    found = reach_probability(np.array([[[0.0, 0.0], [3.0, 0.0]]]), Gate(1, 1))

    assert found[0].tolist() == [0.5, 0.0]
