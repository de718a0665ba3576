"""Ranges: how wide, and what they say they rest on."""

from dataclasses import asdict, replace

import pytest

from planner.estimate.throughput.engines import engine_model
from planner.estimate.throughput.intervals import Evidence, add_range, evidence_for
from planner.estimate.throughput.kernels import MATMULS
from planner.estimate.throughput.machine import build_machine
from planner.estimate.throughput.predict import predict
from planner.facts.catalog import GPUS
from tests.planner.accuracy.published import case_of, row_named

MOREH = "Moreh's vLLM, decode EP8"


@pytest.mark.parametrize(
    ("engine", "phase", "gpu", "family"),
    [
        ("sglang", "prefill", "h100", "same engine and GPU"),
        ("sglang", "decode", "h100", "same engine and GPU, other phase"),
        ("sglang", "prefill", "b200", "same engine, other GPU"),
        ("vllm", "decode", "mi300x", "same engine and GPU"),
        ("vllm", "decode", "h100", "same engine, other GPU"),
        ("vllm", "prefill", "h100", "none"),
        ("tidemill", "decode", "h800", "none"),
    ],
)
def test_a_range_rests_on_what_was_measured(engine, phase, gpu, family):
    """The engine's own rows decide, phase by phase and GPU by GPU."""
    evidence = evidence_for(engine_model(engine), phase, build_machine(GPUS[gpu], gpu))

    assert evidence.family == family


@pytest.mark.parametrize(("phase", "told"), [("prefill", "h100 took 1.21 times"), ("decode", "h100 took 1.3 times")])
def test_our_engine_says_how_long_one_gpu_took(phase, told):
    """Its evidence names what was measured of its compute alone."""
    evidence = evidence_for(engine_model("tidemill"), phase, build_machine(GPUS["h800"], "h800"))
    assert told in evidence.why


def test_an_unexplained_factor_widens_the_range():
    """vLLM reaches 0.60 of the prediction at one point on MI300X, so elsewhere the range is 40 % each way."""
    case = case_of(MOREH)
    evidence = evidence_for(case.engine, "decode", case.machine)
    rates = predict(case, evidence).tokens_per_s_per_gpu

    assert evidence.unexplained == pytest.approx(0.40, abs=0.01)
    assert rates.low / rates.mid == pytest.approx(0.60, abs=0.01)
    assert "40% of the rate is lost for no known reason" in evidence.why
    there = evidence_for(case.engine, "decode", build_machine(GPUS["h200"], "h200"))
    assert (there.unexplained, there.why) == (evidence.unexplained, evidence.why)


@pytest.mark.parametrize(("gpu", "factor"), [("h200", 0.603), ("mi300x", 0.603), ("gb200", None), ("b300", None)])
def test_an_unexplained_factor_stays_where_kernels_are_alike(gpu, factor):
    """vLLM's was measured where no matmul takes FP4; on Blackwell it has other kernels."""
    assert engine_model("vllm").restrict_to(gpu).factor.get("decode") == (factor and pytest.approx(factor, abs=0.001))


def test_a_range_without_evidence_holds_what_was_published():
    """Moreh's vLLM on MI300X, as if nobody had measured vLLM: a factor of two is enough."""
    case, unknown = case_of(MOREH), engine_model("unmeasured")
    case = replace(case, engine=unknown)
    rates = predict(case, evidence_for(unknown, "decode", case.machine)).tokens_per_s_per_gpu

    assert rates.low < row_named(MOREH).measured["tokens_per_s_per_gpu"] < rates.mid


def test_a_lower_matmul_share_applies_to_every_operation():
    """An MI300X's shares of matmuls are an H100's, scaled by large matmuls; those of memory and links are equal."""
    ours, reference = build_machine(GPUS["mi300x"], "mi300x").kernels, build_machine(GPUS["h100"], "h100").kernels
    ratios = {name: getattr(ours, name) / value for name, value in asdict(reference).items()}
    scaled = {f"{each}_share" for each in MATMULS} - {"core_share"}

    assert {name for name, ratio in ratios.items() if ratio == pytest.approx(0.45 / 0.93, rel=1e-3)} >= scaled
    assert all(ratio == 1 for name, ratio in ratios.items() if name not in scaled | {"core_share"})


def test_what_nobody_measured_has_no_family():
    """However well the engine is known on that GPU."""
    sglang, h100 = engine_model("sglang"), build_machine(GPUS["h100"], "h100")
    evidence = evidence_for(sglang, "prefill", h100, "matmuls in w4a16")

    assert (evidence.family, evidence.why) == ("none", "no kernel of matmuls in w4a16 was measured")


@pytest.mark.parametrize(
    ("family", "scaled", "low", "high"),
    [
        ("same engine and GPU", (), 90, 110),
        ("same engine and GPU, other phase", (), 80, 120),
        ("same engine, other GPU", (), 80, 120),
        ("same engine, other GPU", ("core_share",), 65, 135),
        ("none", (), 50, 110),  # kernels give no more than 110
        ("none", ("ffn_weight_share",), 50, 148.5),  # and scaled ones may be 35 % better than thought
    ],
)
def test_less_evidence_is_a_wider_range(family, scaled, low, high):
    """An unmeasured family has a factor of two, up to what its kernels could give."""
    found = add_range(100, 110, Evidence(family, "", scaled))

    assert (found.low, found.mid, found.high) == (pytest.approx(low), 100, pytest.approx(high))


@pytest.mark.parametrize("name", sorted(GPUS.keys() - {"cpu"}))
def test_constants_say_whether_they_were_measured(name):
    """Each GPU of the catalog has some that are measured; H20 and MI300X only their core attention."""
    origins = build_machine(GPUS[name], name).origins
    measured = {constant for constant, origin in origins.items() if origin == "measured"}

    assert set(origins.values()) <= {"measured", "scaled"}
    assert (set() < measured <= {"core_share", "core_fp8_speedup"}) == (name in ("h20", "mi300x"))
