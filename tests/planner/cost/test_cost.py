"""What a day costs and earns: DeepSeek's published day, and what rates and prices change of it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.compiler import run_passes
from planner.cost.cost import estimate_cost
from planner.layout.unit import Unit
from planner.report.text import plan_text
from planner.rules.check import change_spec, check_spec
from planner.schedule.schedule import plan_schedule
from planner.spec.schema import Spec
from planner.spec.yaml import read_document
from tests.planner.diff.pairs import SMALL, base
from tests.planner.test_shipped_specs import SPECS

PUBLISHED = read_document(SPECS / "deepseek-h800.yaml").data
NODES = {"prefill": 4, "decode": 18}
TRAFFIC = {"input_tokens": 600e9, "output_tokens": 100e9, "cache_hit_rate": 0.5}
PRICES = {"input_hit": 0.1, "input_miss": 0.5, "output": 2.0}
NIGHT = {"timezone": "UTC", "windows": [{"at": "08:00", "prefill_units": 2, "decode_units": 1}]}
NIGHT["windows"] += [{"at": "20:00", "prefill_units": 1, "decode_units": 1}]


def cost_of(cost, *, schedule=None, traffic=None, most=None, **sections):
    """The cost of two prefill units of 4 nodes and one decode unit of 18, or of the published day.

    `most` has the most tokens/s of a node of each phase; without it everything is answered.
    """
    data = PUBLISHED | {"schedule": schedule, "traffic": traffic, "cost": cost}
    if schedule is None:
        data |= {"prefill": PUBLISHED["prefill"] | {"units": 2}}
    return cost_by(data | sections, most or dict.fromkeys(NODES, 1e9))


def cost_by(data, most, **times):
    """The cost of a spec whose units stand anywhere. `times` are durations of its schedule that no spec may have."""
    spec = Spec.model_validate(data)
    if times:
        spec = spec.model_copy(update={"schedule": spec.schedule.model_copy(update=times)})
    units = [
        Unit(f"{phase}-{index}", phase, index, tuple(f"{phase}-{index}-{node}" for node in range(size)), 8 * size, "")
        for phase, size in NODES.items()
        for index in range(spec.num_units(phase))
    ]
    return estimate_cost(spec, plan_schedule(spec, units), units, most)


def test_deepseeks_day_has_the_published_cost_and_income():
    """Exactly $87,072 for 226.75 nodes on average; $562,027 within 0.02 %; a markup of 545 %, a margin of 84.5 %.

    The published chart shows nodes in use, so nodes that warm up or drain are in it.
    """
    document = cost_by(PUBLISHED, dict.fromkeys(NODES, 1e9), warm_up=0.0, drain=0.0).model_dump()

    assert document["usd_per_day"] == 87_072
    assert document["revenue_usd_per_day"] == pytest.approx(562_027, rel=2e-4)
    assert document["answered_share"] == 1
    assert round(100 * document["markup"]) == 545
    assert document["margin"] == pytest.approx(1 - 87_072 / document["revenue_usd_per_day"])
    assert document["usd_per_million_output_tokens"] == pytest.approx(87_072 / 168e3)
    assert document["freed"] == {"node_hours_per_day": 1230, "usd_per_day": 1230 * 8 * 2}


def test_states_and_phases_add_up_to_the_day():
    """Every dollar, token and minute is in one state, and every node's hour is of one phase."""
    cost = cost_by(PUBLISHED, {"prefill": 1e9, "decode": 14_000})

    assert sum(each.usd for each in cost.states) == pytest.approx(cost.usd_per_day)
    assert sum(each.usd_per_day for each in cost.phases.values()) == pytest.approx(cost.usd_per_day)
    assert sum(each.input_tokens for each in cost.states) == pytest.approx(608e9)
    assert sum(each.revenue_usd for each in cost.states) == pytest.approx(cost.revenue_usd_per_day)
    assert sum(each.answered_share * each.output_tokens for each in cost.states) == pytest.approx(
        cost.answered_share * 168e9
    )
    assert [each.minutes for each in cost.states] == [720, 75, 45, 45, 15, 30, 180, 30, 30, 30, 30, 210]
    assert {phase: each.mean_nodes for phase, each in cost.phases.items()} == {"prefill": 96.375, "decode": 132.5625}


@pytest.mark.parametrize(
    ("warm_up", "drain", "minutes"),
    [("1min", "1min", 2), ("90s", "30s", 2), ("3h", "2h", 300), ("6h", "6h", 720), ("6h", "5h", 660)],
)
def test_nodes_are_paid_from_warm_up_to_drain(warm_up, drain, minutes):
    """One prefill unit is off for 12 hours of the night, less what warm-up and drain take of them."""
    cost = cost_of({"usd_per_gpu_hour": 2.0}, schedule=NIGHT | {"warm_up": warm_up, "drain": drain})

    assert cost.freed.node_hours_per_day == pytest.approx(4 * (720 - minutes) / 60)
    assert cost.usd_per_day == pytest.approx((26 * 24 - cost.freed.node_hours_per_day) * 8 * 2)
    assert sum(each.usd for each in cost.states) == pytest.approx(cost.usd_per_day)


