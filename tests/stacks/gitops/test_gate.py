"""The conditions that refuse a change, and what each says."""

import pytest

from planner.compiler import compile_plan, run_passes
from planner.diff.change import Sides, SpecField, Yardsticks
from planner.diff.diff import compare_plans
from planner.diff.yardsticks import measure_by_former
from planner.plan.expected import Miss, Promise
from planner.plan.row import Row
from planner.problems.errors import CallError
from planner.rules.check import change_spec, check_spec
from stacks.gitops.gate import Evidence, find_objections, gather_evidence, read_conditions
from tests.planner.diff.pairs import SMALL, base
from tests.planner.test_shipped_specs import SPECS
from tests.stacks.deployments import DEMO_SPEC

ALL = "outage,degraded,slo,capacity,cost+10%,stale"


OTHER = f"sha256:{'0' * 64}"


@pytest.fixture(scope="module")
def change():
    """A change of nothing, which costs nothing that is known."""
    plan = compile_plan(check_spec(DEMO_SPEC))
    return compare_plans(plan, plan)


def _with_cost(change, before, after):
    sides = {
        side: {} if usd is None else {"usd_per_day": Row("cost", "usd_per_day", usd, "USD")}
        for side, usd in (("before", before), ("after", after))
    }
    return change.model_copy(update={"cost": change.cost.model_copy(update=sides)})


def _with_verdict(change, verdict):
    ways = {tool: way.model_copy(update={"verdict": verdict}) for tool, way in change.ways.items()}
    return change.model_copy(update={"verdict": verdict, "ways": ways})


def _promise(predicted):
    met = predicted <= 50
    return Promise(promised=50, predicted=predicted, met=met, met_at_slowest=False, met_at_fastest=True)


def _objections(words, change, promises=None, stale=()):
    return find_objections(read_conditions(words), Evidence(change, promises or {}, stale))


def _held(words, change, promises=None, stale=()):
    return [each.condition for each in _objections(words, change, promises, stale)]


@pytest.mark.parametrize(
    ("verdict", "held"),
    [("no_restart", []), ("rolling", []), ("degraded", ["degraded"]), ("outage", ["outage", "degraded"])],
)
def test_an_outage_is_also_degraded(verdict, held, change):
    """A gate for the lesser harm stops the greater one."""
    assert _held("outage,degraded", _with_verdict(change, verdict)) == held


ONE_WINDOW = {
    "schedule": {"windows": [{"at": "00:00", "prefill_units": 2, "decode_units": 2}]},
    "kubernetes.controller": {},
    "prefill.units": None,
    "decode.units": None,
}


@pytest.mark.parametrize(
    ("fields", "offers_turns"),
    [
        ({}, "; with kubernetes.controller units change in turns by Git too"),
        ({"decode.units": 1}, ""),  # its only unit serves nobody in its turn
        ({"kubernetes.unit_kind": "statefulset"}, ""),
        (ONE_WINDOW, None),
    ],
)
def test_an_outage_that_turns_prevent_names_the_controller(fields, offers_turns):
    """Only where it certainly does; with a controller there is no outage."""
    pairs = {"cluster.nodes": 6, "prefill.units": 2, "decode.units": 2} | fields
    spec = change_spec(check_spec(DEMO_SPEC), pairs)
    limits = {f"{phase}.max_request_tokens": 1024 for phase in ("prefill", "decode")}
    before, after = (compile_plan(each) for each in (spec, change_spec(spec, limits)))
    evidence = gather_evidence(after, compare_plans(before, after), (), (), "", {})
    reasons = [each.reason for each in find_objections(read_conditions("outage"), evidence)]

    assert [each[each.find("; with kube") :] if "kubernetes.controller" in each else "" for each in reasons] == (
        [] if offers_turns is None else [offers_turns]
    )


def test_removing_the_controller_says_what_keeping_it_prevents():
    """All units restart at once by Git, since nothing is left that changes them in turns."""
    pairs = {"cluster.nodes": 6, "prefill.units": 2, "decode.units": 2}
    spec = change_spec(check_spec(DEMO_SPEC), pairs | ONE_WINDOW)
    before, after = (compile_plan(each) for each in (spec, change_spec(spec, {"kubernetes.controller": None})))
    evidence = gather_evidence(after, compare_plans(before, after), (), (), "", {})
    (found,) = find_objections(read_conditions("outage"), evidence)

    assert found.reason.endswith("; keep kubernetes.controller: with it units change in turns by Git too")


