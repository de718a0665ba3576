"""From a checked spec to a plan: placement, digests, what cannot be had and what cannot be run."""

import json
import math
from pathlib import Path

import pytest

from planner.compiler import compile_plan, plan_from, run_passes
from planner.plan import estimated
from planner.problems.errors import InfeasibleError
from planner.report.text import plan_text
from planner.rules.check import check_spec
from tests.planner.layout.test_memory import PAIR

SPECS = Path(__file__).parents[2] / "stacks" / "specs"


def test_units_have_their_nodes_to_themselves(found_of):
    """Prefill first, in order of nodes; ranks run node by node."""
    prefill, decode = found_of().units

    assert (prefill.name, prefill.nodes) == ("river-prefill-0", ("node-0",))
    assert (decode.name, decode.nodes) == ("river-decode-0", ("node-1", "node-2"))
    assert [(rank.node, rank.local_rank, rank.rank) for rank in decode.rank_places] == [
        ("node-1", 0, 0),
        ("node-1", 1, 1),
        ("node-2", 0, 2),
        ("node-2", 1, 3),
    ]


def test_a_unit_goes_into_one_rack_where_one_has_room(with_line, found_of):
    """With racks of two, the second node of the first rack stays free for a unit of one node."""
    plan = found_of(with_line(8, "  nodes: 4\n  rack_size: 2"))

    assert [unit.nodes for unit in plan.units] == [("node-0",), ("node-2", "node-3")]


def test_too_few_nodes_is_infeasible_and_says_how_many_would_do(with_line, found_of):
    """S701: not a mistake in the spec, and with the line and the number."""
    with pytest.raises(InfeasibleError) as error:
        found_of(with_line(8, "  nodes: 2"))

    (problem,) = error.value.findings
    assert (problem.rule[:4], problem.line, error.value.exit_status) == ("S701", 8, 3)
    assert problem.message == (
        "cluster.nodes (2) must be at least 3 (units x nodes of a unit: prefill 1 x 1 + decode 1 x 2); "
        "units do not share nodes; nearest: cluster.nodes 3, or decode.ep_size 2"
    )


def test_a_mixed_deployment_plans(spec_text, found_of):
    """One phase that does both, and runs."""
    first, _, rest = spec_text.partition("decode:")
    plan = found_of(first.replace("prefill:", "mixed:") + rest[rest.index("expert_load") :])

    assert [(unit.name, unit.nodes) for unit in plan.units] == [("river-mixed-0", ("node-0",))]
    assert list(plan.plan.as_json()["phases"]) == ["mixed"]
    assert plan.refusals == ()


def test_grouped_attention_plans_from_its_config(with_line, found_of):
    """S709: it plans, with KV of whole keys and values, and the bundled runtime does not run it."""
    plan = found_of(with_line(4, "  config: grouped.json"))

    assert plan.plan.unit_document(plan.units[0])["kv_cache"]["bytes_per_token"] == 4 * 2 * 2 * 32 * 4
    assert [problem.rule[:4] for problem in plan.refusals] == ["S709"]


def test_what_is_deployed_waits_for_no_estimate(monkeypatch):
    """`render` and `up` print none."""
    spec = SPECS / "demo.yaml"
    whole = compile_plan(check_spec(spec))
    monkeypatch.setattr(estimated, "expected_sections", None)

    plan = plan_from(spec)

    assert (plan.digest, plan.launch_documents) == (whole.digest, whole.launch_documents)
    assert [plan.balance, plan.failures, plan.performance, plan.report] == [None] * 4


def test_a_section_of_nothing_is_none(spec_text, problems_of):
    """S507: two empty phases are no phases."""
    first, _, rest = spec_text.partition("prefill:")
    (problem,) = problems_of(f"{first}prefill:\ndecode:\n{rest[rest.index('expert_load') :]}")

    assert (problem.path, problem.rule[:4]) == ("prefill", "S507")


def test_the_published_pair_plans():
    """DeepSeek's prefill and decode unit: 4 + 18 nodes, 9 and 2 routed experts a GPU, and nothing against running."""
    plan = run_passes(check_spec(SPECS / "h800-one-pair.yaml"))
    prefill, decode = plan.layouts

    assert [len(unit.nodes) for unit in plan.units] == [4, 18]
    assert (prefill.slots_per_gpu, decode.slots_per_gpu) == (9, 2)
    assert (prefill.num_physical_experts, decode.num_physical_experts, decode.shared_per_gpu) == (288, 288, 1)
    assert plan.refusals == ()


def test_latent_kv_of_the_published_model_is_as_published():
    """70,272 bytes a token in BF16."""
    plan = run_passes(check_spec(SPECS / "h800-one-pair.yaml"))

    assert plan.plan.unit_document(plan.units[0])["kv_cache"]["bytes_per_token"] == 70_272


def test_the_demo_plans_and_runs():
    """Three nodes of two slots: prefill EP2 on one, decode EP4 on two, 36 slots as 18 and 9 a rank."""
    plan = run_passes(check_spec(SPECS / "demo.yaml"))
    phases = plan.plan.as_json()["phases"]

    assert plan.refusals == ()
    assert [(len(unit.nodes), unit.ranks) for unit in plan.units] == [(1, 2), (2, 4)]
    assert (phases["prefill"]["slots_per_gpu"], phases["decode"]["slots_per_gpu"]) == (18, 9)


