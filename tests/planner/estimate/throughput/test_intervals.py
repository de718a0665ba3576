"""Ranges: how wide, and what they say they rest on."""

import pytest

from planner.estimate.throughput.engines import engine_model
from planner.estimate.throughput.intervals import Evidence, evidence_for, spread
from planner.estimate.throughput.machine import machine_of
from planner.facts.catalog import GPUS


@pytest.mark.parametrize(
    ("engine", "phase", "gpu", "family"),
    [
        ("sglang", "prefill", "h100", "same engine and GPU"),
        ("sglang", "decode", "h100", "same engine and GPU, other phase"),
        ("sglang", "prefill", "h200", "same engine, other GPU"),
        ("vllm", "decode", "mi300x", "same engine and GPU"),
        ("vllm", "decode", "h100", "none"),
        ("tidemill", "decode", "h800", "none"),
    ],
)
def test_a_range_rests_on_what_was_measured(engine, phase, gpu, family):
    """The engine's own rows decide, phase by phase and GPU by GPU."""
    evidence = evidence_for(engine_model(engine, gpu), phase, machine_of(GPUS[gpu], gpu))

    assert evidence.family == family


def test_what_nobody_measured_has_no_family():
    """However well the engine is known on that GPU."""
    sglang, h100 = engine_model("sglang", "h100"), machine_of(GPUS["h100"], "h100")
    evidence = evidence_for(sglang, "prefill", h100, "matmuls in w4a16")

    assert (evidence.family, evidence.why) == ("none", "no kernel of matmuls in w4a16 was measured")


@pytest.mark.parametrize(
    ("family", "scaled", "low", "high"),
    [
        ("same engine and GPU", (), 90, 110),
        ("same engine and GPU, other phase", (), 80, 120),
        ("same engine, other GPU", (), 80, 120),
        ("same engine, other GPU", ("core_share",), 65, 135),
        ("none", (), 50, 150),  # kernels give no more than 150
    ],
)
def test_less_evidence_is_a_wider_range(family, scaled, low, high):
    """An unmeasured family has a factor of two, up to what its kernels give."""
    found = spread(100, 150, Evidence(family, "", scaled))

    assert (found.low, found.mid, found.high) == (pytest.approx(low), 100, pytest.approx(high))


@pytest.mark.parametrize("name", sorted(GPUS.keys() - {"cpu"}))
def test_constants_say_whether_they_were_measured(name):
    """Of each GPU of the catalog some are measured, or all are scaled."""
    origins = machine_of(GPUS[name], name).origins

    assert set(origins.values()) <= {"measured", "scaled"}
    assert ("measured" in origins.values()) == (name != "mi300x")
