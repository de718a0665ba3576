"""The conditions that refuse a change, and what each says."""

import pytest

from planner.compiler import compile_plan
from planner.diff.diff import compare_plans
from planner.plan.expected import Promise
from planner.plan.row import Row
from planner.problems.errors import CallError
from planner.rules.check import check_spec, with_values
from stacks.gitops.gate import Evidence, find_objections, promises_of, read_conditions
from tests.planner.test_shipped_specs import SPECS
from tests.stacks.deployments import DEMO_SPEC

ALL = "outage,degraded,slo,cost+10%,stale"


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


def _held(words, change, promises=None, stale=()):
    return [each.condition for each in find_objections(read_conditions(words), Evidence(change, promises or {}, stale))]


@pytest.mark.parametrize(
    ("verdict", "held"),
    [("no_restart", []), ("rolling", []), ("degraded", ["degraded"]), ("outage", ["outage", "degraded"])],
)
def test_an_outage_is_also_degraded(verdict, held, change):
    """A gate for the lesser harm stops the greater one."""
    assert _held("outage,degraded", _with_verdict(change, verdict)) == held


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
    assert _held("cost+10%", _with_cost(change, before, after)) == held


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
    plan = compile_plan(with_values(spec, {"slo.tpot_ms": 50}))
    promises = promises_of(plan)

    assert promises.keys() == {name for name, value in plan.spec.slo.model_dump().items() if value is not None}
    assert promises["tpot_ms"].promised == 50
