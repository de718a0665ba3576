"""Which changes are tried, and in which order; that each printed one would do is asked in `spec/test_fixes.py`."""

import json
from inspect import isfunction
from itertools import product

import pytest

from planner.candidate import candidate
from planner.plan.fit import check_fit
from planner.problems.errors import InfeasibleError
from planner.problems.fix import apply_change
from planner.rules.check import change_spec, check_spec
from planner.search import relaxations
from planner.search.unit_sizes import _split_nodes, merged_units
from tests.planner.layout.test_memory import PAIR


@pytest.mark.parametrize("most", [(3,), (1, 2), (4, 18), (5, 5)])
def test_every_split_of_the_nodes_is_tried_once(most):
    """The slow reference: all numbers of nodes that fit, and those that use most nodes come first."""
    for usable in range(sum(most)):
        splits = list(_split_nodes(usable, most))
        expected = {each for each in product(*(range(1, count + 1) for count in most)) if sum(each) <= usable}

        assert (len(splits), set(splits)) == (len(expected), expected)
        assert [sum(each) for each in splits] == sorted(map(sum, splits), reverse=True)


@pytest.mark.parametrize(("units", "merged"), [(2, [1]), (3, [2, 1]), (4, [2])])
def test_units_that_would_share_nodes_become_whole_nodes(units, merged, tmp_path):
    """The fix has as many GPUs or more, and fewer only if the number is not whole: EP4 on nodes of eight."""
    mixed = {"ep_size": 4, "units": units, "redundant_experts": 0, "precision": "fp8"}
    spec = {key: PAIR[key] for key in ("version", "name", "model", "cluster")} | {"mixed": mixed}
    (tmp_path / "spec.yaml").write_text(json.dumps(spec))
    changes = list(merged_units(check_spec(tmp_path / "spec.yaml")))

    assert [(each["mixed.ep_size"], each["mixed.units"]) for each in changes] == [(8, number) for number in merged]


def test_a_change_leaves_kv_for_the_requests_that_are_asked_for(found_of):
    """Kimi-K2 on eight H200: with the offered change each group has KV for its 32 requests at full length."""
    one_node = {"gpu": "h200", "nodes": 1, "gpus_per_node": 8}
    mixed = {"ep_size": 8, "precision": "fp8"}
    spec = {"version": 1, "name": "kimi", "model": "kimi-k2", "cluster": one_node, "mixed": mixed}
    with pytest.raises(InfeasibleError) as error:
        found_of(json.dumps(spec, indent=1))

    for change in error.value.findings[0].changes:
        (memory,) = found_of(json.dumps(apply_change(spec, change), indent=1)).memory
        assert memory.full_requests >= 32


def test_short_memory_is_reported_before_a_short_warm_up(found_of):
    """If no GPU has room for the experts, the warm-up is no second mistake; the printed change leads to a plan."""
    windows = [
        {"at": "08:00", "prefill_units": 2, "decode_units": 1},
        {"at": "20:00", "prefill_units": 1, "decode_units": 1},
    ]
    day = {"prefill.units": None, "decode.units": None, "schedule": {"windows": windows, "warm_up": "10min"}}
    spec = apply_change(PAIR, day | {"cluster.nodes": 300, "prefill.redundant_experts": 7936})
    with pytest.raises(InfeasibleError) as error:
        found_of(json.dumps(spec, indent=1))

    (problem,) = error.value.findings
    assert problem.rule.startswith("S707")
    assert found_of(json.dumps(apply_change(spec, problem.changes[0]), indent=1)).layouts


def test_fixes_for_memory_also_run(found_of):
    """vLLM runs no prefill unit of 12 GPUs on nodes of four with any step, so a smaller step is no fix."""
    model, cluster = {"catalog": "deepseek-r1", "checkpoint": "/models/r"}, {"gpu": "h800", "nodes": 24}
    unit = {"ep_size": 12, "redundant_experts": 8, "max_request_tokens": 50_000, "precision": "fp8"}
    decode = {"ep_size": 64, "redundant_experts": 0, "max_request_tokens": 50_000, "precision": "fp8"}
    spec = {"version": 1, "name": "r", "model": model, "engine": "vllm", "cluster": {**cluster, "gpus_per_node": 4}}
    with pytest.raises(InfeasibleError) as error:
        found_of(json.dumps(spec | {"prefill": unit, "decode": decode}, indent=1))

    assert [(problem.rule[:4], problem.changes) for problem in error.value.findings] == [("S707", ())]


