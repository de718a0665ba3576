"""What a start of units takes: its formulas beside a slow reference, and days that storage cannot feed."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.compiler import run_passes
from planner.plan.fit import check_fit
from planner.problems.errors import InfeasibleError
from planner.rules.check import change_spec, check_spec
from planner.schedule.starts import Start, StartTimes, UnitRead, Window, least_warm_up, loading_times, starts_of
from planner.spec.schedule import StartSpec

DAY_S = 86_400
starts_of_a_day = st.lists(
    st.builds(
        Start,
        minute=st.integers(0, 1439),
        units=st.just({"prefill": 1}),
        num_bytes=st.integers(1, 10_000).map(float),
        bytes_per_s=st.just(10.0),
        node_s=st.sampled_from([0.0, 5.0, 500.0]),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda each: each.minute,
).map(lambda starts: sorted(starts, key=lambda each: each.minute))


def loaded_second_by_second(starts):
    """The time that each start takes to load when the storage reads for the one that has waited longest."""
    coming = sorted((each.minute * 60 + day * DAY_S, day, index) for day in (0, 1) for index, each in enumerate(starts))
    left, waiting, ready, second = {}, [], {}, 0
    while coming or waiting:
        if not waiting:
            second = coming[0][0]
        while coming and coming[0][0] == second:
            _, day, index = coming.pop(0)
            waiting.append((day, index))
            left[day, index] = starts[index].num_bytes
        budget = 10.0
        while waiting and budget > 0:
            read = min(left[waiting[0]], budget)
            left[waiting[0]] -= read
            budget -= read
            if left[waiting[0]] == 0:
                ready[waiting[0]] = second + 1
                waiting.pop(0)
        second += 1
    return [max(ready[1, i] - DAY_S - each.minute * 60, each.node_s) for i, each in enumerate(starts)]


@settings(max_examples=6, deadline=None)
@given(starts_of_a_day)
def test_storage_feeds_starts_in_their_order(starts):
    """The formula agrees with a storage that is played second by second, over midnight too."""
    assert loading_times(starts) == pytest.approx(loaded_second_by_second(starts), abs=1.0)


@given(starts_of_a_day, st.integers(0, 5))
def test_a_larger_start_never_makes_any_ready_sooner(starts, index):
    """More bytes of one start delay it and those behind it, and help none."""
    index %= len(starts)
    larger = [replace(each, num_bytes=each.num_bytes * (1 + (i == index))) for i, each in enumerate(starts)]

    assert all(after >= before for before, after in zip(loading_times(starts), loading_times(larger), strict=True))


def times_of(load_rate=10e9, **spec):
    """Units of four nodes of 100 GB each, and of eighteen of 50 GB."""
    units = {"prefill": UnitRead(4, 100e9), "decode": UnitRead(18, 50e9)}
    return StartTimes(StartSpec(**spec), load_rate, units)


WINDOWS = (Window(0, {"prefill": 1, "decode": 1}), Window(480, {"prefill": 6, "decode": 3}))


def test_all_units_of_a_window_share_the_storage():
    """Five prefill units of 400 GB and two decode units of 900 GB are 3,800 GB: 38 s at 100 GB/s."""
    times = times_of(storage="100GB/s")
    (start,) = starts_of(WINDOWS, times)

    assert (start.minute, start.units, start.num_bytes) == (480, {"prefill": 5, "decode": 2}, 3_800e9)
    assert loading_times([start]) == (38.0,)
    assert least_warm_up([start], times) == 38 + 30 + 30 + 5 + 60 + 10


def test_a_node_reads_no_faster_than_its_link():
    """However fast the storage is, 100 GB at 1 GB/s take 100 s."""
    (start,) = starts_of(WINDOWS, times_of(1e9, storage="1TB/s"))

    assert loading_times([start]) == (100.0,)


SPEC = """
version: 1
name: tide
model: deepseek-r1
cluster: {gpu: h800, nodes: 44, gpus_per_node: 8, rack_size: 4}
prefill: {ep_size: 32, redundant_experts: 32, precision: fp8}
decode: {ep_size: 144, redundant_experts: 32, precision: fp8}
kubernetes: {load_rate: 10GB/s}
schedule:
  warm_up: WARM_UP
  start: {storage: STORAGE}
  windows: [{at: "00:00", prefill_units: 1, decode_units: 1}, {at: "08:30", prefill_units: 2, decode_units: 2}]