@pytest.mark.parametrize(
    ("before", "after", "held"),
    [
        (1000, 1100, []),
        (1000, 1100.5, ["cost+10%"]),
        (1000, 900, []),
        (0, 0, []),
        (0, 1, ["cost+10%"]),
        (None, 1000, ["cost+10%"]),
        (1000, None, ["cost+10%"]),
        (None, None, ["cost+10%"]),
    ],
)
def test_a_day_may_cost_so_much_more(before, after, held, change):
    """Exactly so much more is allowed, and a cost that nobody knows is not."""
    assert _held("cost+10%", _with_cost(change, before, after).model_copy(update={"new": OTHER})) == held


def test_the_same_plan_costs_no_more_at_its_first_price(change):
    """So prices can be merged into a repository without any, in a change of nothing else."""
    priced = _with_cost(change, None, 1000)
    reason, *_ = (each.reason for each in _objections("cost+10%", priced.model_copy(update={"new": OTHER})))

    assert _held("cost+10%", priced) == []
    assert reason == (
        "what a day costs before the change is unknown: merge cost.usd_per_gpu_hour first, in a change of nothing else"
    )


def _with_demand(change, answered, loads):
    """Set what is answered, and the only phase's peak load, before and after; None where nobody knows."""

    def rows(name, values):
        return [{} if each is None else {name: Row("", name, each, "share")} for each in values]

    cost, performance = (
        Sides(**dict(zip(("before", "after"), each, strict=True)))
        for each in (rows("answered_share", answered), rows("highest_load_of_most", loads))
    )
    return change.model_copy(update={"cost": cost, "performance": {"decode": performance}})


@pytest.mark.parametrize(
    ("answered", "loads", "held"),
    [
        ((0.99, 0.582), (1.2, 1.2), True),
        ((1, 1), (0.8, 0.99), False),
        ((1, 1), (0.8, 1.01), True),
        ((0.9, 0.9), (1.3, 1.3), False),
        ((0.9, 0.95), (1.3, 1.2), False),
        ((None, 0.5), (None, 1.3), True),
        ((None, 1), (None, 0.9), False),
        ((0.9, None), (0.9, 0.9), False),
        ((None, None), (0.9, 1.3), True),
    ],
)
def test_capacity_may_not_fall_below_the_demand(answered, loads, held, change):
    """A change is not to blame for a shortage that it leaves as it was, nor for one that it lessens."""
    assert _held("capacity", _with_demand(change, answered, loads)) == (["capacity"] if held else [])


def test_a_condition_that_cannot_be_judged_says_what_is_missing(change):
    """Each reason has a next step."""
    unknown = {"decode": change.performance["decode"].model_copy(update={"after": {"x": Row("", "x", 1)}})}
    bare = _with_cost(change, None, None).model_copy(update={"performance": unknown})
    evidence = Evidence(bare, {"tpot_ms": None}, (), not_predicted="decode: no figures")
    reasons = {each.condition: each.reason for each in find_objections(read_conditions(ALL), evidence)}

    assert reasons == {
        "slo": "slo.tpot_ms cannot be predicted (decode: no figures): take it out of the spec, or slo out of --fail-on",
        "capacity": "decode's load is unknown: write what the day asks for in traffic",
        "cost+10%": "what a day costs after the change is unknown: write cost.usd_per_gpu_hour",
    }


def test_a_smaller_unit_is_refused_for_the_traffic_it_cannot_answer():
    """With half the GPUs in each decode unit, a day costs less and no promise is missed."""
    spec = check_spec(SPECS / "deepseek-h800.yaml")
    before = compile_plan(spec)
    change = compare_plans(before, compile_plan(change_spec(spec, {"decode.ep_size": 72}), before))
    (found,) = _objections("slo,capacity,cost+10%,stale", change)

    assert found.condition == "capacity"
    assert found.reason.startswith(
        "58.3% of the day's traffic is answered instead of 99.0%; "
        "decode's peak load is 215.9% of its capacity instead of 120.8%"
    )


