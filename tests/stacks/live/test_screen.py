"""What the screen of `status --watch` shows: every size of terminal, and figures that agree with slow references."""

import io
from dataclasses import replace
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from planner.compiler import compile_plan
from planner.rules.check import check_spec
from stacks.live.look import Look, Part, look_at_cluster, look_here
from stacks.live.screen import _sparkline, draw, new_events
from stacks.live.traffic import TrafficLog
from stacks.local.record import GatewayRecord, Record, UnitRecord
from stacks.measured.samples import Sample
from tests.stacks.deployments import DEMO_SPEC
from tests.stacks.kube.fake_api import running_fake_api

STATES = ("ready", "failed", "starting", "off", "loading 50%")
PODS = "/api/v1/namespaces/tidemill/pods"


def look(*states, **fields):
    """A deployment with a decode unit in each of `states`."""
    units = tuple(Part(f"decode-{n}", "decode", 8, state, None) for n, state in enumerate(states))
    return Look("chat", "http://127.0.0.1:8000, plan sha256:0", units, **fields)


def gateway(**values):
    """A gateway's page, with counters or gauges by name."""
    return [Sample(name, {}, str(value)) for name, value in values.items()]


def histogram(name, bounds, observed):
    """A histogram's samples after these observations, in seconds."""
    upto = [
        Sample(f"{name}_bucket", {"le": str(b)}, str(sum(o <= b for o in observed))) for b in (*bounds, "+Inf")[:-1]
    ]
    full = Sample(f"{name}_bucket", {"le": "+Inf"}, str(len(observed)))
    sums = [Sample(f"{name}_count", {}, str(len(observed))), Sample(f"{name}_sum", {}, str(sum(observed)))]
    return [*upto, full, *sums]


def measure(*pages, every_s=1.0):
    """The traffic after looks at one gateway that shows these pages, one after the other."""
    log = TrafficLog()
    return [log.add(look("ready", pages={"gateway/0": page}), n * every_s) for n, page in enumerate(pages)][-1]


def lines(shown, traffic=None, events=(), width=80, height=24, **options):
    """The rows of the drawn screen."""
    written = io.StringIO()
    console = Console(file=written, width=width, height=height, **options)
    traffic = traffic or TrafficLog().add(shown, 0.0)
    console.print(draw(shown, traffic, list(events), [], width, height))
    return written.getvalue().splitlines()


@given(
    states=st.lists(st.sampled_from(STATES), min_size=1, max_size=60),
    events=st.integers(0, 30),
    width=st.integers(20, 200),
    height=st.integers(12, 60),
)
def test_the_screen_fits_every_terminal(states, events, width, height):
    """No row is longer or lower than the terminal, and as many events are shown as have room."""
    rows = lines(
        look(*states), events=[("12:00:00", f"event {n} " * 20) for n in range(events)], width=width, height=height
    )

    assert len(rows) <= height
    assert max(map(len, rows)) <= width


def test_units_in_trouble_are_shown_when_not_all_fit():
    """The last row of the table counts the units that are not shown."""
    rows = lines(look(*["ready"] * 40, "failed"), height=16)

    assert rows[1] == "decode 40/41 ready"
    assert rows[5].split()[:2] == ["decode-40", "failed"]
    assert rows[12].strip() == "34 more"


def test_a_missed_promise_is_red():
    """The mean of the last minute is compared with the promised mean."""
    page = histogram("time_to_first_token_seconds", (1, 2), [])
    missed = measure(page, histogram("time_to_first_token_seconds", (1, 2), [1.5, 1.9]))
    promised = look("ready", slo_ms=(1000, None))
    rows = lines(promised, replace(missed, running=0.0), force_terminal=True, color_system="standard")

    (row,) = [row for row in rows if "TTFT" in row]
    assert "\x1b[1;31mmean 1.70 s\x1b[0m" in row
    assert "promised 1.00 s" in row


