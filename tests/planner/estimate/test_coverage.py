"""`coverage` in a spec: experts that survive a node or a rack, what that costs, and when it cannot be."""

import json
from statistics import fmean
from types import SimpleNamespace

import pytest

from planner.candidate.candidate import Candidate
from planner.compiler import run_passes
from planner.plan.fit import check_fit
from planner.problems.errors import InfeasibleError
from planner.problems.fix import apply_change
from planner.report.text import plan_text
from planner.rules.check import change_spec, check_spec
from tests.planner.layout.test_memory import PAIR

pytestmark = pytest.mark.slow

WHOLE = {
    "cluster": {"gpu": "h200", "nodes": 60, "gpus_per_node": 8, "rack_size": 4},
    "prefill": PAIR["prefill"] | {"redundant_experts": 256},
    "decode": PAIR["decode"] | {"redundant_experts": 320},
}


@pytest.fixture
def small(with_line):
    """A function: the small spec with coverage, and decode on 2 nodes of 2 GPUs with so many redundant experts."""

    def spec(coverage, redundant=4, gpus_per_prefill=4):
        text = with_line(12, f"  redundant_experts: {64 - 32}")
        text = text.replace("  ep_size: 2\n", f"  ep_size: {gpus_per_prefill}\n").replace("nodes: 3", "nodes: 4")
        text = text.replace("  ep_size: 4\n  redundant_experts: 4", f"  ep_size: 4\n  redundant_experts: {redundant}")
        return text.replace("gateway:", f"coverage: {coverage}\ngateway:")

    return spec


def test_a_covered_plan_darkens_no_expert(spec_file):
    """DeepSeek's two units on H200: with two replicas of each expert, no loss of a node leaves one without any."""
    spec = PAIR | WHOLE | {"coverage": "node"}
    plan = run_passes(check_spec(spec_file(json.dumps(spec, indent=1), "covered.yaml")))

    for each in plan.plan.as_json()["expert_maps"].values():
        assert each["coverage"]["rule"] == "node"
        assert each["coverage"]["uncovered_experts"]["node"] == 0
    assert "every expert survives the loss of one node" in plan_text(plan.plan, full=True)
    assert "only a runtime that keeps running without a dead rank" in " ".join(plan_text(plan.plan, full=True).split())


def test_a_plan_without_coverage_counts_who_would_go_dark(found_of):
    """The default: 36 slots of 32 experts leave most with one replica."""
    (*_, decode) = found_of().plan.as_json()["expert_maps"].values()

    assert decode["coverage"]["rule"] == "none"
    assert decode["coverage"]["uncovered_experts"]["gpu"] >= 28


def test_too_few_slots_say_what_would_do_and_cost(small, found_of):
    """S720: slots, bytes and balance, on the line of the slots; and the change that is printed does."""
    with pytest.raises(InfeasibleError) as error:
        found_of(small("node"))

    (problem,) = error.value.findings
    first, second = problem.changes
    assert (problem.rule[:4], problem.line, error.value.exit_status) == ("S720", 21, 3)
    assert problem.message.startswith(
        "decode.redundant_experts (4) must be at least 32 with coverage: node (16 slots per GPU, so that each of "
        "32 experts is in two nodes); 16 slots per GPU instead of 9 take 0.0 GB more of each GPU, and max/mean load "
        "stays 1."
    )
    assert problem.message.endswith("; nearest: decode.redundant_experts 32, or coverage none")
    assert found_of(small("node", redundant=first["decode.redundant_experts"])).spec.coverage == "node"
    assert second == {"coverage": "none"}


def test_the_balance_in_s720_is_the_plans_own(found_of):
    """Both figures of S720 are those of the plan without coverage, and of the plan with the offered slots."""
    cluster = {"gpu": "h200", "nodes": 2, "gpus_per_node": 8}
    spec = PAIR | {"cluster": cluster, "mixed": {"ep_size": 16, "precision": "fp8"}}
    spec = {key: value for key, value in spec.items() if key not in ("prefill", "decode")}
    with pytest.raises(InfeasibleError) as error:
        found_of(json.dumps(spec | {"coverage": "node"}, indent=1))

    (problem,) = error.value.findings
    now, then = (
        f"{fmean(found_of(each).maps['mixed'].max_over_mean):.3f}"
        for each in (json.dumps(spec), json.dumps(apply_change(spec | {"coverage": "node"}, problem.changes[0])))
    )
    assert problem.reason.endswith(f"max/mean load becomes {then} instead of {now}")


def test_validate_says_so_without_a_placement(small, spec_file):
    """S720 needs only sizes."""
    with pytest.raises(InfeasibleError) as error:
        check_fit(check_spec(spec_file(small("node"))))

    assert [problem.rule[:4] for problem in error.value.findings] == ["S720"]


def test_validate_says_that_racks_are_left_to_plan(small, spec_file):
    """S723: in which racks units stand only a placement knows."""
    spec = small("rack", redundant=32).replace("gpus_per_node: 2", "gpus_per_node: 2\n  rack_size: 1")
    left = check_fit(check_spec(spec_file(spec))).left_to_plan

    assert [(problem.rule[:4], problem.path) for problem in left] == [("S723", "coverage")]


def test_a_unit_of_one_node_cannot_survive_it(small, found_of):
    """S721: wherever replicas are, they are on that node."""
    with pytest.raises(InfeasibleError) as error:
        found_of(small("node", redundant=32, gpus_per_prefill=2))

    (problem,) = error.value.findings
    assert problem.rule == "S721 must not be node, since prefill has units inside a single node"
    assert problem.changes


def test_coverage_uses_the_racks_of_units(spec_file):
    """A prefill unit of 4 nodes is in one rack of 4 or in two of 2, and only then its experts survive a rack."""
    spec = PAIR | WHOLE | {"coverage": "rack"}
    checked = check_spec(spec_file(json.dumps(spec, indent=1), "racks.yaml"))
    with pytest.raises(InfeasibleError) as error:
        run_passes(checked)
    plan = run_passes(change_spec(checked, {"cluster.rack_size": 2}))

    assert error.value.findings[0].rule.startswith(
        "S721 must not be rack, since prefill has units inside a single rack"
    )
    assert {"coverage": "node"} in error.value.findings[0].changes
    for each in plan.plan.as_json()["expert_maps"].values():
        assert each["coverage"]["uncovered_experts"]["rack"] == 0


def test_a_map_that_was_not_found_is_infeasible(small, spec_file, monkeypatch):
    """S722: slots suffice for each unit, but no map was found that is right for all of them."""
    monkeypatch.setattr(Candidate, "maps", {"decode": SimpleNamespace(is_covered=False)})
    with pytest.raises(InfeasibleError) as error:
        run_passes(check_spec(spec_file(small("node", redundant=32))))

    (problem,) = error.value.findings
    assert (problem.rule[:4], problem.path, problem.changes) == ("S722", "coverage", ({"coverage": "node"},))
