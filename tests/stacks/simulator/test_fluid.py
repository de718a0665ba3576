"""A whole day as flows."""

import json
from dataclasses import replace

import numpy as np
import pytest

from planner.compiler import run_passes
from planner.rules.check import change_spec, check_document, check_spec
from planner.spec.yaml import parse_document
from stacks.simulator.flows.day import simulate_day
from stacks.simulator.flows.failures import Failure, find_outages
from stacks.simulator.flows.fleet import planned_fleet
from stacks.simulator.flows.fluid import play_day
from stacks.simulator.flows.latency import prompt_waits
from stacks.simulator.flows.outcome import demand_by_minute
from stacks.simulator.flows.service import build_service
from tests.stacks.simulator.conftest import SPECS

NOON = 12 * 60


@pytest.fixture(scope="module")
def pair_day(pair):
    return simulate_day(pair)


def test_the_published_day_costs_what_is_planned(published, published_day):
    """Peak and mean are the published ones; cost, and nodes that warm up and drain, are those of the plan."""
    outcome = published_day.outcomes["mid"]

    assert outcome.peak_nodes == 278
    assert outcome.mean_nodes == 226.75
    assert outcome.usd == pytest.approx(published.cost.usd_per_day)
    assert outcome.node_hours_taken / 24 == pytest.approx(published.schedule.mean_nodes_taken)


def test_who_is_served_brings_the_plans_income(pair, pair_day):
    """A day on which nobody is refused earns what the plan counts, and costs it."""
    outcome = pair_day.outcomes["mid"]

    assert outcome.refused == 0
    assert outcome.usd == pytest.approx(pair.cost.usd_per_day)
    assert outcome.revenue_usd == pytest.approx(pair.cost.revenue_usd_per_day, rel=1e-3)


@pytest.mark.parametrize("level", ["low", "mid", "high"])
def test_requests_are_refused_finished_or_still_there(published_day, level):
    """What comes in goes out: over the day, but for what the queues hold at its two ends."""
    curves, service = published_day.curves[level], published_day.services[level]
    admitted = (curves.asked - curves.refused).sum()
    ended = curves.tokens.sum() / service.request.output + curves.cut.sum()
    most_inside = 9 * 144 * service.tokens.max_admitted

    assert curves.prompts.sum() == pytest.approx(admitted, abs=most_inside)
    assert ended == pytest.approx(admitted, abs=most_inside)
    assert (curves.kv_used <= 1 + 1e-9).all()
    assert (curves.refused >= -1e-9).all()


def test_a_slower_service_never_serves_more(published_day):
    """Tokens, refusals and latencies are in the order of the levels."""
    low, mid, high = (published_day.outcomes[level] for level in ("low", "mid", "high"))

    assert low.output_tokens < mid.output_tokens < high.output_tokens
    assert low.refused > mid.refused > high.refused
    assert low.latencies.ttft > mid.latencies.ttft > high.latencies.ttft


def test_more_traffic_makes_no_latency_shorter(pair, pair_day):
    """The same units under twice the demand have longer queues, slower tokens and full places."""
    busy = simulate_day(pair, scale=2.0)

    assert all(
        a >= b
        for a, b in zip(busy.outcomes["mid"].latencies.ttft, pair_day.outcomes["mid"].latencies.ttft, strict=True)
    )
    assert busy.outcomes["mid"].latencies.tpot > pair_day.outcomes["mid"].latencies.tpot
    assert busy.outcomes["mid"].peak_kv >= pair_day.outcomes["mid"].peak_kv


def test_two_runs_are_equal(pair, pair_day):
    """The same spec gives the same day."""
    assert np.array_equal(simulate_day(pair).curves["mid"].tokens, pair_day.curves["mid"].tokens)


def test_an_even_day_reaches_the_balance_of_its_queues(pair):
    """Without a profile, every minute is the same: demand is served, and each group has arrivals x time of them."""
    service = build_service(pair)
    fleet = planned_fleet(pair)
    curves = play_day(service, [0.5 / 1440] * 1440, (fleet, replace(fleet)))
    tpot = curves.tpot[-1]
    arrivals = curves.asked[-1] / 60 / 144

    assert curves.tokens[-1] == pytest.approx(curves.asked[-1] * service.request.output, rel=1e-6)
    assert curves.requests[-1] == pytest.approx(arrivals * service.request.output * tpot, rel=0.01)
    assert curves.prompt_busy[-1] == pytest.approx(curves.prompt_load[-1], rel=1e-6)


def test_a_failed_unit_is_out_until_a_spare_has_warmed_up(pair, pair_day):
    """Its requests are computed again, nothing is served meanwhile, and the day goes on where it was."""
    (unit,) = [each for each in pair.units if each.phase == "decode"]
    day = simulate_day(pair, failures=[Failure(unit.nodes[3], NOON)])
    curves, before = day.curves["mid"], pair_day.curves["mid"]

    assert day.outages[0].unit == unit.name
    assert day.outages[0].until == NOON + 10
    assert curves.restarted[NOON] > 0
    assert curves.token_units[NOON : NOON + 10].tolist() == [0] * 10
    assert curves.tokens[NOON + 5] == 0
    assert curves.token_units[NOON + 10] == 1
    assert curves.tokens[:NOON].tolist() == before.tokens[:NOON].tolist()
    assert curves.tokens[-1] == pytest.approx(before.tokens[-1], rel=0.01)


