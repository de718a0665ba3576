"""How full prefill is kept where a TTFT is promised."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.compiler import run_passes
from planner.estimate.throughput.calibration import calibrate, read_calibration
from planner.estimate.throughput.intervals import Evidence
from planner.estimate.throughput.predict import predict, saturated_rate
from planner.estimate.utilisation import MIN_UTILISATION, SLO_MARGIN, with_promised_utilisation
from planner.report.report import Report
from planner.rules.check import change_spec, check_spec
from stacks.simulator.flows.day import simulate_day
from tests.planner.accuracy.published import PREFILL, case_of
from tests.planner.search.test_layouts import spec_of
from tests.planner.test_shipped_specs import SPECS

CASE = case_of(PREFILL)
NONE = Evidence("none", "nobody has measured it", ())
AT_ONCE = predict(CASE, NONE).ttft_seconds.mid  # without any wait


@pytest.fixture(scope="module")
def spec():
    """One prefill unit and one decode unit, with a prefill point that writes no utilisation."""
    return change_spec(check_spec(SPECS / "h800-one-pair.yaml"), {"operating_point.prefill.utilisation": None})


def promised(spec, seconds, **values):
    """The case as full as a promise of so many seconds allows, and its mean TTFT in seconds."""
    asked = change_spec(spec, {"slo.ttft_ms": seconds * 1e3, **values})
    case = with_promised_utilisation(asked, CASE, saturated_rate(CASE))
    return case, predict(case, NONE).ttft_seconds.mid


@settings(max_examples=40)  # each asks for a spec with another promise
@given(times=st.floats(1.6, 30))
def test_prefill_is_as_full_as_the_promise_allows(spec, times):
    """A thousandth more would be over 99 % of the promise."""
    case, ttft = promised(spec, times * AT_ONCE)
    fuller = replace(case, point=replace(case.point, utilisation=case.point.utilisation + 1e-3))

    assert MIN_UTILISATION < case.point.utilisation < 1
    assert ttft <= SLO_MARGIN * times * AT_ONCE * (1 + 1e-9)
    assert predict(fuller, NONE).ttft_seconds.mid > SLO_MARGIN * times * AT_ONCE


@settings(max_examples=40)
@given(times=st.floats(0.01, 1.4))
def test_a_promise_without_time_to_wait_leaves_prefill_half_full(spec, times):
    """It is broken then, which the predicted TTFT shows."""
    case, ttft = promised(spec, times * AT_ONCE)

    assert case.point.utilisation == MIN_UTILISATION
    assert ttft > times * AT_ONCE


def test_a_written_utilisation_stays(spec):
    """Nothing follows from the promise then, nor without one."""
    written, _ = promised(spec, 2 * AT_ONCE, **{"operating_point.prefill.utilisation": 1.0})

    assert written.point.utilisation == 1
    assert with_promised_utilisation(spec, CASE, saturated_rate(CASE)) == CASE


def test_a_slower_engine_takes_longer_for_its_prompts(tmp_path):
    """What a calibration takes from the rate, it adds to TTFT."""
    (tmp_path / "measured.json").write_text('[{"phase": "prefill", "tokens_per_s_per_gpu": 2000}]')
    case, _, correction = calibrate(CASE, NONE, read_calibration(tmp_path / "measured.json"))

    assert correction.factor < 1
    assert predict(case, NONE).ttft_seconds.mid == pytest.approx(AT_ONCE / correction.factor, rel=1e-6)


@pytest.mark.slow
def test_a_simulated_day_keeps_the_searchs_promise():
    """Nine requests in ten get their first token in time, and the plan states the utilisation that this needs."""
    traffic = {"input_tokens": 20e9, "output_tokens": 6e9}
    free = {"max_batch_tokens": "auto"}
    point = {
        "prefill": {"step_tokens": "auto", "prompt_tokens": 3000},
        "decode": {"requests": "auto", "kv_tokens": 4000},
    }
    plan = run_passes(
        spec_of(16, {"ttft_ms": 2000, "tpot_ms": 60}, prefill=free, traffic=traffic, operating_point=point)
    )

    assert simulate_day(plan).outcomes["mid"].latencies.ttft_kept > 0.9
    point = Report(plan.plan.report).find("performance.prefill.operating_point", "utilisation")
    assert (point.provenance, point.note) == ("derived", "as full as the TTFT allows")
