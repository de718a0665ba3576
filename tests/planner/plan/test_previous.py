"""`plan --previous`: expert maps stay as they are, or are fresh where that is worth a restart."""

import json
from statistics import fmean

import pytest

from planner.cli import main
from planner.compiler import run_passes
from planner.problems.errors import InfeasibleError
from planner.rules.check import change_spec, check_spec
from tests.planner.conftest import SPEC
from tests.planner.layout.test_memory import PAIR


@pytest.fixture
def plan(spec_file, tmp_path, capsys):
    """A function: the plan JSON of a spec text, after a plan, which is written as it is."""

    def run(text, previous=None):
        words = ["plan", str(spec_file(text, "previous.yaml")), "--format", "json"]
        if previous is not None:
            (tmp_path / "previous.json").write_text(json.dumps(previous))
            words += ["--previous", str(tmp_path / "previous.json")]
        assert main(words) == 0
        return json.loads(capsys.readouterr().out)

    return run


def maps_of(plan):
    """The map of each phase, and what the phase makes of it."""
    return {phase: plan["expert_maps"][each["expert_map"]] | each for phase, each in plan["balance"].items()}


def test_the_same_loads_move_no_slot(plan, spec_text):
    """And the maps are the same ones."""
    first = plan(spec_text)
    second = plan(spec_text, first)

    assert [each["moves"] for each in maps_of(first).values()] == [None, None]
    assert [each["moves"]["moved_slots"] for each in maps_of(second).values()] == [0, 0]
    assert second["expert_maps"].keys() == first["expert_maps"].keys()


@pytest.mark.parametrize("rack_size", ["", "  rack_size: 2\n"])
def test_a_spec_planned_after_itself_is_the_same_plan(plan, spec_text, rack_size):
    """The same digest, though it was found another way; the search and the moves are told beside."""
    text = spec_text.replace("  nodes: 3\n", f"  nodes: 4\n{rack_size}")
    first = plan(text)
    second = plan(text, first)
    third = plan(text, second)

    assert first["digest"] == second["digest"] == third["digest"]
    assert first["placement"] != second["placement"] == third["placement"]
    assert differences(first, second) <= {"placement", "balance", "units", "report", "diff", "document_digest"}


def test_another_placement_is_another_plan(plan, spec_text):
    """A previous plan that had a unit on another node, where it stays."""
    text = spec_text.replace("  nodes: 3\n", "  nodes: 4\n")
    other = spec_text.replace("  nodes: 3\n", "  nodes: [{name: node-3}, {name: node-1}, {name: node-2}]\n")
    first = plan(text)
    second = plan(text, plan(other))

    assert [unit["nodes"] for unit in second["units"]] == [["node-3"], ["node-1", "node-2"]]
    assert first["digest"] != second["digest"]


def test_one_more_unit_leaves_the_running_ones_as_they_are(plan, spec_text):
    """A second prefill unit: planned anew, decode would move over; near the plan in service, nothing restarts."""
    text = spec_text.replace("  nodes: 3\n", "  nodes: 4\n")
    more = text.replace("prefill:\n", "prefill:\n  units: 2\n")
    first = plan(text)
    anew, near = running(plan(more)), running(plan(more, first))

    assert near.keys() == {"river-prefill-0", "river-prefill-1", "river-decode-0"}
    assert {name: near[name] for name in running(first)} == running(first)
    assert anew["river-decode-0"] != near["river-decode-0"]


def running(plan):
    """What restarts a unit when it changes: its nodes, its map and its launch file."""
    return {
        unit["name"]: (
            unit["nodes"],
            unit["expert_map"],
            plan["launch_documents"][f"{unit['name']}.launch.json"]["launch_digest"],
        )
        for unit in plan["units"]
    }


def differences(one, other):
    """Keys under which two plans differ."""
    return {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}


def test_other_loads_move_fewer_slots_than_a_fresh_map_would(plan, spec_text):
    """Another seed: the moved slots are those whose GPU did not hold the expert; every expert still has one."""
    first, text = plan(spec_text), spec_text.replace("seed: 0", "seed: 1")
    fresh, renewed = plan(text), plan(text, first)
    before, anew, near = (maps_of(each)["decode"]["physical_to_logical"] for each in (first, fresh, renewed))

    def moved(after):
        gpus = [
            (set(old[g : g + 9]), set(new[g : g + 9]))
            for old, new in zip(before, after, strict=True)
            for g in (0, 9, 18, 27)
        ]
        return sum(len(new - old) for old, new in gpus)

    assert maps_of(renewed)["decode"]["moves"]["moved_slots"] == moved(near) < moved(anew)
    assert all(set(row) == set(range(32)) for row in near)


LOADS = [
    [round(1e5 / (1 + expert) ** 0.6 * (1 + (7 * expert + layer) % 5)) for expert in range(32)] for layer in range(4)
]