@pytest.mark.parametrize(
    ("promises", "held"),
    [
        ({}, []),
        ({"tpot_ms": _promise(50)}, []),
        ({"tpot_ms": _promise(50.1)}, ["slo"]),
        ({"tpot_ms": _promise(40), "ttft_ms": None}, ["slo"]),
    ],
)
def test_a_promise_is_kept_at_the_expected_speed(promises, held, change):
    """One that cannot be predicted is not known to be kept."""
    assert _held("slo", change, promises) == held


def test_reasons_have_the_figures(change):
    """A reviewer reads what is wrong without opening the plan."""
    dear = _with_cost(_with_verdict(change, "outage"), 1000.0, 1250.0)
    stale = ("a.yaml", "b.yaml", "c.yaml", "d.yaml", "e.yaml")
    evidence = Evidence(dear, {"tpot_ms": _promise(61.26)}, stale)
    found = {each.condition: each.reason for each in find_objections(read_conditions(ALL), evidence)}

    assert found["outage"].startswith("outage: ")
    assert found["slo"] == "slo.tpot_ms of 50 is missed: 61.26 ms are expected"
    assert found["cost+10%"] == "a day costs $1,250 instead of $1,000, 25.0% more"
    assert found["stale"].startswith("tidemill render would change 5 files: a.yaml, b.yaml, c.yaml, and 2 others; ")


def test_where_nothing_runs_only_the_new_plan_can_be_wrong():
    """The first plan of a service ends no pod and costs no more than before."""
    assert _held(ALL, None, {"tpot_ms": _promise(60)}, ("a.yaml",)) == ["slo", "stale"]


@pytest.mark.parametrize("words", ["", "outages", "outage, slo", "outage,", "cost", "cost+%", "cost+-5%", "cost+10"])
def test_a_word_that_is_no_condition_is_refused(words):
    """A misspelt gate would be open."""
    with pytest.raises(CallError, match="R601"):
        read_conditions(words)


def test_promises_are_those_of_the_spec():
    """Each latency that the spec promises is found in the phase that it is a matter of; others are left out."""
    spec = check_spec(SPECS / "h800-one-pair.yaml")
    plan = compile_plan(change_spec(spec, {"slo.tpot_ms": 50}))
    promises = plan.promises

    assert promises.keys() == {name for name, value in plan.spec.slo.model_dump().items() if value is not None}
    assert promises["tpot_ms"].promised == 50


def test_a_person_judges_what_figures_do_not(change):
    """It refuses what figures need not show, and errors that callers get; no other condition is about these."""
    fields = {
        "unjudged": (SpecField(path="kubernetes.image", values=None),),
        "clients": (SpecField(path="gateway.port", values=None),),
    }
    (found,) = _objections("outage,stale,unjudged", change.model_copy(update=fields))

    assert (found.condition, found.reason) == (
        "unjudged",
        "figures need not show all that these do: kubernetes.image; callers have to change too: gateway.port;"
        " a person has to judge that",
    )
    assert _held("unjudged", change) == _held("unjudged", None) == []


DAY, NIGHT = SMALL["schedule.windows"]
BUSY = {"traffic.input_tokens": 90e9, "traffic.output_tokens": 12e9}
BY_FORMER = "by the base's yardsticks"


def _judged(words, first, fields):
    """What refuses the change from the small day with `first` in its spec to the one with `fields` in it too."""
    spec = change_spec(base(40)[0], first)
    before = run_passes(spec).plan
    found = run_passes(change_spec(spec, fields), before)
    remeasured = measure_by_former(before, found)
    evidence = gather_evidence(found.plan, compare_plans(before, found.plan, remeasured=remeasured), (), (), "", {})
    return {each.condition: each.reason for each in find_objections(read_conditions(words), evidence)}


