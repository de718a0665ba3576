"""Units over the day, with the rights that the controller's own Role gives it: orders, demand, stragglers.

Nothing runs pods here: what units report is written into their status by the test.
"""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import yaml
from kubernetes import client

from stacks.controller.act import FIELD_MANAGER
from stacks.controller.loop import run_round
from tests.cluster.controller.day import (
    DEPLOYMENTS,
    LWS,
    NAME,
    NAMESPACE,
    SECOND,
    UNITS,
    at,
    condition,
    deployment,
    nodes,
    on,
    order,
    report,
)


def test_units_go_and_come_back_as_the_day_says(custom, following, api_server):
    """At noon the second unit of each phase drains; both are started again so long before 18:00 as they warm up."""
    run_round(following, at(12))
    assert on(custom) == set(UNITS) - SECOND

    run_round(following, at(17, 29))
    assert on(custom) == set(UNITS) - SECOND

    run_round(following, at(17, 30))
    assert on(custom) == set(UNITS)
    events = client.CoreV1Api(api_server.api).list_namespaced_event(NAMESPACE).items
    assert {(each.reason, each.message.partition(":")[0]) for each in events if each.reason in ("Drain", "Start")} == {
        (reason, unit) for reason in ("Drain", "Start") for unit in SECOND
    }


def test_a_unit_that_is_not_ready_keeps_another_in_its_place(custom, following):
    """No unit goes while a phase would have too few ready ones without it."""
    report(custom, "demo-day-decode-0", ready=0)

    run_round(following, at(12))

    assert on(custom) == set(UNITS) - {"demo-day-prefill-1"}
    assert "stays until demo-day-decode-0" in deployment(custom)["status"]["why"]
    report(custom, "demo-day-decode-0", ready=1)
    run_round(following, at(12, 1))
    assert on(custom) == set(UNITS) - SECOND


def test_a_round_that_changes_nothing_writes_nothing_but_its_lease(custom, following):
    """So nobody who watches the cluster hears of it."""
    run_round(following, at(12))
    run_round(following, at(12, 1))  # writes that the units are gone
    before = [deployment(custom), custom.list_namespaced_custom_object(*LWS)["items"]]

    run_round(following, at(12, 2))

    assert [deployment(custom), custom.list_namespaced_custom_object(*LWS)["items"]] == before


def test_neither_the_stack_nor_the_controller_undoes_the_other(custom, following, objects, documents):
    """What is applied again leaves replicas to the controller, and an order to the person who gave it."""
    run_round(following, at(12))
    hold = {"spec": {"hold": {"until": "2026-12-01T19:00:00Z"}}}
    custom.patch_namespaced_custom_object(*DEPLOYMENTS, NAME, hold, field_manager="kubectl-patch")

    for each in documents.values():
        objects.apply(each)

    assert on(custom) == set(UNITS) - SECOND
    assert deployment(custom)["spec"]["hold"] == hold["spec"]["hold"]
    managers = custom.get_namespaced_custom_object(*LWS, "demo-day-decode-1")["metadata"]["managedFields"]
    owners = {each["manager"] for each in managers if "f:replicas" in each["fieldsV1"].get("f:spec", {})}
    assert owners <= {FIELD_MANAGER}  # empty until kubernetes/kubernetes#131892 is mended


def test_a_person_holds_the_day_and_forces_a_state(custom, following):
    """Each until its time, and the status says so."""
    order(custom, hold={"until": "2026-12-01T13:00:00Z"})
    run_round(following, at(12))
    assert on(custom) == set(UNITS)
    assert condition(custom, "Following")[:2] == ("False", "Held")

    order(custom, hold=None, force={"state": "22:00", "until": "2026-12-02T12:00:00Z"})
    run_round(following, at(20))
    assert on(custom) == set(UNITS) - SECOND
    assert condition(custom, "Following") == ("True", "Forced", "state 22:00 is forced")


