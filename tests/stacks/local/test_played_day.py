"""A day that is played on this machine: when units come and go, without processes, and without waiting."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.compiler import plan_from
from planner.facts.day import hh_mm
from planner.problems.errors import CallError, InfeasibleError
from planner.schedule.schedule import Step, Timetable
from stacks.local import supervisor, watched_group
from stacks.local.layout import GatewayProcess, Layout, NodeProcess
from stacks.local.played_day import DayRecord, DueAct, advance, machine_times, plan_play, read_length
from stacks.local.record import GatewayRecord, Record, UnitRecord
from stacks.local.reports import GatewayReport, RankReport
from stacks.local.run_folder import RunFolder
from tests.stacks.deployments import DEMO_SPEC

DAY_SPEC = DEMO_SPEC.with_name("demo-day.yaml")
RANKS = {f"u{index}": 1 for index in range(4)}
MINUTES_5 = 300.0
POLL_S = 0.5
COMES_UP_S, DRAINS_S = 4.0, 2.0


def timetable(windows, warm_up_s=600.0, drain_s=300.0, zone="UTC"):
    """A day of one phase, from the number of units at each time."""
    steps = tuple(
        Step(at, 0, {"mixed": number}, tuple(f"u{index}" for index in range(number)), number, None)
        for at, number in windows.items()
    )
    return Timetable(zone, steps, warm_up_s, drain_s)


DAY_AND_NIGHT = timetable({"08:00": 2, "20:00": 1})


def play(day, length_s=MINUTES_5, num_cores=2):
    return plan_play(day, length_s, RANKS, num_cores)


def due(day):
    return [(act.kind, act.unit, act.due_s) for act in day.acts]


def test_five_minutes_have_the_times_of_the_day_and_room_for_this_machine():
    """Eight o'clock is a third of it. A start needs 30 s here, and a drain as many: the plan's are 2 s and 1 s."""
    day = play(DAY_AND_NIGHT)

    assert day.first_units == ("u0",)
    assert due(day) == [("start", "u1", 70.0), ("serve", "u1", 100.0), ("drain", "u1", 250.0), ("stop", "u1", 280.0)]


def test_a_long_day_keeps_the_plans_own_times():
    """In 12 hours ten minutes are five, which is more than this machine needs."""
    assert due(play(DAY_AND_NIGHT, 12 * 3600.0))[0] == ("start", "u1", 4 * 3600 - 300)


def test_the_clock_is_the_plans_wherever_it_stands():
    """A played day has no date, so it has no change of clocks either."""
    assert due(play(replace(DAY_AND_NIGHT, timezone="Europe/Berlin"))) == due(play(DAY_AND_NIGHT))
    assert [play(DAY_AND_NIGHT).clock(seconds) for seconds in (0, 100, 299.9)] == ["00:00", "08:00", "23:59"]


def test_the_day_that_ships_can_be_played_in_five_minutes():
    """On two cores: both phases come and go together, in the morning and in the evening."""
    plan = plan_from(DAY_SPEC, None)
    ranks = {unit.name: unit.ranks for unit in plan.units}
    day = plan_play(plan.timetable, MINUTES_5, ranks, num_cores=2)
    last = [act.unit for act in day.acts if act.unit == "demo-day-decode-1"]

    assert day.first_units == ("demo-day-prefill-0", "demo-day-decode-0")
    assert len(last) == len(day.acts) / 2 == 8


def test_a_unit_that_would_start_before_the_day_starts_with_the_first():
    """It serves when it is asked for all the same."""
    day = play(timetable({"00:30": 2, "20:00": 1}))

    assert day.first_units == ("u0", "u1")
    assert (day.wanted(0), day.wanted(10)) == (("u0",), ("u0", "u1"))
    assert due(day)[0] == ("serve", "u1", 6.25)


def test_a_day_too_short_for_this_machine_names_the_shortest():
    """Two hours at noon are 25 s of five minutes, and a drain and a start need 60 s: twelve minutes would do."""
    siesta = timetable({"00:00": 2, "12:00": 1, "14:00": 2})

    with pytest.raises(InfeasibleError, match="R117"):
        play(siesta, 719)
    with pytest.raises(InfeasibleError) as error:
        play(siesta)

    assert error.value.exit_status == 3
    assert str(error.value.findings[0].fix) == "nearest: --day 720s"
    assert [kind for kind, *_ in due(play(siesta, 720))] == ["drain", "stop", "start", "serve"]


@given(
    off=st.integers(20, 600),
    warm_up_s=st.integers(1, 600),
    drain_s=st.integers(1, 600),
    num_cores=st.sampled_from([1, 2, 16]),
)
def test_the_shortest_day_can_be_played_and_none_shorter(off, warm_up_s, drain_s, num_cores):
    """Whatever the plan's own times are; the shortest is rounded up to whole seconds."""
    day = timetable({"00:00": 2, "08:00": 1, hh_mm(480 + off): 2}, warm_up_s, drain_s)
    with pytest.raises(InfeasibleError) as error:
        play(day, 1, num_cores)
    shortest = int(str(error.value.findings[0].fix).removeprefix("nearest: --day ").removesuffix("s"))
    of_u1 = [act.due_s for act in play(day, shortest, num_cores).acts if act.unit == "u1"]

    assert of_u1 == sorted(of_u1)
    if shortest > 2:
        with pytest.raises(InfeasibleError):
            play(day, shortest - 1.01, num_cores)


