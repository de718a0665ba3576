"""The number of nodes below which nothing fits: it plans, fewer do not, and it is the same whatever is there."""

import json
import re
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from planner.compiler import compile_plan, run_passes
from planner.plan.fit import check_fit
from planner.problems.errors import InfeasibleError
from planner.report.text import plan_text
from planner.rules.check import check_document
from planner.spec.yaml import parse_document

pytestmark = pytest.mark.slow

HALF_DAY = {"profile": [1] * 12 + [3] * 12}
SLO = {"tpot_ms": 20, "ttft_ms": 1000}
HEADROOM = {"windows": "auto", "headroom": 0.3}
BUSY_DAY = {"other_days": [{"days": ["monday"], "profile": [4] * 24}]}
TWO = {"units": 2}


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


def least_of(spec):
    """The nodes that `spec` is told to have at least; None where it has enough."""
    told = [re.match(r"S701 must be at least (\d+)", each.rule) for each in check_fit(spec).left_to_plan]
    return int(told[0][1]) if told else None


def assert_one_least(given_nodes, spec_with):
    """Each of these numbers of nodes is refused with the same least one or, from that number on, planned."""
    least = {nodes: least_of(spec_with(nodes)) for nodes in given_nodes}
    told = {each for each in least.values() if each is not None}

    assert len(told) <= 1
    for number in told:
        assert all((nodes < number) == (each is not None) for nodes, each in least.items())
        assert least_of(spec_with(number)) is None


@settings(max_examples=12, deadline=None)
@given(
    output_tokens=st.sampled_from([1e9, 8e9, 2e10, 6e10]),
    schedule=st.sampled_from(["auto", HEADROOM]),
    prefill=st.sampled_from([{}, TWO]),
    decode=st.sampled_from([{}, {"ep_size": 16}, {"ep_size": 24, "redundant_experts": 8}, TWO, {"units": 7}]),
    traffic=st.sampled_from([{}, BUSY_DAY]),
    spares=st.sampled_from([[], ["node-0"]]),
    given_nodes=st.lists(st.integers(2, 40), min_size=3, max_size=6),
)
@example(8e9, HEADROOM, {}, TWO, {}, [], [1, 3, 4, 5, 9, 13])
@example(8e9, HEADROOM, TWO, TWO, {}, [], [3, 4, 5, 6, 7])
def test_the_least_number_of_nodes_plans_and_is_the_same_whatever_is_there(
    output_tokens, schedule, prefill, decode, traffic, spares, given_nodes
):
    """Whatever is written, and whatever the traffic's other days ask for."""
    traffic = {"input_tokens": 2 * output_tokens, "output_tokens": output_tokens} | HALF_DAY | traffic

    def spec_with(nodes):
        cluster = {"gpu": "h800", "nodes": nodes, "gpus_per_node": 8, "spares": spares}
        return spec_of(nodes, prefill=prefill, decode=decode, schedule=schedule, traffic=traffic, cluster=cluster)

    assert_one_least(given_nodes, spec_with)


@pytest.mark.parametrize("decode", [{}, {"units": 3}])
@pytest.mark.parametrize("schedule", [HEADROOM, HEADROOM | {"min_units": {"prefill": 1, "decode": 4}}])
def test_units_of_unknown_speed_fill_the_nodes_with_their_headroom(schedule, decode):
    """So what windows add never asks for more nodes than there are."""

    def spec_with(nodes):
        cluster = {"gpu": "cpu", "nodes": nodes, "gpus_per_node": 8}
        return spec_of(nodes, decode=decode, schedule=schedule, slo={}, cluster=cluster)

    assert_one_least(range(1, 10), spec_with)


def test_given_units_get_a_layout_that_serves_if_it_fits():
    """Headroom makes two units three. On fewer nodes they get the fastest layout per node, and the plan says so."""
    plans = {n: run_passes(spec_of(n, decode=TWO, schedule=HEADROOM)) for n in (4, 6, 7, 20)}
    sizes = {n: plan.spec.decode.ep_size for n, plan in plans.items()}
    whys = {n: each.why for n, plan in plans.items() for each in plan.choice.decisions if each.path == "decode.ep_size"}

    assert sizes == {4: 8, 6: 8, 7: 16, 20: 16}
    assert all(("none that fits is predicted to serve" in why) == (n < 7) for n, why in whys.items())


@pytest.mark.parametrize("schedule", [HEADROOM, "auto"])
def test_units_that_are_too_few_for_counted_nodes_are_told_how_many_do(schedule):
    """Headroom comes on top of what is written, so it is not asked for twice."""
    with pytest.raises(InfeasibleError) as caught:
        check_fit(spec_of("auto", decode=TWO | {"ep_size": 8}, schedule=schedule))
    (finding,) = caught.value.findings

    assert (finding.value, finding.rule) == (2, "S729 must be at least 4 to serve the traffic")
    assert not check_fit(spec_of("auto", decode={"units": 4, "ep_size": 8}, schedule=schedule)).left_to_plan


def test_the_number_of_nodes_includes_units_of_windows():
    """The search counts the units of all windows, so the nodes that it suggests are enough for them."""
    plan = run_passes(spec_of("auto", decode=TWO, schedule=HEADROOM))

    assert plan.spec.cluster.nodes == plan.choice.search.fleet.nodes == 7