@pytest.mark.parametrize(
    ("condition", "first", "fields", "yardstick"),
    [
        ("slo", {"slo.tpot_ms": 52.5}, {"decode.redundant_experts": 104}, {"slo.tpot_ms": 99}),
        ("slo", {"slo.tpot_ms": 52.5}, {"decode.redundant_experts": 104}, {"slo": None}),
        ("slo", {"slo.tpot_ms": 52.5}, {"decode.redundant_experts": 104}, {"operating_point.decode.requests": 8}),
        ("cost+10%", {}, {"schedule.windows": [DAY | {"at": "00:00"}]}, {"cost.usd_per_gpu_hour": 1}),
        ("capacity", BUSY, {"schedule.windows": [NIGHT]}, dict.fromkeys(BUSY, 1e9)),
    ],
)
def test_a_change_cannot_weaken_the_yardstick_that_it_is_judged_by(condition, first, fields, yardstick):
    """It is judged by the base's too. A yardstick that moves alone passes: what is deployed is no worse for it."""
    plain, moved = _judged(condition, first, fields), _judged(condition, first, fields | yardstick)

    assert plain.keys() == moved.keys() == {condition}
    assert (BY_FORMER in plain[condition], BY_FORMER in moved[condition]) == (False, True)
    assert _judged(condition, first, yardstick) == {}


def test_capacity_counts_days_that_are_not_like_most():
    """Answers and loads of the report are those of ordinary days."""
    saturdays = {"schedule.other_days": [{"days": ["saturday"], "windows": [NIGHT]}]}
    reasons = _judged("capacity", BUSY, saturdays)

    assert reasons["capacity"].startswith("too few prefill units are on at 09:00-00:00 on saturday; up to ")


def test_capacity_counts_requests_that_are_too_long_now():
    """The mean request of the traffic may be as it was, and half of all requests are longer."""
    shorter = {f"{phase}.max_request_tokens": 8192 for phase in ("prefill", "decode")}

    assert _judged("capacity", BUSY, shorter) == {
        "capacity": "max_request_tokens falls from 32,768 to 8,192, so longer requests are refused"
    }
    assert _judged("capacity", BUSY | shorter, dict.fromkeys(shorter, 16_384)) == {}


SATURDAYS = {"schedule.other_days": [{"days": ["saturday"], "windows": [DAY | {"at": "00:00", "prefill_units": 6}]}]}
LESS = "kubernetes.controller.demand may start less: GPUs of prefill 192 -> 128, nodes 42 -> 34"


@pytest.mark.parametrize(("demand", "reasons"), [({}, {"capacity": LESS}), (None, {})])
def test_capacity_counts_what_demand_may_start(demand, reasons):
    """Saturday's larger windows are why the plan has two units more, which are there on all days."""
    first = SATURDAYS | {"kubernetes.controller": {"demand": demand}, "cluster.nodes": 48}

    assert _judged("capacity", first, {"schedule.other_days": []}) == reasons


def test_capacity_counts_what_is_on_less_if_traffic_is_new():
    """However little the new traffic asks for, nobody knows what the service answered before."""
    few = {"traffic": {"input_tokens": 1e9, "output_tokens": 2e8, "requests": 3e5}}
    none = {"traffic": None, "cost.prices": None, "operating_point": None}
    less = _judged("capacity", none, few | {"schedule.windows": [NIGHT]})

    assert "less is enough at an hour: GPUs of prefill 128 -> 64" in less["capacity"]
    assert _judged("capacity", none, few) == {}


HALF_CLOCK = {
    "slo.tpot_ms": 45.0,
    "operating_point.decode": {"requests": 64, "kv_tokens": 3400},
    "traffic.output_tokens": 8e9,
    "traffic.profile": [1] * 12 + [2] * 4 + [1] * 8,
    "schedule.timezone": "UTC",
    "schedule.windows": [DAY | {"at": "12:00"}, DAY | {"at": "16:00", "decode_units": 1}],
}


@pytest.mark.parametrize(
    ("fields", "times"),
    [
        ({"schedule.timezone": "Africa/Lagos"}, "16:00-17:00"),
        ({"schedule.timezone": "Africa/Lagos", "traffic.profile": [1] * 24}, "16:00-17:00"),
        ({"schedule.timezone": "Asia/Kathmandu"}, "17:45-21:45"),
        ({"schedule.timezone": "Atlantic/Reykjavik"}, None),
    ],
)
def test_a_clock_moves_no_callers_to_other_hours(fields, times):
    """Windows and profile move with the zone, and callers come when they came: a promise breaks between the two."""
    reasons = _judged("slo", HALF_CLOCK, fields)

    assert (reasons == {}) == (times is None)
    assert times is None or f"is missed at {times} {BY_FORMER}" in reasons["slo"]


