"""Any spec plans, or is refused with a reason: random specs over the whole schema, and what must hold of a plan."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from planner.compiler import run_passes
from planner.facts.digest import pretty_json
from planner.plan.fit import check_fit
from planner.plan.load import load_plan, read_plan
from planner.plan.user_input import is_plan
from planner.problems.errors import InfeasibleError, SpecError, TidemillError
from planner.rules.check import check_spec
from tests.planner.spec.any_spec import EVERYTHING, specs
from tests.planner.spec.spec_schema import kinds_in

EACH = settings(deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))

PARTS = 7  # a test each, so that none takes minutes on a busy machine; odd, so that each part has both kinds of draws

UNKNOWN = {"S723": {"S720", "S721", "S722"}}  # what validate cannot know: what may come of it


@pytest.mark.whole
@pytest.mark.parametrize("part", range(PARTS))
def test_any_spec_plans_or_is_refused_with_a_reason(part, spec_file, tmp_path):
    """Every field, with every kind of value, leads to a sound plan or to problems with a reason and a fix.

    Each is put into the plainest spec, and every second one also into a random one. There is no traceback, and
    `validate` reports everything or says what it leaves to `plan`; at least three in ten plan.
    """
    outcomes, drawn = Counter(), set()
    numbered = list(enumerate(EVERYTHING))[part::PARTS]
    for number, (path, kind) in numbered:

        @seed(number)
        @settings(EACH, max_examples=1 + number % 2)  # the first is the plainest
        @given(spec=specs(path, kind))
        def plan_or_refuse(spec):
            drawn.update(kinds_in(spec))
            outcomes[plan_of(spec, spec_file, tmp_path)] += 1

        plan_or_refuse()
    share = outcomes["planned"] / outcomes.total()
    print(f"{share:.0%} of {dict(outcomes)} plan")

    assert sorted({each for _, each in numbered} - drawn) == []
    assert share >= 0.3


def plan_of(spec, spec_file, folder):
    """What becomes of `spec`, which must be sound."""
    checked = attempted(check_spec, spec_file(json.dumps(spec, indent=1), "any.yaml"))
    plan = checked if isinstance(checked, SpecError) else attempted(run_passes, checked)
    if not isinstance(checked, SpecError):
        assert_validate_agrees(attempted(check_fit, checked), plan)
    if isinstance(plan, TidemillError):
        assert all(problem.line and problem.reason and problem.fix for problem in plan.findings)
        return type(plan).__name__
    assert_sound(plan)
    if not isinstance(spec["cluster"]["nodes"], int):
        assert_nothing_moves(checked, plan, folder)
    return "planned"


def attempted(function, argument):
    """Its result, or why there is none."""
    try:
        return function(argument)
    except (SpecError, InfeasibleError) as error:
        return error


def assert_validate_agrees(validated, plan):
    """Validate refuses nothing that plans; what plan refuses, it refuses too, or says that it leaves it to plan."""
    refused = _rules(plan.findings) if isinstance(plan, TidemillError) else set()
    if isinstance(validated, TidemillError):
        assert type(validated) is type(plan)
    else:
        left = _rules(validated.left_to_plan)
        assert left - UNKNOWN.keys() <= refused
        assert refused <= left | {rule for each in left & UNKNOWN.keys() for rule in UNKNOWN[each]}


def _rules(problems):
    return {problem.rule[:4] for problem in problems}


def assert_nothing_moves(checked, plan, folder):
    """Planned near itself, a plan keeps every unit's nodes and every slot's expert."""
    (folder / "previous.json").write_text(json.dumps(plan.plan.as_json()))
    again = run_passes(checked, read_plan(folder / "previous.json"))
    assert [(unit.name, unit.nodes) for unit in again.units] == [(unit.name, unit.nodes) for unit in plan.units]
    assert all(again.maps[phase].moved_slots == 0 for phase in again.maps)


def assert_sound(plan):
    """Disjoint units on usable nodes at every hour, a slot for every expert, memory that adds up, JSON that is JSON."""
    on_nodes = [node for unit in plan.units for node in unit.nodes]
    assert len(set(on_nodes)) == len(on_nodes)
    assert not set(on_nodes) & plan.placement.unusable.keys()
    assert not set(on_nodes) & set(plan.placement.spares)
    for layout in plan.layouts:
        assert layout.slots_per_gpu * layout.ep_size == layout.num_physical_experts
        assert layout.ranks_per_node * layout.nodes_per_unit == layout.ep_size
        for slots in plan.maps[layout.phase].physical_to_logical:
            assert set(slots) == set(range(layout.num_logical_experts))
    for memory in plan.memory:
        assert 0 < memory.kv_tokens * memory.kv_bytes_per_token <= memory.free
    for step in plan.schedule.steps if plan.schedule else ():
        active = [unit for unit in plan.units if unit.name in step.units]
        assert sum(len(unit.nodes) for unit in active) == step.num_nodes <= plan.schedule.peak_nodes
    assert all(objective.excess >= 0 for objective in plan.placement.objectives)
    assert_reads_back(plan.plan)


def assert_reads_back(plan):
    """Its JSON is taken for a plan, is right, deploys the same, and is written again with the same bytes."""
    text = pretty_json(plan.as_json())
    loaded = load_plan(text.encode(), Path("plan.json"))
    assert is_plan(text.encode())
    assert pretty_json(loaded.as_json()) == text
    without = {"refusals": (), "warnings": ()}  # their places differ
    assert loaded.with_sections(**without) == plan.with_sections(**without)
