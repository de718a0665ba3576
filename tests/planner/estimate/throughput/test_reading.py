"""Cached KV comes from storage that a node's ranks share: fast enough it hides, and too slow it binds."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.estimate.throughput.intervals import Evidence
from planner.estimate.throughput.predict import predict, saturated_rate
from planner.estimate.throughput.stages import Imbalance
from tests.planner.accuracy.published import SERVICE_PREFILL, case_of

KV_BYTES = 70_272
GB_PER_S = 8  # in Gb/s
SERVICE = case_of(SERVICE_PREFILL, Imbalance(1.052))
CASE = replace(SERVICE, point=replace(SERVICE.point, utilisation=1.0), whole_kv_bytes_per_token=KV_BYTES)
NOBODY = Evidence("none", "nobody looked", ())


def reading_at(gbps, hits=0.563):
    """Return the case with other storage."""
    return replace(CASE, point=replace(CASE.point, cache_read_gbps=gbps, cache_hit_rate=hits))


def test_slow_storage_is_the_binding_resource():
    """At 2 GB/s a node computes 2 GB/s over the KV that comes with each computed token, and 10 % more bring 10 %."""
    found = predict(reading_at(2 * GB_PER_S), NOBODY)

    assert found.binding.resource == "reads of cached KV"
    assert found.binding.tokens_per_s_per_gpu == pytest.approx(1.1 * found.tokens_per_s_per_gpu.mid, rel=1e-6)
    assert 8 * found.tokens_per_s_per_gpu.mid == pytest.approx(2e9 / (KV_BYTES * 0.563 / 0.437))
    assert found.cache_read_bytes_per_s == pytest.approx(2e9)


def test_fast_storage_delays_only_the_first_token():
    """3FS's 42.9 GB/s read a prompt's hits in 3 ms, and no step waits."""
    fast, endless = (predict(reading_at(each), NOBODY) for each in (42.9 * GB_PER_S, 1e9))
    read = 3000 * 0.563 * KV_BYTES / 42.9e9

    assert fast.tokens_per_s_per_gpu == endless.tokens_per_s_per_gpu
    assert fast.ttft_seconds.mid - endless.ttft_seconds.mid == pytest.approx(read, rel=1e-3)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.1, 500), st.floats(1, 4), st.floats(0, 0.99))
def test_faster_storage_is_never_slower(gbps, factor, hits):
    """Whatever share of prompts it holds."""
    assert saturated_rate(reading_at(gbps * factor, hits)) >= saturated_rate(reading_at(gbps, hits)) * (1 - 1e-9)
