"""A day that follows its traffic, and the ways between its states: checked at every minute."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.compiler import run_passes
from planner.problems.errors import InfeasibleError
from planner.rules.check import change_spec, check_spec
from planner.schedule.derived import demand_from_rate, demand_from_units, derive_days
from planner.schedule.transitions import State, nodes_taken, plan_transitions
from planner.spec.schedule import ScheduleSpec, UnitCounts
from tests.planner.schedule.test_optimum import DEEPSEEK

NODES = {"prefill": 4, "decode": 18}
profiles = st.sampled_from([24, 48, 144]).flatmap(
    lambda size: st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9, 1.0]), min_size=size, max_size=size).filter(any)
)
minutes = st.sampled_from([0, 5, 10, 20, 45, 90])
constraints = st.fixed_dictionaries(
    {
        "warm_up": minutes.map(lambda each: each * 60),
        "drain": minutes.map(lambda each: each * 60),
        "headroom": st.sampled_from([0.0, 0.1, 0.5]),
        "min_units": st.builds(UnitCounts, prefill=st.integers(1, 4), decode=st.integers(1, 2)),
    }
)


def schedule(warm_up=0, drain=0, **others):
    return ScheduleSpec(windows="auto").model_copy(update={"warm_up": 60 * warm_up, "drain": 60 * drain} | others)


def asked_of(profile, units):
    """What a profile asks for where `units` just carry its busiest entry."""
    return {phase: demand_from_units(profile, number, max(profile)) for phase, number in units.items()}


def minute(at):
    return 60 * int(at[:2]) + int(at[3:5])


def states_of(day):
    """The states of a day, and the nodes of each unit."""
    most = {phase: max(each[f"{phase}_units"] for each in day.windows) for phase in NODES}
    names = {phase: [f"{phase}-{index}" for index in range(number)] for phase, number in most.items()}
    states = [
        State(minute(each["at"]), tuple(name for phase in names for name in names[phase][: each[f"{phase}_units"]]))
        for each in day.windows
    ]
    return states, {name: NODES[phase] for phase in names for name in names[phase]}


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(profiles, st.integers(1, 6), st.integers(1, 3), constraints)
def test_capacity_is_never_below_demand_and_nodes_are_counted_once(profile, prefill, decode, constraint):
    """Enough units serve at any time, with headroom and the floor; transitions take the nodes that were counted."""
    units = {"prefill": prefill, "decode": decode}
    rules = schedule().model_copy(update=constraint)
    day = derive_days(rules, [asked_of(profile, units)], NODES)[0]
    states, nodes = states_of(day)
    transitions = plan_transitions(states, nodes, rules)

    for at in range(0, 1440, 5):
        begun = [each for each in day.windows if minute(each["at"]) <= at]
        window = (begun or day.windows)[-1]
        demand = profile[at * len(profile) // 1440] / max(profile) * (1 + rules.headroom)
        for phase, number in units.items():
            assert window[f"{phase}_units"] >= max(number * demand - 1e-6, rules.min_units.of(phase))
    assert nodes_taken(nodes, states, transitions) == pytest.approx(day.mean_nodes)
    assert day.bound <= day.mean_nodes + 1e-9


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([0.1, 0.5, 1.0]), min_size=24, max_size=24), st.integers(0, 23), constraints)
def test_more_demand_never_takes_fewer_nodes(asked, hour, constraint):
    """Whatever hour asks for one unit more, the day takes as many nodes at least."""
    rules = schedule().model_copy(update=constraint)
    more = [units + (index == hour) for index, units in enumerate(asked)]
    before, after = (derive_days(rules, [{"decode": each}], NODES)[0].mean_nodes for each in (asked, more))

    assert after >= before - 1e-9


def test_units_of_known_speed_serve_their_predicted_rate():
    """A day of 86,400 tokens, half of them in one hour of 24: 12 tokens/s then, six units of 2 tokens/s."""
    asked = demand_from_rate([23] + [1] * 23, 86_400, 2.0)

    assert asked[0] == pytest.approx(6)
    assert asked[1] == pytest.approx(6 / 23)


def test_finer_entries_move_steps_to_where_they_are_needed():
    """Ten-minute entries let a window begin at ten past, which no quarter of an hour does."""
    day = derive_days(schedule(), [asked_of([1] + [0.1] * 143, {"decode": 4})], NODES)[0]

    assert [each["at"] for each in day.windows] == ["00:00", "00:10"]
    late = derive_days(schedule(), [asked_of([0.1] + [1] * 12 + [0.1] * 131, {"decode": 4})], NODES)[0]
    assert [each["at"] for each in late.windows] == ["00:10", "02:10"]


def test_a_transition_takes_nodes_before_and_frees_them_after():
    """Ten minutes of warm-up before a window, five of drain after one; across midnight too."""
    states = [State(23 * 60 + 55, ("a",)), State(5, ("a", "b"))]
    first, second = plan_transitions(states, {"a": 4, "b": 18}, schedule(warm_up=10, drain=5))

    assert (first.at, first.starts, first.warm_up_from, first.stops) == ("00:05:00", ("b",), "23:55:00", ())
    assert (second.at, second.stops, second.drained_by, second.freed_node_hours) == ("23:55:00", ("b",), "00:00:00", 0)


def test_deepseeks_traffic_takes_fewer_nodes_than_its_windows():
    """From noon to noon as from midnight: 217.25 nodes serve at least, 220.19 are taken, 278 at the peak."""
    day = derive_days(schedule(10, 5), [asked_of(DEEPSEEK, {"prefill": 29, "decode": 9})], NODES)[0]

    assert (day.binding, round(day.bounds["decode"], 2)) == ("decode", 128.25)
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
    plan = run_passes(check_spec(tmp_path / "spec.yaml"))

    steps = [(each.at, each.num_units["prefill"], each.num_units["decode"]) for each in plan.schedule.steps]
    assert steps == [("00:00", 1, 1), ("08:00", 2, 2)]
    (decided,) = [each for each in plan.choice.decisions if each.path == "schedule.windows"]
    assert decided.value == "2 windows"
    assert plan.schedule.transitions[1].warm_up_from == "07:50:00"


def test_each_field_is_decided_once(tmp_path):
    """Units that speed would count are those of the day, and are told as such."""
    spec = PAIR.replace("units: 2", "units: auto").replace("nodes: 44", "nodes: 100")
    (tmp_path / "spec.yaml").write_text(f"{spec}{TRAFFIC}schedule: auto\n")
    plan = run_passes(check_spec(tmp_path / "spec.yaml"))

    paths = [each.path for each in plan.choice.decisions]
    assert len(paths) == len(set(paths))
    told = {each.path: each.value for each in plan.choice.decisions}
    assert all(told[f"{phase}.units"] == plan.spec.num_units(phase) for phase in ("prefill", "decode"))


def test_the_spec_of_a_plan_with_a_day_of_auto_plans_to_the_same_plan(tmp_path):
    """Its windows are written, so that what only auto heeded has no effect there: it stands at its default."""
    heeded = "{windows: auto, headroom: 0.1, min_units: {decode: 1}}"
    (tmp_path / "spec.yaml").write_text(f"{PAIR.replace('nodes: 44', 'nodes: 66')}{TRAFFIC}schedule: {heeded}\n")
    plan = run_passes(check_spec(tmp_path / "spec.yaml")).plan.as_json()
    (tmp_path / "again.json").write_text(json.dumps(plan["spec"]))
    again = run_passes(check_spec(tmp_path / "again.json")).plan.as_json()

    assert (again["digest"], again["spec"]) == (plan["digest"], plan["spec"])


def test_a_day_may_be_left_to_the_planner_by_a_change(tmp_path):
    """`auto` in a change is that of a file: what it heeds has an effect."""
    (tmp_path / "spec.yaml").write_text(f"{PAIR.replace('nodes: 44', 'nodes: 66')}{TRAFFIC}")
    changed = change_spec(check_spec(tmp_path / "spec.yaml"), {"schedule": {"windows": "auto", "headroom": 0.1}})

    assert run_passes(changed).schedule is not None


def test_units_that_are_always_on_must_fit_the_nodes(tmp_path):
    """A floor above the cluster is infeasible: the most that fits is offered, and the nodes that it takes."""
    (tmp_path / "spec.yaml").write_text(f"{PAIR}{TRAFFIC}schedule: {{windows: auto, min_units: {{decode: 3}}}}\n")
    with pytest.raises(InfeasibleError) as caught:
        run_passes(check_spec(tmp_path / "spec.yaml"))

    (problem,) = caught.value.findings
    assert "schedule.min_units" in problem.reason
    assert problem.changes == ({"schedule.min_units.decode": 2}, {"cluster.nodes": 62})


def test_headroom_counts_in_nodes_that_are_auto(tmp_path):
    """Units that just carry the busiest hour need another of each kind for a tenth more, and nodes for both."""
    spec = f"{PAIR}{TRAFFIC}schedule: {{windows: auto, headroom: 0.1}}\n".replace("nodes: 44", "nodes: auto")
    (tmp_path / "spec.yaml").write_text(spec)
    plan = run_passes(check_spec(tmp_path / "spec.yaml"))

    assert [each.num_units for each in plan.schedule.steps][1] == {"prefill": 3, "decode": 3}
    assert plan.spec.cluster.nodes == 3 * (4 + 18)


OTHERS = f"""
  other_days:
    - {{days: [saturday, sunday], profile: {[0.4] * 24}}}
    - {{days: [2026-12-24], profile: {[0.4] * 12 + [2.0] * 12}}}
