"""How long requests are where the traffic counts them, and what a point leaves to the planner."""

import json

import pytest

from planner.compiler import compile_plan
from planner.spec.check import check_document
from planner.spec.yaml import parse_document

pytestmark = pytest.mark.slow

HALF_DAY = {"profile": [1] * 12 + [3] * 12}
SLO = {"tpot_ms": 20, "ttft_ms": 1000}


def spec_of(nodes, output_tokens=8e9, prefill=(), decode=(), **sections):
    """A small model whose units are of any size, under traffic that counts them."""
    free = {"ep_size": "auto", "units": "auto"}
    data = {
        "version": 1,
        "name": "small",
        "model": "deepseek-v2-lite",
        "cluster": {"gpu": "h800", "nodes": nodes, "gpus_per_node": 8},
        "slo": SLO,
        "traffic": {"input_tokens": 2 * output_tokens, "output_tokens": output_tokens} | HALF_DAY,
        "schedule": "auto",
        "prefill": free | dict(prefill),
        "decode": free | dict(decode),
    } | sections
    written = {key: value for key, value in data.items() if value is not None}
    return check_document(parse_document(json.dumps(written), "spec.yaml"))


def test_requests_of_the_traffic_are_the_point_of_phases_without_one():
    """The plan is predicted as with the lengths that follow from them, and as many requests as limits allow."""
    traffic = {"input_tokens": 16e9, "output_tokens": 8e9, "requests": 16e6} | HALF_DAY
    points = {"decode": {"kv_tokens": 1250}, "prefill": {"prompt_tokens": 1000}}
    counted, written = compile_plan(spec_of(20, traffic=traffic)), compile_plan(spec_of(20, operating_point=points))

    assert [each.prediction.point.kv_tokens for each in counted.outlooks if each.phase == "decode"] == [1250]
    for one, other in zip(counted.outlooks, written.outlooks, strict=True):
        assert one.prediction.tokens_per_s_per_gpu == other.prediction.tokens_per_s_per_gpu
    assert counted.units == written.units


def test_a_point_says_lengths_and_leaves_the_load_to_the_planner():
    """Loads that nobody wrote are decided, and told as `auto` would be."""
    points = {"decode": {"kv_tokens": 1250}, "prefill": {"prompt_tokens": 1000}}
    autos = {
        "decode": {"kv_tokens": 1250, "requests": "auto"},
        "prefill": {"prompt_tokens": 1000, "step_tokens": "auto"},
    }
    plan, same = compile_plan(spec_of(20, operating_point=points)), compile_plan(spec_of(20, operating_point=autos))

    assert plan.decisions == same.decisions
    assert plan.digest == same.digest
    assert plan.spec.operating_point.decode.requests == plan.spec.decode.max_requests
