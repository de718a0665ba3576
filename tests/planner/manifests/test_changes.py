"""What a review is told of the pods of the plan before."""

import pytest

from planner.cli import main
from planner.compiler import compile_plan
from planner.manifests.changes import PodChange, changes_text, pod_changes
from planner.rules.check import check_spec, with_values
from tests.planner.test_shipped_specs import SPECS

UNITS = ["deepseek-r1-prefill-0", "deepseek-r1-decode-0"]
GATEWAY = "deepseek-r1-gateway"


@pytest.fixture(scope="module")
def spec():
    """One unit of each phase on named nodes, as pods on GPUs."""
    nodes = [{"name": f"gpu-{number:02}"} for number in range(30)]
    return with_values(check_spec(SPECS / "h800-one-pair.yaml"), {"cluster.nodes": nodes})


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
        ({"gateway.port": 8001}, {GATEWAY: ("launch file (ports)", "ports")}),
        (
            {"decode.max_requests": 64, "operating_point.decode.requests": 32},
            dict.fromkeys([GATEWAY, UNITS[1]], ("launch file (limits)",)),
        ),
        (
            {"kubernetes.drain": "20min"},
            {
                GATEWAY: ("the time to end", "--drain"),
                **dict.fromkeys(UNITS, ("the time to end", "--drain")),
            },
        ),
    ],
)
def test_pods_restart_whose_template_differs(change, restarted, spec, before):
    """Each is named with the fields that differ; what only an estimate reads restarts nothing."""
    found = pod_changes(before, compile_plan(with_values(spec, change)))

    assert {each.name: each.why for each in found if each.fate == "restarted"} == restarted
    assert {each.name for each in found if each.fate == "kept"} == {*UNITS, GATEWAY} - restarted.keys()


def test_pods_restart_for_an_order_and_in_another_place(spec, before):
    """Variables in another order are another template; in another namespace, or as another kind, all are new."""
    ordered, turned = (
        compile_plan(with_values(spec, {"kubernetes.env": dict(each)}))
        for each in ((("A", "1"), ("B", "2")), (("B", "2"), ("A", "1")))
    )
    moved = compile_plan(with_values(spec, {"kubernetes.namespace": "another"}))

    assert {each.name: each.why for each in pod_changes(ordered, turned) if each.why} == dict.fromkeys(
        UNITS, ("an order",)
    )
    assert sorted({each.fate for each in pod_changes(before, moved)}) == ["new", "removed"]


def test_units_come_and_go(spec, before):
    """One more unit is new, and gone again on the way back; who has its nodes still keeps its pods."""
    more = compile_plan(with_values(spec, {"prefill.units": 2}))
    there, back = pod_changes(before, more), pod_changes(more, before)

    assert PodChange("deepseek-r1-prefill-1", "new") in there
    assert PodChange("deepseek-r1-prefill-1", "removed") in back
    assert PodChange(UNITS[0], "kept") in there


def test_workloads_that_are_alike_share_a_line(before):
    """Units of a phase are a run of numbers; of many fields the first are named."""
    why = tuple(f"--option-{number}" for number in range(8))
    changes = [PodChange(f"deepseek-r1-prefill-{number}", "restarted", why) for number in (0, 1, 2, 10, 11)]
    text = changes_text([PodChange(GATEWAY, "kept"), *changes, PodChange("deepseek-r1-decode-0", "kept")], before)

    lines = [line.split() for line in text.splitlines()]

    assert lines[1][:6] == ["restarted", "prefill-0", "to", "2,", "prefill-10", "to"]
    assert "and 2 others kept gateway, decode-0" in " ".join(text.split())
    assert before.digest in " ".join(text.split())


def test_a_plan_beside_another_ends_with_its_pods(tmp_path, capsys):
    """Without `--previous` there is nothing to compare with."""
    spec, plan = str(SPECS / "demo.yaml"), str(tmp_path / "plan.json")
    main(["plan", spec, "-o", plan])
    alone = capsys.readouterr().out
    main(["plan", spec, "--previous", plan])
    beside = capsys.readouterr().out

    assert "what differs" not in alone
    assert "kept  gateway, prefill-0, decode-0" in beside