def test_gpus_of_listed_nodes_are_no_wish(found_of):
    """Nodes that say their GPU are what there is: four H800 are not planned as H200 because two others are."""
    nodes = [{"name": f"a{number}"} for number in range(4)] + [
        {"name": f"b{number}", "gpu": "h200"} for number in (0, 1)
    ]
    mixed = {"ep_size": 48, "redundant_experts": 32, "precision": "fp8"}
    spec = {key: PAIR[key] for key in ("version", "name", "model")} | {"mixed": mixed}
    spec |= {"cluster": {"gpu": "h800", "gpus_per_node": 8, "nodes": nodes}}
    with pytest.raises(InfeasibleError) as error:
        found_of(json.dumps(spec, indent=1))

    assert error.value.findings[0].changes == ({"mixed.ep_size": 32},)


def test_two_phases_that_are_short_get_a_change_each(found_of):
    """No single change mends both: each phase's own limit is lowered, and both together plan."""
    spec = apply_change(PAIR, {"prefill.max_batch_tokens": 100_000, "decode.max_requests": 4096})
    with pytest.raises(InfeasibleError) as error:
        found_of(json.dumps(spec, indent=1))

    assert {problem.path for problem in error.value.findings} == {"prefill.max_batch_tokens", "decode.max_requests"}
    for problem in error.value.findings:
        (change,) = problem.changes
        assert change.keys() == {"prefill.max_batch_tokens", "decode.max_requests"}
    assert found_of(json.dumps(apply_change(spec, change), indent=1)).layouts


def test_precision_and_a_limit_are_changed_together_if_both_are_needed(found_of):
    """V3 in BF16 with steps of 200,000 tokens does not fit on one node; in FP8 with shorter steps it does."""
    mixed = {"ep_size": 8, "max_batch_tokens": 200_000, "precision": "bf16"}
    cluster = {"gpu": "h200", "gpus_per_node": 8, "nodes": [{"name": "a", "gpu": "h200"}]}
    spec = {key: PAIR[key] for key in ("version", "name", "model")} | {"mixed": mixed, "cluster": cluster}
    with pytest.raises(InfeasibleError) as error:
        found_of(json.dumps(spec, indent=1))

    changes = error.value.findings[0].changes
    assert {"mixed.precision", "mixed.max_batch_tokens"} in [set(change) for change in changes]
    for change in changes:
        assert found_of(json.dumps(apply_change(spec, change), indent=1)).layouts


@pytest.mark.parametrize(
    ("memory", "fix"),
    [
        ("74GB", "mixed.ep_size 16 and mixed.redundant_experts 16"),
        ("73GB", "mixed.ep_size 16 and mixed.redundant_experts 0 (then no hot expert has a second replica)"),
    ],
)
def test_redundant_experts_stay_if_they_fit(found_of, memory, fix):
    """Two nodes in place of three: one more slot per GPU is kept, and the loss of all would be mentioned."""
    gpu = {"name": "mine", "memory": memory, "nvlink": "400GB/s", "nic": "400Gbps"}
    mixed = {"ep_size": 24, "redundant_experts": 8, "precision": "fp8", "max_requests": 8}
    mixed |= {"max_request_tokens": 4096, "max_batch_tokens": 2048}
    cluster = {"gpu": gpu, "gpus_per_node": 8, "nodes": [{"name": "a"}, {"name": "b"}]}
    spec = {key: PAIR[key] for key in ("version", "name", "model")} | {"mixed": mixed, "cluster": cluster}
    with pytest.raises(InfeasibleError) as error:
        found_of(json.dumps(spec, indent=1))

    assert str(error.value.findings[0].fix) == f"nearest: {fix}"