WEEK = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]


@pytest.mark.parametrize(("price", "measured"), [({}, ""), ({"cost.usd_per_gpu_hour": 1}, f" {BY_FORMER}")])
def test_a_dearer_day_is_refused_whatever_days_it_is_on(price, measured):
    """The report bills ordinary days, and here no day is ordinary any more."""
    full = {"schedule.other_days": [{"days": WEEK, "windows": [DAY | {"at": "00:00"}]}]}

    assert _judged("cost+10%", {}, full | price) == {
        "cost+10%": f"monday to sunday: a day costs $13,056 instead of $10,948, 19.3% more{measured}"
    }
    assert _judged("cost+20%", {}, full | price) == {}


def test_a_promise_that_is_kept_does_not_hide_that_nobody_knows_the_former_ones(change):
    """Former yardsticks that cannot be applied leave no promise to look up."""
    moved = (SpecField(path="slo.tpot_ms", values=None),)
    none = Sides(before={}, after={})
    unknown = Yardsticks(moved=moved, counts=True, performance={}, cost=none, promises={}, unknown="it is finished")
    other = change.model_copy(update={"old": OTHER, "yardsticks": unknown})
    (found,) = _objections("slo", other, {"tpot_ms": _promise(40)})

    assert found.reason.startswith("nobody knows what the former slo.tpot_ms would say (it is finished)")


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ([], [("09:00", 60, 60.0)], "slo.tpot_ms of 50 is missed at 09:00-10:00: 60 ms are expected"),
        ([("09:00", 60, 60.0)], [("09:00", 60, 60.0)], None),
        (
            [("09:00", 60, 60.0)],
            [("08:30", 90, 60.0)],
            "slo.tpot_ms of 50 is missed at 08:30-09:00: 60 ms are expected",
        ),
        (
            [("09:00", 60, 60.0)],
            [("09:00", 60, 61.0)],
            "slo.tpot_ms of 50 is missed more than before at 09:00-10:00: 61 ms are expected",
        ),
        (
            [("09:00", 60, 60.0)],
            [("09:00", 60, None)],
            "slo.tpot_ms of 50 is missed more than before at 09:00-10:00: units cannot serve all of the traffic",
        ),
        ([("09:00", 60, None)], [("09:00", 30, 60.0)], None),
    ],
)
def test_a_promise_may_not_be_missed_in_more_hours_or_by_more(before, after, reason, change):
    """Though it is kept at the operating point; what was missed before stops no change that leaves it so."""
    old, new = (
        _promise(40).model_copy(
            update={"misses": {"ordinary": tuple(Miss(at=a, minutes=m, predicted=p) for a, m, p in misses)}}
        )
        for misses in (before, after)
    )
    changed = change.model_copy(update={"former_promises": {"tpot_ms": old}})

    assert [each.reason for each in _objections("slo", changed, {"tpot_ms": new})] == ([reason] if reason else [])


def test_a_day_of_its_own_is_compared_with_what_it_was(change):
    """A date that had no entry before was its weekday, here a Sunday, or else an ordinary day."""
    missed = (Miss(at="09:00", minutes=60, predicted=60.0),)
    kept, ordinary, sunday, busy_sunday, date = (
        _promise(40).model_copy(update={"misses": misses})
        for misses in (
            None,
            {"ordinary": missed},
            {"ordinary": missed, "sunday": ()},
            {"ordinary": (), "sunday": missed},
            {"ordinary": (), "2026-01-04": missed},
        )
    )
    befores = (kept, ordinary, sunday, busy_sunday)
    changes = [change.model_copy(update={"former_promises": {"tpot_ms": old}}) for old in befores]
    reasons = [[found.reason for found in _objections("slo", each, {"tpot_ms": date})] for each in changes]

    refused = ["slo.tpot_ms of 50 is missed at 09:00-10:00 on 2026-01-04: 60 ms are expected"]
    assert reasons == [refused, [], refused, []]
