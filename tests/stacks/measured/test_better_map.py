"""The decision about a better map: what it never does, whatever the loads."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.expert_map import balance
from planner.facts.gate import Gate
from planner.plan.sections import LiveMap
from stacks.measured.better_map import find_better_map
from stacks.measured.halves import MeasuredLoads
from stacks.measured.limits import Limits

RANKS, SLOTS, EXPERTS, LAYERS = 3, 9, 7, 2
RULES = LiveMap(expert_bytes=1000, num_nodes=1, num_groups=1, gate=Gate(), domains=(), split="equal", device="cpu")

loads = st.lists(
    st.lists(st.integers(0, 10**6), min_size=EXPERTS, max_size=EXPERTS).map(tuple), min_size=LAYERS, max_size=LAYERS
).map(tuple)


def limits(min_gain, max_bytes):
    return Limits(60.0, min_gain, max_bytes)


def max_over_mean(rows, of_loads):
    """Return the mean over layers of the fullest rank's load over that of all ranks, from the definition."""
    found = []
    for row, loads_of_layer in zip(rows, of_loads, strict=True):
        shares = [loads_of_layer[expert] / row.count(expert) for expert in row]
        ranks = [sum(shares[first : first + SLOTS // RANKS]) for first in range(0, SLOTS, SLOTS // RANKS)]
        found.append(max(ranks) / (sum(ranks) / RANKS))
    return sum(found) / LAYERS


@given(before=loads, earlier=loads, later=loads, min_gain=st.floats(0.01, 1), most=st.integers(0, 40))
def test_a_map_keeps_the_limits(before, earlier, later, min_gain, most):
    """A unit gets a map only if it moves at most max_bytes and gains at least min_gain under the later loads."""
    in_service = balance(before, SLOTS, RANKS, effort="fast").physical_to_logical
    found = find_better_map(earlier, later, in_service, RANKS, RULES, limits(min_gain, max(most, 1) * 1000))
    rows = [list(row) for row in found.physical_to_logical]
    moved = sum(one != other for pair in zip(rows, in_service, strict=True) for one, other in zip(*pair, strict=True))

    assert found.moves == moved
    assert found.num_bytes == moved * RULES.expert_bytes
    assert all(set(row) == set(range(EXPERTS)) for row in rows)
    if found.why_not is None:
        assert 0 < moved <= max(most, 1)
        gain = max_over_mean(list(map(list, in_service)), later) / max_over_mean(rows, later) - 1
        assert gain == pytest.approx(found.gain)
        assert gain >= min_gain - 1e-9


def test_a_map_of_other_experts_is_refused():
    """Whatever a rank's page says is in service, the search gets no map that its loads do not fit."""
    loads, whole = skewed(5), [[*row] for row in IN_SERVICE]
    wrong = [
        whole[:-1],
        [[10**6, *row[1:]] for row in whole],
        [[*whole[0], 0], *whole[1:]],
        [[0] * len(row) for row in whole],
    ]
    for rows in (*wrong, [], [[*row, 0] for row in whole]):
        with pytest.raises(ValueError, match="its map has"):
            find_better_map(loads, loads, rows, RANKS, RULES, limits(0.05, 10**6))


@given(before=loads, earlier=loads, later=loads)
@settings(max_examples=10)
def test_the_same_loads_give_the_same_map(before, earlier, later):
    """The decision depends on its arguments alone."""
    in_service = balance(before, SLOTS, RANKS, effort="fast").physical_to_logical
    one, other = (find_better_map(earlier, later, in_service, RANKS, RULES, limits(0.01, 10**6)) for _ in range(2))

    assert one == other


def skewed(hot):
    """Return loads of which one expert has half."""
    row = tuple(6000 if expert == hot else 1000 for expert in range(EXPERTS))
    return (row,) * LAYERS


EVEN = ((1000,) * EXPERTS,) * LAYERS
IN_SERVICE = balance(skewed(0), SLOTS, RANKS).physical_to_logical


def test_a_skew_that_lasts_gets_a_map():
    """Where another expert is hot for the whole time, the map for it gains, and moves few experts."""
    found = find_better_map(skewed(5), skewed(5), IN_SERVICE, RANKS, RULES, limits(0.05, 10**6))

    assert found.why_not is None
    assert found.after == pytest.approx(balance(skewed(5), SLOTS, RANKS).max_over_mean[0])
    assert 0 < found.moves <= LAYERS * 4


@pytest.mark.parametrize(
    ("earlier", "later", "asked", "said"),
    [
        (skewed(5), skewed(0), limits(0.05, 10**6), "not min_gain (5.0%)"),
        (skewed(0), skewed(0), limits(0.05, 10**6), "no map nearby is better"),
        (skewed(5), skewed(5), limits(0.3, 2000), "within max_bytes (0.0 MB) a map gains "),
        (EVEN, ((1,) * EXPERTS,) * LAYERS, limits(0.05, 10**6), "a rank computed 2 rows in half of the time"),
    ],
)
def test_why_a_unit_keeps_its_map(earlier, later, asked, said):
    """Loads that do not last, a map that is good enough, too many bytes and too few rows each have their reason."""
    found = find_better_map(earlier, later, IN_SERVICE, RANKS, RULES, asked)

    assert said in found.why_not


def test_fewer_bytes_never_gain_more():
    """With more bytes a map gains at least as much under the loads that it is made from."""
    gains = [
        find_better_map(skewed(5), skewed(5), IN_SERVICE, RANKS, RULES, limits(0.1, most * 1000))
        for most in range(1, 13)
    ]
    within = [each.gain for each in gains if each.why_not is None]

    assert within == sorted(within)
    assert len(within) > 2


def test_loads_are_those_since_the_unit_took_its_map():
    """Both halves are differences of counts, and begin anew when a unit starts again or follows another map."""
    measured, zero = MeasuredLoads(10.0), ((0, 0),)
    at = [(0.0, "a", ((5, 5),)), (5.0, "a", ((6, 8),)), (10.0, "a", ((9, 9),))]
    found = [measured.add(*each) for each in at]
    after = [measured.add(15.0, "b", ((9, 9),)), measured.add(20.0, "b", zero), measured.add(24.0, "b", zero)]

    assert found == [None, None, (((1, 3),), ((3, 1),))]
    assert after == [None, None, None]
    assert measured.began == 20.0  # counts had fallen
    assert [measured.is_due(24.9, "b"), measured.is_due(25.0, "b"), measured.is_due(24.9, "c")] == [False, True, True]


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"num_nodes": 3}, "3 nodes"),
        ({"domains": ((0,),)}, "failure domains"),
        ({"domains": ((0, 0, 1, 4),)}, "failure domains"),
        ({"domains": ((0, 0, 1, -1),)}, "failure domains"),
        ({"domains": ((0, 1, 2, 3),)}, "no map can keep every expert in two"),
    ],
)
def test_rules_for_other_ranks_are_refused(rules, said):
    """The native search trusts them: it would end the whole process."""
    loads, limits = ((1000, 1, 1, 1),) * 2, Limits(1, 0.1, 10**6)

    with pytest.raises(ValueError, match=said):
        find_better_map(loads, loads, ((0, 1, 2, 3),) * 2, 4, RULES.model_copy(update=rules), limits)