@pytest.mark.parametrize("units", ["auto", 9])
def test_units_that_traffic_counts_ask_for_nodes_only(found_of, units):
    """Other units would be counted anew: the printed nodes hold those of the busiest hour, and it plans with them."""
    traffic = {"input_tokens": 608e9, "output_tokens": 168e9, "profile": [0.2] * 12 + [1.0] * 12}
    spec = apply_change(
        PAIR,
        {
            "prefill.units": units if units == "auto" else 32,
            "decode.units": units,
            "schedule": "auto",
            "traffic": traffic,
        },
    )
    spec = apply_change(spec, {"cluster.nodes": 200})
    with pytest.raises(InfeasibleError) as error:
        found_of(json.dumps(spec, indent=1))

    (problem,) = error.value.findings
    assert ("auto assumes" in problem.reason) is (units == "auto")
    assert [set(change) for change in problem.changes] == [{"cluster.nodes"}]
    assert found_of(json.dumps(apply_change(spec, problem.changes[0]), indent=1)).layouts


def test_a_mended_unit_comes_with_the_nodes_of_the_busiest_hour(plan_of):
    """Decode is short of memory and nodes are too few for nine units: one change mends both, and it plans."""
    traffic = {"input_tokens": 60e9, "output_tokens": 16e9, "profile": [1.0] * 12 + [3.0] * 12}
    schedule = {"windows": "auto", "min_units": {"decode": 9}}
    spec = apply_change(PAIR, {"decode.ep_size": 8, "schedule": schedule, "traffic": traffic, "cluster.nodes": 20})
    with pytest.raises(InfeasibleError) as error:
        plan_of(json.dumps(spec, indent=1))

    (problem,) = error.value.findings
    assert (problem.id, "cluster.nodes" in problem.changes[0]) == ("S707", True)
    for change in problem.changes:
        plan_of(json.dumps(apply_change(spec, change), indent=1))


def test_a_change_beside_auto_holds_with_what_auto_then_becomes(tmp_path):
    """The written phase is changed; `auto` of the other one gets the slots that `coverage` takes by itself."""
    spec = {key: PAIR[key] for key in ("version", "name")} | {"model": "kimi-k2", "coverage": "node"}
    phase = {"precision": "fp8", "max_request_tokens": 32768}
    spec |= {"cluster": {"gpu": "h20", "gpus_per_node": 8, "nodes": 4}}
    spec |= {"prefill": phase | {"ep_size": 8, "redundant_experts": 0}}
    spec |= {"decode": phase | {"ep_size": "auto", "redundant_experts": "auto", "attention_tp": 4}}
    (tmp_path / "spec.yaml").write_text(json.dumps(spec))
    checked = check_spec(tmp_path / "spec.yaml")
    with pytest.raises(InfeasibleError) as error:
        check_fit(checked)

    (change,) = error.value.findings[0].changes
    assert not [path for path in change if path.startswith("decode.")]
    assert check_fit(change_spec(checked, change)).left_to_plan == ()


@pytest.mark.parametrize(
    ("nodes", "prefill", "decode", "change"),
    [
        (
            22,
            {"redundant_experts": 640},
            {"max_requests": 4096},
            {"prefill.redundant_experts": 448, "decode.max_requests": 1257},
        ),
        (
            22,
            {},
            {"redundant_experts": 1184, "precision": "bf16", "max_requests": 512},
            {"decode.redundant_experts": 32},
        ),
        (22, {"redundant_experts": 7936}, {}, {"prefill.redundant_experts": 448}),
        (2, {}, {"max_requests": 4096}, {"decode.max_requests": 1257, "cluster.nodes": 22}),
    ],
    ids=[
        "one change for each phase",
        "KV for the requests",
        "more than a hundred slots too many",
        "nodes are lacking too",
    ],
)
def test_what_costs_least_is_given_up(plan_of, nodes, prefill, decode, change):
    """The largest limit and the most replicas with which all is planned: no larger unit, and no other GPU."""
    small = {key: PAIR[key] for key in ("version", "name", "model")} | {"cluster": PAIR["cluster"] | {"nodes": nodes}}
    phases = {"prefill": {"ep_size": 32, "redundant_experts": 32}, "decode": {"ep_size": 144, "redundant_experts": 32}}
    phases = {"prefill": phases["prefill"] | prefill, "decode": phases["decode"] | {"precision": "fp8"} | decode}
    with pytest.raises(InfeasibleError) as error:
        plan_of(json.dumps(small | phases, indent=1))

    assert error.value.findings[0].changes[0] == change