def test_no_layout_fits_fewer_nodes_than_are_asked_for():
    """Every pair of sizes that a user could write, with the fewest slots or one more a GPU, is refused below."""
    free = {"redundant_experts": "auto"}
    number = least_of(spec_of(1, prefill=free, decode=free))
    layouts = [
        {"ep_size": size, "redundant_experts": -64 % size + more * size} for size in (4, 8, 16, 24) for more in (0, 1)
    ]

    assert number > 4
    for prefill, decode in product(layouts, layouts):
        assert least_of(spec_of(number - 1, prefill=prefill, decode=decode)) is not None


def test_without_traffic_a_unit_of_each_phase_is_the_least():
    """Units fill the nodes that are there, so the fewest hold one of each that keeps the promises."""
    sections = {"model": "deepseek-r1", "traffic": None, "schedule": None, "slo": {"tpot_ms": 50}}
    told = {nodes: least_of(spec_of(nodes, **sections)) for nodes in (1, 2, 3)}

    assert set(told.values()) == {4}
    assert least_of(spec_of(4, **sections)) is None


def test_assumed_lengths_are_mentioned_if_they_decide():
    """Refusals and the plan's first lines mention them, unless the traffic counts requests or a point has lengths."""
    limits = {"prefill": {"max_request_tokens": 9978}, "decode": {"max_request_tokens": 9978}}
    (refused,) = check_fit(spec_of(1, **limits)).left_to_plan
    traffic = {"input_tokens": 16e9, "output_tokens": 8e9, "requests": 16e6} | HALF_DAY
    (counted,) = check_fit(spec_of(1, traffic=traffic, **limits)).left_to_plan
    points = {"decode": {"kv_tokens": 1250}, "prefill": {"prompt_tokens": 1000}}
    (written,) = check_fit(spec_of(1, operating_point=points, **limits)).left_to_plan
    head = plan_text(compile_plan(spec_of(20, **limits))).split("\n\n")[1]

    assumed = "prompts of 4,989 tokens and requests of 4,989 KV tokens"
    assert f"auto assumes {assumed} (half of max_request_tokens" in refused.message
    assert f"request lengths ({assumed})" in " ".join(head.split())
    assert "assumes" not in counted.message + written.message
    assert counted.rule == written.rule


def test_requests_of_the_traffic_are_the_point_of_phases_without_one():
    """The plan is predicted as with the lengths that follow from them, and as many requests as limits allow."""
    traffic = {"input_tokens": 16e9, "output_tokens": 8e9, "requests": 16e6} | HALF_DAY
    points = {"decode": {"kv_tokens": 1250}, "prefill": {"prompt_tokens": 1000}}
    counted, written = run_passes(spec_of(20, traffic=traffic)), run_passes(spec_of(20, operating_point=points))

    assert [each.prediction.point.kv_tokens for each in counted.speed if each.phase == "decode"] == [1250]
    for one, other in zip(counted.speed, written.speed, strict=True):
        assert one.prediction.tokens_per_s_per_gpu == other.prediction.tokens_per_s_per_gpu
    assert counted.units == written.units


def test_a_point_says_lengths_and_leaves_the_load_to_the_planner():
    """Loads that nobody wrote are decided, and told as `auto` would be."""
    points = {"decode": {"kv_tokens": 1250}, "prefill": {"prompt_tokens": 1000}}
    autos = {
        "decode": {"kv_tokens": 1250, "requests": "auto"},
        "prefill": {"prompt_tokens": 1000, "step_tokens": "auto"},
    }
    plan, same = run_passes(spec_of(20, operating_point=points)), run_passes(spec_of(20, operating_point=autos))

    assert plan.choice.decisions == same.choice.decisions
    assert plan.plan.digest == same.plan.digest
    assert plan.spec.operating_point.decode.requests == plan.spec.decode.max_requests


def test_idle_nodes_are_offered_as_spares():
    """Until there is one, a lost node stops its unit for the day; with the spare that is offered nothing is said."""
    plan = run_passes(spec_of(20))
    head = " ".join(plan_text(plan.plan).split("\n\n")[1].split())
    used = {node for unit in plan.units for node in unit.nodes}
    (spare,) = re.findall(r"with cluster\.spares: \[(node-\d+)\] the unit serves again after 10 min", head)
    cluster = {"gpu": "h800", "nodes": 20, "gpus_per_node": 8, "spares": [spare]}

    assert f"{len(used)} of 20 nodes" in head
    assert "stops the only prefill unit, and so the service; out until repaired" in head
    assert spare not in used
    spared = " ".join(plan_text(compile_plan(spec_of(20, cluster=cluster))).split())
    assert "for 10 min, until it serves on a spare" in spared


def test_traffic_beyond_any_cluster_is_refused_as_such():
    """No number of nodes that a spec may have is enough, so none is named."""
    with pytest.raises(InfeasibleError) as caught:
        check_fit(spec_of(40, 1e15))

    assert [each.rule[:4] for each in caught.value.findings] == ["S729"]
