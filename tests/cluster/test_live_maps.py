"""The controller changes the expert map of a real unit on three nodes, within its limits, and no caller notices.

NetworkPolicies are enforced, and the controller has its own account's rights. The tests are in the order of its life.
"""

import time

import pytest
from kubernetes import client

from planner.facts import names
from planner.facts.digest import digest_of
from stacks.kube.api import Api
from stacks.kube.connection import Connection
from stacks.live.status import read_live_plan
from tests.benchmarks.played_day import Streams, undisturbed
from tests.cluster.live_unit import (
    UNIT,
    bytes_of_diff,
    live_map,
    new_experts,
    read_epoch_page,
    read_ranks,
    rows_of,
    totals_of,
    unit_deployed,
)
from tests.cluster.policies import enforced_policies
from tests.cluster.products import PULUMI

pytestmark = pytest.mark.whole

NAMESPACE = "live-maps"
LIMITS = {"every": "4s", "min_gain": 0.15, "max_bytes": "100kB"}  # one expert has more bytes
PATIENCE_S, LOOK_S = 180, 0.5


@pytest.fixture(scope="module")
def up(cluster, toolchain, tmp_path_factory):
    """The unit, whose plan suits no traffic."""
    (executable,) = toolchain(PULUMI)
    made = unit_deployed(executable, tmp_path_factory.mktemp("live"), cluster, NAMESPACE, LIMITS)
    with enforced_policies(cluster):
        run = made.pulumi.up()
        assert run.status == 0, run.output
        yield made
        made.pulumi.destroy()


@pytest.fixture(scope="module")
def streams(up):
    """Callers who ask without a pause, and expect the texts of before."""
    host = up.endpoint().removeprefix("http://").partition(":")[0]
    with Streams(host, undisturbed(host)) as asking:
        yield asking


@pytest.fixture(scope="module")
def shown(up):
    """A function that returns what status has of the unit's maps, without a process for each look."""
    plan, api = up.plan, Api(Connection(up.cluster.api))

    def look():
        return next(each.expert_map or {} for each in read_live_plan(plan, api).units if each.name == UNIT)

    return look


def wait(deployed, is_true, what):
    """Look twice a second, since each look takes the processor from the ranks."""

    def look():
        time.sleep(LOOK_S)
        return is_true()

    deployed.cluster.wait_until(look, what, PATIENCE_S)


def test_a_map_beyond_the_limits_is_proposed(up, streams, shown):
    """Where `max_bytes` forbids a better map, status says what it gains and moves, and the unit keeps its own."""
    seen = []

    def is_proposed():
        seen.append(shown())
        return "but within max_bytes (0.1 MB) a map gains nothing" in seen[-1].get("decision", "")

    wait(up, is_proposed, "a proposal")
    configs = client.CoreV1Api(up.cluster.api).list_namespaced_config_map(NAMESPACE).items

    assert seen[-1]["plan"] == seen[-1]["in_service"]
    assert seen[-1]["decision"].startswith("max/mean ")
    assert names.epoch_config(UNIT) not in {each.metadata.name for each in configs}
    assert read_epoch_page(up)["number"] == 0


def test_a_unit_adopts_a_better_map(up, streams, shown):
    """An edit of the limits restarts no pod, and the unit takes the map that they allow now.

    Its ranks receive the bytes that the planner's diff of both maps has, and compute rows of the experts that moved.
    Status names both maps, what the new one gains, and what moved.
    """
    planned, pods, before = read_epoch_page(up)["physical_to_logical"], up.uids(UNIT), totals_of(read_ranks(up))
    up.change_spec(lambda spec: spec["expert_load"]["live"].update(max_bytes="100MB"))
    assert up.pulumi.up().status == 0
    wait(up, lambda: "; moved " in live_map(up).get("adopted", ""), "another map")
    page, ranks, maps, said = read_epoch_page(up), read_ranks(up), shown(), up.run_status().stdout
    moved, arrived = totals_of(ranks).since(before), new_experts(planned, page["physical_to_logical"])
    num_answers = len(streams.answers) + len(streams.expected)
    wait(up, lambda: len(streams.answers) > num_answers, "more answers")
    events = client.CoreV1Api(up.cluster.api).list_namespaced_event(NAMESPACE).items

    assert streams.wrong == []
    assert up.uids(UNIT) == pods
    assert page["number"] == live_map(up)["epoch"] == 1
    assert moved.num_bytes == bytes_of_diff(up.plan, planned, page["physical_to_logical"]) > 0
    assert rows_of(read_ranks(up), arrived) > rows_of(ranks, arrived)
    assert (maps["plan"], maps["in_service"]) == (digest_of(planned), digest_of(page["physical_to_logical"]))
    assert f"moved {moved.num_bytes / 1e6:.1f} MB (as promised)" in maps["why"]
    assert f"{maps['in_service']} instead of the plan's {maps['plan']}: expert_load.live: max/mean" in said
    assert any(each.reason == "ExpertMap" and UNIT in each.message for each in events)
