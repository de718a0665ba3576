"""Latencies of a day out of its curves."""

import warnings

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from planner.compiler import run_passes
from planner.estimate.throughput.queue import wait_distribution
from planner.rules.check import check_spec
from planner.spec.operating_point import SloSpec
from stacks.simulator.flows.day import simulate_day
from stacks.simulator.flows.failures import Failure
from stacks.simulator.flows.fleet import planned_fleet
from stacks.simulator.flows.fluid import play_day
from stacks.simulator.flows.latency import Latencies, Waits, compute_latencies, mean_tpot, mean_ttft, prompt_waits
from stacks.simulator.flows.service import build_service


@given(st.floats(0, 5), st.floats(0.01, 0.95), st.floats(0, 1), st.floats(0.01, 10), st.booleans())
def test_the_shares_have_the_mean_that_they_say(least, waiting, shortest, longer, is_even):
    """The mean of TTFT's distribution is the least time and the mean random wait."""
    waits = Waits(*(np.array([each]) for each in (least, waiting, shortest, longer)), is_even=is_even)
    grid = np.linspace(least, least + shortest + 40 * longer, 20_001)
    later = 1 - waits.share_within(grid)

    mean = least + float(np.sum((later[1:] + later[:-1]) / 2 * np.diff(grid)))

    assert mean == pytest.approx(waits.mean[0], rel=0.01)


def test_the_mean_wait_is_that_of_the_plans_queue(published_day):
    """At a steady load the wait is rho / (2 (1 - rho)) steps, as the plan's own TTFT has it."""
    service, curves = published_day.services["mid"], published_day.curves["mid"]
    minute = 5 * 60 + 30  # nothing has changed for an hour
    rho = curves.prompt_busy[minute]
    steps = rho / (2 * (1 - rho)) + service.prompts.steps_per_prompt

    assert prompt_waits(service, curves).mean[minute] == pytest.approx(steps * service.prompts.step_seconds, rel=1e-3)


def test_a_steady_minute_has_the_plans_99th_percentile(published_day):
    """A prompt in a hundred of a steady minute waits as long as the plan says for that utilisation."""
    service, curves = published_day.services["mid"], published_day.curves["mid"]
    minute = 5 * 60 + 30
    steps = service.prompts.steps_per_prompt + wait_distribution(curves.prompt_busy[minute]).wait_exceeded_by(0.01)

    within = prompt_waits(service, curves).share_within(steps * service.prompts.step_seconds)[minute]

    assert within == pytest.approx(0.99, abs=1e-3)


@pytest.mark.parametrize("load", [0.2, 0.97])
def test_mixed_units_have_the_plans_99th_percentile(mixed, load):
    """A prompt in a hundred waits for as much of a turn as `SteadyTurns` says, however full units are."""
    service = build_service(mixed)
    demand = [load / mixed.demand_on(None)[0].load / 1440] * 120
    curves = play_day(service, demand, (planned_fleet(mixed), planned_fleet(mixed)))
    seconds, busy = curves.prompt_seconds[-1], curves.prompt_busy[-1]
    wait = max(busy - 0.01, 0.0) / busy * seconds

    within = prompt_waits(service, curves).share_within(service.prompts.steps_per_prompt * seconds + wait)[-1]

    assert within == pytest.approx(0.99, abs=1e-3)
    if load > 0.9:
        found = mixed.speed[0].prediction.ttft_99_seconds.mid
        assert compute_latencies(service, curves, SloSpec()).ttft[-1] == pytest.approx(found, rel=0.1)


def test_kept_promises_are_those_of_the_percentiles(published_day):
    """Promising the p90 is kept for nine requests in ten of those that were admitted; refused ones are not kept."""
    service, curves = published_day.services["mid"], published_day.curves["mid"]
    outcome = published_day.outcomes["mid"]
    slo = SloSpec(ttft_ms=outcome.latencies.ttft[1] * 1e3, tpot_ms=outcome.latencies.tpot[1] * 1e3)
    kept = compute_latencies(service, curves, slo)

    assert kept.ttft_kept == pytest.approx(0.9 * (1 - outcome.refused / outcome.requests), abs=1e-3)
    assert 0.9 <= kept.tpot_kept <= 1
    assert kept.ttft == outcome.latencies.ttft


def test_nobody_waits_for_units_that_are_off(pair_spec, tmp_path):
    """A mean is taken of those that are admitted, without a word of NumPy about the hours when nobody is."""
    spec = yaml.safe_load(pair_spec.read_text())
    day = [(f"{hour:02}:00", on) for hour, on in ((3, 0), (6, 1))]
    windows = [{"at": at, "prefill_units": on, "decode_units": on} for at, on in day]
    spec |= {"schedule": {"timezone": "UTC", "windows": windows}, "kubernetes": {"controller": {}}}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    plan = run_passes(check_spec(tmp_path / "spec.yaml"))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outcome = simulate_day(plan).outcomes["mid"]

    assert outcome.refused > 0
    assert 0 < outcome.latencies.ttft_mean < float("inf")


def test_a_minute_in_which_nobody_is_answered_has_no_latency(pair):
    """After decode and the only spare have failed, all is refused: curves have NaN, and never 0 or an idle prompt's."""
    decode = next(unit for unit in pair.units if unit.phase == "decode")
    day = simulate_day(pair, failures=[Failure("node-22", 0), Failure(decode.nodes[0], 760)])
    service, curves = day.services["mid"], day.curves["mid"]
    latencies = np.stack([mean_ttft(service, curves), mean_tpot(curves)])

    assert np.isnan(latencies[:, 761:]).all()
    assert (latencies[:, :760] > 0).all()
    assert (curves.refused == curves.asked)[761:].all()


def test_a_day_on_which_nobody_is_answered_has_no_latency(pair):
    """Neither a mean nor a percentile is 0, and no token keeps a promise; of requests none does."""
    decode = next(unit for unit in pair.units if unit.phase == "decode")
    day = simulate_day(pair, failures=[Failure("node-22", 0), Failure(decode.nodes[0], 0)])
    kept = compute_latencies(day.services["mid"], day.curves["mid"], SloSpec(ttft_ms=6000, tpot_ms=60))

    assert kept == Latencies(None, (None,) * 3, (None,) * 3, ttft_kept=0.0, tpot_kept=None)


def test_tokens_of_units_that_drain_take_time(pair_spec, tmp_path):
    """Once all units are off, those that drain still make tokens, and none of them in 0 ms."""
    spec = yaml.safe_load(pair_spec.read_text())
    windows = [{"at": at, "prefill_units": on, "decode_units": on} for at, on in (("12:00", 0), ("18:00", 1))]
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec | {"schedule": {"timezone": "UTC", "windows": windows}}))
    curves = simulate_day(run_passes(check_spec(tmp_path / "spec.yaml"))).curves["mid"]

    assert curves.tokens[720] > 0
    assert (mean_tpot(curves)[curves.tokens > 0] > 0.01).all()