def test_a_document_is_checked_for_few_changes(tmp_path, monkeypatch):
    """Memory is looked at before rules: of some thousand changes that are tried, ten are worth a check of the spec."""
    checked, resolved = [], candidate.resolve
    monkeypatch.setattr(candidate, "resolve", lambda document: checked.append(document) or resolved(document))
    unit = {"ep_size": 32, "redundant_experts": 640, "precision": "fp8"}
    spec = apply_change(PAIR, {"prefill": PAIR["prefill"] | unit, "decode.max_requests": 4096})
    (tmp_path / "spec.yaml").write_text(json.dumps(spec))
    with pytest.raises(InfeasibleError):
        check_fit(check_spec(tmp_path / "spec.yaml"))

    assert 0 < len(checked) <= 10


def test_nodes_that_nobody_can_write_are_no_way_out(plan_of):
    """Units that are short of memory lack more nodes than a spec may have: no change is offered."""
    mixed = {"ep_size": 256, "units": 1000, "redundant_experts": 7936, "precision": "fp8"}
    spec = {key: PAIR[key] for key in ("version", "name", "model")} | {"mixed": mixed}
    spec |= {"cluster": {"gpu": "h800", "gpus_per_node": 8, "nodes": 1}}
    with pytest.raises(InfeasibleError) as error:
        plan_of(json.dumps(spec, indent=1))

    assert [(finding.id, finding.changes) for finding in error.value.findings] == [("S707", ())]


def test_untried_fixes_have_words_only(tmp_path):
    """One listed node holds no unit of two, so slots for coverage are no fix, and no program gets that change."""
    spec = {key: PAIR[key] for key in ("version", "name", "model")} | {"coverage": "node"}
    spec |= {"cluster": {"gpu": "h200", "gpus_per_node": 8, "nodes": [{"name": "a"}]}}
    spec |= {"mixed": {"ep_size": 16, "redundant_experts": 16, "precision": "fp8"}}
    (tmp_path / "spec.yaml").write_text(json.dumps(spec))
    with pytest.raises(InfeasibleError) as error:
        check_fit(check_spec(tmp_path / "spec.yaml"))

    assert [(each.id, str(each.fix), each.changes) for each in error.value.findings] == [("S720", "nearest: 256", ())]


def test_validate_and_plan_refuse_by_the_same_rule(plan_of, tmp_path):
    """Slots and nodes are too few: both commands name the slots, and offer them with the nodes."""
    mixed = {"ep_size": 16, "redundant_experts": 16, "precision": "fp8"}
    spec = {key: PAIR[key] for key in ("version", "name", "model")} | {"coverage": "node", "mixed": mixed}
    spec |= {"cluster": {"gpu": "h200", "gpus_per_node": 8, "nodes": 1}}
    (tmp_path / "spec.yaml").write_text(json.dumps(spec, indent=1))
    with pytest.raises(InfeasibleError) as validated:
        check_fit(check_spec(tmp_path / "spec.yaml"))
    with pytest.raises(InfeasibleError) as planned:
        plan_of(json.dumps(spec, indent=1))

    (one,), (other,) = validated.value.findings, planned.value.findings
    assert (one.id, one.changes) == (other.id, other.changes)
    assert one.changes[0] == {"mixed.redundant_experts": 256, "cluster.nodes": 2}


def test_a_relaxation_takes_a_generator_and_its_place(plan_of, monkeypatch):
    """What is put first into the order is offered first, and nothing else has to know of it."""

    def few_requests(_):
        yield [{"decode.max_requests": 64}]

    monkeypatch.setitem(relaxations.ORDERS, "S707", ((few_requests,), *relaxations.ORDERS["S707"]))
    with pytest.raises(InfeasibleError) as error:
        plan_of(json.dumps(apply_change(PAIR, {"decode.max_requests": 4096}), indent=1))

    assert error.value.findings[0].changes == ({"decode.max_requests": 64},)


def test_every_relaxation_has_its_place_in_the_order():
    """A generator that nobody put there would never be tried."""
    public = {each for name, each in vars(relaxations).items() if isfunction(each) and not name.startswith("_")}
    orders = (*relaxations.ORDERS.values(), relaxations.PEAK_ORDER)
    placed = {each for rows in orders for row in rows for each in row}

    assert placed == {each for each in public if each.__module__ == relaxations.__name__}