def test_units_that_switch_all_day_are_never_free():
    """A unit that serves one minute in every fifteen has its nodes all day, so it costs as much as one that serves."""
    windows = [
        {"at": f"{at // 60:02}:{at % 60:02}", "prefill_units": 2 - at % 15, "decode_units": 1}
        for start in range(0, 1440, 15)
        for at in (start, start + 1)
    ]
    cost = cost_of({"usd_per_gpu_hour": 2.0}, schedule=NIGHT | {"windows": windows})

    assert (cost.usd_per_day, cost.freed.node_hours_per_day) == (26 * 24 * 8 * 2, 0)


def test_a_special_day_pays_for_its_own_transitions():
    """Saturday is a night all day, and Sunday's begins at another hour."""
    day, night = SMALL["schedule.windows"]
    days = [{"days": ["saturday"], "windows": [night]}, {"days": ["sunday"], "windows": [day, night | {"at": "20:00"}]}]
    plan = run_passes(change_spec(base(40)[0], {"schedule.other_days": days})).plan
    saturday, sunday = (each.mean_nodes_taken for each in plan.schedule.other_days)

    assert sunday > plan.schedule.other_days[1].mean_nodes
    assert [plan.usd_of_day(each) for each in ("monday", "saturday", "sunday")] == pytest.approx(
        [plan.schedule.mean_nodes_taken * 8 * 24 * 2, saturday * 8 * 24 * 2, sunday * 8 * 24 * 2]
    )


def test_hours_without_units_sell_nothing():
    """Half a day without any unit leaves half of an even day's income, and all of its traffic."""
    rates = {"usd_per_gpu_hour": 2.0, "prices": PRICES}
    night_off = NIGHT | {"windows": [NIGHT["windows"][0], {"at": "20:00", "prefill_units": 0, "decode_units": 0}]}
    always, half = (cost_of(rates, schedule=each, traffic=TRAFFIC) for each in (NIGHT, night_off))

    assert half.revenue_usd_per_day == pytest.approx(always.revenue_usd_per_day / 2)
    assert [each.revenue_usd for each in half.states] == [half.revenue_usd_per_day, 0]
    assert sum(each.input_tokens for each in half.states) == TRAFFIC["input_tokens"]


def test_income_counts_answered_tokens_only():
    """A third of the day's tokens come in one hour, of which decode makes a third; prefill has room for all."""
    traffic = TRAFFIC | {"profile": [1] * 12 + [12] + [1] * 11}
    asked = TRAFFIC["output_tokens"] * 12 / 35 / 3600
    most = {"prefill": 1e9, "decode": asked / 18 / 3}
    rates = {"usd_per_gpu_hour": 2.0, "prices": PRICES}
    full, some = (cost_of(rates, traffic=traffic, most=each) for each in (None, most))

    assert some.answered_share == pytest.approx(1 - 12 / 35 * 2 / 3)
    assert some.revenue_usd_per_day == pytest.approx(some.answered_share * full.revenue_usd_per_day)
    assert some.revenue_if_all_answered_usd_per_day == full.revenue_usd_per_day
    assert full.answered_share == 1
    assert some.usd_per_million_output_tokens == pytest.approx(some.usd_per_day / (some.answered_share * 100e3))


def test_the_fullest_phase_decides_what_is_answered():
    """A request that one phase refuses is computed by none: shares are not multiplied."""
    per_s = {"prefill": 300e9 / 86_400, "decode": 100e9 / 86_400}
    most = {"prefill": 0.5 * per_s["prefill"] / 8, "decode": 0.75 * per_s["decode"] / 18}
    cost = cost_of({"usd_per_gpu_hour": 2.0, "prices": PRICES}, traffic=TRAFFIC, most=most)

    assert cost.answered_share == pytest.approx(0.5)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(0, 10), min_size=24, max_size=24).filter(any),
    st.tuples(st.floats(0.1, 3), st.floats(0.1, 3)),
)
def test_each_hour_answers_what_its_fullest_phase_makes(profile, shares):
    """Hour by hour: the least that any phase makes of what is asked for, and never more than that."""
    mean = {"prefill": 300e9 / 86_400 / 8, "decode": 100e9 / 86_400 / 18}  # of a node, if demand were even
    most = {phase: share * mean[phase] for phase, share in zip(mean, shares, strict=True)}
    cost = cost_of({"usd_per_gpu_hour": 2.0}, traffic=TRAFFIC | {"profile": profile}, most=most)
    hours = [min(hour / sum(profile), min(shares) / 24) for hour in profile]

    assert cost.answered_share == pytest.approx(sum(hours))


