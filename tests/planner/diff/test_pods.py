"""What a change does to pods, and which field is named for it."""

import pytest

from planner.compiler import compile_plan
from planner.diff.pods import FIELD_NAMES, compare_pods
from planner.problems.errors import InfeasibleError
from planner.rules.check import change_spec, check_spec
from tests.planner.test_shipped_specs import SPECS

UNITS = ["deepseek-r1-prefill-0", "deepseek-r1-decode-0"]
GATEWAY = "deepseek-r1-gateway"
OF_GROUPS = ("env LWS_WORKER_INDEX", "env LWS_LEADER_ADDRESS", "env LWS_GROUP_SIZE")  # a StatefulSet sets none


@pytest.fixture(scope="module")
def spec():
    """One unit of each phase on named nodes, as pods on GPUs."""
    nodes = [{"name": f"gpu-{number:02}"} for number in range(30)]
    return change_spec(check_spec(SPECS / "h800-one-pair.yaml"), {"cluster.nodes": nodes})


@pytest.fixture(scope="module")
def before(spec):
    """What the spec deploys."""
    return compile_plan(spec)


@pytest.mark.parametrize(
    ("change", "restarted"),
    [
        ({"slo.tpot_ms": 50}, {}),
        ({"kubernetes.image": "another:2"}, dict.fromkeys(UNITS, ("image",))),
        ({"kubernetes.env": {"NCCL_DEBUG": "INFO"}}, dict.fromkeys(UNITS, ("env NCCL_DEBUG",))),
        ({"kubernetes.priority_class": "high"}, dict.fromkeys([GATEWAY, *UNITS], ("priorityClassName",))),
        ({"gateway.port": 8001}, {GATEWAY: ("ports",)}),
        (
            {"decode.max_requests": 64, "operating_point.decode.requests": 32},
            dict.fromkeys([GATEWAY, UNITS[1]], ("max_requests", "KV tokens")),
        ),
        ({"expert_load.seed": 3}, dict.fromkeys(UNITS, ("expert map",))),
        ({"cluster.spares": ["gpu-29"]}, dict.fromkeys(UNITS, ("spares", "nodes"))),
        ({"kubernetes.drain": "20min"}, dict.fromkeys([GATEWAY, *UNITS], ("seconds to end", "--drain"))),
        ({"kubernetes.namespace": "another"}, dict.fromkeys([GATEWAY, *UNITS], ("namespace", "identities"))),
        ({"kubernetes.unit_kind": "statefulset"}, dict.fromkeys(UNITS, ("kind", *OF_GROUPS))),
    ],
)
def test_pods_restart_whose_template_differs(change, restarted, spec, before):
    """Each is named with the fields that differ; what only an estimate reads restarts nothing."""
    found = compare_pods(before, compile_plan(change_spec(spec, change), before))

    assert {each.name: each.why for each in found if each.change == "restarted"} == restarted
    assert {each.name for each in found if each.change == "kept"} == {*UNITS, GATEWAY} - restarted.keys()


def test_another_type_of_a_field_restarts_pods(spec):
    """Python takes True for 1, and an API refuses one of them."""
    old, new = (
        compile_plan(change_spec(spec, {"kubernetes.overlay": {"unit_pod": {"spec": {"hostIPC": value}}}}))
        for value in (True, 1)
    )

    assert {each.name: each.why for each in compare_pods(old, new) if each.change == "restarted"} == dict.fromkeys(
        UNITS, ("hostIPC",)
    )


@pytest.mark.parametrize(
    ("engine", "change", "why"),
    [
        ("sglang", lambda value: {"engine.args": {"api-key": value}}, ("--api-key", "volumes")),
        (
            "tidemill",
            lambda value: {"kubernetes.overlay.unit_pod.metadata.annotations": {"token": value}},
            ("annotations token",),
        ),
    ],
)
def test_a_value_of_the_users_own_is_not_repeated(engine, change, why, spec):
    """It may be private, and the diff may be a public comment."""
    old, new = (
        compile_plan(change_spec(spec, {"engine.name": engine} | change(each))) for each in ("old-secret", "new-secret")
    )
    restarted = [each for each in compare_pods(old, new) if each.change == "restarted"]

    assert [(each.why, each.values) for each in restarted] == [(why, {})] * len(UNITS)


def test_units_get_certificates_in_turn(spec):
    """The controller changes their templates one by one, as it does with any other option."""
    old, new = (
        compile_plan(change_spec(spec, {"kubernetes.controller": {}, "kubernetes.tls": tls}))
        for tls in (None, {"issuer": "ca"})
    )

    assert [each.in_turn for each in compare_pods(old, new) if each.phase in old.phases] == [True, True]


def test_another_issuer_restarts_nothing(spec):
    """Only Certificates differ, and pods read their Secrets again."""
    tls = {"kubernetes.controller": {}, "kubernetes.tls": {"issuer": "ca"}}
    old, new = (compile_plan(change_spec(spec, tls | each)) for each in ({}, {"kubernetes.tls": {"issuer": "other"}}))

    assert {each.change for each in compare_pods(old, new)} == {"kept"}


def test_the_order_of_variables_is_in_a_template(spec):
    """Pods restart although no field has another value."""
    ordered, turned = (
        compile_plan(change_spec(spec, {"kubernetes.env": dict(each)}))
        for each in ((("A", "1"), ("B", "2")), (("B", "2"), ("A", "1")))
    )

    assert {each.name: each.why for each in compare_pods(ordered, turned) if each.why} == dict.fromkeys(
        UNITS, ("order",)
    )


def test_units_come_go_and_move(spec, before):
    """One more unit is new, and gone again on the way back; a unit on other nodes is moved."""
    more = compile_plan(change_spec(spec, {"prefill.units": 2}), before)
    elsewhere = compile_plan(change_spec(spec, {"cluster.nodes": [{"name": f"gpu-{each}"} for each in range(40, 70)]}))
    there, back, moved = compare_pods(before, more), compare_pods(more, before), compare_pods(before, elsewhere)

    assert [each.change for each in there if each.name == "deepseek-r1-prefill-1"] == ["new"]
    assert [each.change for each in back if each.name == "deepseek-r1-prefill-1"] == ["removed"]
    assert {each.name: (each.change, each.why) for each in moved} == {
        GATEWAY: ("kept", ()),
        **dict.fromkeys(UNITS, ("moved", ("nodes",))),
    }


def test_a_plan_that_no_engine_can_run_has_no_pods(spec, before):
    """There is nothing to compare, and the refusal says why."""
    drafting = compile_plan(change_spec(spec, {"decode.draft_tokens": 1}))

    with pytest.raises(InfeasibleError):
        compare_pods(before, drafting)


def test_every_word_for_a_cause_is_explained():
    """A reviewer finds it in docs/diff.md; other causes are fields of the spec or of the pod."""
    explained = (SPECS.parents[1] / "docs" / "diff.md").read_text()

    assert [word for word in {*FIELD_NAMES.values(), "expert map", "order"} if f"`{word}`" not in explained] == []