@given(st.lists(st.floats(0.001, 9.9), min_size=1, max_size=50))
def test_latencies_are_those_observed(observed):
    """The mean is exact; the percentile lies in the bucket that holds the sorted list's value."""
    bounds = [0.1, 1, 3, 10]
    name = "inter_token_latency_seconds"
    itl = measure(histogram(name, bounds, []), histogram(name, bounds, observed)).itl
    exact = sorted(observed)[-(-99 * len(observed) // 100) - 1]
    low, high = max(b for b in (0, *bounds) if b < exact), min(b for b in bounds if b >= exact)

    assert itl.mean_ms == pytest.approx(1000 * mean(observed))
    assert 1000 * low <= itl.p99_ms <= 1000 * high


def test_rates_are_of_the_last_ten_seconds():
    """Counters that grew by 5 a second at first and by 50 lately give 50."""
    counts = [5 * second for second in range(20)] + [95 + 50 * second for second in range(1, 12)]
    pages = [gateway(num_requests_running=1, generation_tokens_total=count) for count in counts]

    assert measure(*pages).generated_tokens_per_s == 50


def test_a_gateway_that_starts_again_gives_no_negative_rate():
    """What it has counted since is all that is known."""
    pages = [gateway(num_requests_running=0, generation_tokens_total=count) for count in (1000, 30)]

    assert measure(*pages, every_s=3).generated_tokens_per_s == 10


def test_changes_between_looks_are_events():
    """A unit's state, its reason, and new notes; progress of loading is none."""
    before, after = look("ready", "loading 10%"), look("failed", "loading 90%", notes=("a full disk",))
    failed = replace(after.units[0], reason="it lost 1 of its 8 ranks")

    assert list(new_events(before, replace(after, units=(failed, after.units[1])), "12:00:00")) == [
        ("12:00:00", "decode-0 failed: it lost 1 of its 8 ranks"),
        ("12:00:00", "a full disk"),
    ]


def test_another_expert_map_is_an_event():
    """A unit that follows another map than at the last look, and one that begins with the plan's again."""
    plain, first, second = (
        replace(look("ready"), units=(replace(look("ready").units[0], own_map=own),))
        for own in (None, "sha256:1: expert_load.live: max/mean 2 -> 1", "sha256:2: tidemill experts apply")
    )

    assert list(new_events(plain, first, "12:00:00")) == [
        ("12:00:00", "decode-0 follows expert map sha256:1: expert_load.live: max/mean 2 -> 1")
    ]
    assert list(new_events(first, first, "12:00:01")) == []
    assert list(new_events(first, second, "12:00:02")) == [
        ("12:00:02", "decode-0 follows expert map sha256:2: tidemill experts apply")
    ]
    assert list(new_events(second, plain, "12:00:03")) == [("12:00:03", "decode-0 follows the plan's expert map again")]
    assert list(new_events(None, first, "12:00:04")) == [
        ("", "decode-0 follows expert map sha256:1: expert_load.live: max/mean 2 -> 1")
    ]
    unknown = replace(look("ready"), units=(replace(look("ready").units[0], own_map=""),))
    assert not [*new_events(first, unknown, "12:00:05"), *new_events(unknown, plain, "12:00:06")]


def test_a_look_names_the_map_that_a_unit_follows():
    """It has a short digest and the reason, whatever the epoch's number; a unit with the plan's map has neither, nor
    has a gateway, and of a unit whose ranks do not say it nothing is known."""
    kept = UnitRecord("chat-decode-0", "decode", "ready", 2, planned_map="sha256:0", map_in_service="sha256:0")
    own = {"map_in_service": f"sha256:{'1' * 64}", "epoch": 3, "epoch_digest": "sha256:3"}
    own |= {"own_digest": "sha256:3", "own_reason": "max/mean 2 -> 1"}
    applied = {"map_in_service": f"sha256:{'2' * 64}", "epoch": 3, "epoch_digest": "sha256:4", "own_digest": "sha256:3"}
    units = (kept, *(replace(kept, **each) for each in (own, applied, {"map_in_service": ""})))
    found = look_here(
        Record("chat", "sha256:0", (GatewayRecord("chat-gateway-0", "http://127.0.0.1:8000"),), "m", units)
    )

    assert [each.own_map for each in (*found.units, *found.gateways)] == [
        None,
        "sha256:111111111111: expert_load.live: max/mean 2 -> 1",
        "sha256:222222222222: tidemill experts apply",
        "",
        None,
    ]


def test_in_a_cluster_the_first_rank_of_each_unit_is_asked():
    """Through the API server; a pod that does not answer is shown without figures."""
    plan = compile_plan(check_spec(DEMO_SPEC))
    page = 'tidemill_kv_cache_usage_perc{unit="demo-decode-0",rank="0"} 0.25\n'
    with running_fake_api() as (fake, api):
        for name, component in (("demo-decode-0-0", "unit"), ("demo-decode-0-0-1", "unit"), ("gateway-7", "gateway")):
            labels = {"tidemill.dev/plan": "demo", "app.kubernetes.io/component": component}
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "tidemill", "labels": labels},
            }
            spec = {"spec": {"containers": [{"name": "runtime"}]}, "status": {"phase": "Running"}}
            fake.store(f"{PODS}/{name}", pod | spec)
        fake.answers[f"{PODS}/demo-decode-0-0:9400/proxy/metrics"] = (200, page)
        found = look_at_cluster(plan, api)
        asked = [path for _, path in fake.requests if path.endswith(":9400/proxy/metrics")]

    assert {name: list(samples) for name, samples in found.pages.items()} == {
        "decode-0/0": [Sample("kv_cache_usage_perc", {"unit": "demo-decode-0", "rank": "0"}, "0.25")]
    }
    assert sorted(asked) == [f"{PODS}/{name}:9400/proxy/metrics" for name in ("demo-decode-0-0", "gateway-7")]
    assert TrafficLog().add(found, 0.0).units["decode-0"].kv_usage == 0.25


@pytest.mark.parametrize("rates", [[-3.0, 2.0], [float("inf"), 1.0], [float("nan")]])
def test_rates_that_no_gateway_has_are_drawn_as_none(rates):
    """A metrics page may say anything, and the screen stays."""
    assert len(_sparkline(rates, 10, is_ascii=True)) == len(rates)
