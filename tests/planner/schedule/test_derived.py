"""A day that follows its traffic, and the ways between its states: checked at every minute."""

from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.compiler import compile_plan
from planner.problems.errors import SpecError
from planner.schedule.derived import derived_day
from planner.schedule.transitions import State, nodes_taken, transitions_of
from planner.spec.check import check_spec
from planner.spec.schedule import ScheduleSpec
from tests.planner.schedule.test_optimum import DEEPSEEK

NODES = {"prefill": 4, "decode": 18}
profiles = st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9, 1.0]), min_size=24, max_size=24).filter(any)
minutes = st.sampled_from([0, 5, 10, 20, 45, 90])


def schedule(warm_up=0, drain=0, stay=15):
    return ScheduleSpec(windows="auto").model_copy(
        update={"warm_up": 60 * warm_up, "drain": 60 * drain, "min_stay": 60 * stay}
    )


def minute(at):
    return 60 * int(at[:2]) + int(at[3:5])


def states_of(day, units):
    """The states of a day, and the nodes of each unit."""
    names = {phase: [f"{phase}-{index}" for index in range(number)] for phase, number in units.items()}
    states = [
        State(minute(each["at"]), tuple(name for phase in names for name in names[phase][: each[f"{phase}_units"]]))
        for each in day.windows
    ]
    return states, {name: NODES[phase] for phase in names for name in names[phase]}


@settings(max_examples=60)
@given(profiles, st.integers(1, 6), st.integers(1, 3), minutes, minutes, st.sampled_from([15, 30, 120]))
def test_capacity_is_never_below_demand_and_nodes_are_counted_once(profile, prefill, decode, warm_up, drain, stay):
    """Enough units serve in every hour; transitions take the nodes that the day was chosen by."""
    units = {"prefill": prefill, "decode": decode}
    day = derived_day(schedule(warm_up, drain, stay), profile, units, NODES)
    states, nodes = states_of(day, units)
    transitions = transitions_of(states, nodes, warm_up * 60, drain * 60)

    for hour, demand in enumerate(profile):
        for at in range(60 * hour, 60 * hour + 60, 15):
            begun = [each for each in day.windows if minute(each["at"]) <= at]
            window = (begun or day.windows)[-1]
            assert all(
                window[f"{phase}_units"] >= ceil(number * demand / max(profile) - 1e-9)
                for phase, number in units.items()
            )
    assert nodes_taken(nodes, states, transitions) == pytest.approx(day.mean_nodes)
    assert day.bound <= day.mean_nodes + 1e-9


def test_a_transition_takes_nodes_before_and_frees_them_after():
    """Ten minutes of warm-up before a window, five of drain after one; across midnight too."""
    states = [State(23 * 60 + 55, ("a",)), State(5, ("a", "b"))]
    first, second = transitions_of(states, {"a": 4, "b": 18}, warm_up=600, drain=300)

    assert (first.at, first.starts, first.warm_up_from, first.stops) == ("00:05:00", ("b",), "23:55:00", ())
    assert (second.at, second.stops, second.drained_by, second.freed_node_hours) == ("23:55:00", ("b",), "00:00:00", 0)


def test_deepseeks_traffic_takes_fewer_nodes_than_its_windows():
    """From noon to noon as from midnight: 217.25 nodes serve at least, 220.19 are taken, 278 at the peak."""
    day = derived_day(schedule(10, 5), DEEPSEEK, {"prefill": 29, "decode": 9}, NODES)

    assert (day.bound, round(day.mean_nodes, 2), len(day.windows)) == (217.25, 220.19, 19)
    assert max(4 * each["prefill_units"] + 18 * each["decode_units"] for each in day.windows) == 278


PAIR = """
version: 1
name: tide
model: deepseek-r1
cluster: {gpu: h800, nodes: 44, gpus_per_node: 8}
prefill: {units: 2, ep_size: 32, redundant_experts: 32, precision: fp8}
decode: {units: 2, ep_size: 144, redundant_experts: 32, precision: fp8}
"""
TRAFFIC = f"traffic: {{input_tokens: 1e9, output_tokens: 1e8, profile: {[0.4] * 8 + [1.0] * 16}}}\n"


@pytest.mark.parametrize("written", ["auto", "{windows: auto}"])
def test_a_plan_has_the_windows_that_its_traffic_asks_for(written, tmp_path):
    """Units that stand in the phases are those of the busiest hour; both forms of the word are the same."""
    (tmp_path / "spec.yaml").write_text(f"{PAIR}{TRAFFIC}schedule: {written}\n")
    plan = compile_plan(check_spec(tmp_path / "spec.yaml"))

    steps = [(each.at, each.num_units["prefill"], each.num_units["decode"]) for each in plan.schedule.steps]
    assert steps == [("00:00", 1, 1), ("08:00", 2, 2)]
    (decided,) = [each for each in plan.decisions if each.path == "schedule.windows"]
    assert decided.value == "2 windows"
    assert plan.schedule.transitions[1].warm_up_from == "07:50:00"


def test_windows_that_follow_no_traffic_are_refused(tmp_path):
    """S521: without a profile every hour would be alike."""
    (tmp_path / "spec.yaml").write_text(f"{PAIR}schedule: auto\n")
    with pytest.raises(SpecError) as caught:
        compile_plan(check_spec(tmp_path / "spec.yaml"))

    assert [each.rule[:4] for each in caught.value.problems] == ["S521"]