def test_demand_starts_a_unit_ahead_of_the_schedule(custom, following, api_server):
    """At 23:00 it goes; it is on again when its node's user has had notice, and goes after its stay is over."""
    with gateway_page("7.0") as page:
        order(custom, metrics=page.url, demand=page.demand)
        run_round(following, at(23))
        page.requests = "8.0"
        run_round(following, at(23, 1))
        assert on(custom) == set(UNITS) - SECOND
        assert nodes(api_server)["node-3"][0] == "reclaimed"
        run_round(following, at(23, 6))
        assert on(custom) == set(UNITS) - {"demo-day-prefill-1"}
        more = condition(custom, "Forecast")

        page.requests = "7.0"
        run_round(following, at(23, 10))
        assert on(custom) == set(UNITS) - {"demo-day-prefill-1"}
        report(custom, "demo-day-decode-1", ready=1)
        for minute in (40, 59):
            run_round(following, at(23, minute))
        assert on(custom) == set(UNITS) - SECOND

    assert more == ("False", "MoreDemand", "demand asks for 2 decode units, the day for 1")
    said = [each.message for each in client.CoreV1Api(api_server.api).list_namespaced_event(NAMESPACE).items]
    assert "demo-day-decode-1: demand asks for it" in said


def test_a_unit_that_a_rank_holds_up_is_relieved(custom, following, api_server):
    """At night another one of its phase is started, and it goes when that is ready."""
    with gateway_page("1.0", straggler="demo-day-decode-0") as page:
        order(custom, metrics=page.url, stragglersLast={})
        for minute in (0, 1):
            run_round(following, at(23, minute))
        assert on(custom) == set(UNITS) - SECOND
        run_round(following, at(23, 5))
        assert on(custom) == set(UNITS) - {"demo-day-prefill-1"}
        report(custom, "demo-day-decode-1", ready=1)
        run_round(following, at(23, 6))
        assert on(custom) == {"demo-day-prefill-0", "demo-day-decode-1"}
        assert deployment(custom)["status"]["stragglers"] == [{"unit": "demo-day-decode-0", "isLast": True}]
    said = [each.reason for each in client.CoreV1Api(api_server.api).list_namespaced_event(NAMESPACE).items]
    assert said.count("Straggling") == 1


@contextmanager
def gateway_page(requests, straggler="nobody"):
    """A gateway's metrics, with `requests` of its decode unit; `demand` is what a deployment has to say to read it."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            figures = {"ready_units": "1.0", "requests": server.requests}
            self.send_response(200)
            self.end_headers()
            for name, value in figures.items():
                self.wfile.write(f'tidemill_phase_{name}{{phase="decode"}} {value}\n'.encode())
            self.wfile.write(f'tidemill_unit_straggler{{unit="{straggler}"}} 3.0\n'.encode())

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        server.requests = requests
        server.url = f"http://127.0.0.1:{server.server_port}/metrics"
        server.demand = {
            "used": 0.9,
            "backlog": 1.5,
            "afterSeconds": 60,
            "staySeconds": 900,
            "rooms": {"decode": {"requests": 8}},
        }
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_an_order_that_nobody_can_follow_is_said(custom, following):
    """A state that the day has not: the day goes on, and status and event have the place and what there is."""
    order(custom, force={"state": "21:00", "until": "2026-12-02T12:00:00Z"})

    run_round(following, at(12))

    assert on(custom) == set(UNITS) - SECOND
    states = "06:00, 11:00, 18:00, 20:00, 22:00"
    said = f"spec.force.state (21:00) is none of the day's ({states}), so the day goes on without it"
    assert condition(custom, "Following") == ("True", "WrongOrder", said)


@pytest.mark.parametrize(
    "spec",
    [{"hold": {}}, {"hold": {"until": "tomorrow"}}, {"force": {"state": "noon", "until": "2026-12-02T12:00:00Z"}}],
)
def test_an_order_without_form_is_refused_by_the_server(custom, spec):
    """The definition's schema knows what an order is."""
    with pytest.raises(client.ApiException) as refused:
        order(custom, **spec)
    assert refused.value.status == 422


def test_kubectl_shows_a_line_for_people(custom, following, api_server):
    """State, units, what comes next, and why."""
    run_round(following, at(12))
    for unit in SECOND:
        report(custom, unit, ready=0)
    run_round(following, at(12, 1))

    path = f"{api_server.api.configuration.host}/apis/tidemill.dev/v1alpha1/namespaces/{NAMESPACE}/deployments"
    accept = {"Accept": "application/json;as=Table;g=meta.k8s.io;v=v1", **api_server.api.default_headers}
    table = yaml.safe_load(api_server.api.call_api("GET", path, header_params=accept).read())

    assert [each["name"] for each in table["columnDefinitions"]] == ["Name", "State", "Units", "Free", "Next", "Why"]
    assert table["rows"][0]["cells"] == [
        NAME,
        "11:00",
        "prefill 1/1, decode 1/1",
        2,
        "18:00: 2 more (2026-12-01T18:00:00Z)",
        "as planned",
    ]
