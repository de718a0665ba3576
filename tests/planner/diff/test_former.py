"""Both plans of a change are judged under the new expert loads: what serves meanwhile, and what new maps gain."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planner.compiler import run_passes
from planner.diff.diff import compare_plans
from planner.diff.former import judge_former
from planner.diff.pair import Pair
from planner.diff.text import diff_text
from planner.diff.yardsticks import measure_by_former
from planner.facts.drawn import draw_loads
from planner.manifests.folder import files_of, kept_plan, write_folder
from planner.rules.check import change_spec, check_spec
from tests.planner.test_shipped_specs import SPECS

ON_ALL_DAY = {
    "cluster.nodes": 16,
    "schedule": {"windows": [{"at": "00:00", "prefill_units": 3, "decode_units": 2}]},
    "prefill.units": None,
    "decode.units": None,
    "kubernetes.controller": {},
    "traffic": {"input_tokens": 4e9, "output_tokens": 1e9},
}
MEASURED = {"expert_load": {"file": "loads.json"}}


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    """Three prefill units and two decode units, of which each phase can spare one under the loads it was made for."""
    folder = tmp_path_factory.mktemp("former")
    for name, seed in (("loads.json", 3), ("same.json", 3), ("others.json", 4)):
        rows = [[round(1000 * each) for each in row] for row in draw_loads(1.01, seed, 58, 256, 8)]
        (folder / name).write_text(json.dumps(rows))
    (folder / "even.json").write_text(json.dumps([[1000] * 256] * 58))
    (folder / "spec.yaml").write_text((SPECS / "h20.yaml").read_text())
    return change_spec(check_spec(folder / "spec.yaml"), ON_ALL_DAY)


@pytest.fixture(scope="module")
def before(spec):
    """What runs, made for drawn loads."""
    return run_passes(spec).plan


@pytest.fixture(scope="module")
def found(spec, before):
    """The plan for measured loads, near what runs."""
    return run_passes(change_spec(spec, MEASURED), before)


def rates(plan):
    return {phase: each.tokens_per_s_per_gpu.mid for phase, each in plan.performance.items()}


def test_the_former_maps_meet_the_new_loads(before, found):
    """They make less of them than of those they were made for, and less than the new maps."""
    judged, reference = judge_former(before, found), replace(found, keeps_maps=True).plan

    assert judged.map_digests == before.map_digests != found.plan.map_digests
    assert rates(judged) == rates(reference)
    assert all(rates(judged)[phase] < min(rates(before)[phase], rates(found.plan)[phase]) for phase in before.phases)


def test_what_serves_meanwhile_serves_the_new_loads(before, found):
    """Two of three prefill units are enough for the old loads only."""
    judged = judge_former(before, found)
    change = compare_plans(before, found.plan, judged=judged)
    text = " ".join(diff_text(change).split())

    assert compare_plans(before, found.plan).verdict == "rolling"
    assert change.verdict == "degraded"
    assert "loads drawn (power law, alpha 1.01, seed 0) -> measured (loads.json, sha256:" in text
    assert "verdict and figures are for the new loads; those before are what the former maps make of them" in text
    assert change.performance["prefill"].before["tokens_per_s_per_gpu"].value == pytest.approx(
        rates(judged)["prefill"], rel=1e-3
    )


def test_a_folder_is_judged_as_its_plan_is(before, found, tmp_path):
    """It keeps no figures, and the verdict needs only those of its demand."""
    write_folder(tmp_path / "deploy", files_of(before, None))
    kept = kept_plan(tmp_path / "deploy")
    judged = judge_former(kept, found)

    assert judged.report is None
    assert (
        compare_plans(kept, found.plan, judged=judged).ways
        == compare_plans(before, found.plan, judged=judge_former(before, found)).ways
    )


def test_figures_that_nobody_can_tell_are_named(before, found):
    """A finished plan does not say which loads it met, so the figures before are for the former ones."""
    change = compare_plans(before, found.plan, judged=judge_former(before, found.plan))

    assert change.loads.figures_before == "before"
    assert "figures before the change are for the former loads" in " ".join(diff_text(change).split())


def test_the_same_loads_under_another_name_are_no_change(spec, found):
    """What counts is what the file says."""
    same = run_passes(change_spec(spec, {"expert_load": {"file": "same.json"}}), found.plan)

    assert judge_former(found.plan, same) is found.plan
    assert compare_plans(found.plan, same.plan).loads is None


def test_drawn_loads_do_not_replace_measured_ones_unjudged(spec, found):
    """The new plan meets the measured ones too, where somebody who may has opened their file."""
    drawn = run_passes(spec, found.plan)
    measured = measure_by_former(found.plan, drawn, found.resolved.measured_loads)

    assert rates(measured.plan)["decode"] < rates(drawn.plan)["decode"]
    assert measure_by_former(found.plan, drawn).unknown.startswith("loads.json is not opened, because only a plan")


def test_a_folder_does_not_tell_what_its_loads_were(spec, found, tmp_path):
    """It keeps no digest of their file. So nobody says that the file has changed, or that another one is the same."""
    write_folder(tmp_path, files_of(found.plan, None))
    kept = kept_plan(tmp_path)
    others = run_passes(change_spec(spec, {"expert_load": {"file": "others.json"}}), kept)
    unknown, change = measure_by_former(kept, run_passes(spec, kept)).unknown, compare_plans(kept, others.plan)

    assert unknown.startswith("loads.json is not opened, because only a plan names it: give OLD as its spec")
    assert any(each.startswith("others.json counts as the same loads as loads.json, ") for each in change.assumed)


def test_a_change_of_loads_alone_shows_what_the_former_ones_would_give(spec, found):
    """New maps are for the new loads, so nothing is judged by the former ones, and a line says what it would be."""
    others = run_passes(change_spec(spec, {"expert_load": {"file": "others.json"}}), found.plan)
    pair = Pair.of(found.plan, others, loads=found.resolved.measured_loads)
    reference = rates(replace(found, previous=others.plan, keeps_maps=True).plan)
    change = pair.compare()
    text = " ".join(diff_text(change).split())

    assert rates(pair.remeasured.plan) == reference
    assert change.verdict == compare_plans(found.plan, others.plan, judged=pair.judged).verdict
    assert "yardstick moved: expert_load; nothing else changes, so the verdict is for the new loads alone" in text
    assert f"the new plan has: prefill's tokens/s of a GPU {reference['prefill']:,.0f} (" in text


def test_other_loads_do_not_excuse_fewer_units(spec, found):
    """Even loads make any plan fast. With those that were measured before, two units are too few."""
    fewer = {"schedule": {"windows": [{"at": "00:00", "prefill_units": 2, "decode_units": 2}]}}
    after = run_passes(change_spec(spec, fewer | {"expert_load": {"file": "even.json"}}), found.plan)
    pair = Pair.of(found.plan, after, loads=found.resolved.measured_loads)
    change = pair.compare()
    unknown = Pair.of(found.plan, after).compare()
    (short, *_) = change.shortages

    assert compare_plans(found.plan, after.plan, judged=pair.judged).verdict == "rolling"
    assert (change.verdict, short.phase, short.is_new) == ("degraded", "prefill", True)
    assert "the verdict is for both, and figures are for the new loads" in " ".join(diff_text(change).split())
    assert unknown.yardsticks.unknown.startswith("loads.json is not opened")


def test_loads_that_make_the_former_maps_look_bad_excuse_nothing(spec, found):
    """The former plan serves its own loads as well as it did."""
    fewer = {"schedule": {"windows": [{"at": "00:00", "prefill_units": 2, "decode_units": 2}]}}
    rows = [list(row) for row in found.resolved.expert_loads]
    for row, slots in zip(
        rows, found.plan.expert_maps[found.plan.map_digests["prefill"]].physical_to_logical, strict=True
    ):
        for expert in slots[:17]:
            row[expert] *= 50
    (Path(spec.document.file).parent / "hostile.json").write_text(json.dumps(rows))
    after = run_passes(change_spec(spec, fewer | {"expert_load": {"file": "hostile.json"}}), found.plan)
    change = Pair.of(found.plan, after, loads=found.resolved.measured_loads).compare()

    assert any(each.is_new and each.phase == "prefill" for each in change.shortages)


def test_a_size_that_is_decided_anew_is_named(spec):
    """The reason is given, since the spec says `auto` before and after."""
    sizes = {"prefill.redundant_experts": "auto"}
    before = run_passes(change_spec(spec, {"prefill.redundant_experts": 32})).plan
    after = run_passes(change_spec(spec, sizes)).plan
    (each,) = compare_plans(before, after).decided

    assert (each.path, each.before, each.after) == ("prefill.redundant_experts", 32, 16)
    assert f"decided prefill.redundant_experts 32 -> 16: {each.why[:20]}" in " ".join(
        diff_text(compare_plans(before, after)).split()
    )
