"""`auto` near a previous plan: units keep the sizes that they have there, while the spec can be met with them."""

import pytest

from planner.compiler import run_passes
from planner.rules.check import change_spec
from planner.spec.decision import AS_BEFORE
from tests.planner.search.test_smallest_cluster import spec_of

OUTPUT_TOKENS = 2e10  # for which prefill gets units of two nodes
BY_MEMORY = {"slo": {}, "schedule": None, "traffic": None}
WRITTEN = {"units": 1, "max_request_tokens": 4096}


@pytest.fixture(scope="module")
def before():
    """The plan that runs: units of two nodes and of one."""
    return run_passes(spec_of(24, OUTPUT_TOKENS)).deployed


def sizes_of(plan):
    """The sizes of a unit of each phase, without the number of units."""
    return {p: (each.ep_size, each.slots_per_gpu) for p, each in plan.phases.items()}


def reason_of(plan, path):
    """The reason for one decision."""
    (found,) = (each.why for each in plan.decisions if each.path == path)
    return found


@pytest.mark.parametrize(
    "after",
    [spec_of(24, OUTPUT_TOKENS, prefill={"units": 3}), spec_of(24, 0.92 * OUTPUT_TOKENS)],
    ids=["one more unit", "less traffic"],
)
def test_a_unit_keeps_its_sizes_though_others_would_be_chosen_now(after, before):
    """Another number of units and other traffic move no unit that stays."""
    near, anew = run_passes(after, before).deployed, run_passes(after).deployed
    nodes = {unit.name: unit.nodes for unit in before.units}

    kept_in_a_folder = before.with_sections(decisions=())  # reasons are not

    assert sizes_of(anew) != sizes_of(before) == sizes_of(near)
    assert run_passes(after, kept_in_a_folder).deployed.digest == near.digest
    assert all(unit.nodes == nodes[unit.name] for unit in near.units if unit.name in nodes)
    assert reason_of(near, "prefill.ep_size") == AS_BEFORE
    assert run_passes(after, near).deployed.digest == near.digest


def test_sizes_that_no_longer_fit_are_decided_anew(before):
    """Thirteen nodes have no room for two prefill units of two nodes beside ten decode units."""
    after = spec_of(13, OUTPUT_TOKENS)
    near, anew = run_passes(after, before).deployed, run_passes(after).deployed

    assert sizes_of(near) == sizes_of(anew) != sizes_of(before)
    assert reason_of(near, "prefill.ep_size") != AS_BEFORE


def test_a_promise_that_one_phase_breaks_leaves_the_other_as_it_is(before):
    """A shorter TTFT needs other prefill units; decode's stay."""
    near = run_passes(spec_of(24, OUTPUT_TOKENS, slo={"tpot_ms": 20, "ttft_ms": 150}), before).deployed

    assert sizes_of(near)["prefill"] != sizes_of(before)["prefill"]
    assert sizes_of(near)["decode"] == sizes_of(before)["decode"]


def test_sizes_that_memory_decided_stay():
    """For fewer requests a smaller unit would do."""

    def spec_with(number):
        decode = WRITTEN | {"max_requests": number}
        return spec_of(24, model="deepseek-r1", prefill=WRITTEN, decode=decode, **BY_MEMORY)

    before, after = run_passes(spec_with(64)).deployed, spec_with(32)
    near, anew = run_passes(after, before).deployed, run_passes(after).deployed

    assert sizes_of(near) == sizes_of(before) != sizes_of(anew)
    assert reason_of(near, "decode.ep_size") == AS_BEFORE


def test_another_gpu_gets_sizes_of_its_own(before):
    """A GPU with more memory takes other layouts, and all units restart anyway."""
    after = change_spec(spec_of(24, OUTPUT_TOKENS), {"cluster.gpu": "h200"})

    assert AS_BEFORE not in {each.why for each in run_passes(after, before).deployed.decisions}


@pytest.mark.parametrize(
    ("nodes", "promises", "missed"),
    [
        (24, {"tpot_ms": 20, "ttft_ms": 150}, "slo.ttft_ms (150.0) must be at least 153 for prefill"),
        (13, {"tpot_ms": 20, "ttft_ms": 1000}, "cluster.nodes (13) must be at least 14"),
    ],
)
def test_a_size_that_is_given_up_says_what_it_would_miss(nodes, promises, missed, before):
    """Whoever reads the new size asks why the old one does not stay."""
    near = run_passes(spec_of(nodes, OUTPUT_TOKENS, slo=promises), before).deployed

    assert reason_of(near, "prefill.ep_size").startswith(f"with the former sizes {missed}")
    assert "; now " in reason_of(near, "prefill.ep_size")
