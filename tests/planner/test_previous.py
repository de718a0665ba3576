"""`plan --previous`: expert maps start from the previous plan's, and few of their slots change."""

import json

import pytest

from planner.cli import main


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
    """The map of each phase."""
    return {unit["phase"]: plan["expert_maps"][unit["expert_map"]] for unit in plan["units"]}


def test_the_same_loads_move_no_slot(plan, spec_text):
    """And the maps are the same ones."""
    first = plan(spec_text)
    second = plan(spec_text, first)

    assert [each["moves"] for each in maps_of(first).values()] == [None, None]
    assert [each["moves"]["moved_slots"] for each in maps_of(second).values()] == [0, 0]
    assert second["expert_maps"].keys() == first["expert_maps"].keys()


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


def test_a_map_of_other_sizes_is_no_start(plan, spec_text):
    """Eight redundant experts instead of four: the phase's map is a fresh one, the other phase's stays."""
    first = plan(spec_text)
    second = plan(
        spec_text.replace("  ep_size: 4\n  redundant_experts: 4", "  ep_size: 4\n  redundant_experts: 8"), first
    )

    assert maps_of(second)["decode"]["moves"] is None
    assert maps_of(second)["prefill"]["moves"]["moved_slots"] == 0