def test_more_ranks_on_fewer_cores_get_more_time():
    """They all load at once."""
    assert machine_times(1, 8).start_s > machine_times(2, 8).start_s > machine_times(2, 1).start_s


@pytest.mark.parametrize("written", ["5", "0s", "25h", "soon", "-5min"])
def test_what_is_no_length_of_a_day_is_refused(written):
    """R118: with an example."""
    with pytest.raises(CallError, match="R118"):
        read_length(written)


def test_a_plan_whose_units_are_always_on_has_no_day():
    """R116: without a schedule, and with one that switches nothing."""
    for day in (None, timetable({"00:00": 2, "12:00": 2})):
        with pytest.raises(CallError, match="R116"):
            play(day)


ACTS = tuple(
    DueAct("u1", kind, at, due_s)
    for kind, at, due_s in (
        ("start", "06:00:00", 10.0),
        ("serve", "08:00:00", 20.0),
        ("drain", "20:00:00", 50.0),
        ("stop", "21:00:00", 60.0),
    )
)


def test_a_unit_that_is_not_ready_in_time_is_late():
    """It is ready 3 s after it was asked for, and gone in time."""
    day = DayRecord(60.0, ("u0",), ACTS)
    for seconds, state in ((10.0, "off"), (15.0, "loading"), (23.0, "ready"), (50.0, "ready"), (55.0, "off")):
        day, *_ = advance(day, seconds, {"u0": "ready", "u1": state}, {})

    assert [act.done_s for act in day.acts] == [10.0, 23.0, 50.0, 55.0]
    assert [act.is_late for act in day.acts] == [False, True, False, False]
    assert not day.is_over
    assert advance(day, 60.0, {"u0": "ready", "u1": "off"}, {})[0].is_over


def test_a_unit_that_never_gets_ready_is_drained_when_its_time_is_over():
    """The day counts it among what did not go well."""
    day, starts, _ = advance(DayRecord(60.0, ("u0",), ACTS), 10.0, {"u1": "off"}, {})
    day, _, drains = advance(day, 50.0, {"u1": "loading"}, {})
    day, *_ = advance(day, 61.0, {"u1": "off"}, {"u1": "the node was told by SIGTERM to end at once"})

    assert (starts, drains) == (("u1",), ("u1",))
    assert [act.is_missed for act in day.acts] == [False, True, False, False]
    assert day.num_late == 2  # never served, and did not end well
    assert day.is_over


def test_a_unit_starts_again_only_when_it_has_ended():
    """However long its last answers take."""
    again = (replace(ACTS[3], done_s=None), replace(ACTS[0], due_s=62.0), replace(ACTS[1], due_s=70.0))
    day = DayRecord(80.0, ("u0", "u1"), again)
    day, starts, _ = advance(day, 65.0, {"u1": "draining"}, {})
    day, later, _ = advance(day, 66.0, {"u1": "off"}, {})

    assert (starts, later) == ((), ("u1",))
    assert day.acts[0].is_late