"""


def test_different_days_have_windows_of_their_own(tmp_path):
    """The spec's units just serve the busiest entry of any day, and all days begin at midnight in one state."""
    traffic = TRAFFIC.replace("traffic: {", "traffic:\n  ").replace(", output", "\n  output")
    traffic = traffic.replace(", profile", "\n  profile").replace("}\n", OTHERS)
    (tmp_path / "spec.yaml").write_text(f"{PAIR}{traffic}schedule: auto\n")
    plan = run_passes(check_spec(tmp_path / "spec.yaml"))
    schedule = plan.schedule

    assert [each.days for each in schedule.other_days] == [("saturday", "sunday"), ("2026-12-24",)]
    assert [(step.at, step.num_units["decode"]) for step in schedule.steps] == [("00:00", 1)]
    assert [(step.at, step.num_units["decode"]) for step in schedule.other_days[0].steps] == [("00:00", 1)]
    assert [(step.at, step.num_units["decode"]) for step in schedule.other_days[1].steps] == [
        ("00:00", 1),
        ("12:00", 2),
    ]
    assert (schedule.peak_nodes, schedule.mean_nodes, schedule.other_days[1].mean_nodes) == (44, 22, 33)
    assert plan.plan.as_json()["schedule"]["other_days"][1]["transitions"][1]["warm_up_from"] == "11:50:00"
    assert [each.path for each in plan.choice.decisions if "days" in each.path] == [
        "schedule.other_days.0.windows",
        "schedule.other_days.1.windows",
    ]


def too_few_nodes(folder, spec):
    """Return the reason for which `spec` asks for more nodes."""
    (folder / "spec.yaml").write_text(spec)
    with pytest.raises(InfeasibleError) as caught:
        run_passes(check_spec(folder / "spec.yaml"))
    (problem,) = caught.value.findings
    assert problem.rule.startswith("S701")
    return problem.reason


@pytest.mark.parametrize("saturday", [0.4, 2.0])
def test_too_few_nodes_are_explained_by_the_traffic(saturday, tmp_path):
    """Each unit that is on at some time of the week has its own nodes, and no number of units is written."""
    traffic = {
        "input_tokens": 1e12,
        "output_tokens": 1e11,
        "profile": [0.4] * 8 + [1.0] * 16,
        "other_days": [{"days": ["saturday", "sunday"], "profile": [saturday] * 24}],
    }
    spec = PAIR.replace("units: 2", "units: auto")
    reason = too_few_nodes(tmp_path, f"{spec}traffic: {json.dumps(traffic)}\nschedule: auto\n")

    assert "traffic's busiest hour" in reason