def test_plan_json_has_the_keys_that_others_rely_on(found_of):
    """The contract's keys of the passes that exist, and no other."""
    plan = found_of().plan.as_json()

    always = {"version", "digest", "spec_digest", "name", "phases", "runnable", "why_not", "units", "expert_maps"}
    assert plan.keys() == always | {
        "assumed",
        "balance",
        "decisions",
        "performance",
        "document_digest",
        "failures",
        "gpu",
        "inputs",
        "launch_documents",
        "memory",
        "model",
        "placement",
        "reads",
        "refusals",
        "report",
        "sources",
        "spec",
        "warnings",
    }
    assert sorted(plan["units"][0]) == ["expert_map", "index", "name", "nodes", "phase", "ranks", "unit_digest", "why"]
    assert {unit["expert_map"] for unit in plan["units"]} == set(plan["expert_maps"])


def test_the_same_spec_gives_the_same_bytes(plan_of):
    """Compiled twice, and independent of comments and of where the file lies."""
    first, second = json.dumps(plan_of().as_json()), json.dumps(plan_of().as_json())

    assert first == second
    assert "/tmp" not in first


def test_a_comment_changes_nothing(spec_text, plan_of):
    """Digests are of what the spec says, not of how it is written."""
    assert plan_of("# hello\n" + spec_text).digest == plan_of(spec_text).digest


def test_an_edit_of_one_unit_leaves_the_others_digests(with_line, found_of):
    """More requests in decode: decode restarts, prefill does not, and both still exchange KV."""
    before, after = found_of(), found_of(with_line(24, "  max_request_tokens: 2048\n  max_requests: 99"))
    digests = [[plan.plan.unit_document(unit)["unit_digest"] for unit in plan.units] for plan in (before, after)]

    assert digests[0][0] == digests[1][0]
    assert digests[0][1] != digests[1][1]
    assert (
        len({document["kv_digest"] for plan in (before, after) for document in plan.plan.launch_documents.values()})
        == 1
    )


def test_a_v2_model_that_chooses_experts_without_groups_plans(with_line, found_of):
    """Its config says n_group null, which is one group of all experts."""
    plan = found_of(with_line(4, "  config: v2_lite.json"))

    assert [layout.num_logical_experts for layout in plan.layouts] == [32, 32]


def test_prefill_weighs_groups_of_experts_against_balance_and_decode_does_not(found_of):
    """8 groups on 4 nodes: whole, a few experts on two nodes, or anywhere; the least product is chosen."""
    plan = found_of(json.dumps(PAIR))
    balance = plan.plan.as_json()["balance"]
    front = balance["prefill"]["front"]
    weighed = [each["max_over_mean"] * (each["bytes_per_token"] + each["extra_bytes_per_token"]) for each in front]
    text = " ".join(plan_text(plan.plan, full=True).split())

    assert [each["policy"] for each in front] == ["hierarchical"] * (len(front) - 1) + ["global"]
    assert front[0]["bytes_per_token"] == pytest.approx(3 * (1 - math.comb(6, 4) / math.comb(8, 4)) * 7392, abs=1)
    assert balance["prefill"]["dispatch"] == front[weighed.index(min(weighed))]
    assert (balance["decode"]["policy"], balance["decode"]["front"]) == ("global", [])
    assert "expert map policy max/mean bytes per token extra bytes per token prefill hierarchical" in text
    assert "hierarchical 1.006 17,424 B 315 B prefill global 1.001 17,424 B 2,363 B" in text


def test_a_wider_precision_crosses_nodes_in_more_bytes(found_of):
    """In BF16 a copy of 7,168 channels is 14,336 B."""
    wide = {phase: PAIR[phase] | {"precision": "bf16"} for phase in ("prefill", "decode")}
    front = found_of(json.dumps(PAIR | wide | {"cluster": PAIR["cluster"] | {"gpu": "h200"}})).plan.as_json()["balance"]

    assert front["prefill"]["front"][0]["bytes_per_token"] == pytest.approx(33_792, abs=1)


@pytest.mark.slow
def test_tokens_that_stay_near_are_balanced_without_groups(found_of):
    """Whole groups alone would make max/mean 1.14, and nothing between them and the global map is known."""
    plan = found_of(json.dumps(PAIR | {"split": "local_first"})).plan.as_json()
    prefill = plan["balance"]["prefill"]

    assert prefill["policy"] == "global"
    assert max(plan["expert_maps"][prefill["expert_map"]]["max_over_mean"]) < 1.05


def test_groups_are_not_kept_on_nodes_that_nvlink_ties_together(found_of):
    """72 GPUs of 18 nodes are one domain: no NIC is crossed, so that the evenest map is taken."""
    cluster = {"gpu": "gb200", "gpus_per_node": 4, "nodes": 72, "rack_size": 18}
    balance = found_of(json.dumps(PAIR | {"cluster": cluster})).plan.as_json()["balance"]

    assert (balance["prefill"]["policy"], balance["prefill"]["front"]) == ("global", [])