class FakeGroup:
    """Processes that come up `COMES_UP_S` after their start, and end `DRAINS_S` after they are told to."""

    def __init__(self, name, members, folder):
        self.name, self.pids, self.log = name, [1], []
        self.started_at = self.told_at = None

    def start(self):
        self.log.append(("start", CLOCK.now))
        self.started_at, self.told_at = CLOCK.now, None

    def terminate(self):
        if self.is_running():
            self.log.append(("terminate", CLOCK.now))
            self.told_at = CLOCK.now

    def kill(self):
        self.started_at = None

    def is_running(self):
        has_drained = self.told_at is not None and CLOCK.now >= self.told_at + DRAINS_S
        return self.started_at is not None and not has_drained

    def find_first_failure(self):
        return None if self.is_running() else (0, "has drained")

    def is_stopped(self):
        return False

    def state(self):
        """As the gateway would tell it."""
        if not self.is_running():
            return "lost"
        if self.told_at is not None:
            return "draining"
        return "ready" if CLOCK.now >= self.started_at + COMES_UP_S else "loading"


CLOCK = SimpleNamespace(now=0.0)


@pytest.fixture
def played(monkeypatch, tmp_path):
    """Play a day by a clock that jumps; give its supervisor, and each unit's state at every look."""
    CLOCK.now = 1000.0

    def sleep(_):
        CLOCK.now += POLL_S

    clock = SimpleNamespace(monotonic=lambda: CLOCK.now, sleep=sleep)
    monkeypatch.setattr(supervisor, "time", clock)
    monkeypatch.setattr(watched_group, "time", clock)
    monkeypatch.setattr(supervisor, "ProcessGroup", FakeGroup)
    monkeypatch.setattr(supervisor.signal, "signal", lambda *_: None)

    def run(day, names):
        seen = []
        gateway = GatewayProcess(NodeProcess("gateway", None, ()), "127.0.0.1", 8000)
        units = tuple(UnitRecord(name, "mixed", "starting" if name in day.first_units else "off", 1) for name in names)
        layout = Layout((gateway,), (), (), drain_s=30.0)
        gateways = (GatewayRecord(gateway.name, gateway.endpoint),)
        plays = supervisor._Supervisor(RunFolder(tmp_path), layout, Record("demo", "", gateways, "", units, day=day))
        groups = {name: plays._units[name].group for name in names}

        def ask(*_):
            assert CLOCK.now < 3000, "it does not end"
            seen.append((CLOCK.now, {unit.name: unit.state for unit in plays._record.units}))
            known = {name: group for name, group in groups.items() if group.log}
            ranks = {name: {0: RankReport(group.state(), 1.0, 999_999_999)} for name, group in known.items()}
            return GatewayReport(any(rank[0].state == "ready" for rank in ranks.values()), ranks)

        monkeypatch.setattr(supervisor, "ask_gateway", ask)
        plays.run()
        return plays._record, groups, seen

    return run


def test_the_supervisor_starts_and_drains_units_when_they_are_due(played):
    """It ends nothing that has not drained, calls nothing failed that goes as planned, and ends when the day does."""
    day = play(timetable({"08:00": 3, "14:00": 1, "20:00": 2, "23:00": 1}), 300)
    record, groups, seen = played(day, ["u0", "u1", "u2"])
    states = {name: list(dict.fromkeys(at_look[name] for _, at_look in seen)) for name in groups}
    began = record.day.began
    logs = {name: [(what, round(at - began)) for what, at in group.log] for name, group in groups.items()}

    assert record.day.is_over
    assert record.day.num_late == 0
    assert [act.done_s is not None for act in record.day.acts] == [True] * len(day.acts)
    assert states["u0"] == ["starting", "loading", "ready"]
    assert states["u1"] == states["u2"] == ["off", "starting", "loading", "ready", "draining"]
    assert logs["u1"] == [("start", 55), ("terminate", 175), ("start", 205), ("terminate", 288)]
    assert logs["u2"] == [("start", 55), ("terminate", 175)]


def test_a_unit_that_does_not_end_is_ended_and_told_of(played, monkeypatch):
    """A day after which a unit has to be killed did not go well."""
    monkeypatch.setattr("tests.stacks.local.test_played_day.DRAINS_S", 1e6)
    record, *_ = played(play(timetable({"00:00": 2, "12:00": 1}), 120), ["u0", "u1"])

    (stop,) = [act for act in record.day.acts if act.kind == "stop" and act.clock < "20"]
    assert stop.is_late
    assert stop.reason == "u1 did not end by itself"
