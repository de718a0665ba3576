"""The check of a day at every instant: planned days pass it, and each kind of mistake is found."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.schedule.derived import demand_from_units, derive_days
from planner.schedule.schedule import Step, Timetable
from planner.schedule.transitions import State, nodes_taken, plan_transitions
from planner.spec.schedule import ScheduleSpec
from tests.planner.schedule.breaches import breaches
from tests.planner.schedule.test_optimum import DEEPSEEK

NODES = {"prefill": 4, "decode": 18}


def day_of(windows, rules):
    """The day that a plan would have of these windows, and the nodes of each unit."""
    most = {phase: max(each[f"{phase}_units"] for each in windows) for phase in NODES}
    names = {phase: [f"{phase}-{index}" for index in range(number)] for phase, number in most.items()}
    starts = [60 * int(each["at"][:2]) + int(each["at"][3:]) for each in windows]
    steps = []
    for index, each in enumerate(windows):
        numbers = {phase: each[f"{phase}_units"] for phase in NODES}
        units = tuple(name for phase in NODES for name in names[phase][: numbers[phase]])
        minutes = (starts[(index + 1) % len(starts)] - starts[index]) % 1440 or 1440
        steps.append(Step(each["at"], minutes, numbers, units, 0, None))
    states = [State(start, step.units) for start, step in zip(starts, steps, strict=True)]
    sizes = {name: NODES[phase] for phase in NODES for name in names[phase]}
    transitions = plan_transitions(states, sizes, rules)
    day = Timetable(
        "UTC",
        tuple(steps),
        rules.warm_up,
        rules.drain,
        transitions=transitions,
        mean_nodes_taken=nodes_taken(sizes, states, transitions),
        gpus_per_node=8,
    )
    return day, {name: [f"{name}-{index}" for index in range(size)] for name, size in sizes.items()}


def rules(warm_up=600, drain=300):
    return ScheduleSpec(windows="auto").model_copy(update={"warm_up": warm_up, "drain": drain})


def planned(profile, units, rules):
    """The derived day, the nodes of its units, and what was asked for."""
    asked = {phase: demand_from_units(profile, number, max(profile)) for phase, number in units.items()}
    day = derive_days(rules, [asked], NODES)[0]
    return *day_of(day.windows, rules), asked


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.2, 0.6, 1.0]), min_size=24, max_size=24).filter(any),
    st.sampled_from([60, 600, 5400]),
    st.sampled_from([60, 300, 5400]),
)
def test_every_planned_day_holds_at_every_instant(profile, warm_up, drain):
    """Whatever the demand and however long transitions take."""
    day, nodes, asked = planned(profile, {"prefill": 3, "decode": 2}, rules(warm_up, drain))

    assert breaches(day, nodes, 3 * 4 + 2 * 18, asked) == ()


def test_deepseeks_planned_day_holds_at_every_instant():
    """On 278 nodes, from midnight: demand carried, no node taken twice."""
    day, nodes, asked = planned((*DEEPSEEK[12:], *DEEPSEEK[:12]), {"prefill": 29, "decode": 9}, rules())

    assert breaches(day, nodes, 278, asked) == ()
    (breach, *_) = breaches(day, nodes, 277, asked)
    assert breach.what == "278 nodes are taken of 277"


WINDOWS = (
    {"at": "08:00", "prefill_units": 2, "decode_units": 1},
    {"at": "22:00", "prefill_units": 1, "decode_units": 1},
)
ASKED = {"prefill": [1.0] * 8 + [2.0] * 14 + [1.0] * 2, "decode": [1.0]}


def test_a_day_that_is_right_has_no_breach():
    """Two prefill units from eight to ten in the evening, one at night."""
    day, nodes = day_of(WINDOWS, rules())

    assert breaches(day, nodes, 26, ASKED) == ()


@pytest.mark.parametrize(
    ("spoil", "at", "what"),
    [
        (lambda it: it.asked.update(decode=[1.5]), "00:00:00", "1 decode units serve where 1.50 are asked for"),
        (lambda it: it.nodes.update({"prefill-1": it.nodes["prefill-0"]}), "07:50:00", "a node is taken twice"),
        (lambda it: setattr(it, "day", freed_until(it.day, "08:10:00")), "08:00:00", "prefill-1 serves without nodes"),
    ],
)
def test_each_mistake_is_found(spoil, at, what):
    """Too few units, a node of two units, and nodes that come after their unit serves."""
    day, nodes = day_of(WINDOWS, rules())
    it = SimpleNamespace(day=day, nodes=nodes, asked=dict(ASKED))
    spoil(it)

    found = breaches(it.day, it.nodes, 26, it.asked)
    assert what in [each.what for each in found]
    assert min(each.at for each in found if each.what == what) == at


def freed_until(day, ends):
    """The same day, in which nodes come back at another time."""
    changed = [replace(each, freed=tuple(replace(one, ends=ends) for one in each.freed)) for each in day.transitions]
    return replace(day, transitions=tuple(changed))
