"""A change that moves what it is measured by is measured by what was there before as well."""

import pytest

from planner.compiler import compile_plan, run_passes
from planner.diff.diff import compare_plans
from planner.diff.hours import share_of_hits
from planner.diff.text import diff_text
from planner.diff.yardsticks import FINISHED, Remeasured, measure_by_former
from planner.rules.check import change_spec
from tests.planner.diff.pairs import SMALL, base

DAY, NIGHT = SMALL["schedule.windows"]
BUSY = {"traffic.input_tokens": 90e9, "traffic.output_tokens": 12e9}
QUIET = {"traffic.input_tokens": 20e9, "traffic.output_tokens": 2e9}
HITS = {"traffic.cache_hit_rate": 0.99, "traffic.output_tokens": 1, "operating_point.prefill.cache_hit_rate": None}
DISK = {"path": "/kv", "size": "4TB"}
ALWAYS_NIGHT = {"schedule.windows": [NIGHT]}


def _pair(first, fields):
    spec = change_spec(base(40)[0], first)
    before = run_passes(spec).plan
    return before, run_passes(change_spec(spec, fields), before)


def _change(first, fields):
    before, found = _pair(first, fields)
    return compare_plans(before, found.plan, remeasured=measure_by_former(before, found))


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        (ALWAYS_NIGHT, "degraded"),
        (ALWAYS_NIGHT | QUIET, "degraded"),
        (ALWAYS_NIGHT | {"traffic": None, "cost.prices": None}, "degraded"),
        (ALWAYS_NIGHT | {"traffic.profile": [1.0] * 8 + [0.0] * 16}, "degraded"),
        (ALWAYS_NIGHT | HITS, "degraded"),
        (QUIET, "no_restart"),
    ],
)
def test_the_larger_of_both_demands_counts(fields, verdict):
    """Whatever the change says of traffic, today's is still there; to say less of it harms nobody."""
    assert _change(BUSY, fields).verdict == verdict


def test_a_clock_that_is_set_back_moves_no_callers():
    """Windows that start eight hours later, by a zone of the same hours, miss the morning's traffic."""
    first = BUSY | {"schedule.timezone": "Asia/Shanghai"}
    change = _change(first, {"schedule.timezone": "UTC"})
    (short, *_) = change.shortages

    assert (change.verdict, short.is_new) == ("degraded", True)
    assert short.times == "01:00-08:00"
    assert "moved: schedule.timezone Asia/Shanghai -> UTC" in diff_text(change)


def test_speed_is_that_at_the_former_load_too():
    """With shorter contexts a rank serves more requests, so fewer units would seem to do."""
    first, fewer = (
        BUSY | {"traffic.output_tokens": 16e9},
        {"schedule.windows": [DAY, DAY | {"at": "08:05", "decode_units": 1}, NIGHT]},
    )
    short = fewer | {"operating_point.decode.kv_tokens": 100}

    assert _change(first, fewer).verdict == _change(first, short).verdict == "degraded"


def test_the_former_promise_price_and_load_have_figures_of_their_own():
    """Each is shown where it differs, and the stricter of both promises counts."""
    first = {"slo.tpot_ms": 60}
    price = _change(first, {"cost.usd_per_gpu_hour": 1})
    eased = _change(first, {"slo.tpot_ms": 70}).yardsticks.promises["tpot_ms"]
    stricter = _change(first, {"slo.tpot_ms": 50}).yardsticks.promises["tpot_ms"]
    light = _change(first, {"slo": None, "operating_point.decode.requests": 8}).yardsticks.promises["tpot_ms"]

    assert [each.promised for each in (eased, stricter, light)] == [60, 50, 60]
    assert light.predicted == eased.predicted
    assert "moved: cost.usd_per_gpu_hour 2 -> 1" in diff_text(price)
    assert "under the former ones the new plan has: each day $10,948" in " ".join(diff_text(price).split())


def test_a_gpu_that_is_only_described_as_faster_is_as_fast_as_before():
    """Its pods stay, and so does its speed. Where others are deployed, it is another GPU."""
    figures = {"memory": "80GiB", "fp8_tflops": 1979, "bf16_tflops": 989, "memory_bandwidth": "3.35TB/s"}
    gpu = {"name": "own", "nvlink": "200GB/s", "nic": "400Gbps"} | figures
    faster = {"cluster.gpu": gpu | {"fp8_tflops": 9000, "bf16_tflops": 9000, "memory_bandwidth": "30TB/s"}}
    fewer = {"schedule.windows": [DAY, NIGHT | {"at": "08:05"}]}
    before, found = _pair({"cluster.gpu": gpu}, {"cluster.gpu": gpu | {"memory": "120GiB"}})
    larger = measure_by_former(before, found).plan

    assert _change(BUSY | {"cluster.gpu": gpu}, faster | fewer).verdict == "degraded"
    assert larger.memory == found.plan.memory != before.memory


def test_a_former_load_beyond_the_new_limits_is_that_of_the_limits():
    """No rank works on more than max_requests, whatever the former operating point was."""
    fields = {"decode.max_requests": 64, "operating_point.decode.requests": 16}
    before, found = _pair({}, fields)
    rows = measure_by_former(before, found).plan.performance["decode"]

    assert (before.spec.operating_point.decode.requests, rows.operating_point.requests) == (88, 64)