@pytest.fixture(scope="module")
def drifting(spec_folder):
    """(spec, previous plan, drifts): loads by how far each expert's is off, `drift(0.02)` by up to 2 %."""
    text = SPEC.replace("  alpha: 1.01\n  seed: 0\n", "  file: loads-0.json\n")
    (spec_folder / "drifting.yaml").write_text(text)

    def drift(share):
        rows = [
            [round(load * (1 + share * ((5 * number) % 7 / 3 - 1))) for number, load in enumerate(row)] for row in LOADS
        ]
        (spec_folder / f"loads-{share}.json").write_text(json.dumps(rows))
        return {"expert_load.file": f"loads-{share}.json"}

    drift(0)
    spec = check_spec(spec_folder / "drifting.yaml")
    return spec, run_passes(spec).deployed, drift


def test_a_map_stays_while_a_better_one_is_not_worth_a_restart(drifting):
    """Loads off by 2 %: no slot changes, although a fresh map would be more even. Off by 40 %: the map is fresh."""
    spec, before, drift = drifting
    little, much = (run_passes(change_spec(spec, drift(share)), before) for share in (0.02, 0.4))

    assert [each.moved_slots for each in little.maps.values()] == [0, 0]
    fresh = run_passes(little.resolved).maps
    assert all(
        fmean(fresh[phase].max_over_mean) < fmean(each.max_over_mean) < 1.01 for phase, each in little.maps.items()
    )
    assert all(each.moved_slots > 0 for each in much.maps.values())


def test_a_fresh_map_is_as_even_as_one_that_is_made_anew(drifting):
    """There is no map in between, which would restart the same units; but its GPUs are numbered so that less moves."""
    spec, before, drift = drifting
    after = change_spec(spec, drift(0.4))
    near, anew = run_passes(after, before).deployed, run_passes(after).deployed
    old, new, fresh = (
        {unit.phase: plan.expert_maps[unit.expert_map] for unit in plan.units} for plan in (before, near, anew)
    )

    for phase in old:
        assert new[phase].max_over_mean == fresh[phase].max_over_mean
        slots = len(new[phase].physical_to_logical[0]) // near.phases[phase].ep_size
        moved = [count_moved(old[phase], each, slots) for each in (new[phase], fresh[phase])]
        assert moved[0] < moved[1]


def count_moved(old, new, slots):
    """Slots whose GPU did not hold the expert."""
    return sum(
        len(set(after[gpu : gpu + slots]) - set(before[gpu : gpu + slots]))
        for before, after in zip(old.physical_to_logical, new.physical_to_logical, strict=True)
        for gpu in range(0, len(after), slots)
    )


def test_a_map_of_other_sizes_is_no_start(plan, spec_text):
    """Eight redundant experts instead of four: the phase's map is a fresh one, the other phase's stays."""
    first = plan(spec_text)
    second = plan(
        spec_text.replace("  ep_size: 4\n  redundant_experts: 4", "  ep_size: 4\n  redundant_experts: 8"), first
    )

    assert maps_of(second)["decode"]["moves"] is None
    assert maps_of(second)["prefill"]["moves"]["moved_slots"] == 0


@pytest.mark.slow
def test_a_map_that_splits_a_few_groups_stays_in_service(plan):
    """The published prefill unit: with its own map before it nothing moves, and the plan tells the same trade."""
    first = plan(json.dumps(PAIR))
    second = plan(json.dumps(PAIR), first)
    prefill = second["balance"]["prefill"]

    assert prefill["moves"]["moved_slots"] == 0
    assert prefill["dispatch"] == first["balance"]["prefill"]["dispatch"] in prefill["front"]


def with_racks(spec_text, leaf, more=""):
    """The spec with a pair of units of two nodes: two racks of two nodes, perhaps with leaves across them."""
    places = [f"{{name: node-{index}, rack: {'aabb'[index]}{leaf and f', leaf: {leaf[index]}'}}}" for index in range(4)]
    text = spec_text.replace("  ep_size: 2\n", "  ep_size: 4\n").replace("experts: 4", "experts: 32")
    return text.replace("  nodes: 3\n", f"  nodes: [{', '.join(places)}]\n") + more


@pytest.mark.parametrize(("leaf", "helps"), [("xyxy", True), ("xxyy", False)])
def test_a_refusal_that_placing_anew_avoids_says_so(leaf, helps, spec_text, spec_file):
    """S721: units stay inside a rack each. Placed anew, leaves spread them over both racks, or do not."""
    before = run_passes(check_spec(spec_file(with_racks(spec_text, ""), "racks.yaml"))).deployed
    after = check_spec(spec_file(with_racks(spec_text, leaf, "coverage: rack\n"), "covered.yaml"))
    with pytest.raises(InfeasibleError) as error:
        run_passes(after, before)

    assert {each.id for each in error.value.findings} == {"S721"}
    assert {"without the previous plan (render --anew)" in each.message for each in error.value.findings} == {helps}
    if helps:
        assert run_passes(after).deployed.runnable