def test_a_phase_of_unknown_speed_is_named():
    """Nobody knows what it refuses, so what comes while it is on counts as answered."""
    cost = cost_of({"usd_per_gpu_hour": 2.0, "prices": PRICES}, traffic=TRAFFIC, most={"prefill": 1e9})

    assert (cost.answered_share, cost.speed_unknown) == (1, ("decode",))


def test_the_text_of_a_day_beyond_capacity_agrees_with_itself():
    """The published day warns that requests are refused, counts the others, and says what all would bring in."""
    plan = run_passes(check_spec(SPECS / "deepseek-h800.yaml"))
    cost, text = plan.plan.as_json()["cost"], " ".join(plan_text(plan.plan, full=True).split())

    assert "income does not count them" in plan.plan.warnings[-1].reason
    assert 0.98 < cost["answered_share"] < 1
    assert cost["revenue_usd_per_day"] < cost["revenue_if_all_answered_usd_per_day"] == pytest.approx(561_975.36)
    assert f"income ${cost['revenue_usd_per_day']:,.0f} (" in text
    assert f"margin {cost['margin']:.1%} (" in text
    assert "income per day if all were answered $561,975" in text
    assert f"markup {cost['markup']:.1%}" in text


def test_phases_on_other_gpus_pay_their_rate():
    """Decode's 18 nodes of H20, prefill's of the cluster."""
    cost = cost_of({"usd_per_gpu_hour": 2.0, "gpus": {"h20": 1.0}}, decode=PUBLISHED["decode"] | {"gpu": "h20"})

    assert {phase: each.usd_per_day for phase, each in cost.phases.items()} == {
        "prefill": 8 * 24 * 8 * 2,
        "decode": 18 * 24 * 8,
    }


def test_spares_are_paid_all_day():
    """A node that waits costs what one costs that works."""
    spares = PUBLISHED["cluster"] | {"spares": ["node-0", "node-1"]}

    assert cost_of({"usd_per_gpu_hour": 2.0}, cluster=spares).spares_usd_per_day == 2 * 8 * 24 * 2


def test_what_is_not_said_is_not_counted():
    """Without traffic no tokens, without prices no income, without cost nothing; free nodes have no markup."""
    bare = cost_of({"usd_per_gpu_hour": 2})
    free = cost_of({"usd_per_gpu_hour": 0, "prices": PRICES}, traffic=TRAFFIC)

    assert (bare.answered_share, bare.margin) == (None, None)
    assert bare.usd_per_day == 26 * 8 * 24 * 2
    assert cost_of({"usd_per_gpu_hour": 2}, traffic=TRAFFIC).revenue_usd_per_day is None
    assert (free.margin, free.markup) == (1, None)
    assert cost_of(None) is None


@pytest.mark.parametrize(
    ("name", "cost", "times"),
    [("20% more traffic", 0.5, 1.2), ("20% less traffic", 0.5, 0.8), ("GPU-hours for 20% more", 0.6, 1)],
)
def test_a_case_is_the_day_of_a_spec_that_says_so(plan_of, spec_text, name, cost, times):
    """What a plan says of another day is what the plan of that day says of it, as long as the units are the same."""
    sections = "traffic: {{input_tokens: {0}, output_tokens: {0}}}\ncost: {{usd_per_gpu_hour: {1}, prices: {2}}}\n"
    plan, other = (
        plan_of(spec_text + sections.format(tokens, usd, "{input_hit: 0, input_miss: 1, output: 2}")).cost
        for tokens, usd in ((2e9, 0.5), (2e9 * times, cost))
    )
    case = next(each for each in plan.cases if each.name == name)

    assert case.usd_per_day == pytest.approx(other.usd_per_day)
    assert case.revenue_usd_per_day == pytest.approx(other.revenue_usd_per_day)


def test_money_changes_nothing_that_is_deployed(found_of, spec_text):
    """A plan with traffic and cost has the digest of one without, says the bill in its text."""
    sections = "traffic: {input_tokens: 2e9, output_tokens: 1e9}\ncost: {usd_per_gpu_hour: 0.5}\n"
    plain, priced = found_of(spec_text), found_of(spec_text + sections)

    assert plain.plan.digest == priced.plan.digest
    assert priced.plan.as_json()["cost"]["usd_per_day"] == 3 * 2 * 24 * 0.5
    assert "$72 a day at $0.50 per GPU-hour; $0.0720 per million output" in " ".join(plan_text(priced.plan).split())