def test_one_prompt_at_a_time_makes_small_steps():
    """The former steps were full of prompts that a rank may no longer work on side by side."""
    point = {"step_tokens": 3000, "prompt_tokens": 3000}
    before, found = _pair({}, {"prefill.max_requests": 1, "operating_point.prefill": point})
    measured = measure_by_former(before, found).plan.performance["prefill"]

    assert before.performance["prefill"].operating_point.step_tokens == 16_384
    assert measured.operating_point.step_tokens == 1311  # what hits leave of one prompt of 3,000


def test_prices_that_only_the_new_spec_has_do_not_reach_the_former_ones():
    """A default of theirs would be a price list without prices."""
    first = {"cost": {"usd_per_gpu_hour": 2}}
    prices = {"input_hit": 0.1, "input_miss": 0.5, "output": 2}
    moved = _change(first, {"cost": {"usd_per_gpu_hour": 1, "prices": prices}}).yardsticks

    assert moved.unknown == ""
    assert "margin" not in moved.cost


def test_without_other_yardsticks_nothing_is_compiled_again():
    """A plan that is finished cannot be, and says so only where it matters."""
    before, found = _pair({}, {"kubernetes.image": "another:2"})
    priced, again = _pair({}, {"cost.usd_per_gpu_hour": 3})
    finished = measure_by_former(priced, again.plan)

    assert measure_by_former(before, found) == measure_by_former(before, found.plan) == Remeasured()
    assert finished.unknown == FINISHED
    assert FINISHED in " ".join(diff_text(compare_plans(priced, again.plan, remeasured=finished)).split())


def test_loads_that_are_drawn_more_even_are_as_uneven_as_before():
    """A lower alpha is assumed, not measured, and fewer units would seem to do. Another seed makes no load even."""
    before, found = _pair({}, {"expert_load": {"alpha": 0, "seed": 1}})
    again, reseeded = _pair({}, {"expert_load.seed": 1})
    measured = measure_by_former(before, found).plan

    for phase in before.phases:
        as_before, as_said = (each.performance[phase].tokens_per_s_per_gpu.mid for each in (measured, found.plan))
        assert as_before < as_said
    assert measured.digest == found.plan.digest
    assert measure_by_former(again, reseeded) == Remeasured()


def test_the_mean_request_that_former_limits_tell_stays_with_lower_limits():
    """Limits say how long a request may be. To say less of it makes no request shorter, but refuses the long ones."""
    limits = [
        {f"{phase}.max_request_tokens": tokens for phase in ("prefill", "decode")} for tokens in (16_384, 8192, 64)
    ]
    first = limits[0] | {"operating_point": None, "slo": None, "decode.max_requests": 32}
    before, found = _pair(first, limits[1])
    measured = measure_by_former(before, found).plan
    refused = measure_by_former(*_pair(first, limits[2]))

    assert measured.performance["decode"].operating_point.kv_tokens == 8192
    assert found.plan.performance["decode"].operating_point.kv_tokens == 4096
    assert measured.performance["prefill"].operating_point.prompt_tokens == 8192
    assert "moved: prefill.max_request_tokens 16,384 -> 8,192" in diff_text(
        compare_plans(before, found.plan, remeasured=measure_by_former(before, found))
    )
    assert (refused.plan, "longer than the new limit of 64" in refused.unknown) == (None, True)


def test_hits_fall_as_in_the_plans_own_figures():
    """Memory alone keeps what the plan says that the trace hits there. Less traffic beside it does not hide that."""
    before, found = _pair({"kv_cache": {"memory": "32GiB"}}, {"kv_cache": {"memory": "4GiB"}})
    old, new = (plan.kv_cache.kept.hit_rate for plan in (before, found.plan))
    quiet = compile_plan(change_spec(found.resolved, QUIET), before)

    assert share_of_hits(before, found.plan) == pytest.approx(new / old, rel=1e-4)
    assert share_of_hits(before, quiet) == share_of_hits(before, found.plan)


@pytest.mark.parametrize(
    ("cache", "verdict", "moved"),
    [
        (None, "degraded", "kv_cache 56.3% hits -> 0.0%"),
        ({"memory": "4GiB", "sharing": "all"}, "degraded", "kv_cache 56.3% hits -> 5.9%"),
        ({"memory": "4GiB", "disk": DISK}, "degraded", "kv_cache 56.3% hits -> 0.0%"),
        ({"memory": "4GiB", "disk": DISK | {"size": "8TB"}, "sharing": "all"}, "rolling", None),
    ],
)
def test_less_is_hit_in_a_smaller_cache(cache, verdict, moved):
    """More than half of the prompts' tokens came from it, and traffic goes on to say so."""
    change = _change({"kv_cache": {"memory": "4GiB", "disk": DISK, "sharing": "all"}}, {"kv_cache": cache})
    text = diff_text(change)

    assert change.verdict == verdict
    assert (change.yardsticks is not None) == (moved is not None)
    assert moved is None or f"moved: {moved}" in text