"""


def spec_of(tmp_path, warm_up, storage):
    (tmp_path / "spec.yaml").write_text(SPEC.replace("WARM_UP", warm_up).replace("STORAGE", storage))
    return check_spec(tmp_path / "spec.yaml")


def least_for(spec):
    """The warm-up that a spec with too short a one is told, and why."""
    with pytest.raises(InfeasibleError) as caught:
        check_fit(spec)
    (problem,) = caught.value.findings
    (change,) = problem.changes
    return change["schedule.warm_up"], problem


def test_with_the_least_warm_up_the_stages_of_a_start_end_at_its_window(tmp_path):
    """They are all there, and their sum is at most a second less."""
    least, _ = least_for(spec_of(tmp_path, "1s", "10GB/s"))
    plan = run_passes(spec_of(tmp_path, least, "10GB/s"))
    (_, up) = plan.schedule.transitions

    assert [stage.name for stage in up.stages] == ["pods", "weights", "join", "maps", "graphs", "ready"]
    assert float(least[:-1]) - 1 < sum(stage.seconds for stage in up.stages) <= float(least[:-1])
    assert up.starts == ("tide-prefill-1", "tide-decode-1")
    assert [step.free_racks for step in plan.schedule.steps] == [5, 0]


def test_a_start_too_large_for_the_storage_is_refused(tmp_path):
    """S763 offers the shortest warm-up that is enough. Storage is as fast as it is."""
    with pytest.raises(InfeasibleError) as caught:
        check_fit(spec_of(tmp_path, "3min", "10GB/s"))
    (problem,) = caught.value.findings

    assert problem.rule.startswith("S763")
    (change,) = problem.changes
    check_fit(change_spec(spec_of(tmp_path, "3min", "10GB/s"), change))
    ((path, value),) = change.items()
    with pytest.raises(InfeasibleError):
        check_fit(change_spec(spec_of(tmp_path, "3min", "10GB/s"), {path: f"{int(value.rstrip('s')) - 1}s"}))


def test_a_day_without_starts_needs_no_warm_up(tmp_path):
    """Units that are always on were started long ago: any warm-up is enough for them."""
    text = SPEC[: SPEC.index("  windows:")].replace("WARM_UP", "1s").replace("STORAGE", "10GB/s")
    (tmp_path / "spec.yaml").write_text(text + '  windows: [{at: "00:00", prefill_units: 1, decode_units: 1}]\n')

    assert not check_fit(check_spec(tmp_path / "spec.yaml")).left_to_plan


def test_the_morning_after_a_day_of_fewer_units_is_a_start_too(tmp_path):
    """All days have two units of each phase, Sundays one: Monday's midnight is the storm that needs the warm-up."""
    text = SPEC.replace("WARM_UP", "1s").replace("STORAGE", "10GB/s")
    text = (
        text[: text.index("  windows:")]
        + """\
  windows: [{at: "00:00", prefill_units: 2, decode_units: 2}]
  other_days: [{days: [sunday], windows: [{at: "00:00", prefill_units: 1, decode_units: 1}]}]
"""
    )
    (tmp_path / "spec.yaml").write_text(text)
    least, problem = least_for(check_spec(tmp_path / "spec.yaml"))

    assert least == least_for(spec_of(tmp_path, "1s", "10GB/s"))[0]
    assert "as long as the start at 00:00 takes" in problem.rule
    assert problem.reason.startswith("loading the weights of 1 prefill unit and 1 decode unit")