def test_without_a_spare_the_unit_stays_out(pair):
    """The second failure of the day finds no spare left."""
    (unit,) = [each for each in pair.units if each.phase == "decode"]
    first, second = Failure(unit.nodes[3], NOON), Failure(unit.nodes[4], NOON + 60)
    outages = find_outages(pair, [first, second])

    assert [each.until for each in outages] == [NOON + 10, None]
    assert find_outages(pair, [Failure("node-22", 0), first])[0].until is None, "the spare itself has failed"
    assert find_outages(pair, [first, replace(second, minute=NOON + 1)]) == outages[:1], "it is out already"


def test_a_spare_with_other_gpus_is_no_spare():
    """Prefill runs on the cluster's GPUs, decode on its own, and so does the only spare."""
    nodes = [{"name": name, "gpu": gpu} for name, gpu in (("a", "h800"), ("b", "h20"), ("c", "h20"))]
    data = {"version": 1, "name": "two", "model": "deepseek-v2-lite", "prefill": {"ep_size": 8}}
    data |= {"cluster": {"gpu": "h800", "gpus_per_node": 8, "nodes": nodes, "spares": ["c"]}}
    data |= {"decode": {"ep_size": 8, "gpu": "h20"}}
    plan = run_passes(check_document(parse_document(json.dumps(data), "spec.yaml")))

    assert [each.spare for each in find_outages(plan, [Failure("a", NOON), Failure("b", NOON)])] == [None, "c"]


def test_units_that_stop_finish_what_they_have(published_day):
    """At each step down, what drains makes tokens until it is done, and the time of the drain is enough."""
    outcome = published_day.outcomes["mid"]

    assert outcome.cut < 1e-6 * outcome.requests
    assert published_day.curves["mid"].nodes_taken[2] == 278, "units of midnight's step still drain"


POINTS = [  # requests, prompts, answers
    (64, 2000, 400),
    (32, 5000, 1000),
    (32, 5000, 250),
    (64, 500, 400),
    (64, 1000, 3000),
    (60, 8000, 100),  # a full turn of prompts binds
]


@pytest.mark.parametrize(("requests", "prompt", "output"), POINTS)
@pytest.mark.parametrize("attention_tp", [1, 8])
def test_a_plan_and_its_simulation_agree_on_mixed_units(requests, prompt, output, attention_tp):
    """At the load that the plan says is all, TPOT and TTFT are the plan's within 15 %, and 15 % more is refused."""
    point = {"requests": requests, "kv_tokens": prompt + output // 2, "prompt_tokens": prompt}
    changes = {"operating_point": {"mixed": point}, "mixed.max_requests": requests, "mixed.attention_tp": attention_tp}
    changes["traffic"] = {"input_tokens": 1e9, "output_tokens": 1e9 * output / prompt}
    plan = run_passes(change_spec(check_spec(SPECS / "h200-single-node.yaml"), changes))
    (load,), found, service = plan.demand_on(None), plan.speed[0].prediction, build_service(plan)
    full, over = (
        play_day(service, [share / load.load / 1440] * 120, (planned_fleet(plan), planned_fleet(plan)))
        for share in (0.97, 1.15)
    )

    assert full.tpot[-1] == pytest.approx(found.tpot_seconds.mid, rel=0.15)
    assert prompt_waits(service, full).mean[-1] == pytest.approx(found.ttft_seconds.mid, rel=0.15)
    assert full.refused[-1] < 0.01 * full.asked[-1]
    assert over.refused[-1] > 0.05 * over.asked[-1]


def test_a_turn_of_a_mixed_unit_is_a_whole_step_with_its_drafts(drafting):
    """A step with two drafts waits once for prompts, though it gives more than two tokens: TPOT is the plan's."""
    (load,), found, service = drafting.demand_on(None), drafting.speed[0].prediction, build_service(drafting)
    fleets = planned_fleet(drafting), planned_fleet(drafting)
    full = play_day(service, [0.97 / load.load / 1440] * 120, fleets)

    assert service.tokens.tokens_per_step > 2
    assert full.tpot[-1] == pytest.approx(found.tpot_seconds.mid, rel=0.15)
    assert full.refused[-1] < 0.01 * full.asked[-1]


def test_prompts_and_tokens_of_a_mixed_unit_share_its_time(mixed):
    """Tokens come more slowly while there are prompts to compute."""
    service = build_service(mixed)
    turns = service.turns
    assert turns is not None
    without = replace(service, turns=replace(turns, prompt_seconds=(1e-6,) * len(turns.loads)))
    demand, fleet = demand_by_minute(mixed), planned_fleet(mixed)
    tpot = [play_day(each, demand, (fleet, replace(fleet))).tpot[-1] for each in (service, without)]

    assert tpot[0] > tpot[1]
